#include "base/signal_event.h"

#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/library_pin.h"
#include "base/log.h"

namespace verbena::base {
namespace {

// Created once and never closed, because a signal handler may be about to write to it.
std::atomic<int> g_event{-1};
// The process that installed the handler: a forked child shares the descriptor and must not write to it.
std::atomic<pid_t> g_owner{0};

struct Taken {
  int signal = 0;
  EventLoop::Callback callback = nullptr;
  void* context = nullptr;
};
Taken g_taken;  // changed only while no signal is watched

// The handler: calls only functions that are async-signal-safe.
void note_signal(int) {
  const int saved_errno = errno;
  const int event = g_event.load(std::memory_order_relaxed);
  if (event >= 0 && getpid() == g_owner.load(std::memory_order_relaxed)) {
    const uint64_t one = 1;
    // If the counter is full, the event is already pending.
    if (::write(event, &one, sizeof(one)) < 0) errno = saved_errno;
  }
  errno = saved_errno;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == note_signal;
}
bool is_default(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

void drain(void*) {
  uint64_t count = 0;
  while (::read(g_event.load(std::memory_order_relaxed), &count, sizeof(count)) < 0 && errno == EINTR)
    continue;
  g_taken.callback(g_taken.context);
}

Outcome install_handler(int signal) {
  struct sigaction ours {
  }, before{};
  ours.sa_handler = note_signal;
  ours.sa_flags = SA_RESTART;
  sigfillset(&ours.sa_mask);
  if (sigaction(signal, nullptr, &before) != 0)
    return fail_errno(Status::kSystem, errno, "signal %d: cannot read its handler", signal);
  if (!is_default(before)) {
    return fail(Status::kInvalidUsage,
                "signal SIG%s: the application already %s this signal, so the signal cannot trigger a state "
                "dump. Set VERBENA_DUMP_SIGNAL to another signal",
                sigabbrev_np(signal), before.sa_handler == SIG_IGN ? "ignores" : "handles");
  }
  if (sigaction(signal, &ours, nullptr) == 0) return {};
  return fail_errno(Status::kSystem, errno, "signal %d: cannot install a handler", signal);
}

}  // namespace

Outcome take_signal(int signal, EventLoop::Callback callback, void* context) {
  release_signal();
  if (g_event.load(std::memory_order_relaxed) < 0) g_event.store(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int event = g_event.load(std::memory_order_relaxed);
  if (event < 0) return fail_errno(Status::kSystem, errno, "signal %d: cannot create an eventfd", signal);
  pin_library();
  g_taken = {signal, callback, context};
  g_owner.store(getpid(), std::memory_order_relaxed);
  auto outcome = EventLoop::instance().watch(event, Interest::kNewData, &drain, nullptr);
  if (outcome) outcome = install_handler(signal);
  if (!outcome) {
    EventLoop::instance().unwatch(event);
    g_taken = {};
  }
  return outcome;
}

void release_signal() {
  if (g_taken.signal == 0) return;
  struct sigaction now {};
  if (sigaction(g_taken.signal, nullptr, &now) == 0 && is_ours(now)) {
    now.sa_handler = SIG_DFL;
    sigaction(g_taken.signal, &now, nullptr);
  } else {
    log_info(
        "signal SIG%s: the application has replaced the plugin's handler. The plugin leaves the "
        "application's handler in place",
        sigabbrev_np(g_taken.signal));
  }
  EventLoop::instance().unwatch(g_event.load(std::memory_order_relaxed));
  g_taken = {};
}

}  // namespace verbena::base
