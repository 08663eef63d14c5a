#include "verbena-bench/unpack/latency.h"

#include <atomic>
#include <cstring>

#include "common/clock.h"
#include "common/table.h"

namespace verbena::tools::unpack {
namespace {

// The layout of host memory that the GPU reaches: the number of messages done, then a sample of each.
constexpr size_t kSamplesOffsetBytes = 128;

TestCase make_case(uint32_t threads, BouncePlace bounce, uint64_t message_bytes) {
  TestCase test_case;
  test_case.slice_bytes = message_bytes;
  test_case.threads = threads;
  test_case.blocks = 1;
  test_case.bounce = bounce;
  return test_case;
}

// Publishes each message some time after the previous one is placed, as a NIC would. Returns for each message
// the nanoseconds from the store to the answer.
std::vector<double> publish_all(NetUnpackMeta& queue, const UnpackRun& run, std::atomic_ref<uint64_t> done,
                                const uint64_t* counts, const LatencyOptions& options) {
  constexpr int64_t kGapNs = 3000;
  std::vector<double> round_trips_ns;
  round_trips_ns.reserve(options.messages);
  for (uint64_t message = 0; message < options.messages; ++message) {
    const int64_t begin_after_ns = now_ns() + kGapNs;
    while (now_ns() < begin_after_ns) continue;
    const uint32_t slot = static_cast<uint32_t>(message % run.slots);
    const std::atomic_ref<uint64_t> count(queue.cnt[slot]);
    const int64_t begin_ns = now_ns();
    count.store(counts[slot], std::memory_order_release);
    Spinner spinner(options.timeout_s);
    while (done.load(std::memory_order_acquire) <= message) spinner.idle("the GPU did not answer in time");
    round_trips_ns.push_back(static_cast<double>(now_ns() - begin_ns));
    count.store(0, std::memory_order_release);
  }
  return round_trips_ns;
}

}  // namespace

void summarize_samples(const std::vector<LatencySample>& samples, LatencyFigure& figure) {
  if (samples.size() < 2) return;
  // The multiprocessor counts cycles, while the clock has long steps: the whole run gives their ratio.
  const double run_ns = static_cast<double>(samples.back().end_ns - samples.front().begin_ns);
  const double run_cycles = static_cast<double>(samples.back().end_cycles - samples.front().begin_cycles);
  const double us_a_cycle = run_cycles > 0 ? run_ns / run_cycles * 1e-3 : 0;
  std::vector<double> by_cycles_us, by_clock_us;
  for (size_t index = samples.size() / 10; index < samples.size(); ++index) {
    const LatencySample& sample = samples[index];
    by_cycles_us.push_back(static_cast<double>(sample.end_cycles - sample.begin_cycles) * us_a_cycle);
    by_clock_us.push_back(static_cast<double>(sample.end_ns - sample.begin_ns) * 1e-3);
  }
  figure.min_us = compute_percentile(by_cycles_us, 0);
  figure.median_us = compute_median(by_cycles_us);
  figure.p90_us = compute_percentile(by_cycles_us, 90);
  figure.p99_us = compute_percentile(by_cycles_us, 99);
  figure.clock_median_us = compute_median(by_clock_us);
}

LatencyFigure measure_latency(Gpu& gpu, KernelSet& kernels, Workspace& workspace, Mover mover,
                              uint32_t threads, BouncePlace bounce, const LatencyOptions& options) {
  const UnpackRun run = workspace.lay_out(make_case(threads, bounce, options.message_bytes), 0);
  workspace.reset_buffers(run);
  NetUnpackMeta& queue = workspace.queues()[0];
  uint64_t counts[kUnpackQueueDepthSlots];
  std::memcpy(counts, queue.cnt, sizeof counts);
  std::memset(queue.cnt, 0, sizeof queue.cnt);
  std::vector<LatencySample> samples(options.messages);
  const size_t samples_bytes = options.messages * sizeof(LatencySample);
  const CUdeviceptr mapped = workspace.exchange().reserve(kSamplesOffsetBytes + samples_bytes);
  auto* const exchange = static_cast<std::byte*>(workspace.exchange().host());
  std::memset(exchange, 0, kSamplesOffsetBytes);

  LatencyRun latency;
  latency.run = run;
  latency.done = reinterpret_cast<void*>(mapped);
  latency.samples = reinterpret_cast<void*>(mapped + kSamplesOffsetBytes);
  latency.messages = options.messages;
  latency.timeout_ns = static_cast<uint64_t>(options.timeout_s * 1e9);
  kernels.launch_latency(mover, latency, {1, threads, options.stages});
  const std::vector<double> round_trips_ns = publish_all(
      queue, run, std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(exchange)), counts, options);
  gpu.wait(options.timeout_s);

  LatencyFigure figure;
  figure.mover = mover;
  figure.threads = threads;
  figure.bounce = bounce;
  figure.message_bytes = options.message_bytes;
  std::memcpy(samples.data(), exchange + kSamplesOffsetBytes, samples_bytes);
  summarize_samples(samples, figure);
  figure.host_median_us = compute_median(round_trips_ns) * 1e-3;
  figure.finding = workspace.check(run);
  return figure;
}

}  // namespace verbena::tools::unpack
