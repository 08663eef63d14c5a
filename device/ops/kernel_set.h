// The kernels on the GPU that is current, through CUDA's driver, which is loaded when it is first needed: the
// library links no CUDA library.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "abi/cuda.h"
#include "device/ops/call.h"

namespace verbena::ops {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define VERBENA_OPS_CUDA(X)                                                                                  \
  X(cuGetErrorString) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuModuleLoadDataEx)     \
  X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernelEx) X(cuMemHostAlloc) X(cuMemFreeHost)            \
  X(cuMemcpyAsync) X(cuThreadExchangeStreamCaptureMode)
// clang-format on
struct Driver {
  VERBENA_OPS_CUDA(VERBENA_CUDA_MEMBER)

  // Throws Failure without a driver.
  static const Driver& instance();
  // Throws Failure unless the call succeeded.
  void check(CUresult status, const char* what) const;
  // Of the GPU that is current.
  std::string find_gpu_name() const;
};

// Kernels that have a workspace of their own.
enum class Family : uint32_t { kPackets, kChunks };
inline constexpr uint32_t kFamilies = 2;
Family family_of(Algorithm algorithm);

struct Grid {
  uint32_t blocks, threads;
  uint32_t cluster = 1;  // blocks of one
};

class KernelSet {
 public:
  KernelSet();
  ~KernelSet();
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;

  void launch(Family family, Content content, const Grid& grid, const Launch& launch, CUstream stream);
  // Of a team in several hosts.
  void launch_across_hosts(const Grid& grid, const Launch& launch, CUstream stream);
  // One all-reduce in few bits.
  void launch_coded(Family family, const Grid& grid, const Launch& launch, CUstream stream);
  // One call with Launch::norm.
  void launch_norm(const Grid& grid, const Launch& launch, CUstream stream);
  // Whether kernels may be launched in clusters.
  bool has_clusters() const { return is_hopper_; }
  void pause(uint64_t length_ns, CUstream stream);
  // By a copy engine.
  void copy(void* to, const void* from, uint64_t length_bytes, CUstream stream);

 private:
  enum Size : uint32_t { kOf2, kOf4, kOfAny, kSizes };

  CUmodule load(const char* image) const;
  CUfunction find(CUmodule module, const std::string& name) const;
  static Size size_of(const Launch& launch);
  CUfunction find_norm(const Grid& grid, const Launch& launch) const;
  void enqueue(CUfunction function, const Grid& grid, void** parameters, CUstream stream) const;

  const Driver& driver_;
  CUmodule module_ = nullptr, fused_ = nullptr;
  // Of all-reduces, and of exchanges; for teams of any size the same.
  std::array<std::array<std::array<CUfunction, 2>, kSizes>, kFamilies> functions_{};
  // To nearest, by chance.
  std::array<std::array<CUfunction, 2>, kCountCodecs> coded_{};
  std::array<std::array<CUfunction, 2>, kCountPacketCodecs> coded_packets_{};
  // All-reduces with a norm, of float16 and bfloat16, with 1 to kMostKept vectors of a thread: of two ranks,
  // of any.
  struct NormKernels {
    std::array<std::array<CUfunction, kMostKept>, 2> of_types;
  };
  std::array<NormKernels, 2> all_reduce_norms_{};
  CUfunction norm_ = nullptr, sharded_by_packets_ = nullptr, sharded_by_chunks_ = nullptr;
  CUfunction across_hosts_ = nullptr, pause_ = nullptr;
  bool is_hopper_ = false;  // or newer: it has programmatic dependent launch, and clusters
};

}  // namespace verbena::ops
