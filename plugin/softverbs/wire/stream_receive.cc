#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/copy.h"
#include "softverbs/wire/descriptors.h"
#include "softverbs/wire/gpu.h"
#include "softverbs/wire/process_link.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/responder.h"
#include "softverbs/wire/secret.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint32_t kBufferBytes = 160 << 10;  // buffer of a stream; holds a whole datagram
static_assert(kBufferBytes >= kMaxDatagramBytes + sizeof(Header));
constexpr uint32_t kDirectBytes = 8 << 10;  // longer payloads are received directly at their destination
constexpr ssize_t kTurnBytes = 2 << 20;     // after this many bytes, other streams are served

// Frames with a small payload that is processed as a whole.
bool is_whole(const Header& header) {
  return header.kind == Kind::kDatagram || (header.kind == Kind::kRequest && is_atomic_code(header.code));
}

}  // namespace

void Stream::on_ready(uint32_t events) {
  if (fd_ < 0) return;
  if ((events & EPOLLOUT) != 0) {
    if (!is_connected_) finish_connect();
    pump();
  }
  if ((events & (EPOLLERR | EPOLLHUP)) != 0 && (reading_ == Reading::kHeld || has_ended_))
    return link_.fail("connection lost");
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && fd_ >= 0 && is_connected_) receive();
}

// A listener with too many clients closes some before they have identified themselves. These clients connect
// again after a moment.
bool Stream::try_again() {
  constexpr uint64_t kPatienceNs = 5'000'000'000;
  if (reading_ != Reading::kHello || read_clock_ns() - link_.born_ns > kPatienceNs) return false;
  const Hold hold(*this);
  loop_.remove(fd_);
  const std::lock_guard watch_lock(watch_mutex_);
  drop(fd_);
  fd_ = -1;
  begin_ = end_ = 0;
  is_connected_ = false;
  is_sent_away_.store(true, std::memory_order_relaxed);
  return true;
}

void Stream::reconnect() {
  if (!is_sent_away() || link_.is_dead()) return;
  const int fd = link_.begin_connect();
  if (fd < 0) return link_.fail(strerror(errno));
  const Hold hold(*this);
  {
    const std::lock_guard watch_lock(watch_mutex_);
    fd_ = fd;
    wants_data_ = true;
  }
  is_sent_away_.store(false, std::memory_order_relaxed);
  say_hello();
  watch();
}

void Stream::end() {
  if (try_again()) return;
  has_ended_ = true;
  watch_data(false);
  link_.end_stream();
}

void Stream::finish_connect() {
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error == ECONNRESET && try_again()) return;
  if (error != 0) return link_.fail(strerror(error));
  const Hold hold(*this);
  is_connected_ = true;
}

void Stream::close() {
  const Hold hold(*this);
  if (fd_ < 0) return;
  loop_.remove(fd_);
  std::lock_guard watch_lock(watch_mutex_);
  drop(fd_);
  fd_ = -1;
  message_.reset();
  transfer_.reset();
  output_.clear();
  control_.clear();
  greeting_.clear();
}

void Stream::receive() {
  if (buffer_.empty()) buffer_.resize(kBufferBytes);
  for (ssize_t left = kTurnBytes; fd_ >= 0 && !has_ended_;) {
    if (work_off() == Buffered::kStopped) return;
    if (left <= 0) {  // data that was read is processed in any case, now or in a later turn
      if (encryption_ != nullptr && encryption_->has_buffered())
        loop_.post([link = link_.shared_from_this(), this] { receive(); });
      return;
    }
    const ssize_t count = receive_more();
    if (count == 0) return end();
    if (count < 0 && errno == EAGAIN) return;
    if (count < 0 && errno == ECONNRESET && try_again()) return;
    if (count < 0 && errno == EBADMSG) {
      warn(
          "a connection to another host was closed, because the received data was not encrypted with the job "
          "key or was changed in transit");
      return link_.fail("a record cannot be decrypted");
    }
    if (count < 0 && errno != EINTR) return link_.fail(strerror(errno));
    left -= count;
  }
}

void Stream::resume() {
  if (fd_ < 0 || reading_ != Reading::kHeld) return;
  if (take_up() == Buffered::kStopped && reading_ == Reading::kHeld) return;
  watch_data(true);
  receive();
}

Stream::Buffered Stream::work_off() {
  for (;;) {
    if (fd_ < 0 || link_.is_dead()) return Buffered::kStopped;
    switch (reading_) {
      case Reading::kHello:
        if (available() < sizeof(Hello)) return Buffered::kNeedsMore;
        if (!take_hello()) return Buffered::kStopped;
        break;
      case Reading::kHeader:
        if (available() < sizeof(Header)) return Buffered::kNeedsMore;
        if (!take_header()) return Buffered::kStopped;
        if (take_up() == Buffered::kStopped) return Buffered::kStopped;
        break;
      case Reading::kHeld:
        return Buffered::kStopped;
      case Reading::kPayload: {
        if (needs_gpu_ && !loop_.is_own_thread()) {
          loop_.post_to_thread([link = link_.shared_from_this(), this] { receive(); });
          return Buffered::kStopped;
        }
        if (!take_payload()) return Buffered::kNeedsMore;
        break;
      }
    }
  }
}

bool Stream::take_hello() {
  Hello hello;
  memcpy(&hello, buffer_.data() + begin_, sizeof(hello));
  begin_ += sizeof(hello);
  reading_ = Reading::kHeader;
  Ready ready{};
  const char* problem = nullptr;
  if (hello.magic != kMagic || hello.link != link_.hello.link)
    problem = "the peer is not a softverbs process";
  else if (hello.refusal == kKeyMissing || hello.refusal == kKeyUnknown ||
           (has_key() && hello.protection == kOpen))
    problem =
        "only one of the two processes has a job key. VERBENA_JOB_KEY_FILE must name the same key for every "
        "process";
  else if (hello.refusal == kEncryptionMissing || hello.refusal == kEncryptionUnknown ||
           (has_key() && hello.protection != get_protection()))
    problem = "only one of the two processes encrypts. VERBENA_ENCRYPTION must be the same for every process";
  else if (hello.refusal != kWelcome)
    problem =
        "the peer refuses the connection. Check that both processes use the same SOFTVERBS_JOB and the same "
        "version";
  else if (has_key() && (!check_welcome(said_, hello) || !sign_ready(said_, hello, ready)))
    problem =
        "the peer has a different job key. VERBENA_JOB_KEY_FILE must name the same key for every process";
  std::shared_ptr<crypto::EncryptedStream> encryption;
  if (problem == nullptr && get_protection() == kEncrypted) {
    encryption = make_encryption(said_, hello, true);
    if (encryption == nullptr || available() != 0) problem = "encryption cannot be set up";
  }
  if (problem != nullptr) {
    link_.fail(problem);
    return false;
  }
  {
    const Hold hold(*this);
    encryption_ = std::move(encryption);
    if (has_key()) greeting_.assign(ready.mac, ready.mac + sizeof(ready.mac));
    is_ready_ = true;
  }
  if (index == 0) link_.set_up();
  pump();
  return true;
}

bool Stream::take_header() {
  memcpy(&header_, buffer_.data() + begin_, sizeof(header_));
  begin_ += sizeof(header_);
  if (is_valid(header_, !link_.is_requester)) return true;
  link_.fail("a frame is malformed");
  return false;
}

// Decides how to handle the frame whose header has been read.
Stream::Buffered Stream::take_up() {
  done_ = 0;
  transfer_.reset();
  memory_.clear();
  reading_ = Reading::kPayload;
  Verdict verdict = Verdict::kDrop;
  switch (header_.kind) {
    case Kind::kRequest:
    case Kind::kAbandon:
      verdict = begin_request(link_, *this, header_, transfer_);
      break;
    case Kind::kResponse:
      verdict = begin_response(link_, header_, transfer_);
      break;
    case Kind::kAcknowledge:
      take_acknowledgement(link_, header_);
      break;
    case Kind::kRefusal:
      take_refusal(link_, header_);
      break;
    case Kind::kDatagram:
      verdict = Verdict::kPlace;
      break;
  }
  if (verdict == Verdict::kBreak) {
    link_.fail("a request is out of order");
    return Buffered::kStopped;
  }
  if (verdict == Verdict::kHold) {
    reading_ = Reading::kHeld;
    watch_data(false);
    return Buffered::kStopped;
  }
  if (verdict == Verdict::kDrop) header_.kind = Kind::kAcknowledge;  // its payload is dropped
  // Only determines whether GPU memory is involved; every store checks the keys again.
  needs_gpu_ =
      transfer_ != nullptr && resolve(transfer_->target, 0, transfer_->bytes, memory_) && memory_.has_gpu;
  // The receive that a datagram will take is not known yet.
  needs_gpu_ |= header_.kind == Kind::kDatagram && Process::get()->gpu_memory.is_any_registered();
  return Buffered::kNeedsMore;
}

// Returns false if more bytes are needed.
bool Stream::take_payload() {
  if (is_whole(header_)) {
    if (available() < header_.length) return false;
    const uint8_t* payload = buffer_.data() + begin_;
    begin_ += header_.length;
    if (header_.kind == Kind::kDatagram) {
      deliver_datagram(loop_, link_, header_, payload);
    } else {
      execute_request(*this, header_, *transfer_, payload);
    }
    reading_ = Reading::kHeader;
    return true;
  }
  const uint32_t take = std::min(available(), header_.length - done_);
  if (take > 0 && transfer_ != nullptr) store(buffer_.data() + begin_, take);
  begin_ += take;
  done_ += take;
  if (done_ < header_.length) return false;
  reading_ = Reading::kHeader;
  end_chunk();
  return true;
}

// Stores the next bytes of the payload, but keeps the message's tail for the end.
void Stream::store(const uint8_t* from, uint32_t bytes) {
  const uint32_t at = header_.offset + done_;
  const uint32_t tail_start = transfer_->bytes - transfer_->tail_bytes();
  const uint32_t body = at < tail_start ? std::min(bytes, tail_start - at) : 0;
  if (body < bytes) memcpy(transfer_->tail + (at + body - tail_start), from + body, bytes - body);
  if (body == 0 || transfer_->error.load(std::memory_order_relaxed) != 0) return;
  const bool is_stored = resolve(transfer_->target, at, body, memory_) && store_memory(loop_, memory_, from);
  if (!is_stored) transfer_->error.store(kOperationError);
}

ssize_t Stream::receive_more() {
  if (encryption_ != nullptr) return receive_encrypted();
  bool is_possible = false;
  const ssize_t count = receive_directly(is_possible);
  if (is_possible) return count;
  if (begin_ == end_) begin_ = end_ = 0;
  if (begin_ > 0 && kBufferBytes - end_ < kBufferBytes / 2) {
    memmove(buffer_.data(), buffer_.data() + begin_, available());
    end_ -= begin_;
    begin_ = 0;
  }
  uint32_t room = kBufferBytes - end_;
  // In a stream of long chunks, read only up to the next header: its payload is then received directly at its
  // destination.
  const bool is_bulk =
      encryption_ == nullptr && header_.length >= kDirectBytes && !needs_gpu_ && !get_config().ordered_lines;
  const uint32_t wanted = sizeof(Header) + (reading_ == Reading::kPayload ? header_.length - done_ : 0);
  if (is_bulk && available() < wanted) room = std::min(room, wanted - available());
  const ssize_t received = recv(fd_, buffer_.data() + end_, room, MSG_DONTWAIT);
  if (received > 0) end_ += static_cast<uint32_t>(received);
  return received;
}

// Copies a decrypted payload to its destination. Frames that are processed as a whole are collected first.
ssize_t Stream::receive_encrypted() {
  const ssize_t there = encryption_->receive(fd_);
  if (there <= 0) return there;
  const bool is_placed = reading_ == Reading::kPayload && !is_whole(header_);
  const uint32_t wanted = is_placed ? header_.length - done_
                          : reading_ == Reading::kPayload
                              ? header_.length - available()
                              : static_cast<uint32_t>(sizeof(Header)) - available();
  const uint32_t taken = std::min(wanted, static_cast<uint32_t>(there));
  if (is_placed) {
    if (transfer_ != nullptr) store(encryption_->received(), taken);
    done_ += taken;
  } else {
    if (available() == 0) begin_ = end_ = 0;
    memcpy(buffer_.data() + end_, encryption_->received(), taken);
    end_ += taken;
  }
  encryption_->take(taken);
  return static_cast<ssize_t>(taken);
}

ssize_t Stream::receive_directly(bool& is_possible) {
  if (reading_ != Reading::kPayload || transfer_ == nullptr || get_config().ordered_lines) return -1;
  const uint32_t at = header_.offset + done_, tail_start = transfer_->bytes - transfer_->tail_bytes();
  if (at >= tail_start || transfer_->error.load(std::memory_order_relaxed) != 0) return -1;
  const uint32_t bytes = std::min(header_.length - done_, tail_start - at);
  if (bytes < kDirectBytes || needs_gpu_ || !resolve(transfer_->target, at, bytes, memory_)) return -1;
  if (memory_.has_gpu) return -1;
  is_possible = true;
  msghdr message{};
  message.msg_iov = memory_.pieces.data();
  message.msg_iovlen = std::min<size_t>(memory_.pieces.size(), kMaxSges);
  const ssize_t received = recvmsg(fd_, &message, MSG_DONTWAIT);
  if (received < 0 && errno == EFAULT) {
    transfer_->error.store(kOperationError);
    errno = EINTR;
  }
  if (received > 0) done_ += static_cast<uint32_t>(received);
  return received;
}

void Stream::end_chunk() {
  if (transfer_ == nullptr) return;
  const std::shared_ptr<Transfer> transfer = std::move(transfer_);
  if (header_.kind == Kind::kRequest) end_request(*this, header_, transfer);
  if (header_.kind == Kind::kResponse) end_response(*this, header_, transfer);
}

void Stream::acknowledge(const Header& header) {
  if (acknowledgements_.empty()) {
    loop_.at_end([link = link_.shared_from_this(), this] { flush_acknowledgements(); });
  }
  for (Header& other : acknowledgements_) {
    if (other.target_qp != header.target_qp || other.session != header.session) continue;
    other.sequence = std::max(other.sequence, header.sequence);
    return;
  }
  acknowledgements_.push_back(header);
}

void Stream::flush_acknowledgements() {
  {
    const Hold hold(*this);
    const auto* first = reinterpret_cast<const uint8_t*>(acknowledgements_.data());
    control_.insert(control_.end(), first, first + acknowledgements_.size() * sizeof(Header));
  }
  acknowledgements_.clear();
  pump();
}

}  // namespace verbena::softverbs::wire
