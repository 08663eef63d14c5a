// The kernels on the GPU that is current, through CUDA's driver, which is loaded when it is first needed: the
// library links no CUDA library.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "abi/cuda.h"
#include "device/ops/choice.h"
#include "device/ops/moe_call.h"

namespace verbena::ops {

using namespace ::verbena::cuda;  // NVIDIA's names

// clang-format off
#define VERBENA_OPS_CUDA(X)                                                                                  \
  X(cuGetErrorString) X(cuDriverGetVersion) X(cuCtxGetCurrent) X(cuCtxGetDevice) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuModuleLoadDataEx)     \
  X(cuModuleUnload) X(cuModuleGetFunction) X(cuLaunchKernelEx) X(cuMemHostAlloc) X(cuMemFreeHost)            \
  X(cuMemcpyAsync) X(cuCtxSynchronize) X(cuThreadExchangeStreamCaptureMode)
// clang-format on
// Of the GPU that is current.
struct GpuFacts {
  std::string name;
  uint32_t multiprocessors = 0;
  bool has_clusters = false;  // Hopper or newer: programmatic dependent launch, and clusters of blocks
};
struct Driver {
  VERBENA_OPS_CUDA(VERBENA_CUDA_MEMBER)

  // Throws Failure without a driver.
  static const Driver& instance();
  // Throws Failure unless the call succeeded.
  void check(CUresult status, const char* what) const;
  // Throws Failure if no GPU is current.
  GpuFacts find_gpu() const;
};

class KernelSet {
 public:
  KernelSet();
  ~KernelSet();
  KernelSet(const KernelSet&) = delete;
  KernelSet& operator=(const KernelSet&) = delete;

  // That of the GPU that is current: its kernels are loaded once, for as long as somebody has it. Any thread.
  static std::shared_ptr<KernelSet> share();
  // Waits for all that the GPU's context has been given.
  void synchronize() const;
  // A group of calls, or one.
  void launch(Family family, Content content, const Grid& grid, const GroupLaunch& launch, CUstream stream);
  // Of a team in several hosts.
  void launch_across_hosts(const Grid& grid, const GroupLaunch& launch, CUstream stream);
  // One all-reduce in few bits.
  void launch_coded(const Grid& grid, const CallLaunch& launch, CUstream stream);
  void launch_norm(const Grid& grid, const NormLaunch& launch, CUstream stream);
  // Before the first launch_moe(): other communicators do without these kernels. Any thread.
  void load_moe();
  // `type`: of verbena_ops_type, a float of 16 bits, of rows that are cast.
  void launch_moe(const Grid& grid, const MoeDispatchLaunch& launch, uint32_t quantisation, uint32_t type,
                  CUstream stream);
  void launch_moe(const Grid& grid, const MoeCombineLaunch& launch, device::MoeOrder order, uint32_t type,
                  CUstream stream);
  // The halves of a comparison of calls among the ranks.
  void record_call(const CompareLaunch& launch, CUstream stream);
  void compare_calls(const CompareLaunch& launch, CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);
  // By a copy engine.
  void copy(void* to, const void* from, uint64_t length_bytes, CUstream stream);

 private:
  // Of teams that have kernels of their own.
  enum Size : uint32_t { kOf2, kOf4, kOf8, kOfAny };
  static constexpr uint32_t kSizes = kOfAny, kFloatTypes = 3;

  CUmodule load(const char* image) const;
  CUfunction find(CUmodule module, const std::string& name) const;
  static Size size_of(const Launch& launch);
  // Null: only those for anything will do.
  CUfunction find_known(Family family, const Grid& grid, const CallLaunch& launch) const;
  CUfunction find_norm(const Grid& grid, const NormLaunch& launch) const;
  void enqueue(CUfunction function, const Grid& grid, const Launch& launch, CUstream stream) const;
  void enqueue(CUfunction function, const Grid& grid, void** parameters, CUstream stream) const;

  const Driver& driver_;
  CUmodule module_ = nullptr, fused_ = nullptr, moe_ = nullptr;
  // For anything; of one call: all-reduces by chunks, exchanges, of two ranks and of four.
  std::array<CUfunction, kFamilies> anything_{};
  std::array<CUfunction, 2> chunks_all_reduce_{};
  std::array<std::array<CUfunction, 2>, kFamilies> exchanges_{};
  // All-reduces of whole vectors by packets: in one shot, in two.
  std::array<std::array<std::array<CUfunction, kFloatTypes>, kSizes>, 2> vectors_{};
  // To nearest, by chance.
  std::array<std::array<CUfunction, 2>, kCountCodecs> coded_two_shot_{};
  std::array<std::array<CUfunction, 2>, kCountSingleCodecs> coded_one_shot_{}, coded_across_hosts_{};
  // All-reduces with a norm, of float16 and bfloat16, with 1 to kMaxKept vectors of a thread.
  std::array<std::array<std::array<CUfunction, kMaxKept>, 2>, kOfAny + 1> all_reduce_norms_{};
  CUfunction norm_ = nullptr, sharded_by_packets_ = nullptr, sharded_by_chunks_ = nullptr;
  std::once_flag has_moe_;
  CUfunction moe_dispatch_ = nullptr;
  // Of float16 and bfloat16; combines by MoeOrder.
  std::array<CUfunction, 2> moe_dispatch_cast_{};
  std::array<std::array<CUfunction, 2>, 3> moe_combine_{};
  CUfunction across_hosts_ = nullptr, note_ = nullptr, compare_ = nullptr, pause_ = nullptr;
  bool is_hopper_ = false;  // or newer: it has programmatic dependent launch, and clusters
};

}  // namespace verbena::ops
