// Heat in a plate that is divided among a grid of ranks. In each step one half of a block puts the rank's left and
// right edges to its neighbours in the row's team, the other half the upper and lower ones in the column's team; all
// compute the inner cells meanwhile, and then the edges. One launch runs many steps, without the host.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace halo {
using namespace verbena;
using namespace verbena::device;
// Signals of either team: the halo from the member before has arrived, and that from the member behind.
inline constexpr uint32_t kFromBefore = 0, kFromBehind = 1;

// Launch one block of an even number of warps. `cells` is symmetric: two plates, alternately old and new, of `height`
// by `width` cells with a halo around; the caller fills both, with equal halos. The result is in plate `steps` modulo 2.
__global__ void diffuse(const __grid_constant__ SymmContext row, const __grid_constant__ SymmContext column,
                        float* cells, uint64_t height, uint64_t width, uint32_t steps, uint32_t* failed) {
  const BlockGroup block;
  const uint32_t middle = block.size() / 2;
  const bool is_of_row = block.rank() < middle;
  const WarpsGroup half = is_of_row ? WarpsGroup{0, middle, 1} : WarpsGroup{middle, middle, 2};
  const SymmContext& team = is_of_row ? row : column;
  const int32_t before = symm_team_rank(team) - 1, behind = before + 2;
  const bool has_before = before >= 0, has_behind = behind < symm_team_size(team);
  // An edge of this half: the length of its rows, and the way to the opposite one; all else counts cells.
  const uint64_t pitch = width + 2, plate = pitch * (height + 2), origin = pitch + 1;
  const uint64_t rows = is_of_row ? height : 1, row_bytes = (is_of_row ? 1 : width) * sizeof(float);
  const uint64_t across = is_of_row ? 1 : pitch, last = origin + ((is_of_row ? width : height) - 1) * across;
  bool is_good = true;  // the same for all of a half
  const auto require = [&](SymmStatus status) { is_good = is_good && status == SymmStatus::kDone; };
  const auto put = [&](float* old, uint64_t to, uint64_t from, int32_t peer, uint32_t signal) {
    const uint64_t stride = pitch * sizeof(float);
    require(symm_put_rows(team, old + to, stride, old + from, stride, row_bytes, rows, peer, half));
    require(symm_signal(team, signal, peer, 1, SymmSignalOperation::kAdd, half));
  };
  require(symm_barrier(team, 0, half));  // the neighbours have filled their plates and finished the previous launch
  for (int64_t step = 0; step < steps; ++step) {
    // A new plate is complete before its edges are put. All leave together, where one half has failed.
    if (block.any(!is_good)) break;
    float *const old = cells + step % 2 * plate, *const next = cells + (step + 1) % 2 * plate;
    if (has_before) put(old, last + across, origin, before, kFromBehind);
    if (has_behind) put(old, origin - across, last, behind, kFromBefore);
    const auto work = [&](uint64_t y, uint64_t x) {
      const float* const at = old + y * pitch + x;
      next[y * pitch + x] = (at[-1] + at[1] + *(at - pitch) + at[pitch] + 4 * *at) / 8;
    };
    const uint64_t inner = width > 2 && height > 2 ? (width - 2) * (height - 2) : 0;
    for (uint64_t i = block.rank(); i < inner; i += block.size()) work(2 + i / (width - 2), 2 + i % (width - 2));
    if (has_before) require(symm_signal_wait_until(team, kFromBefore, SymmCompare::kGreaterEqual, step + 1, {}, half));
    if (has_behind) require(symm_signal_wait_until(team, kFromBehind, SymmCompare::kGreaterEqual, step + 1, {}, half));
    block.sync();  // the other half's halos are there too
    for (uint64_t x = 1 + block.rank(); x <= width; x += block.size()) work(1, x), work(height, x);
    for (uint64_t y = 2 + block.rank(); y < height; y += block.size()) work(y, 1), work(y, width);
  }
  if (block.any(!is_good) && block.elect()) *failed = 1;
  // All signals of the last step have been waited for.
  symm_signal_reset(team, kFromBefore, half);
  symm_signal_reset(team, kFromBehind, half);
}

}  // namespace halo

#ifdef __CUDACC__
int main() {
  return example::run("halo_exchange", [](verbena::SymmetricContext& context) {
    constexpr uint64_t kSteps = 501, kHeight = 60, kWidth = 100, kPitch = kWidth + 2, kPlate = kPitch * (kHeight + 2);
    const uint32_t rank = context.rank(), columns = context.size() % 2 == 0 ? 2 : 1, rows = context.size() / columns;
    const auto row = context.split(context.world(), rank / columns, rank);
    const auto column = context.split(context.world(), rank % columns, rank);
    const auto window = context.allocate(2 * kPlate * sizeof(float));
    const uint64_t pitch = columns * kWidth + 2;  // of the whole plate, on the host: hot at its left side
    std::vector<float> plate(pitch * (rows * kHeight + 2)), got(2 * kPlate);
    for (uint64_t i = 0; i < plate.size(); i += pitch) plate[i] = 1000;
    const auto find = [&](uint64_t i) {  // of a cell of this rank's plates, halos and all
      return (rank / columns * kHeight + i % kPlate / kPitch) * pitch + rank % columns * kWidth + i % kPitch;
    };
    for (uint64_t i = 0; i < 2 * kPlate; ++i) got[i] = plate[find(i)];
    example::check(cudaMemcpy(window.address(), got.data(), got.size() * sizeof(float), cudaMemcpyDefault));
    uint32_t* failed = nullptr;
    example::check(cudaMallocManaged(&failed, sizeof(uint32_t)));
    halo::diffuse<<<1, 256>>>(row.context(), column.context(), window.address<float>(), kHeight, kWidth, kSteps,
                              failed);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    auto next = plate;
    for (uint64_t step = 0; step < kSteps; ++step, plate.swap(next))
      for (uint64_t i = pitch; i < plate.size() - pitch; ++i)
        if (i % pitch != 0 && i % pitch != pitch - 1)
          next[i] = (plate[i - 1] + plate[i + 1] + plate[i - pitch] + plate[i + pitch] + 4 * plate[i]) / 8;
    example::check(cudaMemcpy(got.data(), window.address(), got.size() * sizeof(float), cudaMemcpyDefault));
    bool is_right = *failed == 0;
    for (uint64_t i = kPitch; i < kPlate - kPitch; ++i)
      is_right = is_right && (i % kPitch == 0 || i % kPitch == kPitch - 1 ||
                              got[kSteps % 2 * kPlate + i] == plate[find(i)]);
    return is_right;
  });
}
#endif
