#include "crypto/encrypted_stream.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "crypto/libcrypto.h"

namespace verbena::crypto {
namespace {

// A record: the length of its plain text (little endian, authenticated), the encrypted text, the tag. The
// nonce is the number of the record, so a key never encrypts two records with the same nonce.
constexpr size_t kHeaderBytes = 4, kTagBytes = 16, kNonceBytes = 12;

constexpr size_t kAddedBytes = kHeaderBytes + kTagBytes;

// Encrypts or decrypts in place, and writes or checks the tag.
bool run(evp_cipher_ctx_st* context, bool encrypts, uint64_t number, uint8_t* record, size_t bytes) {
  uint8_t *text = record + kHeaderBytes, *tag = text + bytes;
  const Libcrypto& api = *find_libcrypto();
  uint8_t nonce[kNonceBytes] = {};
  memcpy(nonce, &number, sizeof(number));
  int done = 0;
  if (api.init(context, nullptr, nullptr, nullptr, nonce, encrypts ? 1 : 0) != 1) return false;
  if (!encrypts && api.control(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag) != 1) return false;
  if (api.update(context, nullptr, &done, record, kHeaderBytes) != 1) return false;
  if (api.update(context, text, &done, text, static_cast<int>(bytes)) != 1) return false;
  if (api.finish(context, text + done, &done) != 1) return false;
  return !encrypts || api.control(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) == 1;
}

}  // namespace

void EncryptedStream::FreeContext::operator()(evp_cipher_ctx_st* context) const {
  find_libcrypto()->free_context(context);
}

EncryptedStream::Context EncryptedStream::make_context(const StreamKey& key, bool encrypts) {
  const Libcrypto& api = *find_libcrypto();
  Context context(api.new_context());
  const bool is_good = context != nullptr && api.init(context.get(), api.aes_256_gcm(), nullptr, key.data(),
                                                      nullptr, encrypts ? 1 : 0) == 1;
  if (!is_good) context.reset();
  return context;
}

std::unique_ptr<EncryptedStream> EncryptedStream::create(const StreamKey& sending, const StreamKey& receiving,
                                                         Size size) {
  if (find_libcrypto() == nullptr) return nullptr;
  std::unique_ptr<EncryptedStream> stream(new EncryptedStream(size));
  stream->sender_ = make_context(sending, true);
  stream->receiver_ = make_context(receiving, false);
  if (stream->sender_ == nullptr || stream->receiver_ == nullptr) return nullptr;
  stream->out_.resize(size.record_bytes + kAddedBytes);
  stream->in_.resize((size.record_bytes + kAddedBytes) * (size.reads_ahead ? 2 : 1));
  return stream;
}

EncryptedStream::~EncryptedStream() = default;

uint8_t* EncryptedStream::room() {
  return out_.data() + kHeaderBytes;
}

bool EncryptedStream::seal(size_t bytes) {
  const auto length = static_cast<uint32_t>(bytes);
  memcpy(out_.data(), &length, sizeof(length));
  out_at_ = out_bytes_ = 0;
  if (!run(sender_.get(), true, sent_++, out_.data(), bytes)) {
    errno = EBADMSG;
    return false;
  }
  out_bytes_ = kHeaderBytes + bytes + kTagBytes;
  return true;
}

bool EncryptedStream::flush(int fd) {
  while (is_pending()) {
    const ssize_t sent = ::send(fd, out_.data() + out_at_, out_bytes_ - out_at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    out_at_ += static_cast<size_t>(sent);
  }
  return true;
}

ssize_t EncryptedStream::send(int fd, const void* data, size_t bytes) {
  if (taken_ == 0 && bytes != 0) {
    taken_ = std::min(bytes, size_.record_bytes);
    memcpy(room(), data, taken_);
    if (!seal(taken_)) return -1;
  }
  if (!flush(fd)) return -1;
  return static_cast<ssize_t>(std::exchange(taken_, 0));
}

// Returns false if the next bytes are not a record of the peer.
bool EncryptedStream::open_next(bool& is_whole) {
  uint32_t length = 0;
  is_whole = false;
  if (in_end_ - in_at_ < kHeaderBytes) return true;
  memcpy(&length, in_.data() + in_at_, sizeof(length));
  if (length == 0 || length > size_.record_bytes) return false;
  if (in_end_ - in_at_ < kHeaderBytes + length + kTagBytes) return true;
  if (!run(receiver_.get(), false, received_++, in_.data() + in_at_, length)) return false;
  is_whole = true;
  plain_at_ = in_at_ + kHeaderBytes;
  plain_end_ = plain_at_ + length;
  in_at_ = plain_end_ + kTagBytes;
  return true;
}

// Returns how many bytes of the next record are missing. Call it only if in_at_ is 0 and the record is not
// complete.
size_t EncryptedStream::count_wanted() const {
  if (size_.reads_ahead) return in_.size() - in_end_;
  if (in_end_ < kHeaderBytes) return kHeaderBytes - in_end_;
  uint32_t length = 0;
  memcpy(&length, in_.data(), sizeof(length));
  return length + kAddedBytes - in_end_;
}

ssize_t EncryptedStream::receive(int fd) {
  for (bool is_whole = has_received(); !is_whole;) {
    if (!open_next(is_whole)) return errno = EBADMSG, -1;
    if (is_whole) break;
    if (in_at_ != 0) memmove(in_.data(), in_.data() + in_at_, in_end_ - in_at_);
    in_end_ -= std::exchange(in_at_, 0);
    const ssize_t count = recv(fd, in_.data() + in_end_, count_wanted(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count == 0 && in_end_ != 0) return errno = ECONNRESET, -1;
    if (count <= 0) return count;
    in_end_ += static_cast<size_t>(count);
  }
  return static_cast<ssize_t>(plain_end_ - plain_at_);
}

ssize_t EncryptedStream::receive(int fd, void* data, size_t bytes) {
  const ssize_t there = receive(fd);
  if (there <= 0) return there;
  const size_t taken = std::min(bytes, static_cast<size_t>(there));
  memcpy(data, received(), taken);
  take(taken);
  return static_cast<ssize_t>(taken);
}

}  // namespace verbena::crypto
