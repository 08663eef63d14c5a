#include "nccl-perf/measurement.h"

#include <algorithm>
#include <vector>

#include "common/clock.h"
#include "common/table.h"
#include "nccl-perf/element.h"

namespace verbena::tools::nccl {
namespace {

constexpr uint32_t kPoison = 0xDEADBEEF;
constexpr int kRoot = 0;
constexpr uint64_t kStagingElements = 4 << 20;

uint64_t find_largest_buffer(const NcclPerfOptions& options, uint32_t ranks) {
  uint64_t elements = 0;
  for (const Operation operation : options.operations) {
    for (const uint64_t size_bytes : options.sizes_bytes) {
      const Shape shape = make_shape(operation, size_bytes, ranks);
      elements = std::max({elements, shape.send_elements, shape.receive_elements});
    }
  }
  return elements * kElementBytes;
}

void* as_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

}  // namespace

Measurement::Measurement(const NcclLibrary& nccl, NcclComm comm, Gpu& gpu, const NcclPerfOptions& options)
    : nccl_(nccl),
      comm_(comm),
      gpu_(gpu),
      options_(options),
      rank_(static_cast<uint32_t>(options.child_rank)),
      ranks_(static_cast<uint32_t>(options.child_ranks)),
      votes_(gpu_.allocate(sizeof(uint32_t))) {
  void* staging = nullptr;
  gpu_.driver().check(
      gpu_.driver().cuMemHostAlloc(&staging, kStagingElements * kElementBytes, CU_MEMHOSTALLOC_PORTABLE),
      "cuMemHostAlloc");
  staging_ = {static_cast<uint32_t*>(staging), kStagingElements};
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

// Writes new data each time, so that data of an earlier operation is noticed. The wait is needed because the
// network may write into a registered receive before the kernel of the operation starts: poisoning must be
// over.
void Measurement::prepare(const Shape& shape) {
  ++salt_;
  for (uint64_t first = 0; first < shape.send_elements; first += kStagingElements) {
    const auto part = staging_.first(std::min(kStagingElements, shape.send_elements - first));
    fill_elements(part, static_cast<uint32_t>(first), rank_, salt_);
    gpu_.write(send_ + first * kElementBytes, part.data(), part.size_bytes(), options_.timeout_s);
  }
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
  uint64_t wrong = 0;
  for (const Expectation& expected : list_expectations(operation, shape, rank_, ranks_)) {
    for (uint64_t first = 0; first < expected.count; first += kStagingElements) {
      const auto part = staging_.first(std::min(kStagingElements, expected.count - first));
      gpu_.read(part.data(), receive_ + (expected.offset + first) * kElementBytes, part.size_bytes(),
                options_.timeout_s);
      wrong += count_wrong_elements(part, first, expected, salt_);
    }
  }
  return wrong;
}

void Measurement::enqueue(Operation operation, const Shape& shape) {
  const void* const send = as_pointer(send_);
  void* const receive = as_pointer(receive_);
  const uint64_t count = shape.count;
  const CUstream stream = gpu_.stream();
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
  const CUstream stream = gpu_.stream();
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

}  // namespace verbena::tools::nccl
