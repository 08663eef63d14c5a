#include "nccl-perf/measurement.h"

#include <algorithm>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/samples.h"
#include "nccl-perf/element.h"

namespace verbena::tools::nccl {
namespace {

constexpr uint32_t kPoison = 0xDEADBEEF;
constexpr int kRoot = 0;

uint64_t find_largest_buffer(const Options& options, uint32_t ranks) {
  uint64_t elements = 0;
  for (const Operation operation : options.operations) {
    for (const uint64_t size_bytes : options.sizes_bytes) {
      const Shape shape = make_shape(operation, size_bytes, ranks);
      elements = std::max({elements, shape.send_elements, shape.receive_elements});
    }
  }
  return elements * kElementBytes;
}

void* as_pointer(CudaAddress address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

Measurement::Measurement(const NcclLibrary& nccl, NcclComm comm, Gpu& gpu, const Kernels& kernels,
                         const Options& options)
    : nccl_(nccl),
      comm_(comm),
      gpu_(gpu),
      kernels_(kernels),
      options_(options),
      rank_(static_cast<uint32_t>(options.child_rank)),
      ranks_(static_cast<uint32_t>(options.child_ranks)),
      wrong_(gpu_.allocate(sizeof(uint64_t))),
      votes_(gpu_.allocate(sizeof(uint32_t))) {
  const uint64_t buffer_bytes = find_largest_buffer(options, ranks_);
  send_ = gpu_.allocate(buffer_bytes);
  receive_ = gpu_.allocate(buffer_bytes);
}

Measured Measurement::measure(Operation operation, uint64_t size_bytes) {
  const Shape shape = make_shape(operation, size_bytes, ranks_);
  Measured measured;
  prepare(shape);
  for (uint64_t iteration = 0; iteration < options_.warmup; ++iteration) enqueue(operation, shape);
  wait();
  measured.wrong_elements = count_wrong(operation, shape);
  std::vector<double> samples_us;
  const int64_t end_ns = deadline_after_s(options_.soak_s);
  do {
    prepare(shape);
    run_timed(operation, shape);
    for (uint64_t iteration = 0; iteration < options_.iterations; ++iteration)
      samples_us.push_back(gpu_.measure_us(iteration));
    measured.wrong_elements += count_wrong(operation, shape);
  } while (options_.soak_s > 0 && !agree_to_end(now_ns() >= end_ns));
  if (options_.soak_s > 0) measured.soak = summarize(samples_us);
  measured.p99_us = compute_percentile(samples_us, 99);
  measured.time_us = compute_median(std::move(samples_us));
  return measured;
}

bool Measurement::agree_to_end(bool is_enough) {
  uint32_t votes = 0;
  gpu_.fill_words(votes_, is_enough ? 1 : 0, 1);
  void* const address = as_pointer(votes_);
  check(nccl_.all_reduce(address, address, 1, kNcclUint32, kNcclSum, comm_, gpu_.stream()), "ncclAllReduce");
  wait();
  gpu_.read(&votes, votes_, sizeof votes, options_.timeout_s);
  return votes != 0;
}

// New data each time, so that nothing of an earlier operation passes. The wait keeps a registered receive,
// which the network may write before the operation's kernel starts, from being poisoned afterwards.
void Measurement::prepare(const Shape& shape) {
  ++salt_;
  kernels_.fill(send_, shape.send_elements, rank_, salt_, gpu_.stream());
  gpu_.fill_words(receive_, kPoison, shape.receive_elements);
  wait();
}

void Measurement::run_timed(Operation operation, const Shape& shape) {
  if (options_.graph) {
    Graph graph(gpu_, [&] { enqueue(operation, shape); });
    for (uint64_t iteration = 0; iteration < options_.iterations; ++iteration) {
      gpu_.mark(iteration);
      graph.launch();
    }
    gpu_.mark(options_.iterations);
    wait();
    return;
  }
  for (uint64_t iteration = 0; iteration < options_.iterations; ++iteration) {
    gpu_.mark(iteration);
    enqueue(operation, shape);
  }
  gpu_.mark(options_.iterations);
  wait();
}

void Measurement::wait() {
  gpu_.wait(options_.timeout_s, [this] {
    NcclStatus error = kNcclSuccess;
    check(nccl_.get_async_error(comm_, &error), "ncclCommGetAsyncError");
    if (error != kNcclInProgress) check(error, "the operation");
  });
}

uint64_t Measurement::count_wrong(Operation operation, const Shape& shape) {
  if (!options_.verify) return 0;
  gpu_.fill_words(wrong_, 0, sizeof(uint64_t) / kElementBytes);
  for (const Expectation& expected : list_expectations(operation, shape, rank_, ranks_)) {
    kernels_.check(receive_, expected, salt_, wrong_, gpu_.stream());
  }
  uint64_t wrong = 0;
  gpu_.read(&wrong, wrong_, sizeof wrong, options_.timeout_s);
  return wrong;
}

void Measurement::enqueue(Operation operation, const Shape& shape) {
  const void* const send = as_pointer(send_);
  void* const receive = as_pointer(receive_);
  const uint64_t count = shape.count;
  const CudaStream stream = gpu_.stream();
  switch (operation) {
    case Operation::kAllReduce:
      return check(nccl_.all_reduce(send, receive, count, kNcclUint32, kNcclSum, comm_, stream),
                   "ncclAllReduce");
    case Operation::kAllGather:
      return check(nccl_.all_gather(send, receive, count, kNcclUint32, comm_, stream), "ncclAllGather");
    case Operation::kReduceScatter:
      return check(nccl_.reduce_scatter(send, receive, count, kNcclUint32, kNcclSum, comm_, stream),
                   "ncclReduceScatter");
    case Operation::kBroadcast:
      return check(nccl_.broadcast(send, receive, count, kNcclUint32, kRoot, comm_, stream), "ncclBroadcast");
    case Operation::kSendRecv: {
      const auto next = static_cast<int>((rank_ + 1) % ranks_);
      const auto previous = static_cast<int>((rank_ + ranks_ - 1) % ranks_);
      check(nccl_.group_start(), "ncclGroupStart");
      check(nccl_.send(send, count, kNcclUint32, next, comm_, stream), "ncclSend");
      check(nccl_.receive(receive, count, kNcclUint32, previous, comm_, stream), "ncclRecv");
      return check(nccl_.group_end(), "ncclGroupEnd");
    }
    case Operation::kAllToAll:
      return enqueue_all_to_all(shape);
  }
}

void Measurement::enqueue_all_to_all(const Shape& shape) {
  const CudaStream stream = gpu_.stream();
  check(nccl_.group_start(), "ncclGroupStart");
  for (uint32_t peer = 0; peer < ranks_; ++peer) {
    const uint64_t offset_bytes = peer * shape.count * kElementBytes;
    const auto number = static_cast<int>(peer);
    check(nccl_.send(as_pointer(send_ + offset_bytes), shape.count, kNcclUint32, number, comm_, stream),
          "ncclSend");
    check(nccl_.receive(as_pointer(receive_ + offset_bytes), shape.count, kNcclUint32, number, comm_, stream),
          "ncclRecv");
  }
  check(nccl_.group_end(), "ncclGroupEnd");
}

void check_kernels(Gpu& gpu, const Kernels& kernels, double timeout_s) {
  constexpr uint32_t kCount = 4099;
  constexpr uint32_t kRank = 3;
  constexpr uint32_t kSalt = 7;
  const CudaAddress data = gpu.allocate(kCount * kElementBytes);
  const CudaAddress wrong = gpu.allocate(sizeof(uint64_t));
  const auto count_wrong = [&](const Expectation& expected) {
    uint64_t count = 0;
    gpu.fill_words(wrong, 0, sizeof(uint64_t) / kElementBytes);
    kernels.check(data, expected, kSalt, wrong, gpu.stream());
    gpu.read(&count, wrong, sizeof count, timeout_s);
    return count;
  };
  const auto demand = [](bool holds, const char* what) {
    if (!holds) throw ToolError(std::string("the check kernels are wrong on this GPU: ") + what);
  };
  std::vector<uint32_t> elements(kCount);
  kernels.fill(data, kCount, kRank, kSalt, gpu.stream());
  gpu.read(elements.data(), data, kCount * kElementBytes, timeout_s);
  for (uint32_t index = 0; index < kCount; ++index) {
    demand(elements[index] == compute_element(index, compute_seed(kRank, kSalt)), "fill");
  }
  demand(count_wrong({5, kCount - 5, 5, kRank, 1}) == 0, "check of one rank");
  gpu.fill_words(data + 17 * kElementBytes, kPoison, 1);
  demand(count_wrong({0, kCount, 0, kRank, 1}) == 1, "one wrong element");
  for (uint32_t index = 0; index < kCount; ++index) {
    elements[index] = compute_element(index, compute_seed(kRank, kSalt)) +
                      compute_element(index, compute_seed(kRank + 1, kSalt));
  }
  gpu.write(data, elements.data(), kCount * kElementBytes, timeout_s);
  demand(count_wrong({0, kCount, 0, kRank, 2}) == 0, "check of a sum");
  demand(count_wrong({0, kCount, 1, kRank, 2}) == kCount, "shifted data");
}

}  // namespace verbena::tools::nccl
