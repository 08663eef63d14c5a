// What the tests' stand-ins for libcuda.so.1 share; driver_stand_in.cc has the calls that they answer alike.
#pragma once

#include <cstddef>
#include <vector>

namespace driver_stand_in {

struct Context {
  int gpu;
};
inline thread_local Context* current = nullptr;
inline thread_local std::vector<Context*> pushed;

inline constexpr int kSuccess = 0, kInvalidContext = 201;
inline constexpr size_t kGrainBytes = 2 << 20;

}  // namespace driver_stand_in

#define API extern "C" __attribute__((visibility("default"))) int
