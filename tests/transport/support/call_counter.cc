#include "transport/support/call_counter.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#include "base/log.h"

// glibc's own functions behind the names that are replaced here, and the linker's marks of this program's
// code.
extern "C" {
void* __libc_malloc(size_t length);
void* __libc_calloc(size_t count, size_t length);
void* __libc_realloc(void* memory, size_t length);
void* __libc_memalign(size_t alignment, size_t length);
void __libc_free(void* memory);
extern const char __executable_start, etext;
}

namespace verbena::transport {

namespace {

constexpr int kSetDispatch = 59, kDispatchOff = 0, kDispatchOn = 1;  // prctl: PR_SET_SYSCALL_USER_DISPATCH
constexpr char kAllow = 0, kBlock = 1;

thread_local bool is_counting = false;
thread_local Calls calls;
volatile char gate = kAllow;  // the kernel looks at it at each system call of the counting thread

void count_line(base::LogLevel, const char*, int, const char*) {
  if (is_counting) ++calls.log_lines;
}

// Makes the call in the interrupted code's place. The gate stays open: closing it here would also catch the
// return from this handler.
void on_system_call(int, siginfo_t* info, void* context) {
  gate = kAllow;
  calls.first_system_call = info->si_syscall;
  const int errno_before = errno;
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const long result = syscall(registers[REG_RAX], registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                              registers[REG_R10], registers[REG_R8], registers[REG_R9]);
  registers[REG_RAX] = result == -1 ? -errno : result;
  errno = errno_before;
}

}  // namespace

bool start_counting() {
  struct sigaction action {};
  action.sa_sigaction = on_system_call;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  base::set_log_sink(count_line);
  if (prctl(kSetDispatch, kDispatchOn, 0L, 0L, &gate) != 0) return false;
  calls = {};
  is_counting = true;
  gate = kBlock;
  return true;
}

Calls stop_counting() {
  gate = kAllow;
  is_counting = false;
  prctl(kSetDispatch, kDispatchOff, 0L, 0L, 0L);
  base::set_log_sink(nullptr);
  return calls;
}

}  // namespace verbena::transport

using verbena::transport::calls;
using verbena::transport::is_counting;

#define REPLACED extern "C" __attribute__((visibility("default")))
#define CALLER static_cast<const char*>(__builtin_return_address(0))

namespace {

bool is_own_code(const char* caller) {
  return caller >= &__executable_start && caller < &etext;
}

void note_allocation(const char* caller) {
  if (is_counting) ++(is_own_code(caller) ? calls.allocations : calls.library_allocations);
}

}  // namespace

REPLACED void* malloc(size_t length) {
  note_allocation(CALLER);
  return __libc_malloc(length);
}
REPLACED void* calloc(size_t count, size_t length) {
  note_allocation(CALLER);
  return __libc_calloc(count, length);
}
REPLACED void* realloc(void* memory, size_t length) {
  note_allocation(CALLER);
  return __libc_realloc(memory, length);
}
REPLACED void* memalign(size_t alignment, size_t length) {
  note_allocation(CALLER);
  return __libc_memalign(alignment, length);
}
REPLACED void* aligned_alloc(size_t alignment, size_t length) {
  note_allocation(CALLER);
  return __libc_memalign(alignment, length);
}
REPLACED int posix_memalign(void** memory, size_t alignment, size_t length) {
  note_allocation(CALLER);
  *memory = __libc_memalign(alignment, length);
  return *memory == nullptr ? ENOMEM : 0;
}
REPLACED void free(void* memory) {
  note_allocation(CALLER);
  __libc_free(memory);
}

// The library's own function would call malloc, which hides the caller.
__attribute__((visibility("default"))) void* operator new(size_t length) {
  note_allocation(CALLER);
  if (void* memory = __libc_malloc(length)) return memory;
  throw std::bad_alloc();
}
__attribute__((visibility("default"))) void operator delete(void* memory) noexcept {
  note_allocation(CALLER);
  __libc_free(memory);
}
__attribute__((visibility("default"))) void operator delete(void* memory, size_t) noexcept {
  note_allocation(CALLER);
  __libc_free(memory);
}

#define REPLACED_LOCK(name, type)                                                            \
  REPLACED int name(type* lock) {                                                            \
    using Function = int (*)(type*);                                                         \
    static Function original = nullptr;                                                      \
    if (original == nullptr) original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, #name)); \
    if (is_counting && is_own_code(CALLER)) ++calls.locks;                                   \
    return original(lock);                                                                   \
  }
REPLACED_LOCK(pthread_mutex_lock, pthread_mutex_t)
REPLACED_LOCK(pthread_mutex_trylock, pthread_mutex_t)
REPLACED_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
REPLACED_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
