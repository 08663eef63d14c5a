// A profiler as others make them, for LD_PRELOAD: a timer for each thread sends it SIGPROF every 0.7 ms, with a handler
// without SA_RESTART, so that system calls of any thread are interrupted. Says at the end how many came.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

struct Start {
  void* (*run)(void*);
  void* argument;
};
static long count;

static void handle(int number) {
  (void)number;
  __sync_fetch_and_add(&count, 1);
}

static void watch_thread(void) {
  struct sigevent event;
  memset(&event, 0, sizeof(event));
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
  timer_t timer;
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return;
  const struct itimerspec every = {{0, 700000}, {0, 700000}};
  timer_settime(timer, 0, &every, NULL);
  sigset_t profile;
  sigemptyset(&profile);
  sigaddset(&profile, SIGPROF);
  pthread_sigmask(SIG_UNBLOCK, &profile, NULL);
}

static void* run(void* given) {
  const struct Start start = *(struct Start*)given;
  free(given);
  watch_thread();
  return start.run(start.argument);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  struct Start* start = malloc(sizeof(*start));
  *start = (struct Start){body, argument};
  return real(thread, attributes, run, start);
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action;
  memset(&action, 0, sizeof(action));
  action.sa_handler = handle;
  sigaction(SIGPROF, &action, NULL);
  watch_thread();
}

__attribute__((destructor)) static void end(void) {
  fprintf(stderr, "profiler: %ld signals\n", count);
}
