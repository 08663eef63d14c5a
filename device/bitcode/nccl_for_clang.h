// Before NCCL's device headers, for clang: they ask `#if __CUDACC__`, which clang defines as nothing, and use
// a store of nvcc's that clang's headers lack.
#pragma once
#undef __CUDACC__
#define __CUDACC__ 1

#include "verbena/device/memory_order.cuh"

// Its other side is the host: volatile will do.
static __attribute__((device)) inline __attribute__((always_inline)) void __stwt(uint4* address,
                                                                                 uint4 value) {
  using namespace verbena::device;
  store<Order::kVolatile, Scope::kThreads>(reinterpret_cast<Vector16*>(address),
                                           Vector16{value.x, value.y, value.z, value.w});
}
