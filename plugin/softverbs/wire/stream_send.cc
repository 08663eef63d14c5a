#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/random.h"
#include "softverbs/wire/descriptors.h"
#include "softverbs/wire/gpu.h"
#include "softverbs/wire/process_link.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"
#include "softverbs/wire/secret.h"

namespace verbena::softverbs::wire {
namespace {

constexpr size_t kMaxPieces = 64;        // of one system call
constexpr int kPosterFrames = 4;         // frames sent by a posting thread; the loop sends the rest
constexpr size_t kMaxControl = 1 << 20;  // maximum queued for a peer that does not read

void append(std::vector<uint8_t>& to, const void* from, size_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(from);
  to.insert(to.end(), begin, begin + bytes);
}

}  // namespace

Stream::Stream(ProcessLink& link, uint32_t number, Loop& loop, int fd, bool is_connected,
               std::shared_ptr<crypto::EncryptedStream> encryption)
    : index(number),
      link_(link),
      loop_(loop),
      fd_(fd),
      is_connected_(is_connected),
      encryption_(std::move(encryption)),
      is_ready_(!link.is_requester),
      reading_(link.is_requester ? Reading::kHello : Reading::kHeader) {
  // With a key, a listener has sent its answer already.
  if (link.is_requester || !has_key()) say_hello();
}

// Sends the requester's Hello, or the answer to it.
void Stream::say_hello() {
  said_ = link_.hello;
  said_.stream = index;
  if (link_.is_requester && has_key()) {
    said_.protection = get_protection();
    if (!draw(said_.challenge)) is_broken_ = true;
  }
  greeting_.clear();
  append(greeting_, &said_, sizeof(said_));
}

Stream::~Stream() {
  drop(fd_);
}

bool Stream::watch() {
  wants_room_ = true;
  return loop_.add(fd_, EPOLLIN | EPOLLOUT, *this);
}

void Stream::watch(bool& interest, bool wanted) {
  std::lock_guard lock(watch_mutex_);
  if (interest == wanted || fd_ < 0) return;
  interest = wanted;
  loop_.change(fd_, (wants_data_ ? EPOLLIN : 0u) | (wants_room_ ? EPOLLOUT : 0u), *this);
}

void Stream::watch_data(bool wanted) {
  watch(wants_data_, wanted);
}

void Stream::control(const Header& header) {
  {
    const Hold hold(*this);
    append(control_, &header, sizeof(header));
  }
  pump();
}

void Stream::pump_soon() {
  if (is_pump_posted_.exchange(true)) return;
  loop_.post([link = link_.shared_from_this(), this] {
    is_pump_posted_.store(false);
    pump();
  });
}

Stream::Hold::~Hold() {
  stream_.send_mutex_.unlock();
  if (stream_.wants_pump_.fetch_add(0) != 0) stream_.pump_soon();
}

void Stream::pump() {
  wants_pump_.exchange(1);
  while (wants_pump_.fetch_add(0) != 0) {
    std::unique_lock lock(send_mutex_, std::try_to_lock);
    if (!lock) return;  // its holder checks again
    wants_pump_.exchange(0);
    const bool is_alive = pump_once();
    lock.unlock();
    if (is_alive) continue;
    loop_.post([link = link_.shared_from_this()] { link->fail("cannot send"); });
    return;
  }
}

// Returns false if the connection is broken.
bool Stream::pump_once() {
  for (int frames = 0; fd_ >= 0 && is_connected_;) {
    if (is_broken_ || control_.size() > kMaxControl) return false;
    if (output_.empty() && is_ready_ && begin_frame() && ++frames > kPosterFrames && !loop_.is_mine()) {
      pump_soon();
      return true;
    }
    if (output_.empty() && greeting_.empty() && !is_pending() && (control_.empty() || !is_ready_)) {
      watch(wants_room_, false);
      return true;
    }
    if (send_some() >= 0) continue;
    if (errno == EINTR) continue;
    if (errno == EFAULT && !is_begun_ && control_.empty() && message_ != nullptr) {
      give_up_frame(message_->source != nullptr ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR);
      continue;
    }
    if (errno != EAGAIN) return !is_ready_;  // the peer has closed it early: receive() handles that
    if (message_ != nullptr && message_->source != nullptr && !keep_remainder()) return false;
    watch(wants_room_, true);
    return true;
  }
  return true;
}

bool Stream::begin_frame() {
  for (;;) {
    bool is_gpu = false;
    message_ = link_.cut_frame(index, loop_.is_own_thread(), frame_, is_gpu);
    if (message_ == nullptr) {
      if (is_gpu) loop_.post_to_thread([link = link_.shared_from_this(), this] { pump(); });
      return false;
    }
    output_.assign(1, {&frame_, sizeof(frame_)});
    is_begun_ = false;
    const ibv_wc_status status = frame_.length == 0 ? IBV_WC_SUCCESS : find_payload(is_gpu);
    if (status == IBV_WC_SUCCESS) return true;
    give_up_frame(status);
  }
}

// Gives up a frame of which nothing was sent: notifies the peer that it will not come, and fails the message.
void Stream::give_up_frame(ibv_wc_status status) {
  const std::shared_ptr<OutMessage> message = std::move(message_);
  output_.clear();
  if (message->source != nullptr) {
    const Header refusal = refuse_response(*message, status);
    append(control_, &refusal, sizeof(refusal));
    loop_.post([message, status] { fail_responder(*message->source, status); });
  } else if (message->header.kind == Kind::kRequest) {
    const Header abandon = make_abandon(message->header);
    append(control_, &abandon, sizeof(abandon));
    loop_.post(
        [link = link_.shared_from_this(), message, status] { fail_request(*link, message->header, status); });
  }
}

// Finds the payload's memory. For a request: as gathered when it was posted, if its keys are still valid. For
// a response: by its keys as they are now.
ibv_wc_status Stream::find_payload(bool is_gpu) {
  Memory whole, *memory = &message_->local;
  uint64_t offset = frame_.offset;
  const bool is_request = message_->source == nullptr;
  if (!is_request) {
    if (!resolve(*message_->source, offset, frame_.length, whole)) return IBV_WC_REM_ACCESS_ERR;
    memory = &whole;
    offset = 0;
  } else if (!holds(*memory)) {
    return IBV_WC_LOC_PROT_ERR;
  }
  if (!is_gpu && !memory->has_gpu) {
    for (const iovec& piece : slice_pieces(memory->pieces, offset, frame_.length)) output_.push_back(piece);
    return IBV_WC_SUCCESS;
  }
  remainder_.resize(frame_.length);
  if (!load_memory(loop_, *memory, offset, remainder_.data(), frame_.length))
    return is_request ? IBV_WC_GENERAL_ERR : IBV_WC_REM_OP_ERR;
  output_.push_back({remainder_.data(), remainder_.size()});
  return IBV_WC_SUCCESS;
}

// The greeting is sent unencrypted, because the peer needs it before it can decrypt.
ssize_t Stream::send_some() {
  if (encryption_ != nullptr && greeting_.empty()) return send_encrypted();
  iovec pieces[kMaxPieces];
  size_t count = 0;
  if (!greeting_.empty()) pieces[count++] = {greeting_.data(), greeting_.size()};
  if (encryption_ == nullptr) {
    if (!is_begun_ && is_ready_ && !control_.empty()) pieces[count++] = {control_.data(), control_.size()};
    for (size_t i = 0; i < output_.size() && count < kMaxPieces; ++i) pieces[count++] = output_[i];
  }
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) account(static_cast<size_t>(sent));
  return sent;
}

// Encrypted data counts as sent.
ssize_t Stream::send_encrypted() {
  if (!encryption_->is_pending()) {
    const size_t bytes = gather(encryption_->room(), encryption_->max_bytes());
    if (bytes == 0) errno = EFAULT;
    if (bytes == 0 || !encryption_->seal(bytes)) return -1;
    account(bytes);
  }
  return encryption_->flush(fd_) ? 0 : -1;
}

// Copies the next bytes to send. A new frame begins only if all bytes that fit can be read; otherwise returns
// 0.
size_t Stream::gather(uint8_t* to, size_t max_bytes) {
  size_t bytes = 0;
  if (!is_begun_ && is_ready_ && !control_.empty()) {
    bytes = std::min(control_.size(), max_bytes);
    memcpy(to, control_.data(), bytes);
  }
  const size_t before_frame = bytes;
  for (const iovec& piece : output_) {
    const size_t take = std::min(piece.iov_len, max_bytes - bytes);
    if (take == 0) break;
    const auto* from = static_cast<const uint8_t*>(piece.iov_base);
    const bool is_ours = from >= reinterpret_cast<const uint8_t*>(&frame_) &&
                         from < reinterpret_cast<const uint8_t*>(&frame_ + 1);
    if (is_ours) {
      memcpy(to + bytes, from, take);
    } else if (!load_host({piece.iov_base, take}, to + bytes)) {
      return is_begun_ ? bytes : before_frame;
    }
    bytes += take;
  }
  return bytes;
}

void Stream::account(size_t bytes) {
  const auto take_from = [&](std::vector<uint8_t>& sent) {
    const size_t take = std::min(bytes, sent.size());
    sent.erase(sent.begin(), sent.begin() + static_cast<ptrdiff_t>(take));
    bytes -= take;
  };
  if (!greeting_.empty()) take_from(greeting_);
  if (!is_begun_ && is_ready_ && !control_.empty()) take_from(control_);
  if (bytes == 0) return;
  is_begun_ = true;
  size_t gone = 0;
  while (bytes > 0) {
    iovec& piece = output_[gone];
    const size_t take = std::min(bytes, piece.iov_len);
    piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + take;
    piece.iov_len -= take;
    bytes -= take;
    if (piece.iov_len == 0) ++gone;
  }
  output_.erase(output_.begin(), output_.begin() + static_cast<ptrdiff_t>(gone));
  if (!output_.empty()) return;
  is_begun_ = false;
  message_.reset();
}

// Copies the rest of the frame, so that the frame no longer refers to the application's memory. Returns false
// if the bytes are gone: a part of the frame was sent, so the connection cannot continue.
bool Stream::keep_remainder() {
  if (output_.empty()) return true;
  std::vector<uint8_t> rest(count_bytes(output_));
  uint64_t done = 0;
  for (const iovec& piece : output_) {
    if (!load_host(piece, rest.data() + done)) is_broken_ = true;
    done += piece.iov_len;
  }
  remainder_.swap(rest);
  output_.assign(1, {remainder_.data(), remainder_.size()});
  return !is_broken_;
}

void Stream::cancel(uint32_t qp_index) {
  Header request{};
  {
    const Hold hold(*this);
    if (message_ == nullptr || message_->source != nullptr || message_->qp_index != qp_index) return;
    if (is_begun_) {
      if (!keep_remainder()) pump_soon();
      return;
    }
    request = message_->header;
    output_.clear();
    message_.reset();
  }
  abandon(request);
}

void Stream::forget_memory(uint32_t key) {
  const Hold hold(*this);
  if (message_ == nullptr || message_->source != nullptr) return;
  const auto& keys = message_->local.keys;
  if (std::find(keys.begin(), keys.end(), key) == keys.end()) return;
  if (!is_begun_) give_up_frame(IBV_WC_LOC_PROT_ERR);
  if (!keep_remainder() || !is_begun_) pump_soon();
}

void Stream::abandon(const Header& request) {
  {
    const Hold hold(*this);
    const Header abandon = make_abandon(request);
    append(control_, &abandon, sizeof(abandon));
  }
  pump_soon();
}

uint64_t Stream::get_silence_ns() {
  const Hold hold(*this);
  if (fd_ < 0) return 0;
  if (!is_connected_) return read_clock_ns() - link_.born_ns;
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  return uint64_t{info.tcpi_last_ack_recv} * 1'000'000;
}

}  // namespace verbena::softverbs::wire
