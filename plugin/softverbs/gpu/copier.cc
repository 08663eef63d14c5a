#include "softverbs/gpu/copier.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>

#include "softverbs/engine/objects.h"
#include "softverbs/engine/process.h"
#include "softverbs/gpu/call_watch.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/own_thread.h"
#include "softverbs/wire/descriptors.h"

namespace verbena::softverbs {
namespace {

using copier::Command;
using copier::Hello;
using copier::Reply;
using copier::Request;

constexpr char kProgram[] = "softverbs-copier";
constexpr time_t kStartSeconds = 60, kAnswerSeconds = 30;

// Returns the file from which an address of this process is mapped. The kernel reports it, so a chdir() does
// not change it.
std::string find_file(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    int path_at = 0;
    if (sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %*s %n", &begin, &end, &path_at) < 2 || path_at == 0)
      continue;
    const auto at = reinterpret_cast<unsigned long>(address);
    if (at >= begin && at < end) return line.substr(static_cast<size_t>(path_at));
  }
  return {};
}

// The program is in the folder of this library.
std::string find_program() {
  static const char marker = 0;
  const std::string library = find_file(&marker);
  return library.substr(0, library.rfind('/') + 1) + kProgram;
}

// Returns the path of the driver that the application has loaded, so that the copier loads the same one.
std::string find_driver_path() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  std::string path = "libcuda.so.1";
  if (library != nullptr && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0) path = map->l_name;
  if (library != nullptr) dlclose(library);
  return path;
}

// Copies the application's environment, without variables that would make the copier run other code or slow
// it down. The copier sees all GPUs, so that it can access GPUs of peers. CUDA_VISIBLE_DEVICES is kept only
// if it selects an instance of a GPU (MIG).
std::vector<char*> make_environment() {
  std::vector<char*> kept;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const auto is = [variable](const char* name) {
      const size_t length = strlen(name);
      return strncmp(*variable, name, length) == 0 && (*variable)[length] == '=';
    };
    const bool hides_gpus = is("CUDA_VISIBLE_DEVICES") && strstr(*variable, "MIG") == nullptr;
    if (hides_gpus || is("LD_PRELOAD") || is("LD_AUDIT") || is("CUDA_INJECTION64_PATH") ||
        is("CUDA_LAUNCH_BLOCKING"))
      continue;
    kept.push_back(*variable);
  }
  kept.push_back(nullptr);
  return kept;
}

// Starts the program directly or, if the installation has removed its execute permission, through the dynamic
// loader.
int spawn(const std::string& program, std::vector<std::string> arguments,
          const posix_spawn_file_actions_t& files, const posix_spawnattr_t& attributes, pid_t& pid) {
  std::vector<char*> environment = make_environment();
  const auto try_path = [&](const std::string& path) {
    std::vector<char*> texts;
    texts.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) texts.push_back(argument.data());
    texts.push_back(nullptr);
    return posix_spawn(&pid, path.c_str(), &files, &attributes, texts.data(), environment.data());
  };
  const int error = try_path(program);
  const std::string loader = find_file(reinterpret_cast<const void*>(getauxval(AT_BASE)));
  if (error != EACCES || access(program.c_str(), R_OK) != 0 || loader.empty()) return error;
  arguments.insert(arguments.begin() + 1, program);
  return try_path(loader);
}

std::array<uint8_t, 16> name_device(const uint8_t* uuid) {
  std::array<uint8_t, 16> name{};
  std::copy_n(uuid, name.size(), name.begin());
  return name;
}

void set_timeout(int socket, time_t seconds) {
  const timeval timeout{seconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
}

// Moves the descriptor above the numbers that the copier expects.
int move_up(int fd) {
  constexpr int kAbove = 64;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, kAbove);
  close(fd);
  return moved;
}

}  // namespace

bool Copier::start(std::string& why) {
  if (!is_started_) {
    is_started_ = true;
    if (!launch(problem_) || !greet(problem_) || !start_watch(problem_)) {
      if (socket_ >= 0) wire::drop(socket_);
      socket_ = -1;
    }
  }
  if (socket_ < 0) why = problem_;
  if (socket_ >= 0 && is_dead()) why = "the copier has exited";
  return socket_ >= 0 && !is_dead();
}

bool Copier::launch(std::string& why) {
  const std::string program = find_program();
  int ends[2] = {-1, -1};
  const auto fail = [&why](const char* what, int error) {
    why = std::string(what) + ": " + strerror(error);
    return false;
  };
  const long parent = syscall(SYS_pidfd_open, getpid(), 0);
  if (parent < 0) return fail("cannot open this process for the copier (pidfd_open)", errno);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    const int error = errno;
    close(static_cast<int>(parent));
    return fail("cannot make a socket for the copier", error);
  }
  socket_ = wire::keep(ends[0]);
  errno = 0;
  const int theirs = move_up(ends[1]), parent_fd = move_up(static_cast<int>(parent));
  const int segment = fcntl(Process::get()->segment().fd(), F_DUPFD_CLOEXEC, 64);
  if (theirs < 0 || parent_fd < 0 || segment < 0) {
    const int error = errno;
    for (const int fd : {theirs, parent_fd, segment})
      if (fd >= 0) close(fd);
    return fail("no descriptors are left for the copier (ulimit -n)", error);
  }
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDWR, 0);
  posix_spawn_file_actions_adddup2(&files, 0, 1);
  posix_spawn_file_actions_adddup2(&files, theirs, copier::kSocket);
  posix_spawn_file_actions_adddup2(&files, parent_fd, copier::kParent);
  posix_spawn_file_actions_adddup2(&files, segment, copier::kSegment);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = spawn(program,
                          {std::string(kProgram) + " for " + std::to_string(getpid()), find_driver_path(),
                           std::to_string(2 * get_config().worker_spin_ns)},
                          files, attributes, pid);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  for (const int fd : {theirs, parent_fd, segment}) close(fd);
  if (error != 0) return fail(("cannot start " + program).c_str(), error);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {  // the copier is a child of that process
  }
  return true;
}

bool Copier::greet(std::string& why) {
  Hello hello{};
  set_timeout(socket_, kStartSeconds);
  ssize_t got = 0;
  do got = recv(socket_, &hello, sizeof(hello), 0);
  while (got < 0 && errno == EINTR);
  if (got != sizeof(hello)) {
    why = got == 0 ? "the copier process exited when it was started"
                   : "the copier process did not start within a minute";
  } else if (hello.version != copier::kProtocolVersion || hello.lane_bytes != sizeof(copier::SharedLane)) {
    why = find_program() + " has a different version from this library";
  } else if (hello.error != 0) {
    hello.text[sizeof(hello.text) - 1] = '\0';
    why = hello.text;
  }
  pid_ = hello.pid;
  set_timeout(socket_, kAnswerSeconds);
  return why.empty();
}

bool Copier::start_watch(std::string& why) {
  const int error = start_own_thread([this] { watch(); });
  if (error != 0)
    why = std::string("cannot start the thread that watches the copier: ") + strerror(error) + " (ulimit -u)";
  return error == 0;
}

void Copier::watch() {
  pthread_setname_np(pthread_self(), "softverbs-copy");
  pollfd other{socket_, 0, 0};
  while (poll(&other, 1, -1) <= 0) {
  }
  is_dead_.store(true, std::memory_order_release);
  warn(
      "process %d, which copies GPU memory for this process (%s), has exited, so all requests with GPU "
      "memory fail from now on. Check whether the process was killed, and whether the kernel log names a GPU "
      "error (dmesg, Xid)",
      pid_, kProgram);
}

bool Copier::ask(const Command& command, int fd, uint32_t& value, std::string& why) {
  const WatchedCall call("a command to the copier");
  const std::lock_guard lock(mutex_);
  if (!start(why)) return false;
  iovec piece{const_cast<Command*>(&command), sizeof(command)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  Reply reply{};
  ssize_t got = sendmsg(socket_, &message, MSG_NOSIGNAL);
  if (got == sizeof(command)) {
    do got = recv(socket_, &reply, sizeof(reply), 0);
    while (got < 0 && errno == EINTR);
  }
  if (got != sizeof(reply)) {
    why = got == 0 || errno == EPIPE || errno == ECONNRESET ? "the copier has exited"
                                                            : "the copier does not answer";
    // Otherwise a late answer would be taken for the answer to the next command; this also ends the copier.
    shutdown(socket_, SHUT_RDWR);
    return false;
  }
  reply.text[sizeof(reply.text) - 1] = '\0';
  value = reply.value;
  if (reply.error != 0) why = reply.text;
  return reply.error == 0;
}

bool Copier::open_device(const cuda::CUuuid& uuid, uint32_t& device, std::string& why) {
  if (find_device(uuid.bytes, device)) return true;
  Process& process = *Process::get();
  Command command{};
  command.request = Request::kOpenDevice;
  command.uuid = uuid;
  command.offset = process.arena().allocate(sizeof(copier::SharedEngine));
  if (command.offset == 0) {
    why = "no shared memory is left";
    return false;
  }
  auto* const shared = new (process.segment().at<uint8_t>(command.offset)) copier::SharedEngine{};
  if (!ask(command, -1, device, why)) {
    process.arena().free(command.offset);
    return false;
  }
  engines_[device % copier::kDeviceCount] = shared;
  device_count_.store(device + 1, std::memory_order_release);
  const std::lock_guard lock(devices_mutex_);
  devices_.emplace(name_device(uuid.bytes), device);
  return true;
}

bool Copier::find_device(const uint8_t* uuid, uint32_t& device) {
  const std::lock_guard lock(devices_mutex_);
  const auto known = devices_.find(name_device(uuid));
  if (known == devices_.end()) return false;
  device = known->second;
  return true;
}

bool Copier::open_lane(uint32_t device, uint64_t offset, std::string& why) {
  Command command{};
  command.request = Request::kOpenLane;
  command.device = device;
  command.offset = offset;
  uint32_t none = 0;
  return ask(command, -1, none, why);
}

bool Copier::pin(uint32_t area, uint64_t offset, uint64_t bytes, std::string& why) {
  Command command{};
  command.request = Request::kPin;
  command.area = area;
  command.offset = offset;
  command.bytes = bytes;
  uint32_t none = 0;
  return ask(command, -1, none, why);
}

bool Copier::map_segment(int fd, uint64_t bytes, uint32_t& area, std::string& why) {
  Command command{};
  command.request = Request::kMapSegment;
  command.bytes = bytes;
  return ask(command, fd, area, why);
}

bool Copier::map_ipc(uint32_t device, const cuda::CUuuid& home, const cuda::CUipcMemHandle& handle,
                     uint64_t bytes, uint32_t& area, std::string& why) {
  Command command{};
  command.request = Request::kMapIpc;
  command.device = device;
  command.uuid = home;
  command.handle = handle;
  command.bytes = bytes;
  return ask(command, -1, area, why);
}

bool Copier::map_parts(uint32_t device, const cuda::CUuuid& home, const std::vector<Part>& parts,
                       uint32_t& area, std::string& why) {
  Command command{};
  command.request = Request::kReserve;
  command.device = device;
  command.uuid = home;
  for (const Part& part : parts) command.bytes += part.bytes;
  if (!ask(command, -1, area, why)) return false;
  command.request = Request::kMapPart;
  command.area = area;
  command.offset = 0;
  for (const Part& part : parts) {
    command.bytes = part.bytes;
    uint32_t none = 0;
    if (!ask(command, part.fd, none, why)) {
      release(area);
      return false;
    }
    command.offset += part.bytes;
  }
  return true;
}

void Copier::release(uint32_t area) {
  Command command{};
  command.request = Request::kRelease;
  command.area = area;
  uint32_t none = 0;
  std::string why;
  if (!ask(command, -1, none, why) && !is_dead())
    warn("the copier process did not release GPU memory: %s", why.c_str());
}

std::string Copier::describe() const {
  if (pid_ == 0) return {};
  const uint64_t groups = groups_.load();
  std::string text = "copies: " + std::to_string(singles_.load() + groups) +
                     ", in groups: " + std::to_string(groups) + "; by process " + std::to_string(pid_) +
                     (is_dead() ? ", which has exited\n" : "\n");
  for (uint32_t device = 0; device < count_devices(); ++device)
    text += "device " + std::to_string(device) + ":\n" + engines_[device]->report;
  return text;
}

std::string Copier::explain_wait(uint64_t least_ns) const {
  std::string text = describe_watched_calls(least_ns);
  const auto add = [&text](const std::string& more) { text += (text.empty() ? "" : "; ") + more; };
  const std::string who = "process " + std::to_string(pid_) + ", which copies GPU memory,";
  if (is_dead()) add(who + " has exited");
  const uint64_t now_ns = read_clock_ns();
  const auto is_long = [&](uint64_t since_ns) {
    return since_ns != 0 && now_ns > since_ns && now_ns - since_ns >= least_ns;
  };
  for (uint32_t device = 0; device < count_devices() && !is_dead(); ++device) {
    const copier::SharedEngine& engine = *engines_[device];
    const uint64_t call_ns = engine.call_since_ns.load(), copy_ns = engine.copy_since_ns.load();
    const char* const call = copier::kCallNames[engine.call.load() % std::size(copier::kCallNames)];
    if (is_long(call_ns)) {
      add(who + " has not returned from " + call + " for " + show_seconds(now_ns - call_ns) +
          " on its device " + std::to_string(device));
    } else if (is_long(copy_ns)) {
      add(who + " started a copy on its device " + std::to_string(device) +
          ", which has not finished after " + show_seconds(now_ns - copy_ns) +
          ". The GPU or its driver has a fault; see the kernel log (dmesg, Xid)");
    }
  }
  return text;
}

void Copier::wake(uint32_t device) {
  copier::SharedEngine& engine = *engines_[device];
  if (engine.is_asleep.load() == 0) return;
  engine.doorbell.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&engine.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace verbena::softverbs

using verbena::softverbs::Process;

// Both texts are truncated if necessary, and end with a zero. Returns the length; 0 if no copier runs, or no
// call waits.
SOFTVERBS_API size_t softverbs_describe_copier(char* text, size_t bytes) {
  Process* const process = Process::get();
  const std::string said = process == nullptr ? std::string() : process->copier.describe();
  snprintf(text, bytes, "%s", said.c_str());
  return said.size();
}

// For stall warnings and state dumps: names the call on GPU memory that has not returned for a second, or the
// copy that is not complete.
SOFTVERBS_API size_t softverbs_explain_wait(char* text, size_t bytes) {
  constexpr uint64_t kLongNs = 1'000'000'000;
  Process* const process = Process::get();
  const std::string said = process == nullptr ? std::string() : process->copier.explain_wait(kLongNs);
  snprintf(text, bytes, "%s", said.c_str());
  return said.size();
}
