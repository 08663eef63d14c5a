// The parts of a fiber: its own stack, and the point where its code stopped. A switch takes some nanoseconds;
// the sanitizers are informed of it.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#define VERBENA_EMULATOR_UCONTEXT 1
#endif
#if VERBENA_EMULATOR_UCONTEXT
#include <ucontext.h>
#endif

namespace verbena::emulator {

// Mapped memory with an unreachable page below: an overflow is a fault at once.
class Stack {
 public:
  explicit Stack(size_t length_bytes);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  char* bottom() const { return bottom_; }
  size_t length_bytes() const { return length_bytes_; }

 private:
  char* bottom_;
  size_t length_bytes_;
};

class Context {
 public:
  // The calling thread's own stack.
  Context();
  // On `stack`, which lives as long. Sanitizers take a millisecond to make one: keep it and restart() it.
  explicit Context(const Stack& stack);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Runs `entry` from its beginning when next switched to; entry never returns. What ran there must have
  // ended.
  void restart(void (*entry)());
  // Stops here, goes on there; returns when something switches back.
  void switch_to(Context& next);
  // The first thing that an entry does; `caller` is the thread's own stack.
  void finish_first_switch(Context& caller);
  // What a sanitizer calls it in a report.
  void name(const char* text);

 private:
#if VERBENA_EMULATOR_UCONTEXT
  ucontext_t registers_;
#else
  void* stack_pointer_ = nullptr;
#endif
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  void* tsan_fiber_ = nullptr;
  bool owns_tsan_fiber_ = false;
};

}  // namespace verbena::emulator
