#include "common/line_channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/clock.h"

namespace verbena::tools {
namespace {

constexpr size_t kMaxLineBytes = 1 << 20;  // who sends more without an end is none of ours

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

LineChannel::LineChannel(LineChannel&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), buffer_(std::move(other.buffer_)) {}

LineChannel& LineChannel::operator=(LineChannel&& other) noexcept {
  if (this != &other) {
    close_descriptor();
    descriptor_ = std::exchange(other.descriptor_, -1);
    buffer_ = std::move(other.buffer_);
  }
  return *this;
}

LineChannel::~LineChannel() {
  close_descriptor();
}

void LineChannel::close_descriptor() {
  if (descriptor_ >= 0) close(descriptor_);
  descriptor_ = -1;
}

bool LineChannel::send_line(std::string_view line, int64_t deadline_ns) {
  std::string text(line);
  text += '\n';
  size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t count =
        send(descriptor_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_ready(descriptor_, POLLOUT, deadline_ns)) return false;
    } else if (count < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

std::optional<std::string> LineChannel::take_buffered_line() {
  const size_t end = buffer_.find('\n');
  if (end == std::string::npos) return std::nullopt;
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

int LineChannel::read_more(int64_t deadline_ns) {
  char chunk[4096];
  for (;;) {
    if (buffer_.size() > kMaxLineBytes) return -1;
    const ssize_t count = recv(descriptor_, chunk, sizeof chunk, MSG_DONTWAIT);
    if (count > 0) {
      buffer_.append(chunk, static_cast<size_t>(count));
      return 1;
    }
    if (count == 0) return -1;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return -1;
    if (!wait_ready(descriptor_, POLLIN, deadline_ns)) return 0;
  }
}

LineChannel::Received LineChannel::receive_line(int64_t deadline_ns) {
  for (;;) {
    if (auto line = take_buffered_line()) return {Status::kLine, std::move(*line)};
    const int outcome = read_more(deadline_ns);
    if (outcome <= 0) return {outcome == 0 ? Status::kTimeout : Status::kClosed, {}};
  }
}

}  // namespace verbena::tools
