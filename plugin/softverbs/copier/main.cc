// The copier: a separate process of softverbs that copies GPU memory for one application process. See the
// section "The copier" in plugin/softverbs/README.md.
//
//   softverbs-copier LIBCUDA SPIN_NS
//
// The application starts it with a socket, a descriptor of its own process, and its segment (protocol.h), and
// passes its own name as argv[0]. The copier exits when the application ends.
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "softverbs/copier/server.h"
#include "softverbs/shared/job_folder.h"
#include "softverbs/shared/own_thread.h"

namespace verbena::softverbs::copier {
namespace {

// Makes the process neither a child of the application nor a member of its session: the application's wait()
// does not report its death, and the terminal does not interrupt it. Returns 0 or an errno.
int detach() {
  const pid_t pid = fork();
  if (pid > 0) _exit(0);
  if (pid < 0) return errno;
  setsid();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(number, SIG_IGN);
  prctl(PR_SET_NAME, "softverbs-copier");
  return 0;
}

void close_others() {
  if (syscall(SYS_close_range, kFirstOther, ~0u, 0) == 0) return;
  for (int descriptor = kFirstOther; descriptor < sysconf(_SC_OPEN_MAX); ++descriptor) close(descriptor);
}

// The application may have bound the thread that registers memory to a few CPUs. Without this, the copier's
// threads would spin on the same CPUs.
void leave_narrow_bounds() {
  constexpr int kFewCpus = 4;
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0 || CPU_COUNT(&cpus) >= kFewCpus) return;
  CPU_ZERO(&cpus);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &cpus);
  sched_setaffinity(0, sizeof(cpus), &cpus);
}

// Waits until the application has ended, for at most `limit_ms`; -1 means without a limit.
bool await_parent(int limit_ms) {
  pollfd parent{kParent, POLLIN, 0};
  int ready = 0;
  do ready = poll(&parent, 1, limit_ms);
  while (ready < 0 && errno == EINTR);
  return ready > 0;
}

// An application that was killed may have been the last process of its job; then the job's files are removed.
// Does not call exit(), which would wait for copies that are no longer needed.
[[noreturn]] void leave(bool has_parent_ended) {
  static std::mutex once;
  once.lock();
  const char* const folder = getenv("SOFTVERBS_DIR");
  if (has_parent_ended)
    for (const std::string& place : list_parents(folder == nullptr ? "" : folder)) sweep(place);
  _exit(0);
}

// Ends the process with the application, also while a driver call does not return. Returns 0 or an errno.
int leave_with_parent() {
  return start_own_thread([] { leave(await_parent(-1)); });
}

bool greet(int error, const std::string& why) {
  Hello hello{kProtocolVersion, getpid(), sizeof(SharedLane), error, {}};
  snprintf(hello.text, sizeof(hello.text), "%s", why.c_str());
  return send(kSocket, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello);
}

int run(const char* library, uint64_t spin_ns) {
  int error = detach();
  close_others();
  if (error == 0) error = leave_with_parent();
  if (error != 0) {
    greet(error,
          std::string("the copier cannot fork or start a thread: ") + strerror(error) + " (ulimit -u)");
    _exit(1);
  }
  leave_narrow_bounds();
  std::string why;
  auto* const driver = new Driver;
  auto* const server = new Server(*driver, spin_ns);
  const bool is_ready = server->open(why) && driver->load(library, why);
  if (greet(is_ready ? 0 : EIO, why) && is_ready) server->serve();
  constexpr int kEndingMs = 1000;  // sockets are closed before the process has ended
  leave(await_parent(kEndingMs));
}

}  // namespace
}  // namespace verbena::softverbs::copier

int main(int count, char** arguments) {
  if (count < 3) {
    fprintf(stderr, "softverbs starts this program itself, to copy GPU memory\n");
    return 2;
  }
  return verbena::softverbs::copier::run(arguments[count - 2], strtoull(arguments[count - 1], nullptr, 10));
}
