// Detects the compiler, and defines the attributes of the device library's functions. Three kinds of
// compilers compile the same source:
//   nvcc, or clang with CUDA's headers      kernels of an application
//   clang -x cuda without any headers       LLVM bitcode, PTX without a toolkit (VERBENA_FREESTANDING)
//   any C++17 compiler                      the host: an emulated GPU, see emulation.h (VERBENA_EMULATED)
// Apart from backends/, no header of the library includes CUDA's headers. To compile with NVRTC, define
// VERBENA_NO_STANDARD_HEADERS and the types of <stdint.h>.
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
// VERBENA_DEVICE_FAR marks templates that are not inlined. These templates are slow paths, which are rare or
// wait for PCIe. Inlined slow paths would make the fast paths use more registers and code. There is one
// exception: bitcode for a single backend inlines everything. Bitcode for several backends
// (VERBENA_BITCODE_CALLS) does not inline these templates, because the slow paths of all backends together
// would slow down the fast paths.

// The GPU architecture of this compiler pass, such as 900 for sm_90; 0 on the host and in the host pass of
// nvcc.
#if defined(__CUDA_ARCH__)
#define VERBENA_ARCH __CUDA_ARCH__
#else
#define VERBENA_ARCH 0
#endif

// 1 if device instructions may be used. The host pass of nvcc must not use device instructions, because it
// only parses the bodies of device functions.
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

// If VERBENA_DEVICE_FAULTS is defined, tests can inject faults into kernels. If VERBENA_DEVICE_PROBES is
// defined, kernels count their symm_* calls for profilers. Without these macros, kernels have no additional
// instructions.
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

// The memory orders and scopes of PTX. kWeak is for accesses that the program orders by other means. kThreads
// is for weak and volatile accesses, which have no scope in PTX.
enum class Order : uint8_t { kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcquireRelease, kSequential };
enum class Scope : uint8_t { kThreads, kBlock, kCluster, kGpu, kSystem };
enum class Operation : uint8_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExchange, kCompareExchange };

// 16 bytes that one instruction loads or stores.
struct alignas(16) Vector16 {
  uint32_t x, y, z, w;
};

}  // namespace verbena::device

#endif
