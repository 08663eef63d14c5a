#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace verbena::softverbs {

// Runs `body` on a thread of ours that nobody joins. The application's signals are for its own threads: a new
// one inherits its creator's mask.
template <typename Body>
void start_own_thread(Body body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace verbena::softverbs
