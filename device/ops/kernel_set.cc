#include "device/ops/kernel_set.h"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>

#include "device/ops/kernel_image.h"
#include "verbena/ops.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {
namespace {

constexpr int kHopper = 9;      // compute capability
constexpr uint32_t kSm90 = 90;  // kernels for older architectures do not use clusters

Driver load_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Failure(VERBENA_CUDA_ERROR,
                  "ops: the CUDA driver (libcuda.so.1) was not found, but the kernels need a GPU");
  Driver driver;
#define VERBENA_FIND(name)                                                  \
  driver.VERBENA_CUDA_FIND(name) if (driver.name == nullptr) throw Failure( \
      VERBENA_CUDA_ERROR, "ops: libcuda.so.1 has no " #name ". Install a driver for CUDA 12 or newer");
  VERBENA_OPS_CUDA(VERBENA_FIND)
#undef VERBENA_FIND
  return driver;
}

// While this object lives, calls of this thread do not invalidate stream captures of other threads.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) {
    driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  ~RelaxedCapture() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace

const Driver& Driver::instance() {
  static const Driver driver = load_driver();
  return driver;
}

void Driver::check(CUresult status, const char* what) const {
  if (status == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (cuGetErrorString(status, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown CUDA error";
  throw Failure(VERBENA_CUDA_ERROR, std::string("ops: ") + what + ": " + text);
}

GpuFacts Driver::find_gpu() const {
  CUdevice device = 0;
  char name[256] = "";
  int major = 0, multiprocessors = 0;
  check(cuCtxGetDevice(&device), "no GPU is current (call cudaSetDevice() first)");
  check(cuDeviceGetName(name, sizeof(name), device), "cannot query the name of the GPU");
  check(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
        "cannot query the compute capability of the GPU");
  check(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device),
        "cannot query the number of multiprocessors of the GPU");
  return {name, static_cast<uint32_t>(multiprocessors), major >= kHopper && kernel_architecture() >= kSm90};
}

std::shared_ptr<KernelSet> KernelSet::share() {
  static std::mutex mutex;
  static std::map<CUcontext, std::weak_ptr<KernelSet>> sets;
  CUcontext context = nullptr;
  const Driver& driver = Driver::instance();
  driver.check(driver.cuCtxGetCurrent(&context), "no GPU is current (call cudaSetDevice() first)");
  const std::lock_guard lock(mutex);
  std::weak_ptr<KernelSet>& shared = sets[context];
  std::shared_ptr<KernelSet> set = shared.lock();
  if (!set) shared = set = std::make_shared<KernelSet>();
  return set;
}

void KernelSet::synchronize() const {
  driver_.check(driver_.cuCtxSynchronize(), "waiting for the GPU failed");
}

KernelSet::KernelSet() : driver_(Driver::instance()) {
  const RelaxedCapture relaxed(driver_);
  is_hopper_ = driver_.find_gpu().has_clusters;
  // The kernels are loaded only now, because the error above is clearer if there is no GPU.
  module_ = load(kernel_image());       // NOLINT(cppcoreguidelines-prefer-member-initializer)
  fused_ = load(fused_kernel_image());  // NOLINT(cppcoreguidelines-prefer-member-initializer)
  static constexpr const char* kFamilyNames[kFamilies] = {"packets", "chunks"};
  static constexpr const char* kSizeNames[kSeveral + 1] = {"_of_2", "_of_4", "_of_8", "_of_any",
                                                           "_of_2_several"};
  static constexpr const char* kTypeNames[kFloatTypes] = {"_float32", "_float16", "_bfloat16"};
  for (uint32_t family = 0; family < kFamilies; ++family) {
    const std::string name = kFamilyNames[family];
    anything_[family] = find(module_, name);
    for (const Size size : {kOf2, kOf4})
      exchanges_[family][size] = find(module_, name + "_exchange" + kSizeNames[size]);
  }
  for (const Size size : {kOf2, kOf4})
    chunks_all_reduce_[size] = find(module_, std::string("chunks_all_reduce") + kSizeNames[size]);
  for (uint32_t size = 0; size < kSizes; ++size) {
    for (uint32_t type = 0; type < kFloatTypes; ++type) {
      const std::string of = std::string(kSizeNames[size]) + kTypeNames[type];
      vectors_[0][size][type] = find(module_, "one_shot" + of);
      vectors_[1][size][type] = find(module_, "two_shot" + of);
    }
  }
  static_assert(kMaxKept == 2, "verbena: the kernels' names");
  for (uint32_t size = 0; size <= kSeveral; ++size) {
    const auto find_rows = [&](const std::string& name) -> RowKernels::value_type {
      return {{{find(fused_, name + "_float16_1"), find(fused_, name + "_float16_2")},
               {find(fused_, name + "_bfloat16_1"), find(fused_, name + "_bfloat16_2")}}};
    };
    all_reduce_norms_[size] = find_rows(std::string("all_reduce_norm") + kSizeNames[size]);
    finalize_norms_[size] = find_rows(std::string("finalize_norm") + kSizeNames[size]);
  }
  finalize_ = {find(fused_, "finalize_float16"), find(fused_, "finalize_bfloat16")};
  static constexpr const char* kCodecNames[kCountCodecs] = {"float8",    "int8",        "int6",     "int4",
                                                            "mx_float8", "float8_int8", "int4_int8"};
  for (uint32_t codec = 0; codec < kCountCodecs; ++codec) {
    const std::string name = kCodecNames[codec], two = "coded_two_shot_" + name;
    coded_two_shot_[codec] = {find(fused_, two), find(fused_, two + "_stochastic")};
    if (codec >= kCountSingleCodecs) continue;
    const std::string one = "coded_one_shot_" + name, across = "coded_across_hosts_" + name;
    coded_one_shot_[codec] = {find(fused_, one), find(fused_, one + "_stochastic")};
    coded_across_hosts_[codec] = {find(fused_, across), find(fused_, across + "_stochastic")};
  }
  norm_ = find(fused_, "norm");
  sharded_by_packets_ = find(fused_, "sharded_norm_packets");
  sharded_by_chunks_ = find(fused_, "sharded_norm_chunks");
  across_hosts_ = find(module_, "across_hosts");
  across_hosts_all_reduce_ = find(module_, "across_hosts_all_reduce");
  across_hosts_exchange_ = find(module_, "across_hosts_exchange");
  across_hosts_lossless_ = find(module_, "across_hosts_lossless");
  note_ = find(module_, "note");
  compare_ = find(module_, "compare");
  pause_ = find(module_, "pause");
}

void KernelSet::load_moe() {
  std::call_once(has_moe_, [this] {
    const RelaxedCapture relaxed(driver_);
    moe_ = load(moe_kernel_image());
    static constexpr const char* kCastNames[] = {"", "_float16", "_bfloat16"};
    static constexpr const char* kOrderNames[] = {"rows", "reduced", "exact"};
    for (uint32_t i = 0; i < kMoeFamilies; ++i) {
      const auto family = static_cast<MoeFamily>(i);
      const auto find = [&](const std::string& name) {
        return find_symbol(moe_, mangle_moe_kernel(name, family));
      };
      MoeKernels& kernels = moe_kernels_[i];
      for (uint32_t cast = 0; cast < kernels.dispatch.size(); ++cast) {
        kernels.dispatch[cast] = find(std::string("dispatch") + kCastNames[cast]);
        if (family == MoeFamily::kInWindows) continue;
        kernels.grouped[cast] = find(std::string("dispatch_grouped") + kCastNames[cast]);
      }
      for (uint32_t order = 0; order < kernels.combine.size(); ++order) {
        const auto is = [&](device::MoeOrder one) { return order == static_cast<uint32_t>(one); };
        if (family == MoeFamily::kFar && is(device::MoeOrder::kExact)) continue;
        if (family == MoeFamily::kInWindows && !is(device::MoeOrder::kRows)) continue;
        const std::string name = std::string("combine_") + kOrderNames[order];
        kernels.combine[order] = {find(name + "_float16"), find(name + "_bfloat16")};
      }
    }
  });
}

KernelSet::~KernelSet() {
  const RelaxedCapture relaxed(driver_);
  // If the application has already shut CUDA down, the module no longer exists.
  for (const CUmodule module : {module_, fused_, moe_})
    if (module != nullptr) driver_.cuModuleUnload(module);
}

CUmodule KernelSet::load(const char* image) const {
  CUmodule module = nullptr;
  int version = 0;
  driver_.check(driver_.cuDriverGetVersion(&version), "cannot query the version of the driver");
  const std::string what = std::string("cannot load the kernels, which were built with CUDA ") +
                           kernel_cuda_version() +
                           " and need a driver for that version or newer (this driver supports CUDA " +
                           std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) + ")";
  driver_.check(driver_.cuModuleLoadDataEx(&module, image, 0, nullptr, nullptr), what.c_str());
  return module;
}

CUfunction KernelSet::find_symbol(CUmodule module, const std::string& symbol) const {
  CUfunction function = nullptr;
  driver_.check(driver_.cuModuleGetFunction(&function, module, symbol.c_str()), symbol.c_str());
  return function;
}
CUfunction KernelSet::find(CUmodule module, const std::string& name) const {
  return find_symbol(module, "verbena_ops_" + name);
}

namespace {

// Returns the index of a type in arrays of kernels for float16 and bfloat16.
uint32_t find_short_type(uint32_t type) {
  return type == VERBENA_OPS_BFLOAT16 ? 1 : 0;
}
// The types that the specialised kernels reduce.
bool sums_floats(const Call& call) {
  return call.kind == Kind::kExchange ||
         (call.reduction == VERBENA_OPS_SUM && call.type <= VERBENA_OPS_BFLOAT16);
}
// Returns whether all_reduce_vectors() of one_shot.cuh or two_shot.cuh can serve the call.
bool has_vectors(const Grid& grid, const CallLaunch& launch) {
  const Call& call = launch.call;
  const auto ranks = static_cast<uint64_t>(launch.workspace.context.team_size);
  const bool is_two_shot = call.algorithm == Algorithm::kTwoShot;
  const uint64_t unit = is_two_shot ? ranks * kVectorBytes : kVectorBytes;
  const uint64_t begins = reinterpret_cast<uintptr_t>(call.input) | reinterpret_cast<uintptr_t>(call.output);
  // Each block sends one message.
  const uint64_t room = grid.blocks * find_data_bytes(launch.workspace.blocks.slot_bytes);
  return begins % kVectorBytes == 0 && call.length_bytes % unit == 0 &&  // FAULT(two_shots_take_any_vectors)
         (is_two_shot || call.length_bytes <= room);
}

}  // namespace

void KernelSet::launch(Family family, Content content, const Grid& grid, const GroupLaunch& launch,
                       CUstream stream) {
  if (launch.count_calls == 1 && content != Content::kAnything) {
    CallLaunch one{};
    static_cast<Launch&>(one) = launch;
    one.call = launch.calls[0];
    if (const CUfunction function = find_known(family, grid, one); function != nullptr)
      return enqueue(function, grid, one, stream);
  }
  enqueue(anything_[static_cast<uint32_t>(family)], grid, launch, stream);
}

KernelSet::Size KernelSet::size_of(const Launch& launch) {
  switch (launch.workspace.context.team_size) {
    case 2:
      return kOf2;
    case 4:
      return kOf4;
    case 8:
      return kOf8;
    default:
      return kOfAny;
  }
}

CUfunction KernelSet::find_known(Family family, const Grid& grid, const CallLaunch& launch) const {
  const Size size = size_of(launch);
  const Call& call = launch.call;
  if (!sums_floats(call)) return nullptr;
  if (call.kind == Kind::kAllReduce && family == Family::kPackets) {
    if (size == kOfAny || !has_vectors(grid, launch)) return nullptr;
    return vectors_[call.algorithm == Algorithm::kTwoShot ? 1 : 0][size][call.type];
  }
  if (size > kOf4) return nullptr;
  return call.kind == Kind::kAllReduce ? chunks_all_reduce_[size]
                                       : exchanges_[static_cast<uint32_t>(family)][size];
}

void KernelSet::launch_across_hosts(const Grid& grid, const GroupLaunch& launch, CUstream stream) {
  const Call& first = launch.calls[0];
  if (first.algorithm == Algorithm::kLossless) return enqueue(across_hosts_lossless_, grid, launch, stream);
  if (launch.count_calls == 1 && sums_floats(first)) {
    CallLaunch one{};
    static_cast<Launch&>(one) = launch;
    one.call = first;
    return enqueue(first.kind == Kind::kAllReduce ? across_hosts_all_reduce_ : across_hosts_exchange_, grid,
                   one, stream);
  }
  enqueue(across_hosts_, grid, launch, stream);
}

// Across hosts, sums are quantised once, in the format of addends.
void KernelSet::launch_coded(const Grid& grid, const CallLaunch& launch, CUstream stream) {
  const uint32_t codec = find_codec(launch.call.algorithm), rounding = launch.call.seed == 0 ? 0 : 1;
  if (launch.hosts > 1)
    return enqueue(coded_across_hosts_[find_codec_of_addends(codec)][rounding], grid, launch, stream);
  const bool is_one_shot =
      is_coded_one_shot(launch.call.algorithm, static_cast<uint32_t>(launch.workspace.context.team_size));
  enqueue(is_one_shot ? coded_one_shot_[codec][rounding] : coded_two_shot_[codec][rounding], grid, launch,
          stream);
}

void KernelSet::launch_norm(const Grid& grid, const NormLaunch& launch, CUstream stream) {
  enqueue(find_norm(grid, launch), grid, launch, stream);
}
void KernelSet::launch_norm(const Grid& grid, const FinalizeLaunch& launch, CUstream stream) {
  enqueue(launch.call.kind == Kind::kFinalize ? finalize_[find_short_type(launch.call.type)]
                                              : find_rows(finalize_norms_, grid, launch),
          grid, launch, stream);
}

CUfunction KernelSet::find_norm(const Grid& grid, const NormLaunch& launch) const {
  const Call& call = launch.call;
  const Family family = family_of(call.algorithm);
  if (call.kind == Kind::kShardedNorm)
    return family == Family::kChunks ? sharded_by_chunks_ : sharded_by_packets_;
  if (call.kind == Kind::kNorm) return norm_;
  return find_rows(all_reduce_norms_, grid, launch);
}

CUfunction KernelSet::find_rows(const RowKernels& kernels, const Grid& grid, const NormLaunch& launch) {
  const bool is_long = launch.norm.hidden * 2 * grid.rows > uint64_t{16} * grid.threads * grid.cluster;
  const uint32_t size = grid.rows == 1 ? size_of(launch) : kSeveral;
  return kernels[size][find_short_type(launch.call.type)][is_long ? 1 : 0];
}

void KernelSet::launch_moe(MoeFamily family, const Grid& grid, const MoeDispatchLaunch& launch,
                           uint32_t quantisation, uint32_t type, CUstream stream) {
  const uint32_t cast = quantisation == VERBENA_OPS_NOT_QUANTISED ? 0 : type == VERBENA_OPS_BFLOAT16 ? 2 : 1;
  const MoeKernels& kernels = moe_kernels_[static_cast<uint32_t>(family)];
  const bool is_grouped = launch.call.grouping != device::MoeGrouping::kRank;
  enqueue((is_grouped ? kernels.grouped : kernels.dispatch)[cast], grid, launch, stream);
}
void KernelSet::launch_moe(MoeFamily family, const Grid& grid, const MoeCombineLaunch& launch,
                           device::MoeOrder order, uint32_t type, CUstream stream) {
  const MoeKernels& kernels = moe_kernels_[static_cast<uint32_t>(family)];
  enqueue(kernels.combine[static_cast<uint32_t>(order)][find_short_type(type)], grid, launch, stream);
}

void KernelSet::record_call(const CompareLaunch& launch, CUstream stream) {
  enqueue(note_, {1, 32}, launch, stream);
}
void KernelSet::compare_calls(const CompareLaunch& launch, CUstream stream) {
  enqueue(compare_, {1, 32}, launch, stream);
}

void KernelSet::pause(uint64_t length_ns, CUstream stream) {
  void* parameters[] = {&length_ns};
  enqueue(pause_, {1, 1}, parameters, stream);
}

void KernelSet::copy(void* to, const void* from, uint64_t length_bytes, CUstream stream) {
  driver_.check(driver_.cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                      length_bytes, stream),
                "cannot start a copy to a peer");
}

// `launch` must have the type of the kernel's parameter, because the driver copies as many bytes from
// `launch` as this parameter has.
void KernelSet::enqueue(CUfunction function, const Grid& grid, const Launch& launch, CUstream stream) const {
  void* parameters[] = {const_cast<Launch*>(&launch)};
  enqueue(function, grid, parameters, stream);
}
void KernelSet::enqueue(CUfunction function, const Grid& grid, void** parameters, CUstream stream) const {
  CUlaunchAttribute attributes[2]{};
  unsigned count = 0;
  // The pause kernel has no wait for the previous kernel, so it is launched without PDL.
  if (is_hopper_ && function != pause_) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attributes[count++].value.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[count].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attributes[count++].value.clusterDim = {grid.cluster, 1, 1};
  }
  CUlaunchConfig config{};
  config.gridDimX = grid.blocks;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = grid.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  driver_.check(driver_.cuLaunchKernelEx(&config, function, parameters, nullptr), "cannot launch a kernel");
}

}  // namespace verbena::ops
