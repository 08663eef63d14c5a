#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "common/error.h"
#include "common/progress.h"
#include "verbena-bench/shared/rank_processes.h"
#include "verbena-bench/subcommands.h"
#include "verbena-bench/unpack/live_gpu.h"
#include "verbena-bench/unpack/options.h"
#include "verbena-bench/unpack/report.h"

namespace verbena::tools::unpack {
namespace {

constexpr int kOldestComputeMajor = 8;

std::string read_image(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string image{std::istreambuf_iterator<char>(file), {}};
  if (image.empty()) throw ToolError("--nccl-kernel: cannot read " + path);
  return image;
}

bool has_device(int wanted) {
  const int gpus = require_cuda_devices("verbena-bench unpack", "a GPU");
  if (gpus != 0 && wanted >= gpus)
    std::fprintf(stderr, "CUDA device %d does not exist; the number of devices is %d\n", wanted, gpus);
  return wanted < gpus;
}

// The requested movers, and the copy that they are compared with.
std::vector<Mover> choose_movers(const UnpackOptions& options, const KernelSet& kernels) {
  if (options.movers.empty()) return kernels.list_movers();
  std::vector<Mover> movers = options.movers;
  for (const Mover mover : movers) {
    if (!kernels.has(mover))
      throw ToolError(std::string("this GPU does not support --copy ") + describe_mover(mover) +
                      " (needs sm_90 or later)");
  }
  movers.push_back(Mover::kCopy);
  return movers;
}

std::vector<uint64_t> choose_sizes(const UnpackOptions& options, const std::vector<uint64_t>& defaults) {
  return options.sizes_bytes.empty() ? defaults : options.sizes_bytes;
}

void measure_latencies(const UnpackOptions& options, Gpu& gpu, KernelSet& kernels, Workspace& workspace,
                       const std::vector<Mover>& movers, Report& report) {
  std::vector<uint32_t> threads = options.sweep.threads;
  std::vector<BouncePlace> bounces = options.sweep.bounces;
  if (options.targets) {
    threads = {256, 512, 640};
    bounces = {BouncePlace::kGpu, BouncePlace::kHost};
  }
  LatencyOptions latency = options.latency;
  for (const uint64_t bytes : choose_sizes(options, {latency.message_bytes})) {
    latency.message_bytes = bytes;
    for (const BouncePlace bounce : bounces)
      for (const uint32_t count : threads)
        for (const Mover mover : movers)
          if (mover == Mover::kRegisters || mover == Mover::kBulk)
            report.add_latency(measure_latency(gpu, kernels, workspace, mover, count, bounce, latency));
  }
}

// As in a run of NCCL in which every message is staged that may be.
void receive_live(const UnpackOptions& options, Gpu& gpu, KernelSet& kernels, Report& report) {
  constexpr int kOverride = 0;
  setenv("VERBENA_UNPACK", "1", kOverride);
  setenv("VERBENA_UNPACK_THRESHOLD", "unlimited", kOverride);
  for (const uint64_t message_bytes : choose_sizes(options, {8, 4096, 65536, 524288, 1048576})) {
    LiveOptions live = options.live;
    live.message_bytes = message_bytes;
    GpuReceiver receiver(gpu, kernels, options.sweep.threads.front(), live.timeout_s);
    report.add_live(run_live(live, receiver));
  }
}

void run_cases(const UnpackOptions& options, Gpu& gpu, KernelSet& kernels, Report& report) {
  Workspace workspace(gpu, kernels, options.measure.timeout_s);
  const std::vector<Mover> movers = choose_movers(options, kernels);
  const auto multiprocessors = static_cast<uint32_t>(gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  const std::vector<TestCase> cases =
      options.targets ? list_target_cases(multiprocessors) : list_cases(options.sweep);
  Progress progress(cases.size());
  for (size_t index = 0; index < cases.size(); ++index) {
    progress.show(index, cases[index].describe());
    const std::vector<Figure> figures =
        measure_case(gpu, kernels, workspace, cases[index], movers, options.measure);
    progress.clear();
    report.add_case(cases[index], figures);
  }
  if (options.measure_latency) measure_latencies(options, gpu, kernels, workspace, movers, report);
}

int measure_all(const UnpackOptions& options, int argc, const char* const* argv) {
  std::string why;
  const CudaDriver& driver = *load_cuda_driver(why);
  Gpu gpu(driver, options.gpu);
  const int major = gpu.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            minor = gpu.attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  if (major < kOldestComputeMajor) {
    std::fprintf(stderr, "%s has compute capability sm_%d%d, but the kernels need sm_%d0 or later\n",
                 gpu.name().c_str(), major, minor, kOldestComputeMajor);
    return kExitNoDevice;
  }
  KernelSet kernels(gpu);
  if (!options.nccl_kernel.empty()) kernels.add_nccl(read_image(options.nccl_kernel));
  Result result = begin_result("verbena-bench unpack", argc, argv);
  Report report(options.measure.iterations != 0 && !options.is_live, options.output.takes_stdout());
  report.begin(gpu.name(), gpu.attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
               gpu.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  if (options.is_live) {
    receive_live(options, gpu, kernels, report);
  } else {
    run_cases(options, gpu, kernels, report);
  }
  report.finish();
  report.fill(result);
  return bench::deliver_checked(result, report.wrong_bytes(), options.output);
}

}  // namespace

int run_tool(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const UnpackOptions& options = parsed.options;
  return report_errors("verbena-bench unpack", [&] {
    return has_device(options.gpu) ? measure_all(options, argc, argv) : static_cast<int>(kExitNoDevice);
  });
}

}  // namespace verbena::tools::unpack
