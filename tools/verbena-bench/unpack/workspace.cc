#include "verbena-bench/unpack/workspace.h"

#include <algorithm>
#include <cstddef>

#include "verbena-bench/unpack/layout.h"

namespace verbena::tools::unpack {
namespace {

// The results of the checking kernels, in GPU memory.
struct Results {
  uint64_t wrong_bytes;
  uint64_t first_position;
  uint32_t bad_counts;
  uint32_t unused;
};

std::string describe_position(const UnpackRun& run, uint64_t position) {
  const uint64_t message = position / run.message_stride_bytes;
  const auto offset = static_cast<int64_t>(position % run.message_stride_bytes) - kGuardBeforeBytes -
                      run.destination_offset_bytes;
  return "the first wrong byte near byte " + std::to_string(offset) + " of message " +
         std::to_string(message) + " (connection " + std::to_string(message / run.slots / run.rounds) +
         ", round " + std::to_string(message / run.slots % run.rounds) + ", slot " +
         std::to_string(message % run.slots) + ")";
}

}  // namespace

Workspace::Workspace(Gpu& gpu, KernelSet& kernels, double timeout_s)
    : gpu_(gpu),
      kernels_(kernels),
      timeout_s_(timeout_s),
      queues_(gpu.driver(), Arena::Place::kHost),
      host_bounce_(gpu.driver(), Arena::Place::kHost),
      exchange_(gpu.driver(), Arena::Place::kHost),
      gpu_bounce_(gpu.driver(), Arena::Place::kGpu),
      buffers_(gpu.driver(), Arena::Place::kGpu),
      results_(gpu.driver(), Arena::Place::kGpu) {
  static_assert(sizeof(Results) == kResultBytes && offsetof(Results, bad_counts) == kBadCountsOffsetBytes);
}

UnpackRun Workspace::lay_out(const TestCase& test_case, uint64_t footprint_bytes) {
  UnpackRun run = plan_run(test_case, footprint_bytes);
  run.meta = reinterpret_cast<void*>(queues_.reserve(run.connections * sizeof(NetUnpackMeta)));
  queue_memory_ = static_cast<NetUnpackMeta*>(queues_.host());
  for (uint32_t connection = 0; connection < run.connections; ++connection)
    fill_queue(test_case, run, connection, queue_memory_[connection]);
  Arena& bounces = test_case.bounce == BouncePlace::kHost ? host_bounce_ : gpu_bounce_;
  const CUdeviceptr bounce = bounces.reserve(run.bounce_bytes());
  run.bounce = reinterpret_cast<char*>(bounce);
  run.buffers = reinterpret_cast<char*>(buffers_.reserve(run.buffer_bytes()));
  kernels_.fill_words(bounce, run.bounce_bytes(), kUnusedWord);
  kernels_.fill_pages(run);
  gpu_.wait(timeout_s_);
  return run;
}

void Workspace::reset_buffers(const UnpackRun& run) {
  const Results nothing{0, ~uint64_t{0}, 0, 0};
  gpu_.write(results_.reserve(kResultBytes), &nothing, sizeof nothing, timeout_s_);
  kernels_.fill_words(reinterpret_cast<CUdeviceptr>(run.buffers), run.buffer_bytes(), kGuardWord);
  gpu_.wait(timeout_s_);
}

Finding Workspace::check(const UnpackRun& run) {
  Results found{};
  const CUdeviceptr results = results_.reserve(kResultBytes);
  kernels_.verify(run, results);
  gpu_.read(&found, results, sizeof found, timeout_s_);
  Finding finding;
  finding.wrong_bytes = found.wrong_bytes;
  if (found.wrong_bytes != 0) finding.where = describe_position(run, found.first_position);
  if (found.bad_counts != 0) {
    finding.where += " " + std::to_string(found.bad_counts) + " slots rejected";
    finding.wrong_bytes = std::max<uint64_t>(finding.wrong_bytes, 1);
  }
  return finding;
}

}  // namespace verbena::tools::unpack
