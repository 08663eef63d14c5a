#include "softverbs/faults/setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "softverbs/shared/config.h"

namespace verbena::softverbs::faults {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;

void refuse(Setup& setup, const std::string& what) {
  warn("%s; because of this error, softverbs offers no device", what.c_str());
  setup.is_valid = false;
}

void load_plan(Setup& setup) {
  const std::string& value = get_config().faults;
  if (value.empty()) return;
  const bool is_path = value[0] == '/' || value[0] == '.';
  const std::string name = is_path ? value : "SOFTVERBS_FAULTS";
  std::string text = value;
  if (is_path && !read_file(value, text)) return refuse(setup, name + ": " + strerror(errno));
  ParsedPlan parsed = parse_plan(text);
  if (!parsed.problem.empty()) return refuse(setup, name + ": " + parsed.problem);
  setup.plan = std::move(parsed.plan);
}

// The file need not exist yet.
void load_rails(Setup& setup) {
  setup.rails_path = get_config().rails;
  if (setup.rails_path.empty()) return;
  std::string text;
  if (!read_file(setup.rails_path, text)) {
    if (errno != ENOENT) refuse(setup, setup.rails_path + ": " + strerror(errno));
    return;
  }
  const RailOrders orders = parse_rails(text);
  if (!orders.problem.empty()) refuse(setup, setup.rails_path + ": " + orders.problem);
}

Setup load() {
  Setup setup;
  load_plan(setup);
  load_rails(setup);
  return setup;
}

}  // namespace

const Setup& get_setup() {
  static const auto* setup = new Setup(load());
  return *setup;
}

bool read_file(const std::string& path, std::string& text) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  text.resize(kMaxFileBytes + 1);
  size_t length = 0;
  ssize_t taken = 0;
  while (length < text.size() && (taken = read(fd, text.data() + length, text.size() - length)) > 0)
    length += static_cast<size_t>(taken);
  const int error = taken < 0 ? errno : length > kMaxFileBytes ? EFBIG : 0;
  close(fd);
  text.resize(length);
  errno = error;
  return error == 0;
}

}  // namespace verbena::softverbs::faults
