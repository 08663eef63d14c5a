// The sanitizers' own calls, so that they follow fibers; nothing without a sanitizer. The emulator's
// scheduler is compiled without instrumentation, so the build says which sanitizer the rest of the program
// has.
#pragma once

#include <cstddef>

#if VERBENA_EMULATOR_TSAN
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber(void);
void __tsan_set_fiber_name(void* fiber, const char* name);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif
#if VERBENA_EMULATOR_ASAN
extern "C" {
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, size_t size);
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** old_bottom, size_t* old_size);
void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}
#endif

namespace verbena::emulator {

inline constexpr bool kThreadSanitizer = VERBENA_EMULATOR_TSAN != 0;
// A switch of fibers takes many times as long: sweeps then take steps, and are whole without a sanitizer.
inline constexpr bool kSanitizer = VERBENA_EMULATOR_TSAN != 0 || VERBENA_EMULATOR_ASAN != 0;
inline constexpr unsigned kNoSynchronization = 1;  // of a switch: the scheduler orders nothing

#if VERBENA_EMULATOR_TSAN
inline void* create_tsan_fiber() {
  return __tsan_create_fiber(0);
}
inline void destroy_tsan_fiber(void* fiber) {
  __tsan_destroy_fiber(fiber);
}
inline void* current_tsan_fiber() {
  return __tsan_get_current_fiber();
}
inline void name_tsan_fiber(void* fiber, const char* name) {
  __tsan_set_fiber_name(fiber, name);
}
inline void switch_tsan_fiber(void* fiber) {
  __tsan_switch_to_fiber(fiber, kNoSynchronization);
}
inline void acquire_clock(const void* key) {
  __tsan_acquire(const_cast<void*>(key));
}
inline void release_clock(const void* key) {
  __tsan_release(const_cast<void*>(key));
}
inline void begin_ignore() {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
inline void end_ignore() {
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
inline void* create_tsan_fiber() {
  return nullptr;
}
inline void destroy_tsan_fiber(void*) {}
inline void* current_tsan_fiber() {
  return nullptr;
}
inline void name_tsan_fiber(void*, const char*) {}
inline void switch_tsan_fiber(void*) {}
inline void acquire_clock(const void*) {}
inline void release_clock(const void*) {}
inline void begin_ignore() {}
inline void end_ignore() {}
#endif

#if VERBENA_EMULATOR_ASAN
inline void start_asan_switch(void** fake_stack, const void* bottom, size_t size) {
  __sanitizer_start_switch_fiber(fake_stack, bottom, size);
}
inline void finish_asan_switch(void* fake_stack, const void** old_bottom, size_t* old_size) {
  __sanitizer_finish_switch_fiber(fake_stack, old_bottom, old_size);
}
inline void unpoison(const void* address, size_t size) {
  __asan_unpoison_memory_region(address, size);
}
#else
inline void start_asan_switch(void**, const void*, size_t) {}
inline void finish_asan_switch(void*, const void**, size_t*) {}
inline void unpoison(const void*, size_t) {}
#endif

// Around whatever allocates, frees or copies the emulator's own state: the sanitizer intercepts those calls
// even in code that it did not compile, and would take two fibers' calls for a race.
class IgnoreScope {
 public:
  IgnoreScope() { begin_ignore(); }
  ~IgnoreScope() { end_ignore(); }
  IgnoreScope(const IgnoreScope&) = delete;
  IgnoreScope& operator=(const IgnoreScope&) = delete;
};

}  // namespace verbena::emulator
