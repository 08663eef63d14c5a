// Include this before NCCL's device headers when compiling with clang. NCCL's headers evaluate `#if
// __CUDACC__`, which clang defines as empty, and use a store intrinsic of nvcc that clang's headers lack.
#pragma once
#undef __CUDACC__
#define __CUDACC__ 1

#include "verbena/device/memory_order.cuh"

// The host reads the value, so a volatile store is enough.
static __attribute__((device)) inline __attribute__((always_inline)) void __stwt(uint4* address,
                                                                                 uint4 value) {
  using namespace verbena::device;
  store<Order::kVolatile, Scope::kThreads>(reinterpret_cast<Vector16*>(address),
                                           Vector16{value.x, value.y, value.z, value.w});
}
