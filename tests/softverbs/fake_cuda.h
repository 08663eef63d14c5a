#pragma once

#include <cstddef>
#include <cstdint>

// What the stand-in's files share; see fake_cuda.cc.
namespace fake_cuda {

using Pointer = unsigned long long;
enum Result {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidContext = 201,
  kNotReady = 600,
  kAlreadyRegistered = 712,
  kNotSupported = 801
};

// Where the CPU finds [address, address + bytes); nullptr when the current context's GPU may not use all of
// it.
uint8_t* resolve(Pointer address, size_t bytes);
bool has_context();
bool offers_multicast();
// Aborts once exit() has ended CUDA.
void expect_alive();
void copy_unwatched(uint8_t* to, const uint8_t* from, size_t bytes);

}  // namespace fake_cuda

#define API extern "C" __attribute__((visibility("default"))) int
