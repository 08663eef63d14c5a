#include "verbena-bench/unpack/kernel_set.h"

#include <algorithm>

#include "common/error.h"

// The build defines the path. The image is followed by a zero byte, which is not part of it.
asm(".pushsection .rodata\n.balign 16\nverbena_unpack_kernels_begin:\n.incbin \"" VERBENA_KERNEL_IMAGE
    "\"\nverbena_unpack_kernels_end:\n.byte 0\n.popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char verbena_unpack_kernels_begin[];
extern "C" __attribute__((visibility("hidden"))) const char verbena_unpack_kernels_end[];

namespace verbena::tools::unpack {
namespace {

constexpr uint32_t kHelperThreads = 512;
constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kMinStages = 2;
constexpr int kBulkComputeMajor = 9;
// The static shared memory of the kernels, rounded up.
constexpr uint32_t kStaticSharedBytes = 8192;
constexpr double kTimeoutS = 30;

}  // namespace

const char* describe_mover(Mover mover) {
  static constexpr const char* kNames[] = {"registers", "bulk", "nccl", "copy"};
  return kNames[static_cast<size_t>(mover)];
}

KernelSet::KernelSet(Gpu& gpu)
    : gpu_(gpu),
      module_(load(kernel_image().data(), "loading the kernels")),
      registers_(find(module_, "unpack_registers")),
      copy_(find(module_, "copy_plain")),
      latency_registers_(find(module_, "latency_registers")),
      receive_(find(module_, "place_receive")),
      fill_words_(find(module_, "fill_words")),
      fill_pages_(find(module_, "fill_pages")),
      verify_(find(module_, "verify_buffers")),
      multiprocessors_(static_cast<uint32_t>(gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT))) {
  if (gpu.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) >= kBulkComputeMajor) prepare_bulk();
}

CUmodule KernelSet::load(const char* image, const char* what) {
  char log[4096] = "";
  int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  const CUresult status = gpu_.driver().cuModuleLoadDataEx(&module, image, 2, options, values);
  if (status != CUDA_SUCCESS && log[0] != '\0') throw ToolError(std::string(what) + ": " + log);
  gpu_.driver().check(status, what);
  return module;
}

CUfunction KernelSet::find(CUmodule module, const char* name) {
  CUfunction function = nullptr;
  gpu_.driver().check(gpu_.driver().cuModuleGetFunction(&function, module, name), name);
  return function;
}

// A kernel reports how much shared memory a stage takes.
void KernelSet::prepare_bulk() {
  bulk_ = find(module_, "unpack_bulk");
  latency_bulk_ = find(module_, "latency_bulk");
  CUdeviceptr word = gpu_.allocate(sizeof bytes_a_stage_);
  void* parameters[] = {&word};
  enqueue(find(module_, "describe_bulk"), 1, 1, 0, parameters);
  gpu_.read(&bytes_a_stage_, word, sizeof bytes_a_stage_, kTimeoutS);
  gpu_.driver().cuMemFree_v2(word);
  max_dynamic_bytes_ =
      static_cast<uint32_t>(gpu_.attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)) -
      kStaticSharedBytes;
  for (const CUfunction function : {bulk_, latency_bulk_}) {
    gpu_.driver().check(
        gpu_.driver().cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                         static_cast<int>(max_dynamic_bytes_)),
        "cuFuncSetAttribute");
  }
}

void KernelSet::add_nccl(const std::string& image) {
  nccl_ = find(load(image.c_str(), "loading NCCL's kernel"), "unpack_nccl");
}

bool KernelSet::has(Mover mover) const {
  switch (mover) {
    case Mover::kBulk:
      return bulk_ != nullptr;
    case Mover::kNccl:
      return nccl_ != nullptr;
    case Mover::kRegisters:
    case Mover::kCopy:
      break;
  }
  return true;
}

std::vector<Mover> KernelSet::list_movers() const {
  std::vector<Mover> movers;
  for (const Mover mover : {Mover::kRegisters, Mover::kBulk, Mover::kNccl, Mover::kCopy})
    if (has(mover)) movers.push_back(mover);
  return movers;
}

uint32_t KernelSet::fit_stages(const LaunchShape& shape) const {
  const uint32_t fitting = max_dynamic_bytes_ / (shape.threads / kWarpThreads * bytes_a_stage_);
  return std::max(kMinStages, std::min(shape.stages, fitting));
}

void KernelSet::enqueue(CUfunction function, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                        void** parameters) {
  gpu_.driver().check(gpu_.driver().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared_bytes,
                                                   gpu_.stream(), parameters, nullptr),
                      "cuLaunchKernel");
}

void KernelSet::launch(Mover mover, const UnpackRun& run, const LaunchShape& shape, CUdeviceptr bad_counts) {
  UnpackRun argument = run;
  if (mover == Mover::kBulk) {
    uint32_t stages = fit_stages(shape);
    void* parameters[] = {&argument, &bad_counts, &stages};
    enqueue(bulk_, shape.blocks, shape.threads, shape.threads / kWarpThreads * stages * bytes_a_stage_,
            parameters);
    return;
  }
  void* parameters[] = {&argument, &bad_counts};  // NCCL's kernel and the copy take only the first
  const CUfunction function = mover == Mover::kNccl ? nccl_ : mover == Mover::kCopy ? copy_ : registers_;
  enqueue(function, shape.blocks, shape.threads, 0, parameters);
}

void KernelSet::launch_latency(Mover mover, const LatencyRun& latency, const LaunchShape& shape) {
  LatencyRun argument = latency;
  uint32_t stages = mover == Mover::kBulk ? fit_stages(shape) : 0;
  void* parameters[] = {&argument, &stages};
  enqueue(mover == Mover::kBulk ? latency_bulk_ : latency_registers_, 1, shape.threads,
          shape.threads / kWarpThreads * stages * bytes_a_stage_, parameters);
}

void KernelSet::launch_receive(CUdeviceptr handle, CUdeviceptr data, CUdeviceptr placed, uint32_t threads) {
  void* parameters[] = {&handle, &data, &placed};
  enqueue(receive_, 1, threads, 0, parameters);
}

void KernelSet::fill_words(CUdeviceptr target, uint64_t length_bytes, uint64_t word) {
  uint64_t count = length_bytes / sizeof word;
  void* parameters[] = {&target, &count, &word};
  enqueue(fill_words_, 4 * multiprocessors_, kHelperThreads, 0, parameters);
}

void KernelSet::fill_pages(const UnpackRun& run) {
  UnpackRun argument = run;
  void* parameters[] = {&argument};
  enqueue(fill_pages_, run.connections * run.rounds, kHelperThreads, 0, parameters);
}

void KernelSet::verify(const UnpackRun& run, CUdeviceptr found) {
  UnpackRun argument = run;
  void* parameters[] = {&argument, &found};
  enqueue(verify_, 4 * multiprocessors_, kHelperThreads, 0, parameters);
}

std::string_view kernel_image() {
  return {verbena_unpack_kernels_begin, verbena_unpack_kernels_end};
}

}  // namespace verbena::tools::unpack
