// Heat in a rod that is divided among the ranks: in each step a rank puts its outermost cells into its neighbours' halos,
// computes its inner cells meanwhile, and then the outer ones. One launch runs many steps, without the host.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace halo {

using namespace verbena;
using namespace verbena::device;

// Signals: the halo from the left neighbour has arrived, and that from the right one.
inline constexpr uint32_t kFromLeft = 0, kFromRight = 1;

// Launch one block. `cells` is symmetric: two rows, alternately old and new, of a halo cell, `count` cells and a halo cell.
// The caller fills the first row, including the halos at the ends of the rod. The result is in row `steps` modulo 2.
__global__ void diffuse(const __grid_constant__ SymmContext context, float* cells, uint64_t count, uint32_t steps,
                        uint32_t* failed) {
  const BlockGroup block;
  const int32_t left = symm_team_rank(context) - 1, right = left + 2;
  const bool has_left = left >= 0, has_right = right < symm_team_size(context);
  const uint64_t row = count + 2;
  // Called by all threads: each gets the status itself.
  const auto require = [&](SymmStatus status) {
    if (status != SymmStatus::kDone) *failed = 1;
    return status == SymmStatus::kDone;
  };
  // Waits until the neighbours have filled their rows and finished the previous launch.
  if (!require(symm_barrier(context, 0, block))) return;
  for (uint32_t step = 0; step < steps; ++step) {
    float* const old = cells + step % 2 * row;
    float* const next = cells + (step + 1) % 2 * row;
    // Our first cell becomes the right halo of the left neighbour, and our last cell the left halo of the right one.
    if (has_left && !require(symm_put_signal_async(context, old + count + 1, old + 1, sizeof(float), left, kFromRight,
                                                   1, SymmSignalOperation::kAdd, block)))
      return;
    if (has_right && !require(symm_put_signal_async(context, old, old + count, sizeof(float), right, kFromLeft, 1,
                                                    SymmSignalOperation::kAdd, block)))
      return;
    const auto work = [&](uint64_t i) { next[i] = (old[i - 1] + 2 * old[i] + old[i + 1]) / 4; };
    for (uint64_t i = 2 + block.rank(); i < count; i += block.size()) work(i);
    const auto wait = [&](uint32_t signal) {
      return require(symm_signal_wait_until<int64_t>(context, signal, SymmCompare::kGreaterEqual, step + 1, nullptr,
                                                     block));
    };
    if ((has_left && !wait(kFromLeft)) || (has_right && !wait(kFromRight))) return;
    if (block.elect()) {
      work(1);
      if (count > 1) work(count);
      if (!has_left) next[0] = old[0];
      if (!has_right) next[count + 1] = old[count + 1];
    }
    block.sync();  // completes the new row before its cells are put
  }
  // All signals of the last step have been waited for, so they can be reset.
  symm_signal_reset(context, kFromLeft, block);
  symm_signal_reset(context, kFromRight, block);
}

}  // namespace halo

#ifdef __CUDACC__
int main() {
  return example::run("halo_exchange", [](verbena::SymmetricContext& context) {
    constexpr uint64_t kCount = 1000;
    constexpr uint32_t kSteps = 501;
    const auto world = context.world();
    const auto window = context.allocate(2 * (kCount + 2) * sizeof(float));
    // The whole rod on the host, for comparison: hot at its left end.
    const uint64_t all = context.size() * kCount;
    std::vector<float> rod(all + 2, 0), next(all + 2, 0);
    rod[0] = next[0] = 1000;
    const uint64_t begin = context.rank() * kCount;
    example::check(cudaMemcpy(window.address(), rod.data() + begin, (kCount + 2) * sizeof(float), cudaMemcpyDefault));
    uint32_t* failed = nullptr;
    example::check(cudaMallocManaged(&failed, sizeof(uint32_t)));
    halo::diffuse<<<1, 256>>>(world.context(), window.address<float>(), kCount, kSteps, failed);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    for (uint32_t step = 0; step < kSteps; ++step) {
      for (uint64_t i = 1; i <= all; ++i) next[i] = (rod[i - 1] + 2 * rod[i] + rod[i + 1]) / 4;
      rod.swap(next);
    }
    std::vector<float> got(kCount);
    const float* const result = window.address<float>() + kSteps % 2 * (kCount + 2) + 1;
    example::check(cudaMemcpy(got.data(), result, kCount * sizeof(float), cudaMemcpyDefault));
    bool is_right = *failed == 0;
    for (uint64_t i = 0; i < kCount; ++i) is_right = is_right && got[i] == rod[begin + 1 + i];
    return is_right;
  });
}
#endif
