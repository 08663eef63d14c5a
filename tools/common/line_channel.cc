#include "common/line_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "common/clock.h"

namespace verbena::tools {
namespace {

constexpr size_t kMaxLineBytes = 1 << 20;  // a longer line does not come from one of our tools

bool wait_ready(int descriptor, short events, int64_t deadline_ns) {
  for (;;) {
    pollfd entry{descriptor, events, 0};
    const int ready = poll(&entry, 1, compute_poll_timeout_ms(deadline_ns));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (now_ns() >= deadline_ns) return false;
  }
}

}  // namespace

int compute_poll_timeout_ms(int64_t deadline_ns) {
  const int64_t left_ns = std::max<int64_t>(deadline_ns - now_ns(), 0);
  return static_cast<int>(std::min<int64_t>((left_ns + 999'999) / 1'000'000, 1'000'000));
}

bool LineChannel::send_line(std::string_view line, int64_t deadline_ns) {
  std::string text(line);
  text += '\n';
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count =
        send(descriptor(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_ready(descriptor(), POLLOUT, deadline_ns)) return false;
    } else if (count < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

// Reads the available bytes up to the end of the line, and no further: a process that inherits the descriptor
// reads the next lines.
ssize_t LineChannel::read_some() {
  char chunk[4096];
  const ssize_t seen = recv(descriptor(), chunk, sizeof chunk, MSG_DONTWAIT | MSG_PEEK);
  if (seen <= 0) return seen;
  const void* const end = std::memchr(chunk, '\n', static_cast<size_t>(seen));
  const size_t wanted = end == nullptr ? static_cast<size_t>(seen)
                                       : static_cast<size_t>(static_cast<const char*>(end) - chunk) + 1;
  const ssize_t count = recv(descriptor(), chunk, wanted, MSG_DONTWAIT);
  if (count > 0) begun_.append(chunk, static_cast<size_t>(count));
  return count;
}

LineChannel::Received LineChannel::receive_line(int64_t deadline_ns) {
  while (begun_.size() <= kMaxLineBytes) {
    const ssize_t count = read_some();
    if (count > 0) {
      if (begun_.back() != '\n') continue;
      begun_.pop_back();
      return {Status::kLine, std::exchange(begun_, {})};
    }
    if (count == 0) break;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) break;
    if (!wait_ready(descriptor(), POLLIN, deadline_ns)) return {Status::kTimeout, {}};
  }
  return {Status::kClosed, {}};
}

}  // namespace verbena::tools
