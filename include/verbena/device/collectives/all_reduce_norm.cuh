// Collectives that are fused with an RMSNorm in one kernel. all_reduce_norm() is an all-reduce that keeps the
// rows in registers for the norm. reduce_scatter_norm_all_gather() is a reduce-scatter and an all-gather;
// between the two, each rank normalises its share of the rows.
//
//   OneShot<> calls(workspace, block_index(), blocks);          // a kernel of clusters, or of single blocks
//   status = all_reduce_norm(calls, StoredRows<T>(input, norm.hidden), sum, norm);
//   status = calls.finish();
//
// The number of rows, the length of a row and the grid must be the same on all ranks. The results have the
// same bits as if the collective were followed by norm_rows() in another kernel.
#ifndef VERBENA_DEVICE_COLLECTIVES_ALL_REDUCE_NORM_CUH
#define VERBENA_DEVICE_COLLECTIVES_ALL_REDUCE_NORM_CUH

#include "verbena/device/collectives/exchange_plan.cuh"
#include "verbena/device/rms_norm.cuh"

namespace verbena::device {

// Returns the unit in which rows are split over blocks, in bytes. The unit is the length of the smallest
// number of rows that together fill whole vectors.
VERBENA_DEVICE uint64_t find_row_unit(uint64_t row_bytes) {
  uint64_t unit = row_bytes;
  while (unit % kVectorBytes != 0) unit += row_bytes;
  return unit;
}

namespace detail {

struct SomeRows {
  uint64_t first, count;
};
VERBENA_DEVICE SomeRows find_rows(uint64_t rows, uint64_t row_bytes, uint32_t block, uint32_t blocks) {
  const Part part = device::find_part(rows * row_bytes, block, blocks, find_row_unit(row_bytes));
  return {part.begin / row_bytes, part.length_bytes / row_bytes};
}

}  // namespace detail

// The rows of a tensor, as the input of all_reduce_norm().
template <typename T>
class StoredRows {
 public:
  // @param rows  contiguous rows of `hidden` elements
  VERBENA_DEVICE StoredRows(const T* rows, uint64_t hidden)
      : rows_(rows), is_aligned_(keep(detail::is_vector(rows, hidden) ? 1u : 0)) {}

  // begin() selects the first row that load() reads. advance() selects a later row; the distance from the
  // selected row is passed both in rows and in elements.
  VERBENA_DEVICE void begin(uint64_t row, uint64_t hidden) { rows_ = keep(rows_ + row * hidden); }
  VERBENA_DEVICE void advance(uint64_t, uint64_t elements) { rows_ += elements; }
  // @param norm  a RowNorm, which knows the length of the rows
  template <typename RowNorm>
  VERBENA_DEVICE Packed<T> load(const RowNorm& norm, uint64_t vector) const {
    return norm.load_elements(rows_, vector, is_aligned_ != 0);
  }

 private:
  const T* rows_;
  uint32_t is_aligned_;
};

// Sums all ranks' `input` and normalises the rows of the sum. Each cluster processes one row at a time, or
// each block several short rows. Each thread keeps up to kKept vectors of 16 bytes of a row in registers, so
// the sums stay in registers for the norm. Each block sends its elements one step ahead: while the elements
// of one step are being sent, the block normalises those of the previous step.
// @param calls  the OneShot of this block. A cluster has at most 64 / kKept warps
// @param input  norm.rows rows: StoredRows, or FinalizedRows (moe/finalize.cuh)
// @param sum  receives the sum; may be the tensor of StoredRows. `sum` may also be norm.output if the
//             output's stride is norm.hidden; then only the output is stored
// @param owner  RowOfCluster, or RowOfWarps if a block processes several rows at a time
template <int kRanks = 0, uint32_t kKept = 1, typename Calls, typename T, typename Input,
          typename Owner = detail::RowOfCluster>
[[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_norm(Calls& calls, Input input, T* sum,
                                                        const RmsNorm<T>& norm, const Owner& owner = {}) {
  detail::RowNorm<T, kKept, Owner> rows(norm, owner);
  const uint32_t is_sum_aligned = keep(detail::is_vector(sum, norm.hidden) ? 1u : 0);
  const uint64_t threads = threads_per_block(), vectors = rows.count_vectors();
  const uint64_t row_threads = owner.count_threads();
  if (vectors > kKept * row_threads) return SymmStatus::kInvalid;
  uint64_t mine = 0;  // number of vectors of this block in each step
  VERBENA_UNROLL
  for (uint32_t k = 0; k < kKept; ++k) {
    const uint64_t before = k * row_threads + block_in_cluster() * threads;
    if (vectors > before) mine += vectors - before < threads ? vectors - before : threads;
  }
  // Each row is sent with zeros up to its last thread.
  if (Owner::kIsOfWarps) mine = kKept * threads;
  const uint32_t clusters = blocks_per_grid() / blocks_per_cluster() * owner.count_rows();
  const uint64_t first = uint64_t{block_index() / blocks_per_cluster()} * owner.count_rows() + owner.row();
  const uint64_t end = norm.rows + owner.row();  // all threads of a block take the same number of steps
  rows.owner().begin();
  const KeptGroup<BlockGroup> group{BlockGroup{}};
  const auto count = static_cast<uint32_t>(mine);
  input.begin(first, norm.hidden);
  T* to = keep(sum + first * norm.hidden);
  const uint64_t step = keep(clusters * norm.hidden);
  const uint32_t has_sum = keep(sum != norm.output ? 1u : 0);  // 0 if the output would overwrite the sum
  SymmStatus status = SymmStatus::kDone;
  // With only two rows, sending ahead would save nothing: the block would normalise both rows after the last
  // elements have arrived.
  const uint64_t ahead = end > first + 2 * clusters ? clusters : 0;
  uint64_t next = first;  // the next row to send
  for (uint64_t row = first; row < end; row += clusters, to += step) {
    // The call to begin_vectors() is inside the loop, so that compilers compute the values of the first
    // iteration before the wait for earlier kernels.
    if (row == first) status = calls.template begin_vectors<kRanks>(count);
    Vector16 some[kKept] = {};  // remains zero after the end of the row
    for (; next <= row + ahead && next < end; next += clusters, input.advance(clusters, step)) {
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kKept; ++k)
        some[k] = Owner::kIsOfWarps && next >= norm.rows
                      ? Vector16{}
                      : __builtin_bit_cast(Vector16, input.load(rows, rows.find_vector(k)));
      // If this block has no part of the row, the blocks with the same index on other ranks have no part
      // either.
      if (mine != 0 && status == SymmStatus::kDone)
        status = calls.template send_vectors<kRanks, kKept>(some, count, group);
    }
    const bool has_row = !Owner::kIsOfWarps || row < norm.rows;
    if (has_row) rows.load_addends(row);
    // No block may store a RowWord before all blocks of the cluster have reset their RowWords.
    if (row == first) rows.owner().await_others();
    if (mine != 0 && status == SymmStatus::kDone)
      status = calls.template reduce_vectors<kRanks, kKept>(some, count, ReduceAs<T>{}, group);
    if (!has_row) break;
    Packed<T> x[kKept];
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) x[k] = __builtin_bit_cast(Packed<T>, some[k]);
    // A block that has failed notifies the other blocks of the cluster.
    const auto load_none = [](uint64_t) { return Packed<T>{}; };
    rows.add_kept(x, load_none, status == SymmStatus::kDone);
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) {
      if (has_sum != 0 && status == SymmStatus::kDone)
        rows.store_elements(to, rows.find_vector(k), x[k], is_sum_aligned != 0);
    }
    if (!rows.finish(load_none)) return status == SymmStatus::kDone ? SymmStatus::kTimedOut : status;
  }
  if (first >= end) rows.owner().await_others();
  return SymmStatus::kDone;
}

namespace detail {

// Splits the rows of a tensor over ranks and blocks. The rows of a rank are contiguous.
class ShardedRows {
 public:
  VERBENA_DEVICE ShardedRows(uint64_t rows, uint64_t row_bytes, int32_t ranks, uint32_t block,
                             uint32_t blocks)
      : rows_(rows),
        row_bytes_(row_bytes),
        share_((rows + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks)),
        block_(block),
        blocks_(blocks) {}

  VERBENA_DEVICE uint64_t first_of(int32_t member) const {
    const uint64_t first = static_cast<uint64_t>(member) * share_;
    return first < rows_ ? first : rows_;
  }
  VERBENA_DEVICE uint64_t count_of(int32_t member) const { return first_of(member + 1) - first_of(member); }
  // Returns this block's rows in a member's share.
  VERBENA_DEVICE SomeRows block_rows(int32_t member) const {
    const SomeRows rows = find_rows(count_of(member), row_bytes_, block_, blocks_);
    return {first_of(member) + rows.first, rows.count};
  }
  // Returns the largest number of rows that any block has in any member's share.
  VERBENA_DEVICE uint64_t max_rows() const {
    return find_part_bytes(share_ * row_bytes_, blocks_, find_row_unit(row_bytes_)) / row_bytes_;
  }

 private:
  uint64_t rows_, row_bytes_, share_;
  uint32_t block_, blocks_;
};

// A tensor whose rows a block gathers from all ranks. If `columns` is 0, the tensor consists of rows of
// row_bytes bytes, with a stride of stride_bytes. Otherwise, the tensor consists of `columns` columns with a
// stride of stride_bytes, and each row has row_bytes bytes in each column.
struct RowsToGather {
  char* begin;
  uint64_t row_bytes, stride_bytes, columns = 0;

  VERBENA_DEVICE uint64_t bytes_of(uint64_t rows) const {
    return rows * row_bytes * (columns == 0 ? 1 : columns);
  }
  VERBENA_DEVICE Rows find(const SomeRows& rows) const {
    if (rows.count == 0) return Rows::contiguous(begin);  // an empty message
    if (columns == 0) return {begin + rows.first * stride_bytes, row_bytes, stride_bytes};
    return {begin + rows.first * row_bytes, rows.count * row_bytes, stride_bytes};
  }
};

// Writes `find_entry(member)` to the plan for each member. All threads of the block must call it, after they
// have all finished reading the plan of the previous exchange.
template <typename FindLine>
VERBENA_DEVICE void fill_plan(ExchangePlan& plan, int32_t ranks, uint64_t max_bytes,
                              const FindLine& find_entry) {
  const auto member = static_cast<int32_t>(thread_index());
  if (member < ranks) plan.entries[member] = find_entry(member);
  if (member == 0) plan.max_bytes = max_bytes;
  sync_block();
}

template <typename Calls>
VERBENA_DEVICE SymmStatus gather_rows(const SymmContext& context, Calls& calls, ExchangePlan& plan,
                                      const ShardedRows& shards, const RowsToGather& tensor) {
  const SomeRows mine = shards.block_rows(context.team_rank);
  fill_plan(plan, context.team_size, tensor.bytes_of(shards.max_rows()), [&](int32_t member) {
    const SomeRows theirs = shards.block_rows(member);
    return ExchangeEntry{tensor.find(mine),
                         tensor.find(theirs),
                         {0, tensor.bytes_of(mine.count)},
                         {0, tensor.bytes_of(theirs.count)}};
  });
  return calls.exchange(plan, plan.max_bytes);
}

// Describes the scales of a norm as a tensor to gather.
// @return false if the scales are not in rows or columns
template <typename T>
VERBENA_DEVICE bool find_scales(const RmsNorm<T>& norm, RowsToGather& scales) {
  const QuantisedRows& rows = norm.quantised;
  const bool is_mx = rows.kind == RowQuantisation::kMxFloat8;
  const uint64_t bytes = is_mx ? 1 : 4;
  uint64_t blocks = 1;
  if (is_mx) blocks = (norm.hidden + 31) / 32;
  if (rows.kind == RowQuantisation::kFloat8Block || rows.kind == RowQuantisation::kFloat8BlockPower)
    blocks = (norm.hidden + 127) / 128;
  if (rows.kind == RowQuantisation::kFloat8BlockExponent) blocks = (norm.hidden + 511) / 512;
  if (blocks == 1 || rows.scale_block_stride == 1) {
    scales = {static_cast<char*>(rows.scales), blocks * bytes, rows.scale_row_stride * bytes};
  } else {
    scales = {static_cast<char*>(rows.scales), bytes, rows.scale_block_stride * bytes, blocks};
    if (rows.scale_row_stride != 1) return false;
  }
  return rows.kind != RowQuantisation::kMxFloat8Swizzled;
}

}  // namespace detail

// Does the same as all_reduce_norm(), but each rank normalises only its share of the rows. Rank r normalises
// the r-th share; a share has ceil(rows / ranks) rows, but the last shares may have fewer. All ranks get all
// rows of norm.output, and of the quantised output with its scales. The scales must not be swizzled.
// @param calls  a OneShot or Bulk of this block
// @param plan  memory for a plan, in the block's shared memory
// @param sum  receives the rows of this rank's share; residual_in and residual_out also contain only these
//             rows
// @param make_norm  make_norm() returns the RmsNorm
template <typename Calls, typename T, typename MakeNorm, typename Reduce = ReduceAs<T>,
          typename Norm = NormRows>
[[nodiscard]] VERBENA_DEVICE SymmStatus reduce_scatter_norm_all_gather(
    const SymmContext& context, Calls& calls, ExchangePlan& plan, const T* input, T* sum, uint64_t rows,
    uint64_t hidden, uint32_t block, uint32_t blocks, const MakeNorm& make_norm, const Reduce& reduce = {},
    const Norm& norm_some = {}) {
  const uint64_t row_bytes = hidden * sizeof(T);
  if (row_bytes == 0) return SymmStatus::kInvalid;
  const int32_t me = context.team_rank;
  const detail::ShardedRows shards(rows, row_bytes, context.team_size, block, blocks);
  const detail::SomeRows mine = shards.block_rows(me);
  const uint64_t first = shards.first_of(me);
  detail::fill_plan(plan, context.team_size, shards.max_rows() * row_bytes, [&](int32_t member) {
    const detail::SomeRows theirs = shards.block_rows(member);
    return ExchangeEntry{Rows::contiguous(input + theirs.first * hidden),
                         Rows::contiguous(sum + (mine.first - first) * hidden),
                         {0, theirs.count * row_bytes},
                         {0, mine.count * row_bytes}};
  });
  SymmStatus status = calls.exchange_reduce(plan, plan.max_bytes, reduce);
  if (status != SymmStatus::kDone) return status;
  RmsNorm<T> norm = make_norm();
  const QuantisedRows& quantised = norm.quantised;
  const bool is_quantised = quantised.kind != RowQuantisation::kNone;
  const uint64_t columns = norm.hidden + norm.padding;
  detail::RowsToGather tensors[3] = {
      {reinterpret_cast<char*>(norm.output), columns * sizeof(T), norm.output_stride * sizeof(T)},
      {is_quantised ? reinterpret_cast<char*>(quantised.elements) : nullptr, columns, quantised.row_bytes},
      {}};
  if (is_quantised && quantised.kind != RowQuantisation::kFloat8Tensor &&
      !detail::find_scales(norm, tensors[2]))
    return SymmStatus::kInvalid;
  // Returns the address that row 0 of the whole tensor would have. `tensor` contains only the rows of this
  // rank's share.
  const auto extend = [&](auto* tensor, uint64_t step) {
    using Element = decltype(tensor);
    return tensor == nullptr
               ? tensor
               : reinterpret_cast<Element>(reinterpret_cast<uint64_t>(tensor) - first * step * sizeof(T));
  };
  norm.residual_in = extend(norm.residual_in, norm.residual_in_stride);
  norm.residual_out = extend(norm.residual_out, norm.residual_out_stride);
  norm_some(norm, extend(static_cast<const T*>(sum), norm.hidden), mine.first, mine.first + mine.count);
  VERBENA_UNROLL_BY(1)
  for (uint32_t i = 0; i < 3 && status == SymmStatus::kDone; ++i) {
    if (tensors[i].begin != nullptr) status = detail::gather_rows(context, calls, plan, shards, tensors[i]);
  }
  return status;
}

}  // namespace verbena::device

#endif
