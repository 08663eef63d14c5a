#include "context.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#include "sanitizer.h"

namespace verbena::emulator {

constexpr size_t kGuardBytes = 4096;

Stack::Stack(size_t length_bytes) : length_bytes_(length_bytes) {
  void* mapped = mmap(nullptr, length_bytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mprotect(mapped, kGuardBytes, PROT_NONE);
  bottom_ = static_cast<char*>(mapped) + kGuardBytes;
}

Stack::~Stack() {
  unpoison(bottom_, length_bytes_);
  munmap(bottom_ - kGuardBytes, length_bytes_ + kGuardBytes);
}

Context::Context(const Stack& stack)
    : stack_bottom_(stack.bottom()),
      stack_bytes_(stack.length_bytes()),
      tsan_fiber_(create_tsan_fiber()),
      owns_tsan_fiber_(true) {}

Context::Context() : tsan_fiber_(current_tsan_fiber()) {}

Context::~Context() {
  if (owns_tsan_fiber_) destroy_tsan_fiber(tsan_fiber_);
}

void Context::name(const char* text) {
  name_tsan_fiber(tsan_fiber_, text);
}

void Context::finish_first_switch(Context& caller) {
  const void* bottom = nullptr;
  size_t size = 0;
  finish_asan_switch(nullptr, &bottom, &size);
  if (caller.stack_bottom_ == nullptr) {  // the thread's own stack, whose place only the sanitizer knows
    caller.stack_bottom_ = bottom;
    caller.stack_bytes_ = size;
  }
}

#if VERBENA_EMULATOR_UCONTEXT

void Context::restart(void (*entry)()) {
  getcontext(&registers_);
  registers_.uc_stack.ss_sp = const_cast<void*>(stack_bottom_);
  registers_.uc_stack.ss_size = stack_bytes_;
  registers_.uc_link = nullptr;
  makecontext(&registers_, entry, 0);
}

void Context::switch_to(Context& next) {
  start_asan_switch(&fake_stack_, next.stack_bottom_, next.stack_bytes_);
  switch_tsan_fiber(next.tsan_fiber_);
  swapcontext(&registers_, &next.registers_);
  finish_asan_switch(fake_stack_, nullptr, nullptr);
}

#else

// Saves what a call must keep, stores the stack pointer at *save, and goes on where `resume` stopped.
extern "C" void verbena_emulator_switch(void** save, void* resume);
asm(R"(
.text
.globl verbena_emulator_switch
.hidden verbena_emulator_switch
.type verbena_emulator_switch, @function
verbena_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size verbena_emulator_switch, .-verbena_emulator_switch
)");

void Context::restart(void (*entry)()) {
  // As if `entry` had been called and had stopped before its first instruction: six registers, its address,
  // and the return address that it never uses; the stack is then aligned as at any call.
  auto* bottom = static_cast<char*>(const_cast<void*>(stack_bottom_));
  unpoison(bottom, stack_bytes_);
  auto* top = reinterpret_cast<uint64_t*>(bottom + stack_bytes_);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
}

void Context::switch_to(Context& next) {
  start_asan_switch(&fake_stack_, next.stack_bottom_, next.stack_bytes_);
  switch_tsan_fiber(next.tsan_fiber_);
  verbena_emulator_switch(&stack_pointer_, next.stack_pointer_);
  finish_asan_switch(fake_stack_, nullptr, nullptr);
}

#endif

}  // namespace verbena::emulator
