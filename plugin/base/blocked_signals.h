// Blocks all signals while a thread of this library is created. A new thread inherits the mask of its
// creator, and the application's signals must not be delivered to the library's threads.
#pragma once

#include <pthread.h>

#include <csignal>

namespace verbena::base {

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace verbena::base
