// All-gather around a ring, with work on each chunk while the next one is in flight: after it every rank has all ranks'
// chunks, and their sum. Each block moves its own slice with its own signal: no block waits for another.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace ring {

using namespace verbena;
using namespace verbena::device;

// `gathered` is symmetric, with a chunk of `count` floats per rank; the caller fills its own. `sums` has one float per
// thread. At most 128 blocks, of whole warps. Sets `failed` if a wait for a rank fails.
__global__ void all_gather(const __grid_constant__ SymmContext context, float* gathered, uint64_t count, float* sums,
                           uint32_t* failed) {
  const BlockGroup block;
  const auto size = static_cast<uint32_t>(symm_team_size(context));
  const auto rank = static_cast<uint32_t>(symm_team_rank(context));
  const uint32_t number = block_index();
  const uint64_t part = (count + blocks_per_grid() - 1) / blocks_per_grid();
  const uint64_t begin = part * number < count ? part * number : count;
  const uint64_t length = count - begin < part ? count - begin : part;

  // Waits until all ranks have finished the previous launch: chunks may be overwritten, and signals start at 0.
  if (symm_barrier(context, number, block) != SymmStatus::kDone) *failed = 1;
  float sum = 0;
  for (uint32_t step = 0; step < size; ++step) {
    // The newest chunk: first ours, then our predecessor's, then that of the rank before it.
    float* const slice = gathered + (rank + size - step) % size * count + begin;
    if (step > 0 && symm_signal_wait_until<int64_t>(context, number, SymmCompare::kGreaterEqual, step, nullptr,
                                                    block) != SymmStatus::kDone)
      *failed = 1;
    if (step + 1 < size) {
      const auto next = static_cast<int32_t>((rank + 1) % size);
      if (symm_put_signal_async(context, slice, slice, length * sizeof(float), next, number, 1,
                                SymmSignalOperation::kAdd, block) != SymmStatus::kDone)
        *failed = 1;
    }
    // The chunk is in flight to the next rank while this block works on it.
    for (uint64_t i = block.rank(); i < length; i += block.size()) sum += slice[i];
  }
  symm_signal_reset(context, number, block);
  sums[number * block.size() + block.rank()] += sum;
}

}  // namespace ring

#ifdef __CUDACC__
int main() {
  return example::run("ring_all_gather", [](verbena::SymmetricContext& context) {
    constexpr int kBlocks = 16, kThreads = 256, kLaunches = 3;
    constexpr uint64_t kCount = 1 << 20;
    const auto world = context.world();
    const auto window = context.allocate(context.size() * kCount * sizeof(float));
    float* const mine = window.address<float>() + context.rank() * kCount;
    // Every element of a rank's chunk is the rank's number and one.
    const std::vector<float> chunk(kCount, static_cast<float>(context.rank() + 1));
    example::check(cudaMemcpy(mine, chunk.data(), kCount * sizeof(float), cudaMemcpyDefault));
    float* sums = nullptr;
    uint32_t* failed = nullptr;
    example::check(cudaMallocManaged(&sums, kBlocks * kThreads * sizeof(float)));
    example::check(cudaMallocManaged(&failed, sizeof(uint32_t)));
    for (int launch = 0; launch < kLaunches; ++launch)
      ring::all_gather<<<kBlocks, kThreads>>>(world.context(), window.address<float>(), kCount, sums, failed);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    double sum = 0, expected = 0;
    for (int i = 0; i < kBlocks * kThreads; ++i) sum += sums[i];
    for (uint32_t rank = 0; rank < context.size(); ++rank) expected += kLaunches * (rank + 1.0) * kCount;
    bool is_right = *failed == 0 && sum == expected;
    for (uint32_t rank = 0; rank < context.size(); ++rank)
      is_right = is_right && example::read_back(window.address<float>() + (rank + 1) * kCount - 1) ==
                                 static_cast<float>(rank + 1);
    return is_right;
  });
}
#endif
