// Collectives with a norm behind them, as the kernels of libverbena_ops.so run them, on emulated GPUs: the
// same bits as an all-reduce and a norm one after the other, in every way, with every kind of output, for any
// rows, blocks and ranks; the same on all ranks; nothing beside the tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/ops/run_fused.cuh"
#include "device/support/random.h"
#include "device/support/rank_counts.h"
#include "device/symm/fleet.h"

namespace verbena::device_test {
namespace {

using device::Bfloat16;
using device::Half;
using device::RowQuantisation;
using emulator::World;
using ops::Norm;
using ops::NormLaunch;

constexpr unsigned char kUntouched = 0x5a;

using Data = std::vector<unsigned char>;

struct Case {
  uint64_t rows, hidden;
  RowQuantisation kind = RowQuantisation::kNone;
  bool has_output = true, is_in_place = false, has_columns = false;
  uint64_t padding = 0;
  device::DataType type = device::DataType::kBfloat16;
  uint64_t offset = 0;  // numbers from a multiple of 16 bytes
  bool sums_in_place = false, sums_in_output = false;
};

uint64_t count_scales(const Case& c) {
  switch (c.kind) {
    case RowQuantisation::kMxFloat8:
      return (c.hidden + 31) / 32;
    case RowQuantisation::kMxFloat8Swizzled:
      return (c.hidden + 127) / 128 * 128;  // more than there are
    case RowQuantisation::kFloat8Block:
    case RowQuantisation::kFloat8BlockPower:
      return (c.hidden + 127) / 128;
    case RowQuantisation::kFloat8BlockExponent:
      return (c.hidden + 511) / 512;
    default:
      return 1;
  }
}

// The tensors of a rank; what they begin with is the same for each way to compute. Their addresses are not:
// `front` numbers lie before each tensor.
struct Tensors {
  Tensors(const Case& given, const Data& input_, const Data& residual_, const Data& weight_,
          uint64_t share_first, uint64_t share_rows, uint64_t front_numbers = 0)
      : c(given),
        first(share_first),
        rows(share_rows),
        front(front_numbers),
        input(input_),
        residual(residual_),
        before(residual_),
        weight(weight_) {
    sum.assign(numbers(c.rows), kUntouched);
    output = residual_out = sum;
    quantised.assign(c.rows * step() + 64, kUntouched);
    scales.assign(c.rows * (count_scales(c) + 1) * 4 + 64, kUntouched);
    if (c.kind == RowQuantisation::kFloat8Tensor) {
      const float scale = 0.02F;
      std::memcpy(scales.data(), &scale, sizeof scale);
    }
    for (Data* const tensor : {&input, &residual, &before, &weight, &sum, &output, &residual_out})
      tensor->insert(tensor->begin(), 2 * front, kUntouched);
  }
  // A tensor as it is with nothing before it; empty if that was written.
  Data strip(const Data& tensor) const {
    const auto begin = tensor.begin() + static_cast<int64_t>(2 * front);
    if (std::any_of(tensor.begin(), begin, [](unsigned char byte) { return byte != kUntouched; })) return {};
    return {begin, tensor.end()};
  }
  uint64_t step() const { return c.hidden + c.padding; }
  uint64_t numbers(uint64_t rows_) const { return (rows_ * step() + c.offset) * 2 + 64; }
  char* at(Data& tensor, uint64_t row = 0) {
    return reinterpret_cast<char*>(tensor.data()) + (front + c.offset + row * step()) * 2;
  }

  // Rows `first_row` on of the residual: those of a share, or all.
  void describe(NormLaunch& launch, bool is_sharded) {
    launch.call.type = static_cast<uint32_t>(c.type);
    launch.call.input = at(input);
    Data& sums = c.sums_in_place ? input : c.sums_in_output ? output : sum;
    launch.call.output = at(sums);
    launch.call.length_bytes = c.rows * c.hidden * 2;
    Norm& norm = launch.norm;
    norm = {};
    norm.rows = c.rows;
    norm.hidden = c.hidden;
    norm.weight = at(weight);
    norm.epsilon = 1e-5F;
    norm.weight_offset = 0.5F;
    norm.residual_in = at(residual, is_sharded ? first : 0);
    norm.residual_out = at(c.is_in_place ? residual : residual_out, is_sharded ? first : 0);
    norm.output = c.has_output ? at(output) : nullptr;
    norm.residual_in_stride = norm.residual_out_stride = norm.output_stride = step();
    norm.padding = c.padding;
    norm.x_stride = c.hidden;
    norm.quantisation = static_cast<uint32_t>(c.kind);
    norm.min_scale = 1e-10F;
    norm.elements = quantised.data();
    norm.row_bytes = step();
    norm.scales = scales.data();
    norm.scale_row_stride = c.has_columns ? 1 : count_scales(c) + 1;
    norm.scale_block_stride = c.has_columns ? c.rows : 1;
  }

  Case c;
  uint64_t first, rows, front;
  Data input, residual, before, weight, sum, output, residual_out, quantised, scales;
};

// Which kernel.
enum class Way { kRows, kShardedPackets, kShardedChunks };
constexpr Way kWays[] = {Way::kRows, Way::kShardedPackets, Way::kShardedChunks};
constexpr size_t kCountWays = std::size(kWays);

bool is_sharded(Way way) {
  return way >= Way::kShardedPackets;
}
template <int kRanks, typename T, bool kIsSeveral>
void run_rows_as(const NormLaunch& launch) {
  const uint64_t threads =
      uint64_t{device::threads_per_block()} * device::blocks_per_cluster() / launch.rows_at_once;
  if (launch.norm.hidden * sizeof(T) > device::kVectorBytes * threads)
    return ops::run_all_reduce_norm<kRanks, T, 2, kIsSeveral>(launch);
  ops::run_all_reduce_norm<kRanks, T, 1, kIsSeveral>(launch);
}
template <int kRanks, bool kIsSeveral>
void run_rows(const NormLaunch& launch) {
  if (launch.call.type == static_cast<uint32_t>(device::DataType::kFloat16))
    return run_rows_as<kRanks, Half, kIsSeveral>(launch);
  run_rows_as<kRanks, Bfloat16, kIsSeveral>(launch);
}
template <int kRanks>
void run_kernel(Way way, const NormLaunch& launch) {
  if (way == Way::kShardedPackets) return ops::run_sharded_norm<device::OneShot<>>(launch);
  if (way == Way::kShardedChunks) return ops::run_sharded_norm<device::Bulk<>>(launch);
  launch.rows_at_once == 1 ? run_rows<kRanks, false>(launch) : run_rows<kRanks, true>(launch);
}

struct Shape {
  int32_t ranks;
  uint32_t blocks = 2, threads = 64;
  uint64_t slot_bytes = 512;
  uint32_t cluster = 1;             // blocks that have a row in registers
  uint64_t row_slot_bytes = 16384;  // a slot for rows in registers; 2 vectors of each of 128 threads and more
  uint32_t rows_at_once = 1;        // of a block

  // Of such a row: two vectors of each thread.
  uint64_t most_hidden() const { return uint64_t{16} * threads * cluster / rows_at_once; }
};

// Ranks with a workspace for each family of ways, which go on from launch to launch.
class NormRanks {
 public:
  explicit NormRanks(const Shape& shape)
      : shape_(shape),
        fleet_(shape.ranks, INT32_MAX,
               4 * Fleet::measure_workspace(shape.ranks, shape.blocks,
                                            std::max(shape.slot_bytes, shape.row_slot_bytes))),
        status_(static_cast<size_t>(shape.ranks), 0) {}

  // "" or what is wrong.
  std::string run(Way way, const Case& c, uint64_t seed) {
    draw(c, seed);
    std::vector<Tensors> all;
    const auto ranks = static_cast<uint64_t>(shape_.ranks);
    const uint64_t share = (c.rows + ranks - 1) / ranks;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      const uint64_t first = std::min(c.rows, rank * share);
      Case mine = c;
      mine.is_in_place = c.is_in_place != ((seed + rank) % 5 == 0);
      all.emplace_back(mine, inputs_[rank], residual_, weight_, first,
                       std::min(c.rows, first + share) - first, seed % 3 == 0 ? 0 : (seed + 3 * rank) % 8);
    }
    Tensors expected(c, summed_, residual_, weight_, 0, c.rows);
    if (const std::string wrong = run_apart(expected); !wrong.empty()) return wrong;
    std::vector<NormLaunch> launches(ranks);
    World world(seed);
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      NormLaunch& launch = launches[rank];
      launch = {};
      launch.workspace = make_workspace(static_cast<int32_t>(rank), way);
      if (has_absent_block_) launch.workspace.context.timeout_ns = 1'000'000;
      launch.status = &status_[rank];
      all[rank].describe(launch, is_sharded(way));
      launch.rows_at_once = shape_.rows_at_once;
      const auto body = [&, rank, way] {
        // Blocks of a cluster begin at different times too.
        if ((seed + rank + device::block_index()) % 3 == 0) device::pause(500'000);
        // Its epoch is that of another launch: what it sends goes where nobody waits.
        if (has_absent_block_ && rank == 1 && device::block_index() == 1)
          device::store_relaxed<device::Scope::kGpu>(launches[rank].workspace.blocks.epochs + 1, 9);
        if (shape_.ranks == 2) {
          run_kernel<2>(way, launches[rank]);
        } else if (shape_.ranks == 4) {
          run_kernel<4>(way, launches[rank]);
        } else if (shape_.ranks == 8) {
          run_kernel<8>(way, launches[rank]);
        } else {
          run_kernel<0>(way, launches[rank]);
        }
      };
      world.add_grid(static_cast<uint32_t>(rank), shape_.blocks, shape_.threads, body,
                     way == Way::kRows ? shape_.cluster : 1);
    }
    if (const std::string failure = world.run(); !failure.empty()) return failure;
    for (uint64_t rank = 0; rank < ranks; ++rank) {
      if (status_[rank] != 0) {
        const Data& output = all[rank].output;
        const auto spoilt = static_cast<uint64_t>(std::count(output.begin(), output.end(), 0xff));
        const auto untouched = static_cast<uint64_t>(std::count(output.begin(), output.end(), kUntouched));
        if (spoilt + untouched != output.size() || spoilt < c.rows * c.hidden * sizeof(uint16_t))
          return "the output is not all NaN";
        return "status " + std::to_string(status_[rank]);
      }
      std::string wrong = compare(all[rank], expected, is_sharded(way));
      if (wrong.empty()) wrong = check_sum(all[rank], inputs_[rank], is_sharded(way));
      if (!wrong.empty()) return "rank " + std::to_string(rank) + ": " + wrong;
    }
    return "";
  }
  int32_t count() const { return shape_.ranks; }
  // A block of rank 1 does not send, and its peer waits for it in vain.
  void let_one_block_wait() { has_absent_block_ = true; }

 private:
  template <typename T>
  void draw_as(const Case& c, uint64_t seed) {
    Random random(seed);
    const auto fill = [&](Data& data, uint64_t rows, uint64_t step) {
      data.assign((rows * step + c.offset) * 2 + 64, kUntouched);
      for (uint64_t i = 0; i < rows * step; ++i) {
        const T number = device::narrow<T>(static_cast<float>(random.between(0, 4000)) / 1000 - 2);
        std::memcpy(data.data() + (c.offset + i) * 2, &number, 2);
      }
    };
    inputs_.assign(static_cast<size_t>(shape_.ranks), {});
    for (Data& input : inputs_) fill(input, c.rows, c.hidden);
    fill(residual_, c.rows, c.hidden + c.padding);
    fill(weight_, 1, c.hidden);
    summed_ = inputs_[0];
    for (uint64_t i = c.offset; i < c.offset + c.rows * c.hidden; ++i) {
      float sum = 0;
      for (size_t rank = 0; rank < inputs_.size(); ++rank) {
        T number;
        std::memcpy(&number, inputs_[rank].data() + i * 2, 2);
        sum = rank == 0 ? device::widen(number) : sum + device::widen(number);
      }
      const T rounded = device::narrow<T>(sum);
      std::memcpy(summed_.data() + i * 2, &rounded, 2);
    }
  }
  void draw(const Case& c, uint64_t seed) {
    if (c.type == device::DataType::kFloat16) {
      draw_as<Half>(c, seed);
    } else {
      draw_as<Bfloat16>(c, seed);
    }
  }
  SymmWorkspace<> make_workspace(int32_t rank, Way way) {
    if (way == Way::kRows) return fleet_.workspace(rank, 2, shape_.blocks, shape_.row_slot_bytes);
    return fleet_.workspace(rank, way == Way::kShardedChunks ? 1 : 0, shape_.blocks, shape_.slot_bytes);
  }
  // The norm alone, of sums that are there.
  std::string run_apart(Tensors& tensors) {
    NormLaunch launch{};
    tensors.describe(launch, false);
    World world(7);
    world.add_grid(0, 3, shape_.threads, [&] { ops::run_norm(launch); });
    return world.run();
  }

  static std::string compare(Tensors& got, Tensors& want, bool is_sharded) {
    if (got.c.has_output && got.strip(got.output) != want.output) return "output";
    if (got.quantised != want.quantised) return "quantised rows";
    if (got.scales != want.scales) return "scales";
    if (got.strip(got.weight) != want.weight) return "the weight was written";
    const Data residual = got.strip(got.c.is_in_place ? got.residual : got.residual_out);
    const Data before = got.strip(got.before);
    const Data& all = want.c.is_in_place ? want.residual : want.residual_out;
    // Between rows lies what was there.
    Data wanted = got.c.is_in_place ? before : Data(all.size(), kUntouched);
    for (uint64_t row = 0; row < got.c.rows; ++row) {
      const auto at = static_cast<int64_t>((got.c.offset + row * got.step()) * 2);
      std::copy_n(all.begin() + at, got.c.hidden * 2, wanted.begin() + at);
    }
    if (!is_sharded) return residual == wanted ? "" : "residual";
    const uint64_t begin = (got.c.offset + got.first * got.step()) * 2,
                   end = begin + got.rows * got.step() * 2;
    for (uint64_t i = 0; i < wanted.size(); ++i) {
      const bool is_mine = i >= begin && i < end;
      if (residual.empty() || residual[i] != (is_mine             ? wanted[i]
                                              : got.c.is_in_place ? before[i]
                                                                  : kUntouched))
        return "residual at " + std::to_string(i);
    }
    return "";
  }

  // Shares are summed in a place that is nobody's result.
  std::string check_sum(const Tensors& got, const Data& input, bool is_sharded) const {
    const Case& c = got.c;
    if (!c.sums_in_place && got.strip(got.input) != input) return "an input was written";
    if (is_sharded) return "";
    const Data sum = got.strip(c.sums_in_place ? got.input : got.sum);
    if (sum.empty()) return "a byte before the sum";
    const size_t begin = c.offset * 2, end = begin + c.rows * c.hidden * 2;
    for (size_t i = 0; i < sum.size(); ++i) {
      const bool is_sum = i >= begin && i < end && !c.sums_in_output;
      if (sum[i] != (is_sum ? summed_[i] : c.sums_in_place ? input[i] : kUntouched))
        return "sum at " + std::to_string(i);
    }
    return "";
  }

  const Shape shape_;
  Fleet fleet_;
  std::vector<int64_t> status_;
  std::vector<Data> inputs_;
  Data residual_, weight_, summed_;
  bool has_absent_block_ = false;
};

constexpr RowQuantisation kKinds[] = {
    RowQuantisation::kNone,        RowQuantisation::kFloat8Tensor,     RowQuantisation::kFloat8Token,
    RowQuantisation::kFloat8Block, RowQuantisation::kFloat8BlockPower, RowQuantisation::kFloat8BlockExponent,
    RowQuantisation::kMxFloat8,    RowQuantisation::kInt8Token};

// Of two ranks, and of other numbers of ranks in three blocks.
TEST(AllReduceNorm, EveryWayAndKindOfOutputOfRanks) {
  NormRanks two({2});
  std::vector<std::unique_ptr<NormRanks>> others;
  for (const int32_t ranks : list_rank_counts({3}))
    others.push_back(std::make_unique<NormRanks>(Shape{ranks, 3, ranks > 6 ? 32U : 64U}));
  uint64_t seed = 1;
  for (const Way way : kWays) {
    for (const RowQuantisation kind : kKinds) {
      // Five: not enough for each block of each rank.
      Case c{emulator::kSanitizer || seed % 2 == 0 ? 5U : 13U, 264, kind};
      c.has_columns = seed % 2 == 0;
      c.is_in_place = seed % 3 == 0;
      c.has_output = seed % 5 != 0 || kind == RowQuantisation::kNone;
      c.padding = seed % 4 == 0 ? 24 : 0;
      c.offset = seed % 7 == 0 ? 1 : 0;
      c.type = seed % 3 == 1 ? device::DataType::kFloat16 : device::DataType::kBfloat16;
      ++seed;
      ASSERT_EQ(two.run(way, c, seed), "") << static_cast<int>(way) << " " << static_cast<int>(kind);
      if (emulator::kSanitizer && seed % 3 != 0) continue;
      for (const auto& ranks : others)
        ASSERT_EQ(ranks->run(way, c, seed), "")
            << ranks->count() << " ranks, " << static_cast<int>(way) << " " << static_cast<int>(kind);
    }
  }
}

// Rows as models have them, rows that vectors do not divide, fewer rows than ranks and blocks, in slots that
// a row fills several times.
TEST(AllReduceNorm, AnyRows) {
  const Shape shape{3, 4, 64, 384, 2};
  NormRanks ranks(shape);
  uint64_t seed = 0;
  for (const Way way : kWays) {
    for (const auto& [rows, hidden] : std::vector<std::pair<uint64_t, uint64_t>>{
             {1, 2880}, {17, 512}, {19, 129}, {5, 1}, {2, 1100}, {40, 33}}) {
      if (emulator::kSanitizer && rows * hidden > 1500) continue;
      if (way == Way::kRows && hidden > shape.most_hidden()) continue;
      ASSERT_EQ(ranks.run(way, {rows, hidden, RowQuantisation::kFloat8Token}, ++seed), "")
          << static_cast<int>(way) << " " << rows << " of " << hidden;
    }
  }
}

TEST(AllReduceNorm, AnyNumberOfRanks) {
  for (const int32_t count : list_rank_counts({1, 4, 9, 13})) {
    NormRanks ranks({count, 2, 32});
    for (const Way way : kWays) {
      ASSERT_EQ(ranks.run(way, {7, 72, RowQuantisation::kMxFloat8}, static_cast<uint64_t>(count)), "")
          << static_cast<int>(way) << " of " << count;
    }
  }
}

// As a graph that is replayed: what a norm reads is of its own launch.
TEST(AllReduceNorm, LaunchAfterLaunch) {
  NormRanks ranks({2});
  for (uint64_t launch = 0; launch < (emulator::kSanitizer ? 12 : 120); ++launch) {
    const Case c{1 + launch % 5, 40 + launch % 3 * 8, kKinds[launch % 8]};
    ASSERT_EQ(ranks.run(kWays[launch % kCountWays], c, launch), "") << launch;
  }
}

// Rows of clusters of 1 to 8 blocks, which take a thread one vector or two and leave some blocks none, more
// rows than clusters, and rows that end within a vector.
TEST(AllReduceNorm, RowsInRegistersOfRanks) {
  uint64_t seed = 0;
  std::vector<Shape> shapes = {{2, 3, 64},         {2, 4, 32, 512, 4},  {5, 4, 64, 512, 2},
                               {2, 8, 32, 512, 8}, {4, 2, 128, 512, 2}, {2, 2, 160, 512, 1},
                               {2, 4, 96, 512, 2}};
  for (const int32_t ranks : list_rank_counts()) shapes.push_back({ranks, 4, 32, 512, 2});
  for (const Shape& shape : shapes) {
    NormRanks ranks(shape);
    const uint64_t most = shape.most_hidden();
    for (const uint64_t hidden :
         {uint64_t{1}, uint64_t{8}, uint64_t{500}, most / 2 - 1, most / 2, most / 2 + 9, most - 3, most}) {
      ++seed;
      if (emulator::kSanitizer && seed % 3 != 0) continue;
      Case c{1 + seed % 7, hidden, kKinds[seed % 8]};
      c.is_in_place = seed % 2 == 0;
      c.offset = seed % 3 == 0 ? 3 : 0;
      c.type = seed % 5 == 0 ? device::DataType::kFloat16 : device::DataType::kBfloat16;
      c.sums_in_place = seed % 4 == 0;
      c.sums_in_output = seed % 4 == 1;
      ASSERT_EQ(ranks.run(Way::kRows, c, seed), "")
          << c.rows << " of " << hidden << " by " << shape.cluster << " blocks";
    }
  }
}

// Blocks of several rows, which take a thread one vector or two, more rows than fit into a step and fewer, in
// slots that a step fills once or three times.
TEST(AllReduceNorm, SeveralRowsOfABlockOfRanks) {
  uint64_t seed = 0;
  struct Several {
    uint32_t blocks, threads, rows;
  };
  for (const auto& [blocks, threads, rows_at_once] :
       {Several{3, 64, 2}, Several{2, 96, 3}, Several{1, 160, 5}, Several{2, 128, 2}}) {
    for (const int32_t count : list_rank_counts({2, 4})) {
      const uint64_t steps_of_slot = count % 3 == 0 ? 1 : 3, step_bytes = 2 * 16 * threads;
      const Shape shape{count, blocks, threads, 512, 1, steps_of_slot * step_bytes * 3 / 2, rows_at_once};
      NormRanks ranks(shape);
      const uint64_t most = shape.most_hidden();
      for (const uint64_t hidden : {uint64_t{1}, uint64_t{200}, most / 2, most / 2 + 9, most - 3, most}) {
        ++seed;
        if (emulator::kSanitizer && seed % 5 != 0) continue;
        Case c{1 + seed % 17, hidden, kKinds[seed % 8]};
        c.is_in_place = seed % 2 == 0;
        c.offset = seed % 3 == 0 ? 3 : 0;
        c.padding = seed % 4 == 0 ? 24 : 0;
        c.type = seed % 5 == 0 ? device::DataType::kFloat16 : device::DataType::kBfloat16;
        c.sums_in_place = seed % 4 == 0;
        c.sums_in_output = seed % 4 == 1;
        ASSERT_EQ(ranks.run(Way::kRows, c, seed), "")
            << c.rows << " of " << hidden << ", " << rows_at_once << " in each of " << blocks << " blocks of "
            << count << " ranks";
      }
    }
  }
}

// A block sends each row before it receives the previous row. A slot holds 1, 2, 3 or 5 rows, so that the row
// that is sent ahead is in the same slot or in the next one; kernels end with full slots and with others.
// Some threads have no part of a row.
TEST(AllReduceNorm, RowsAreSentAhead) {
  constexpr uint64_t kHidden = 200, kBytesOfSlotPerRow = kHidden * 2 / 16 * 24;
  for (const int32_t count : {2, 4, 5}) {
    for (const uint64_t rows_of_slot : {1, 2, 3, 5}) {
      NormRanks ranks({count, 2, 32, 512, 1, rows_of_slot * kBytesOfSlotPerRow});
      for (uint64_t rows = 1; rows < (emulator::kSanitizer ? 20 : 40); rows += emulator::kSanitizer ? 6 : 3)
        ASSERT_EQ(ranks.run(Way::kRows, {rows, kHidden}, rows), "")
            << rows << " rows of " << count << " ranks, " << rows_of_slot << " in a slot";
    }
  }
}

// Refused on all ranks, and no rank waits for another one.
TEST(AllReduceNorm, ARowThatDoesNotStayInRegisters) {
  const Shape shape{2, 2, 64, 512, 2};
  NormRanks ranks(shape);
  EXPECT_EQ(ranks.run(Way::kRows, {3, shape.most_hidden() + 1}, 1),
            "status " + std::to_string(static_cast<int>(SymmStatus::kInvalid)));
}

// One block's peer does not come: all blocks of its cluster end.
TEST(AllReduceNorm, AClusterEndsTogether) {
  for (const Shape& shape : {Shape{2, 4, 32, 512, 4}, Shape{2, 4, 64, 512, 1, 16384, 2}}) {
    NormRanks ranks(shape);
    ranks.let_one_block_wait();
    EXPECT_EQ(ranks.run(Way::kRows,
                        {2 * shape.rows_at_once, shape.most_hidden() / 2, RowQuantisation::kFloat8Token}, 1),
              "status " + std::to_string(static_cast<int>(SymmStatus::kTimedOut)));
  }
}

// Tiles of scales are of 128 rows, of several ranks: refused, on all ranks; the waits of one that still waits
// end by the refusal of another one.
TEST(AllReduceNorm, SwizzledScalesCannotBeGathered) {
  NormRanks ranks({2});
  const auto describe = [](SymmStatus status) {
    return "status " + std::to_string(static_cast<int>(status));
  };
  const std::string wrong = ranks.run(Way::kShardedPackets, {4, 64, RowQuantisation::kMxFloat8Swizzled}, 1);
  EXPECT_TRUE(wrong == describe(SymmStatus::kInvalid) || wrong == describe(SymmStatus::kTimedOut)) << wrong;
}

}  // namespace
}  // namespace verbena::device_test
