// The library's kernels, loaded on the current GPU. The CUDA driver is loaded when it is first used, so the
// library does not link with any CUDA library.
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
// Properties of the current GPU.
struct GpuFacts {
  std::string name;
  uint32_t multiprocessors = 0;
  // Hopper or newer, with kernels for it: has programmatic dependent launch and clusters of blocks.
  bool has_clusters = false;
};
struct Driver {
  VERBENA_OPS_CUDA(VERBENA_CUDA_MEMBER)

  // Returns the driver. Throws Failure if there is no driver.
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

  // Returns the KernelSet of the current GPU, which is shared: kernels are loaded once and unloaded with the
  // last reference. Any thread may call this function.
  static std::shared_ptr<KernelSet> share();
  // Waits for all work in the GPU's CUDA context.
  void synchronize() const;
  // Launches one call or a group of calls.
  void launch(Family family, Content content, const Grid& grid, const GroupLaunch& launch, CUstream stream);
  // Launches calls of a team across hosts. Either all calls use kLossless, or no call does.
  void launch_across_hosts(const Grid& grid, const GroupLaunch& launch, CUstream stream);
  // Launches one quantised all-reduce.
  void launch_coded(const Grid& grid, const CallLaunch& launch, CUstream stream);
  // The outputs of experts are the input if `launch` is a FinalizeLaunch.
  void launch_norm(const Grid& grid, const NormLaunch& launch, CUstream stream);
  void launch_norm(const Grid& grid, const FinalizeLaunch& launch, CUstream stream);
  // Loads the MoE kernels. Call this function before the first launch_moe(). Any thread may call it.
  void load_moe();
  // If the shape has several hosts, the family must be kFar, and `launch` must be a MoeFarLaunch. `type` is
  // the verbena_ops_type of rows that are cast: float16 or bfloat16.
  void launch_moe(MoeFamily family, const Grid& grid, const MoeDispatchLaunch& launch, uint32_t quantisation,
                  uint32_t type, CUstream stream);
  void launch_moe(MoeFamily family, const Grid& grid, const MoeCombineLaunch& launch, device::MoeOrder order,
                  uint32_t type, CUstream stream);
  // record_call() and compare_calls() launch the kernels that compare a call between the ranks. record_call()
  // runs before the exchange of records, and compare_calls() runs after it.
  void record_call(const CompareLaunch& launch, CUstream stream);
  void compare_calls(const CompareLaunch& launch, CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);
  // Enqueues a copy by a copy engine.
  void copy(void* to, const void* from, uint64_t length_bytes, CUstream stream);

 private:
  // Team sizes with specialised kernels.
  enum Size : uint32_t { kOf2, kOf4, kOf8, kOfAny };
  static constexpr uint32_t kSizes = kOfAny, kFloatTypes = 3;

  CUmodule load(const char* image) const;
  CUfunction find_symbol(CUmodule module, const std::string& symbol) const;
  CUfunction find(CUmodule module, const std::string& name) const;
  static Size size_of(const Launch& launch);
  // Returns a specialised kernel, or null if only the general kernel supports the call.
  CUfunction find_known(Family family, const Grid& grid, const CallLaunch& launch) const;
  // The kernels for a fused all-reduce and norm. The indices are the team size, or kSeveral for several rows
  // at a time between two ranks, the type (float16, bfloat16), and the number of vectors per thread (1 to
  // kMaxKept).
  static constexpr uint32_t kSeveral = kOfAny + 1;
  using RowKernels = std::array<std::array<std::array<CUfunction, kMaxKept>, 2>, kSeveral + 1>;
  static CUfunction find_rows(const RowKernels& kernels, const Grid& grid, const NormLaunch& launch);
  CUfunction find_norm(const Grid& grid, const NormLaunch& launch) const;
  void enqueue(CUfunction function, const Grid& grid, const Launch& launch, CUstream stream) const;
  void enqueue(CUfunction function, const Grid& grid, void** parameters, CUstream stream) const;

  const Driver& driver_;
  CUmodule module_ = nullptr, fused_ = nullptr, moe_ = nullptr;
  // The general kernels for each family, followed by kernels for one call between two or four ranks
  // (all-reduces by chunks, and exchanges).
  std::array<CUfunction, kFamilies> anything_{};
  std::array<CUfunction, 2> chunks_all_reduce_{};
  std::array<std::array<CUfunction, 2>, kFamilies> exchanges_{};
  // Kernels for all-reduces of whole vectors by packets, in one shot and in two shots.
  std::array<std::array<std::array<CUfunction, kFloatTypes>, kSizes>, 2> vectors_{};
  // The second index is 0 for rounding to nearest, or 1 for stochastic rounding.
  std::array<std::array<CUfunction, 2>, kCountCodecs> coded_two_shot_{};
  std::array<std::array<CUfunction, 2>, kCountSingleCodecs> coded_one_shot_{}, coded_across_hosts_{};
  RowKernels all_reduce_norms_{}, finalize_norms_{};
  std::array<CUfunction, 2> finalize_{};  // the index is the type (float16, bfloat16)
  CUfunction norm_ = nullptr, sharded_by_packets_ = nullptr, sharded_by_chunks_ = nullptr;
  std::once_flag has_moe_;
  struct MoeKernels {
    // The index is the type that is quantised: none, float16 or bfloat16.
    std::array<CUfunction, 3> dispatch{}, grouped{};
    // The indices are the MoeOrder, and the type (float16 or bfloat16).
    std::array<std::array<CUfunction, 2>, 3> combine{};
  };
  std::array<MoeKernels, kMoeFamilies> moe_kernels_;  // the index is the MoeFamily
  CUfunction across_hosts_ = nullptr, across_hosts_all_reduce_ = nullptr, across_hosts_exchange_ = nullptr,
             across_hosts_lossless_ = nullptr;
  CUfunction note_ = nullptr, compare_ = nullptr, pause_ = nullptr;
  bool is_hopper_ = false;  // Hopper or newer: has programmatic dependent launch and clusters
};

}  // namespace verbena::ops
