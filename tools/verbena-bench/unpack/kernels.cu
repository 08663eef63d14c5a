// The kernels of verbena-bench unpack: those under test, the plain copy that they are compared with, and
// those that fill and check the data in GPU memory.
#include "verbena-bench/unpack/expectation.h"
#include "verbena-bench/unpack/unpack_run.h"
#include "verbena/device/bulk_unpack.cuh"
#include "verbena/device/unpack.cuh"

#define KERNEL extern "C" __global__ void

namespace {

using namespace verbena;
using namespace verbena::device;
using tools::unpack::LatencyRun;
using tools::unpack::LatencySample;
using tools::unpack::UnpackRun;

constexpr int kMaxThreads = 640;  // NCCL's largest block

__device__ const NetUnpackMeta* find_queue(const UnpackRun& run, uint32_t connection) {
  return static_cast<const NetUnpackMeta*>(run.meta) + connection;
}

// Unpacks everything that a connection receives, in order.
template <typename Copy>
__device__ void unpack_all(const UnpackRun& run, Copy& copy, uint32_t* bad_counts) {
  __shared__ UnpackScratch<> scratch;
  const BlockGroup group;
  const uint32_t connection = block_index();
  const NetUnpackMeta* const queue = find_queue(run, connection);
  for (uint32_t pass = 0; pass < run.passes; ++pass) {
    for (uint32_t round = 0; round < run.rounds; ++round) {
      const char* const bounce = run.bounce + run.bounce_offset(connection, round);
      for (uint32_t slot = 0; slot < run.slots; slot += run.at_once) {
        const uint32_t left = run.slots - slot;
        const auto place = [&](uint32_t message) {
          return run.buffers + run.data_offset(run.message_index(connection, round, slot + message));
        };
        const UnpackResult result = unpack_messages(group, scratch, copy, queue, slot,
                                                    left < run.at_once ? left : run.at_once, bounce, place);
        if (result != UnpackResult::kDone && group.elect()) atomicAdd(bad_counts, 1u);
      }
    }
  }
}

// Unpacks one message at a time and measures from the moment when its count is seen.
template <typename Copy>
__device__ void measure_latency(const LatencyRun& latency, Copy& copy) {
  __shared__ UnpackScratch<> scratch;
  __shared__ uint64_t count;
  const BlockGroup group;
  const UnpackRun& run = latency.run;
  const NetUnpackMeta* const queue = find_queue(run, 0);
  for (uint64_t message = 0; message < latency.messages; ++message) {
    const auto slot = static_cast<uint32_t>(message % run.slots);
    char* const data = run.buffers + run.data_offset(run.message_index(0, 0, slot));
    LatencySample sample{};
    bool is_late = false;
    if (group.elect()) {
      const auto result = wait_until<Relation::kNotEqual, Scope::kSystem>(
          queue->cnt + slot, 0, WaitLimits::within(latency.timeout_ns), &count);
      is_late = result != WaitResult::kReached;
      sample.begin_ns = clock_ns();
      sample.begin_cycles = static_cast<uint64_t>(clock64());
    }
    if (group.any(is_late)) return;
    unpack_message(group, scratch, copy, queue, slot, count, run.bounce, data);
    // A message is done when no thread of the GPU can read the old bytes.
    fence<Order::kAcquireRelease, Scope::kGpu>();
    group.sync();
    if (group.elect()) {
      sample.end_cycles = static_cast<uint64_t>(clock64());
      sample.end_ns = clock_ns();
      static_cast<LatencySample*>(latency.samples)[message] = sample;
      store_release<Scope::kSystem>(static_cast<uint64_t*>(latency.done), message + 1);
    }
  }
}

__device__ uint64_t grid_thread() {
  return static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ uint64_t grid_threads() {
  return static_cast<uint64_t>(gridDim.x) * blockDim.x;
}

}  // namespace

KERNEL __launch_bounds__(kMaxThreads) unpack_registers(UnpackRun run, uint32_t* bad_counts) {
  CopyThroughRegisters copy;
  unpack_all(run, copy, bad_counts);
}

KERNEL __launch_bounds__(kMaxThreads) latency_registers(LatencyRun latency) {
  CopyThroughRegisters copy;
  measure_latency(latency, copy);
}

// Unpacks the next receive of a connection of the plugin, as NCCL's kernel does: the slot after the head.
// Stores the number of its descriptors in `placed`; all ones for a slot that was refused.
KERNEL __launch_bounds__(kMaxThreads)
    place_receive(UnpackDeviceHandle* handle, char* data, uint64_t* placed) {
  __shared__ UnpackScratch<> scratch;
  const BlockGroup group;
  CopyThroughRegisters copy;
  const NetUnpackMeta* const queue = handle->meta;
  const uint64_t head = handle->head + 1;
  const auto slot = static_cast<uint32_t>(head % kUnpackQueueDepthSlots);
  const uint64_t count = load_relaxed<Scope::kSystem>(queue->cnt + slot);
  const UnpackResult result = unpack_message(group, scratch, copy, queue, slot, handle->bounce_buf, data);
  group.sync();
  if (group.elect()) {
    handle->head = head;
    *placed = result == UnpackResult::kDone ? count : ~uint64_t{0};
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
extern __shared__ __align__(128) char stages_memory[];

KERNEL __launch_bounds__(kMaxThreads) unpack_bulk(UnpackRun run, uint32_t* bad_counts, uint32_t stages) {
#if defined(__CUDA_ARCH__)
  CopyThroughShared copy(BlockGroup{}, stages_memory, stages);
  unpack_all(run, copy, bad_counts);
#endif
}

// Reports the shared memory that a warp needs for each of its stages.
KERNEL describe_bulk(uint32_t* bytes) {
#if defined(__CUDA_ARCH__)
  *bytes = CopyThroughShared::count_shared_bytes(1, 1);
#endif
}

KERNEL __launch_bounds__(kMaxThreads) latency_bulk(LatencyRun latency, uint32_t stages) {
#if defined(__CUDA_ARCH__)
  CopyThroughShared copy(BlockGroup{}, stages_memory, stages);
  measure_latency(latency, copy);
#endif
}
#endif

// The limit of the memory: the same blocks copy the same bytes in whole vectors, with eight loads per thread
// in flight.
KERNEL __launch_bounds__(kMaxThreads) copy_plain(UnpackRun run) {
  constexpr int kInFlight = 8;
  const uint32_t connection = block_index();
  const uint64_t vectors = run.slice_bytes * run.slots / sizeof(uint4);
  for (uint32_t pass = 0; pass < run.passes; ++pass) {
    for (uint32_t round = 0; round < run.rounds; ++round) {
      const auto* const from =
          reinterpret_cast<const uint4*>(run.bounce + run.bounce_offset(connection, round));
      auto* const to =
          reinterpret_cast<uint4*>(run.buffers + run.data_offset(run.message_index(connection, round, 0)));
      uint64_t vector = threadIdx.x;
      for (; vector + (kInFlight - 1) * blockDim.x < vectors; vector += kInFlight * blockDim.x) {
        uint4 values[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) values[i] = from[vector + i * blockDim.x];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) to[vector + i * blockDim.x] = values[i];
      }
      for (; vector < vectors; vector += blockDim.x) to[vector] = from[vector];
    }
  }
}

KERNEL fill_words(uint64_t* words, uint64_t count, uint64_t value) {
  for (uint64_t index = grid_thread(); index < count; index += grid_threads()) words[index] = value;
}

// Writes each byte of the payload to its place in the bounce memory, by the descriptors. One block per bounce
// region, one warp per page.
KERNEL fill_pages(UnpackRun run) {
  const uint32_t connection = blockIdx.x / run.rounds, round = blockIdx.x % run.rounds;
  const NetUnpackMeta* const queue = find_queue(run, connection);
  char* const region = run.bounce + run.bounce_offset(connection, round);
  for (uint32_t slot = 0; slot < run.slots; ++slot) {
    const uint64_t seed = tools::compute_pattern_seed(run.message_index(connection, round, slot));
    for (uint64_t page = threadIdx.x / kWarpLanes; page < queue->cnt[slot]; page += blockDim.x / kWarpLanes) {
      const LoadMeta piece = queue->mem[slot][page];
      const uint64_t first = piece.dst_off - run.destination_offset_bytes;
      char* const to = region + piece.src_off;
      const uint32_t to_boundary = (8 - piece.src_off % 8) % 8;
      const uint32_t head = to_boundary < piece.len ? to_boundary : piece.len;
      const uint32_t words = (piece.len - head) / 8;
      const auto put = [&](uint32_t byte) {
        to[byte] = static_cast<char>(tools::compute_pattern_at(seed, first + byte));
      };
      for (uint32_t word = lane(); word < words; word += kWarpLanes) {
        reinterpret_cast<uint64_t*>(to + head)[word] =
            tools::compute_pattern_at(seed, first + head + 8 * word);
      }
      if (lane() < head) put(lane());
      const uint32_t tail = head + 8 * words;
      if (lane() < piece.len - tail) put(tail + lane());
    }
  }
}

// Adds the number of wrong bytes to found[0] and keeps the lowest position of one in found[1].
KERNEL verify_buffers(UnpackRun run, unsigned long long* found) {
  const uint64_t words_a_message = run.message_stride_bytes / 8;
  const auto* const words = reinterpret_cast<const uint64_t*>(run.buffers);
  for (uint64_t message = blockIdx.x; message < run.count_messages(); message += gridDim.x) {
    for (uint64_t index = threadIdx.x; index < words_a_message; index += blockDim.x) {
      const uint64_t word = words[message * words_a_message + index];
      const uint64_t expected = tools::unpack::compute_expected_word(run, message, index * 8);
      if (word == expected) continue;
      atomicAdd(found, tools::unpack::count_different_bytes(word, expected));
      atomicMin(found + 1, message * run.message_stride_bytes + index * 8);
    }
  }
}
