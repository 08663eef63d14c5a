// The bodies of the kernels for quantised all-reduces, for RMSNorm, and for collectives that are fused with a
// norm. This header is also compiled for the emulated GPU.
#pragma once

#include "device/ops/run_calls.cuh"
#include "verbena/device/collectives/all_reduce_norm.cuh"
#include "verbena/device/collectives/one_shot_codec.cuh"
#include "verbena/device/collectives/two_shot_codec.cuh"
#include "verbena/device/moe/finalize.cuh"

namespace verbena::ops {

template <typename Rounding>
VERBENA_DEVICE Rounding choose_rounding(uint64_t seed) {
  if constexpr (Rounding::kIsStochastic) {
    return Rounding(seed);
  } else {
    return Rounding{};
  }
}

// Quantised all-reduces, which support only sums. run_call() treats them like other algorithms.
template <typename Addends, typename Sums, typename Rounding>
struct ByCodedTwoShots {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    TwoShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
    (void)all_reduce_quantised_two_shot<Addends, Sums>(launch.workspace.context, calls, call.input,
                                                       call.output, call.length_bytes, reduce.type,
                                                       choose_rounding<Rounding>(call.seed));
    return calls.finish();
  }
};
template <typename Codec, typename Rounding>
struct ByCodedOneShot {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    OneShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
    (void)all_reduce_quantised<Codec>(launch.workspace.context, calls, call.input, call.output,
                                      call.length_bytes, reduce.type, choose_rounding<Rounding>(call.seed));
    return calls.finish();
  }
};
template <typename Codec, typename Rounding>
struct ByCodedHostSums : OfCluster {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    start_of(launch)();
    AcrossHosts<ReduceFloats> calls(launch.workspace, *launch.host, {launch.hosts, launch.members}, part(),
                                    count_parts(), launch.chunk_bytes);
    (void)calls.all_reduce_quantised<Codec>(call.input, call.output, call.length_bytes, {reduce.type},
                                            choose_rounding<Rounding>(call.seed), Group{});
    return calls.finish(Group{});
  }
};

// Stands for bfloat16 and for half, which have the same size. Code that depends on the type takes the type as
// an argument.
using Element16 = Bfloat16;

VERBENA_DEVICE RmsNorm<Element16> read_norm(const Norm& norm) {
  RmsNorm<Element16> result{};
  result.rows = norm.rows;
  result.hidden = norm.hidden;
  result.weight = static_cast<const Element16*>(norm.weight);
  result.epsilon = norm.epsilon;
  result.weight_offset = norm.weight_offset;
  result.rounds_sum = norm.rounds_sum != 0;
  result.rounds_normed = norm.rounds_normed != 0;
  result.residual_in = static_cast<const Element16*>(norm.residual_in);
  result.residual_out = static_cast<Element16*>(norm.residual_out);
  result.output = static_cast<Element16*>(norm.output);
  result.residual_in_stride = norm.residual_in_stride;
  result.residual_out_stride = norm.residual_out_stride;
  result.output_stride = norm.output_stride;
  result.padding = norm.padding;
  result.quantised = {static_cast<RowQuantisation>(norm.quantisation),
                      static_cast<uint8_t*>(norm.elements),
                      norm.row_bytes,
                      norm.scales,
                      norm.scale_row_stride,
                      norm.scale_block_stride,
                      norm.min_scale};
  return result;
}
struct NormOfType {
  DataType type;

  VERBENA_DEVICE void operator()(const RmsNorm<Element16>& norm, const Element16* x, uint64_t first,
                                 uint64_t end, uint64_t x_stride = 0, uint64_t step = 1) const {
    if (x_stride == 0) x_stride = norm.hidden;
    if (type == DataType::kFloat16) {
      norm_rows(__builtin_bit_cast(RmsNorm<Half>, norm), reinterpret_cast<const Half*>(x), x_stride, first,
                end, step);
    } else {
      norm_rows(norm, x, x_stride, first, end, step);
    }
  }
};

// The arguments of a norm, from the launch's only call.
struct NormArguments {
  const Element16* input;
  Element16* sum;
  ReduceFloats reduce;
  NormOfType norm_some;

  VERBENA_DEVICE explicit NormArguments(const Call& call)
      : input(reinterpret_cast<const Element16*>(call.input)),
        sum(reinterpret_cast<Element16*>(call.output)),
        reduce{static_cast<DataType>(call.type)},
        norm_some{reduce.type} {}
};

// Fills the outputs of a norm (all rows) and the sum (`sum_rows` rows of `hidden` elements) with 0xff.
VERBENA_DEVICE_FAR void spoil_norm(const Call& call, const Norm& norm, uint64_t sum_rows) {
  const auto spoil_rows = [&](void* begin, uint64_t rows, uint64_t row_bytes, uint64_t stride_bytes) {
    if (begin != nullptr && rows != 0)
      spoil({static_cast<char*>(begin), row_bytes, stride_bytes}, rows * row_bytes);
  };
  const uint64_t hidden_bytes = norm.hidden * sizeof(Element16), columns = norm.hidden + norm.padding;
  spoil_rows(call.output, sum_rows, hidden_bytes, hidden_bytes);
  spoil_rows(norm.residual_out, sum_rows, hidden_bytes, norm.residual_out_stride * sizeof(Element16));
  spoil_rows(norm.output, norm.rows, columns * sizeof(Element16), norm.output_stride * sizeof(Element16));
  if (norm.quantisation != static_cast<uint32_t>(RowQuantisation::kNone))
    spoil_rows(norm.elements, norm.rows, columns, norm.row_bytes);
}

// Runs a norm of local rows.
VERBENA_DEVICE void run_norm(const NormLaunch& launch) {
  const NormArguments all(launch.call);
  start_of(launch)();
  all.norm_some(read_norm(launch.norm), all.input, block_index(), launch.norm.rows, launch.norm.x_stride,
                blocks_per_grid());
  wait_for_earlier_grids();
}

// Returns the input of a fused all-reduce and norm.
template <typename T>
VERBENA_DEVICE StoredRows<T> read_input(const NormLaunch& launch) {
  return {reinterpret_cast<const T*>(launch.call.input), launch.norm.hidden};
}
template <typename T>
VERBENA_DEVICE FinalizedRows<T> read_input(const FinalizeLaunch& launch) {
  const Finalize& finalize = launch.finalize;
  return FinalizedRows<T>({static_cast<const T*>(finalize.rows), finalize.row_stride, finalize.indices,
                           finalize.weights, finalize.top_k, static_cast<const T*>(finalize.shared),
                           finalize.shared_stride});
}

// Runs the finalize step of local experts.
template <typename T>
VERBENA_DEVICE void run_finalize(const FinalizeLaunch& launch) {
  start_of(launch)();
  finalize_rows(read_input<T>(launch), reinterpret_cast<T*>(launch.call.output), launch.norm.rows,
                launch.norm.hidden, block_index(), blocks_per_grid());
  wait_for_earlier_grids();
}

// Runs a fused all-reduce and norm, which keeps kKept vectors per thread in registers. Each type and length
// has a separate kernel. In a single kernel for all cases, compilers would keep the arrays in memory and not
// in registers. With a FinalizeLaunch, the kernel computes its input from the outputs of experts.
// If kIsSeveral is true, a block handles several rows at a time, which needs more registers.
template <int kRanks, typename T, uint32_t kKept, bool kIsSeveral = false, typename LaunchOf = NormLaunch>
VERBENA_DEVICE void run_all_reduce_norm(const LaunchOf& launch) {
  run_grid(
      launch,
      [&] {
        OneShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
        const auto norm = __builtin_bit_cast(RmsNorm<T>, read_norm(launch.norm));
        const auto sum_as = [&](const auto& owner) {
          return all_reduce_norm<kRanks, kKept>(calls, read_input<T>(launch),
                                                reinterpret_cast<T*>(launch.call.output), norm, owner);
        };
        SymmStatus status{};
        if constexpr (kIsSeveral) {
          status = sum_as(device::detail::RowOfWarps(launch.rows_at_once));
        } else {
          status = sum_as(device::detail::RowOfCluster());
        }
        const SymmStatus end = calls.finish();
        return status == SymmStatus::kDone ? end : status;
      },
      [&] { spoil_norm(launch.call, launch.norm, launch.norm.rows); });
}

// Runs a reduce-scatter, a norm of this rank's share, and an all-gather. Calls is OneShot or Bulk.
template <typename Calls>
VERBENA_DEVICE void run_sharded_norm(const NormLaunch& launch) {
  const SymmContext& context = launch.workspace.context;
  run_grid(
      launch,
      [&] {
        const NormArguments all(launch.call);
        Calls calls(launch.workspace, block_index(), blocks_per_grid());
        start_of(launch)();
        const SymmStatus status = reduce_scatter_norm_all_gather(
            context, calls, *find_plan(), all.input, all.sum, launch.norm.rows, launch.norm.hidden,
            block_index(), blocks_per_grid(), [&] { return read_norm(launch.norm); }, all.reduce,
            all.norm_some);
        const SymmStatus end = calls.finish();
        return status == SymmStatus::kDone ? end : status;
      },
      [&] {
        const detail::ShardedRows shards(launch.norm.rows, launch.norm.hidden * sizeof(Element16),
                                         context.team_size, 0, 1);
        spoil_norm(launch.call, launch.norm, shards.count_of(context.team_rank));
      });
}

}  // namespace verbena::ops
