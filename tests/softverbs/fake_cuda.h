#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/driver_stand_in.h"

// What the stand-in's files share; see fake_cuda.cc.
namespace fake_cuda {

using Pointer = unsigned long long;
enum Result {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidValue = 1,
  kInvalidContext = 201,
  kNotReady = 600,
  kAlreadyRegistered = 712,
  kNotSupported = 801
};

// Where the CPU finds [address, address + bytes); nullptr when the current context's GPU may not use all of
// it. `gpu`: whose memory it is; kHost: no GPU's.
inline constexpr int kHost = -1;
uint8_t* resolve(Pointer address, size_t bytes, int* gpu = nullptr);
// How many of the bytes lie in the same allocation as the first one.
size_t measure_span(Pointer address, size_t bytes);
using driver_stand_in::Context;
Context* get_context();
inline bool has_context() {
  return get_context() != nullptr;
}

inline constexpr int kGpus = 2;
// State that a process and its copier (plugin/softverbs/copier) share: a test asks for trouble, and the
// copier has it.
struct State {
  std::atomic<int64_t> copies_left{INT64_MAX};
  std::atomic<bool> are_held{false};      // asynchronous copies
  std::atomic<int> spinning[kGpus] = {};  // kernels that wait for a word
};
State& get_state();

// The driver's lock: each call that copies takes it. See fakeBlockDriver().
class DriverLock {
 public:
  DriverLock();
  ~DriverLock();
  DriverLock(const DriverLock&) = delete;
  DriverLock& operator=(const DriverLock&) = delete;
};
bool offers_multicast();
// Aborts once exit() has ended CUDA.
void expect_alive();
void copy_unwatched(uint8_t* to, const uint8_t* from, size_t bytes);

}  // namespace fake_cuda
