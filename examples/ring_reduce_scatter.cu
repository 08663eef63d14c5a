// Reduce-scatter around a ring: rank r gets the sum of all ranks' part r. A part travels once around and grows by what
// each rank adds. A rank has two slots for what comes: one is summed while the other is filled, and a credit tells the
// rank before that a slot is free again. Each block moves its own slice with its own signals: none waits for another.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace ring {

using namespace verbena;
using namespace verbena::device;

// `input` (a part of `count` floats for each rank) and `slots` (two of `count`) are symmetric, `sum` is any memory of
// the GPU; `count` is a multiple of 4, so that slices lie at multiples of 16 bytes. At most 128 blocks, of whole warps:
// each has a signal for data and one for credits. Sets `failed` if a wait fails.
__global__ void reduce_scatter(const __grid_constant__ SymmContext context, float* sum, const float* input,
                               float* slots, uint64_t count, uint32_t* failed) {
  const BlockGroup block;
  const auto size = static_cast<uint32_t>(symm_team_size(context));
  const auto rank = static_cast<uint32_t>(symm_team_rank(context));
  const auto next = static_cast<int32_t>((rank + 1) % size), previous = static_cast<int32_t>((rank + size - 1) % size);
  const uint32_t data = 2 * block_index(), credit = data + 1;
  const uint64_t share = (count / 4 + blocks_per_grid() - 1) / blocks_per_grid() * 4;
  const uint64_t begin = share * block_index() < count ? share * block_index() : count;
  const uint64_t length = count - begin < share ? count - begin : share;
  // Called by all threads: each gets the status itself.
  const auto require = [&](SymmStatus status) {
    if (status != SymmStatus::kDone) *failed = 1;
    return status == SymmStatus::kDone;
  };
  const auto wait = [&](uint32_t signal, uint32_t times) {
    return require(symm_signal_wait_until<int64_t>(context, signal, SymmCompare::kGreaterEqual, times, nullptr, block));
  };
  // All ranks have finished the previous launch: signals start at 0.
  if (!require(symm_barrier(context, block_index(), block))) return;
  for (uint32_t step = 0; step < size; ++step) {
    // The part that is here now: at first that of the rank before, at last this rank's own.
    const float* const mine = input + (rank + 2 * size - 1 - step) % size * count + begin;
    float* const arrived = slots + (step + 1) % 2 * count + begin;
    const bool is_last = step + 1 == size;
    if (step > 0 && !wait(data, step)) return;
    if (step > 0 || is_last) {
      float* const result = is_last ? sum + begin : arrived;
      for (uint64_t i = block.rank(); i < length; i += block.size())
        result[i] = mine[i] + (step > 0 ? arrived[i] : 0);
      block.sync();
    }
    if (!is_last) {
      // The slot at the next rank was filled two steps ago; it is free when that rank has passed it on.
      if (step > 1 && !wait(credit, step - 1)) return;
      if (!require(symm_put_signal_async(context, slots + step % 2 * count + begin, step > 0 ? arrived : mine,
                                         length * sizeof(float), next, data, 1, SymmSignalOperation::kAdd, block)))
        return;
      if (!require(symm_flush(context, block))) return;  // a NIC reads the slot until then
    }
    if (step > 0 && !require(symm_signal(context, credit, previous, 1, SymmSignalOperation::kAdd, block))) return;
  }
  if (!wait(credit, size - 1)) return;  // so that none comes behind the reset
  symm_signal_reset(context, data, block);
  symm_signal_reset(context, credit, block);
}

}  // namespace ring

#ifdef __CUDACC__
int main() {
  return example::run("ring_reduce_scatter", [](verbena::SymmetricContext& context) {
    constexpr int kBlocks = 16, kThreads = 256, kLaunches = 3;
    constexpr uint64_t kCount = (1 << 20) + 4;
    const auto world = context.world();
    const auto input = context.allocate(context.size() * kCount * sizeof(float));
    const auto slots = context.allocate(2 * kCount * sizeof(float));
    // Whole numbers, so that sums are exact in any order.
    const auto number = [](uint64_t rank, uint64_t i) { return static_cast<float>((rank + 1) * (i % 1009)); };
    std::vector<float> sent(context.size() * kCount), got(kCount);
    for (uint64_t i = 0; i < sent.size(); ++i) sent[i] = number(context.rank(), i);
    example::check(cudaMemcpy(input.address(), sent.data(), sent.size() * sizeof(float), cudaMemcpyDefault));
    float* sum = nullptr;
    uint32_t* failed = nullptr;
    example::check(cudaMalloc(&sum, kCount * sizeof(float)));
    example::check(cudaMallocManaged(&failed, sizeof(uint32_t)));
    for (int launch = 0; launch < kLaunches; ++launch)
      ring::reduce_scatter<<<kBlocks, kThreads>>>(world.context(), sum, input.address<float>(), slots.address<float>(),
                                                  kCount, failed);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    example::check(cudaMemcpy(got.data(), sum, kCount * sizeof(float), cudaMemcpyDefault));
    bool is_right = *failed == 0;
    for (uint64_t i = 0; i < kCount; ++i) {
      float expected = 0;
      for (uint32_t rank = 0; rank < context.size(); ++rank) expected += number(rank, context.rank() * kCount + i);
      is_right = is_right && got[i] == expected;
    }
    return is_right;
  });
}
#endif
