#include "transport/datagram/process_life.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/file_descriptor.h"
#include "base/parameters.h"

namespace verbena::transport::datagram {

using protocol::datagram::ProcessName;

namespace {

std::string read_short(const char* path) {
  char text[512];
  const base::FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t length = file ? read(file.get(), text, sizeof(text)) : 0;
  return {text, static_cast<size_t>(length > 0 ? length : 0)};
}

struct Status {
  bool is_known = false, is_dead = false;
  uint64_t start_ticks = 0;
};

// Reads the fields after the command's name, which may contain any character. A process whose first thread
// has ended while others run is also shown as a zombie, but with several threads. Reads the file of the first
// thread, because qemu-user fakes the file of the process.
Status read_status(uint32_t pid) {
  constexpr int kThreadsField = 20, kStartField = 22;
  const std::string number = std::to_string(pid);
  const std::string text = read_short(("/proc/" + number + "/task/" + number + "/stat").c_str());
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return {};
  Status status{.is_known = true};
  const char state = text[name_end + 2];
  const char* field = text.c_str() + name_end + 2;
  uint64_t threads = 0;
  for (int i = 3; field != nullptr; ++i) {
    if (i == kThreadsField) threads = std::strtoull(field, nullptr, 10);
    if (i == kStartField) status.start_ticks = std::strtoull(field, nullptr, 10);
    field = std::strchr(field, ' ');
    if (field != nullptr) ++field;
  }
  status.is_dead = state == 'X' || (state == 'Z' && threads <= 1);
  return status;
}

uint64_t mix(const std::string& text) {
  uint64_t sum = 0xCBF29CE484222325;
  for (const char byte : text) sum = (sum ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
  return sum;
}

}  // namespace

ProcessName name_own_process() {
  struct stat space {};
  const std::string boot = read_short("/proc/sys/kernel/random/boot_id");
  const Status status = read_status(static_cast<uint32_t>(getpid()));
  if (boot.empty() || stat("/proc/self/ns/pid", &space) != 0 || !status.is_known) return {};
  return {.space = mix(boot + "/" + std::to_string(space.st_ino) + "/" + base::parameters().host_id) | 1,
          .start_ticks = status.start_ticks,
          .pid = static_cast<uint32_t>(getpid()),
          .reserved = 0};
}

bool has_ended(const ProcessName& process) {
  const auto pid = static_cast<pid_t>(process.pid);
  if (pid <= 0) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  const Status status = read_status(process.pid);
  return status.is_known && (status.is_dead || status.start_ticks != process.start_ticks);
}

}  // namespace verbena::transport::datagram
