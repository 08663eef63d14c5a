// In every test of the address sanitizer's build. gcc 12's sanitizer does not hold its allocator's locks over
// a fork: a child made while another thread allocates waits for such a lock for ever. So a fork waits until
// all other threads sleep, which none does with a lock of the allocator. And what those threads hold has no
// owner in the child: it is no leak there.
#include <pthread.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace {

bool has_others = false;
int is_turned_off = 0;

bool do_others_sleep() {
  has_others = false;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (std::stol(task.path().filename()) == gettid()) continue;
    has_others = true;
    std::string stat;
    std::getline(std::ifstream(task.path() / "stat"), stat);  // empty for a thread that has just ended
    const size_t state = stat.rfind(')');
    if (state != std::string::npos && stat.substr(state, 3) != ") S") return false;
  }
  return true;
}

// For threads that poll without a pause there is an end to it.
void await_quiet() {
  for (int i = 0; i < 500 && !do_others_sleep(); ++i) usleep(1000);
}

void keep_quiet() {
  if (has_others) is_turned_off = 1;
}

const int kRegistered = pthread_atfork(await_quiet, nullptr, keep_quiet);

}  // namespace

// The leak sanitizer asks this before it looks for leaks. Weak: a test may define it too, to turn the check
// off altogether.
extern "C" __attribute__((visibility("default"), weak)) int __lsan_is_turned_off() {
  return is_turned_off;
}
