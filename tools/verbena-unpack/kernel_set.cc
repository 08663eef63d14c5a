#include "verbena-unpack/kernel_set.h"

#include <algorithm>

#include "common/error.h"
#include "verbena-unpack/images.h"

namespace verbena::tools::unpack {
namespace {

constexpr uint32_t kHelperThreads = 512;
constexpr uint32_t kWarpThreads = 32;
constexpr uint32_t kMinStages = 2;
constexpr int kBulkComputeMajor = 9;
// What the kernels keep in static shared memory, rounded up.
constexpr uint32_t kStaticSharedBytes = 8192;
constexpr double kTimeoutS = 30;

}  // namespace

const char* describe_mover(Mover mover) {
  switch (mover) {
    case Mover::kRegisters:
      return "registers";
    case Mover::kBulk:
      return "bulk";
    case Mover::kNccl:
      return "nccl";
    case Mover::kCopy:
      break;
  }
  return "copy";
}

KernelSet::KernelSet(Gpu& gpu)
    : gpu_(gpu), multiprocessors_(static_cast<uint32_t>(gpu.attribute(kCudaMultiprocessors))) {
  module_ = load(kernel_image().data(), "loading the kernels");
  registers_ = find(module_, "unpack_registers");
  copy_ = find(module_, "copy_plain");
  latency_registers_ = find(module_, "latency_registers");
  receive_ = find(module_, "place_receive");
  fill_words_ = find(module_, "fill_words");
  fill_pages_ = find(module_, "fill_pages");
  verify_ = find(module_, "verify_buffers");
  if (gpu.attribute(kCudaComputeMajor) >= kBulkComputeMajor) prepare_bulk();
}

CudaModule KernelSet::load(const char* image, const char* what) {
  char log[4096] = "";
  int options[] = {kCudaJitErrorLog, kCudaJitErrorLogBytes};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CudaModule module = nullptr;
  const CudaStatus status = gpu_.driver().load_module(&module, image, 2, options, values);
  if (status != kCudaSuccess && log[0] != '\0') throw ToolError(std::string(what) + ": " + log);
  gpu_.driver().check(status, what);
  return module;
}

CudaFunction KernelSet::find(CudaModule module, const char* name) {
  CudaFunction function = nullptr;
  gpu_.driver().check(gpu_.driver().find_function(&function, module, name), name);
  return function;
}

// The kernels say themselves how much shared memory a stage takes.
void KernelSet::prepare_bulk() {
  bulk_ = find(module_, "unpack_bulk");
  latency_bulk_ = find(module_, "latency_bulk");
  CudaAddress word = gpu_.allocate(sizeof bytes_a_stage_);
  void* parameters[] = {&word};
  enqueue(find(module_, "describe_bulk"), 1, 1, 0, parameters);
  gpu_.read(&bytes_a_stage_, word, sizeof bytes_a_stage_, kTimeoutS);
  gpu_.driver().free(word);
  max_dynamic_bytes_ = static_cast<uint32_t>(gpu_.attribute(kCudaSharedBytesOptIn)) - kStaticSharedBytes;
  for (const CudaFunction function : {bulk_, latency_bulk_}) {
    gpu_.driver().check(gpu_.driver().set_function_attribute(function, kCudaMaxDynamicSharedBytes,
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

void KernelSet::enqueue(CudaFunction function, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                        void** parameters) {
  gpu_.driver().check(gpu_.driver().launch(function, blocks, 1, 1, threads, 1, 1, shared_bytes, gpu_.stream(),
                                           parameters, nullptr),
                      "cuLaunchKernel");
}

void KernelSet::launch(Mover mover, const UnpackRun& run, const LaunchShape& shape, CudaAddress bad_counts) {
  UnpackRun argument = run;
  if (mover == Mover::kBulk) {
    uint32_t stages = fit_stages(shape);
    void* parameters[] = {&argument, &bad_counts, &stages};
    enqueue(bulk_, shape.blocks, shape.threads, shape.threads / kWarpThreads * stages * bytes_a_stage_,
            parameters);
    return;
  }
  void* parameters[] = {&argument, &bad_counts};  // NCCL's and the copy take the first alone
  const CudaFunction function = mover == Mover::kNccl ? nccl_ : mover == Mover::kCopy ? copy_ : registers_;
  enqueue(function, shape.blocks, shape.threads, 0, parameters);
}

void KernelSet::launch_latency(Mover mover, const LatencyRun& latency, const LaunchShape& shape) {
  LatencyRun argument = latency;
  uint32_t stages = mover == Mover::kBulk ? fit_stages(shape) : 0;
  void* parameters[] = {&argument, &stages};
  enqueue(mover == Mover::kBulk ? latency_bulk_ : latency_registers_, 1, shape.threads,
          shape.threads / kWarpThreads * stages * bytes_a_stage_, parameters);
}

void KernelSet::launch_receive(CudaAddress handle, CudaAddress data, CudaAddress placed, uint32_t threads) {
  void* parameters[] = {&handle, &data, &placed};
  enqueue(receive_, 1, threads, 0, parameters);
}

void KernelSet::fill_words(CudaAddress target, uint64_t length_bytes, uint64_t word) {
  uint64_t count = length_bytes / sizeof word;
  void* parameters[] = {&target, &count, &word};
  enqueue(fill_words_, 4 * multiprocessors_, kHelperThreads, 0, parameters);
}

void KernelSet::fill_pages(const UnpackRun& run) {
  UnpackRun argument = run;
  void* parameters[] = {&argument};
  enqueue(fill_pages_, run.connections * run.rounds, kHelperThreads, 0, parameters);
}

void KernelSet::verify(const UnpackRun& run, CudaAddress found) {
  UnpackRun argument = run;
  void* parameters[] = {&argument, &found};
  enqueue(verify_, 4 * multiprocessors_, kHelperThreads, 0, parameters);
}

}  // namespace verbena::tools::unpack
