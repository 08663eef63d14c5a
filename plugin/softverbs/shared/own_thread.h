// Starts the library's own threads, which are detached and block all signals.
#pragma once

#include <pthread.h>

#include <csignal>
#include <memory>
#include <utility>

namespace verbena::softverbs {

// Runs `body` on a detached thread of the library. Returns 0, or the errno of pthread_create (a limit of
// processes or memory). The thread blocks all signals, because the application's signals are for its own
// threads and a new thread inherits its creator's mask.
template <typename Body>
int start_own_thread(Body body) {
  auto kept = std::make_unique<Body>(std::move(body));
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*std::unique_ptr<Body>(static_cast<Body*>(given)))();
    return nullptr;
  };
  const int error = pthread_create(&thread, &attributes, run, kept.get());
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == 0) static_cast<void>(kept.release());
  return error;
}

}  // namespace verbena::softverbs
