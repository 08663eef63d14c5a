#include "softverbs/wire/process_link.h"

#include <algorithm>
#include <cerrno>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/wire/descriptors.h"
#include "softverbs/wire/requester.h"
#include "softverbs/wire/socket.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint32_t kPostBytes = 32 << 10;  // up to this length, the posting thread itself sends a message
constexpr uint64_t kLineBytes = 128;

}  // namespace

ProcessLink::ProcessLink(Port& at, bool requester, const Hello& said, uint16_t number)
    : port(at),
      is_requester(requester),
      hello(said),
      remote_port(number),
      born_ns(read_clock_ns()),
      called_ns_(born_ns) {}

const ibv_gid& ProcessLink::peer() const {
  return *reinterpret_cast<const ibv_gid*>(is_requester ? hello.destination : hello.source);
}

void ProcessLink::add_stream(uint32_t index, Loop& loop, int fd, bool is_connected,
                             std::shared_ptr<crypto::EncryptedStream> encryption) {
  bool is_watched = false;
  {
    std::lock_guard lock(add_mutex_);
    if (is_dead() || owned_[index] != nullptr) {
      drop(fd);
      return;
    }
    owned_[index] = std::make_unique<Stream>(*this, index, loop, fd, is_connected, std::move(encryption));
    // Watch the stream before other threads can pump it and change its epoll interest. Messages that were
    // queued before are sent at the loop's first event, which reports that the socket has space.
    is_watched = owned_[index]->watch();
    streams_[index].store(owned_[index].get(), std::memory_order_release);
  }
  if (!is_watched)
    fail("epoll cannot watch the socket (epoll_ctl); check free memory and fs.epoll.max_user_watches");
}

int ProcessLink::begin_connect() {
  sockaddr_storage from, to;
  const ibv_gid& source = *reinterpret_cast<const ibv_gid*>(hello.source);
  const socklen_t from_bytes = fill_socket_address(source, 0, from);
  const socklen_t to_bytes = fill_socket_address(peer(), remote_port, to);
  const int fd = open_socket(to.ss_family);
  if (fd < 0) return -1;
  const bool is_bound = bind(fd, reinterpret_cast<sockaddr*>(&from), from_bytes) == 0;
  const bool is_begun =
      is_bound && (connect(fd, reinterpret_cast<sockaddr*>(&to), to_bytes) == 0 || errno == EINPROGRESS);
  if (is_begun) return fd;
  const int error = errno;
  drop(fd);
  errno = error;
  return -1;
}

// Passes a stream that is still connecting to the loop, which learns the result from epoll.
bool ProcessLink::connect_stream(uint32_t index) {
  const int fd = begin_connect();
  if (fd < 0) return false;
  Loop& loop = port.get_loop(index);
  loop.post([link = shared_from_this(), index, &loop, fd] { link->add_stream(index, loop, fd, false); });
  return true;
}

void ProcessLink::retry_streams() {
  for (uint32_t index = 0; index < hello.streams; ++index) {
    Stream* stream = get_stream(index);
    if (stream == nullptr || !stream->is_sent_away()) continue;
    stream->loop().post([link = shared_from_this(), stream] { stream->reconnect(); });
  }
}

void ProcessLink::connect_rest() {
  if (has_all_.exchange(true)) return;
  for (uint32_t index = 1; index < hello.streams; ++index) connect_stream(index);
}

uint32_t ProcessLink::choose_primary(uint32_t qp_index) {
  const uint32_t index = qp_index % hello.streams;
  Stream* stream = get_stream(index);
  return stream != nullptr && stream->is_ready() ? index : 0;
}

bool ProcessLink::has_room(size_t limit) {
  std::lock_guard lock(queue_mutex_);
  return queue_.size() < limit;
}

void ProcessLink::submit(std::shared_ptr<OutMessage> message, bool from_poster) {
  const uint32_t primary = message->primary;
  const bool is_short = message->payload_bytes <= kPostBytes && !message->local.has_gpu;
  {
    std::lock_guard lock(queue_mutex_);
    queue_.push_back(std::move(message));
  }
  if (primary == kAnyStream && is_requester) connect_rest();
  for (uint32_t index = 0; index < hello.streams; ++index) {
    Stream* stream = get_stream(index);
    if (stream == nullptr || (primary != kAnyStream && index != primary)) continue;
    if (from_poster && is_short) {
      stream->pump();
    } else {
      stream->pump_soon();
    }
  }
}

void ProcessLink::cancel(uint32_t qp_index) {
  // A later message may have overtaken a short one whose primary stream had no space, but never a long one.
  std::shared_ptr<OutMessage> overtaken;
  {
    std::lock_guard lock(queue_mutex_);
    std::erase_if(queue_, [&](const std::shared_ptr<OutMessage>& message) {
      if (message->qp_index != qp_index || message->source != nullptr) return false;
      if (overtaken == nullptr && message->primary != kAnyStream) overtaken = message;
      return true;
    });
  }
  for (uint32_t index = 0; index < hello.streams; ++index) {
    Stream* stream = get_stream(index);
    if (stream == nullptr) continue;
    stream->cancel(qp_index);
    if (overtaken != nullptr && overtaken->primary == index) stream->abandon(overtaken->header);
  }
}

// Takes messages in the order of the queue: a stream never carries a chunk before a chunk that was posted
// earlier.
std::shared_ptr<OutMessage> ProcessLink::cut_frame(uint32_t stream, bool may_copy_gpu, Header& frame,
                                                   bool& is_gpu) {
  std::lock_guard lock(queue_mutex_);
  const auto next =
      std::find_if(queue_.begin(), queue_.end(), [&](const std::shared_ptr<OutMessage>& message) {
        return message->primary == kAnyStream || message->primary == stream;
      });
  if (next == queue_.end()) return nullptr;
  std::shared_ptr<OutMessage> message = *next;
  is_gpu = message->local.has_gpu;
  if (is_gpu && !may_copy_gpu) return nullptr;
  frame = message->header;
  frame.offset = message->cut;
  frame.length = std::min(message->chunk_bytes, message->payload_bytes - message->cut);
  // A line of NCCL's LL128 is never split between two chunks.
  const bool is_first_of_many = message->cut == 0 && frame.length < message->payload_bytes;
  if (is_first_of_many) frame.length -= static_cast<uint32_t>(frame.address % kLineBytes);
  message->cut += frame.length;
  if (message->cut == message->payload_bytes) queue_.erase(next);
  return message;
}

void ProcessLink::fail(const char* why) {
  if (is_dead_.exchange(true)) return;
  if (!is_up() && is_requester) {
    warn(
        "cannot reach the process at %s, TCP port %u: %s. Check that the process is running and that "
        "firewalls let the port through",
        write_address(peer()).c_str(), remote_port, why);
  }
  const auto self = shared_from_this();
  port.wire.forget(self);
  {
    std::lock_guard lock(queue_mutex_);
    queue_.clear();
  }
  std::lock_guard lock(add_mutex_);
  for (const auto& stream : owned_) {
    if (stream == nullptr) continue;
    Stream* closing = stream.get();
    closing->loop().post([self, closing] {
      closing->close();
      closing->loop().retire(self);
    });
  }
  if (is_requester) fail_requests(*this);
}

void ProcessLink::end_stream() {
  uint64_t never = 0;
  ending_since_ns_.compare_exchange_strong(never, read_clock_ns());
  const uint32_t ended = ended_streams_.fetch_add(1) + 1;
  if (!is_requester || ended >= count_streams()) fail("closed by the peer");
}

uint32_t ProcessLink::count_streams() {
  uint32_t present = 0;
  for (uint32_t index = 0; index < hello.streams; ++index) present += get_stream(index) != nullptr ? 1 : 0;
  return present;
}

void ProcessLink::check_end() {
  constexpr uint64_t kPatienceNs = 5'000'000'000;
  const uint64_t since_ns = ending_since_ns_.load();
  if (since_ns != 0 && read_clock_ns() - since_ns > kPatienceNs) fail("closed by the peer");
}

uint64_t ProcessLink::get_silence_ns() {
  uint64_t silence_ns = get_stream(0) == nullptr ? read_clock_ns() - born_ns : 0;
  for (uint32_t index = 0; index < hello.streams; ++index) {
    if (Stream* stream = get_stream(index)) silence_ns = std::max(silence_ns, stream->get_silence_ns());
  }
  return silence_ns;
}

}  // namespace verbena::softverbs::wire
