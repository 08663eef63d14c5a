// One kernel that goes through the templates of every header, so that each compiler has to take them in
// earnest.
#include "verbena/device/async_copy.cuh"
#include "verbena/device/barrier.cuh"
#include "verbena/device/collectives/codec_float8.cuh"
#include "verbena/device/collectives/codec_integer.cuh"
#include "verbena/device/collectives/encoded_put.cuh"
#include "verbena/device/rms_norm.cuh"
#include "verbena/device/tilescale.cuh"

#if VERBENA_FREESTANDING
#define VERBENA_KERNEL extern "C" __attribute__((global)) void
#elif VERBENA_EMULATED
#define VERBENA_KERNEL                                               \
  void use_all(uint64_t*, uint64_t**, const uint32_t*, int*, void*); \
  void use_codecs(const vd::Bfloat16*, char*, float*, uint64_t);     \
  void use_norm(vd::RmsNorm<vd::Bfloat16>, const vd::Bfloat16*);     \
  void
#else
#define VERBENA_KERNEL extern "C" __global__ void
#endif

namespace vd = verbena::device;

VERBENA_KERNEL use_all(uint64_t* words, uint64_t** rows, const uint32_t* abort_word, int* out, void* any) {
  const auto limits = vd::WaitLimits::within(1000000, abort_word);
  const vd::GridBarrier grid{words, vd::blocks_per_grid()};
  const vd::SystemBarrier system{rows, words + 16, 0, 4};
  const vd::GridGroup group{grid, words + 32, limits};
  out[5] = group.any(words[0] == group.share(words[1], group.elect()));
  out[6] = static_cast<int>(vd::BlockGroup{}.share(words[2], vd::thread_index() == 0)) +
           static_cast<int>(vd::WarpsGroup{0, 64, 3}.share(words[3], vd::thread_index() == 0));
  vd::WaitResult result = vd::sync_all_ranks<vd::PauseLongerAndLonger<>>(grid, system, limits);
  result = vd::agree(vd::ThreadGroup{}, result);
  result =
      vd::wait_together<vd::Relation::kLess, vd::Scope::kSystem>(vd::WarpsGroup{0, 64, 1}, out, -3, limits);
  result = vd::wait_together<vd::Relation::kNotEqual, vd::Scope::kGpu>(vd::WarpGroup{}, out, -3, limits);

  float value;
  tl::ld<Semantic::WEAK, Scope::GPU, false, false>(words[0], value);
  tl::st<Semantic::RELEASE, Scope::SYS, true>(static_cast<float*>(any), value);
  tl::ld<Semantic::WEAK, Scope::CTA, true, true>(static_cast<const float*>(any), value);
  tl::st<Semantic::VOLATILE, Scope::GPU, false>(static_cast<float*>(any), value);
  auto* const counter = static_cast<uint32_t*>(any);
  tl::init_barrier_gpu<4>(counter);
  result = tl::sync_barrier_gpu(counter, limits);
  result = tl::wait_ge(out, -4, limits);
  out[2] = static_cast<int>(result) + tl::get_warp_group_idx() + tl::get_lane_idx() +
           tl::tl_shuffle_elect<0>() + tl::tl_shuffle_elect<64>() + group.is_broken();
  out[3] = tl::atomic_load_acquire_sys_s32(out) + static_cast<int>(tl::ld_acquire_gpu_u32(counter));
  tl::memory_fence_cta();
  tl::memory_fence_gpu();
  tl::memory_fence_sys();
  vd::reduce_min<vd::Order::kRelease, vd::Scope::kGpu>(out, -1);
  out[4] = vd::compare_exchange<vd::Order::kAcquire, vd::Scope::kSystem>(out, 1, 2);
}

template <typename Codec, typename Rounding>
VERBENA_DEVICE void use_codec(const vd::Bfloat16* from, char* message, float* to, uint64_t count,
                              const Rounding& rounding) {
  const vd::CodedTiles<Codec> tiles(message, 1);
  vd::TileElements numbers;
  for (uint32_t row = 0; row < vd::kTileRows; ++row) {
    vd::PackedSum<vd::Bfloat16> unit;
    unit.begin(vd::load_unit(from, row * vd::kRowElements, count, true));
    for (uint32_t i = 0; i < vd::kUnitElements; ++i) numbers.of[row][i] = unit.sums[i];
  }
  tiles.store(0, Codec::encode(numbers, rounding.in_tile(0)));
  vd::sync_warp();
  const auto coded = tiles.load(0);
  for (uint32_t row = 0; row < vd::kTileRows; ++row) {
    vd::PackedSum<float, 32> unit;
    Codec::decode_row(coded, row, unit.sums);
    vd::store_unit(to, row * vd::kRowElements, count, true, unit.round());
  }
}

VERBENA_KERNEL use_codecs(const vd::Bfloat16* from, char* message, float* to, uint64_t count) {
  use_codec<vd::Int8>(from, message, to, count, vd::RoundToNearest{});
  use_codec<vd::Int6>(from, message, to, count, vd::RoundToNearest{});
  use_codec<vd::Int4>(from, message, to, count, vd::RoundStochastically(count));
  use_codec<vd::Float8>(from, message, to, count, vd::RoundStochastically(count));
  use_codec<vd::MxFloat8>(from, message, to, count, vd::RoundToNearest{});
}

template <uint32_t kBytes>
VERBENA_DEVICE void use_lossless(const char* from, char* message, char* to, uint32_t length_bytes) {
  const vd::LosslessTiles<kBytes> tiles(message, length_bytes / kBytes);
  vd::TileWords words;
  tiles.begin(vd::WarpGroup{});
  vd::sync_warp();
  for (uint32_t tile = 0; tile < tiles.tiles(); ++tile) {
    vd::load_tile_words<kBytes>(from, tile, length_bytes, words);
    tiles.store(tile, words);
  }
  vd::sync_warp();
  for (uint32_t tile = 0; tile < tiles.tiles(); ++tile) {
    vd::LosslessTiles<kBytes, const char>(message, length_bytes / kBytes).load(tile, words);
    vd::store_tile_words<kBytes>(to, tile, length_bytes, words);
  }
}

VERBENA_KERNEL use_lossless_codec(const char* from, char* message, char* to, uint32_t length_bytes) {
  use_lossless<2>(from, message, to, length_bytes);
  use_lossless<4>(from, message, to, length_bytes);
}

VERBENA_KERNEL use_encoded_puts(const verbena::SymmContext* context, char* slot, char* staging,
                                vd::Bfloat16* elements, uint32_t count, int* out) {
  constexpr auto kAdd = verbena::SymmSignalOperation::kAdd;
  out[0] = static_cast<int>(vd::symm_put_encoded_signal_async(*context, slot, staging, elements, count, 1, 0,
                                                              1, kAdd, vd::BlockGroup{}));
  out[1] = static_cast<int>(vd::symm_put_encoded_signal_async(*context, slot, staging, elements, count, 1, 0,
                                                              1, kAdd, vd::WarpGroup{}));
  vd::symm_decode(elements, slot, count, vd::BlockGroup{});
}

VERBENA_KERNEL use_norm(vd::RmsNorm<vd::Bfloat16> norm, const vd::Bfloat16* x) {
  vd::norm_rows(norm, x, norm.hidden, vd::block_index(), norm.rows, vd::blocks_per_grid());
}
