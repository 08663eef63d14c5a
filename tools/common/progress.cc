#include "common/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "common/clock.h"

namespace verbena::tools {
namespace {

constexpr int64_t kQuietNs = 500'000'000;  // a shorter run shows no progress
constexpr int64_t kPauseNs = 100'000'000;
constexpr size_t kUsualWidth = 80;

size_t find_width(int descriptor) {
  winsize size{};
  const bool is_known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? size.ws_col : kUsualWidth;
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(descriptor, text.data(), text.size());
    if (count <= 0) return;  // an error on the terminal is not reported
    text.remove_prefix(static_cast<size_t>(count));
  }
}

}  // namespace

Progress::Progress(uint64_t total) : Progress(total, STDERR_FILENO, isatty(STDERR_FILENO) == 1, kQuietNs) {}

Progress::Progress(uint64_t total, int descriptor, bool is_terminal, int64_t quiet_ns)
    : total_(total),
      descriptor_(descriptor),
      is_terminal_(is_terminal),
      begin_ns_(now_ns()),
      next_ns_(begin_ns_ + quiet_ns) {}

void Progress::show(uint64_t done, const std::string& doing) {
  const int64_t time_ns = now_ns();
  if (!is_terminal_ || time_ns < next_ns_) return;
  next_ns_ = time_ns + kPauseNs;
  std::string line = std::to_string((time_ns - begin_ns_) / 1'000'000'000) + " s, ";
  if (total_ != 0)
    line += std::to_string(std::min(done, total_)) + " of " + std::to_string(total_) + " done, ";
  line += doing;
  const size_t most = find_width(descriptor_) - 1;  // a full line would scroll the screen
  if (line.size() > most) line.resize(most);
  write_all(descriptor_, "\r" + line + "\033[K");
  is_shown_ = true;
}

void Progress::clear() {
  if (is_shown_) write_all(descriptor_, "\r\033[K");
  is_shown_ = false;
}

}  // namespace verbena::tools
