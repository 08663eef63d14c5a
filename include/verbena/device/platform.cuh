// Detects who compiles the device library, and defines the attributes of its functions. One source serves:
//   nvcc, or clang with CUDA's headers      kernels of an application
//   clang -x cuda without any headers       LLVM bitcode, PTX without a toolkit (VERBENA_FREESTANDING)
//   any C++17 compiler                      the host: an emulated GPU, see emulation.h (VERBENA_EMULATED)
// Nothing here includes CUDA's headers. NVRTC needs VERBENA_NO_STANDARD_HEADERS and <stdint.h>'s types.
#ifndef VERBENA_DEVICE_PLATFORM_CUH
#define VERBENA_DEVICE_PLATFORM_CUH

#ifndef VERBENA_NO_STANDARD_HEADERS
#include <stddef.h>
#include <stdint.h>
#endif

#if defined(__CUDACC__) || defined(__CUDA__)
#define VERBENA_EMULATED 0
#if defined(__CUDACC_RTC__) || defined(__CUDA_RUNTIME_H__) || defined(__NVCC__) || \
    defined(__CUDA_RUNTIME_API_H__)
#define VERBENA_FREESTANDING 0
#define VERBENA_HOST_DEVICE __host__ __device__ __forceinline__
#define VERBENA_DEVICE __device__ __forceinline__
#if defined(VERBENA_BITCODE) && !defined(VERBENA_BITCODE_CALLS)
#define VERBENA_DEVICE_FAR VERBENA_DEVICE
#else
#define VERBENA_DEVICE_FAR __device__ __noinline__
#endif
#define VERBENA_SHARED __shared__
#else
#define VERBENA_FREESTANDING 1
#define VERBENA_HOST_DEVICE \
  __attribute__((host)) __attribute__((device)) __attribute__((always_inline)) inline
#define VERBENA_DEVICE __attribute__((device)) __attribute__((always_inline)) inline
#if defined(VERBENA_BITCODE) && !defined(VERBENA_BITCODE_CALLS)
#define VERBENA_DEVICE_FAR VERBENA_DEVICE
#else
#define VERBENA_DEVICE_FAR __attribute__((device)) __attribute__((noinline))
#endif
#define VERBENA_SHARED __attribute__((shared))
#endif
#else
#define VERBENA_EMULATED 1
#define VERBENA_FREESTANDING 0
#define VERBENA_HOST_DEVICE inline
#define VERBENA_DEVICE inline
#define VERBENA_DEVICE_FAR inline
#endif
// VERBENA_DEVICE_FAR marks templates that are not inlined in a kernel: paths that are rare, or that wait for
// PCIe, so that they take neither registers nor code of the path that stores. Bitcode of one backend inlines
// everything; that of several (VERBENA_BITCODE_CALLS) does not, since the paths of all backends, inlined into
// the path that stores, would slow it.

// The architecture of this pass, 900 for sm_90; 0 on the host and in an nvcc host pass.
#if defined(__CUDA_ARCH__)
#define VERBENA_ARCH __CUDA_ARCH__
#else
#define VERBENA_ARCH 0
#endif

// True where device instructions may be used: in nvcc's host pass the bodies are parsed, not compiled.
#if !VERBENA_EMULATED && VERBENA_ARCH > 0
#define VERBENA_PTX 1
#else
#define VERBENA_PTX 0
#endif

#if VERBENA_EMULATED
#define VERBENA_UNROLL
#define VERBENA_UNROLL_BY(count)
#else
#define VERBENA_UNROLL _Pragma("unroll")
#define VERBENA_PRAGMA(text) _Pragma(#text)
#define VERBENA_UNROLL_BY(count) VERBENA_PRAGMA(unroll count)
#endif

namespace verbena::device {

// What a program compiles in for its tests and its profiler: injected faults, by VERBENA_DEVICE_FAULTS, and
// counters of symm_* calls, by VERBENA_DEVICE_PROBES. If not defined, neither costs an instruction.
#ifdef VERBENA_DEVICE_FAULTS
inline constexpr bool kHasFaults = true;
#else
inline constexpr bool kHasFaults = false;
#endif
#ifdef VERBENA_DEVICE_PROBES
inline constexpr bool kHasProbes = true;
#else
inline constexpr bool kHasProbes = false;
#endif

inline constexpr int kWarpLanes = 32;
inline constexpr uint32_t kFullWarp = 0xffffffffu;

// PTX's orders and scopes. kWeak is an access that the program orders by other means; kVolatile is PTX's.
enum class Order : uint8_t { kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcquireRelease, kSequential };
enum class Scope : uint8_t { kThreads, kBlock, kCluster, kGpu, kSystem };
enum class Operation : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareExchange };

// 16 bytes as one load or store moves them.
struct alignas(16) Vector16 {
  uint32_t x, y, z, w;
};

}  // namespace verbena::device

#endif
