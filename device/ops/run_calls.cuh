// The body of the kernels. All blocks of the grid carry out a launch's calls, one after the other. This
// header is also compiled for the emulated GPU.
#pragma once

#include "device/ops/call.h"
#include "verbena/device/collectives/across_hosts.cuh"
#include "verbena/device/collectives/direct.cuh"
#include "verbena/device/collectives/one_shot.cuh"
#include "verbena/device/collectives/two_shot.cuh"

namespace verbena::ops {

using namespace device;

VERBENA_DEVICE GridStart start_of(const Launch& launch) {
  return {launch.programmatic_launch, launch.pause_before_ns, launch.pause_after_ns};
}

// The threads that carry out the same part of each call.
struct OfBlock {
  using Group = BlockGroup;
  VERBENA_DEVICE static uint32_t part() { return block_index(); }
  VERBENA_DEVICE static uint32_t count_parts() { return blocks_per_grid(); }
};
struct OfCluster {
  using Group = ClusterGroup;
  VERBENA_DEVICE static uint32_t part() { return block_index() / blocks_per_cluster(); }
  VERBENA_DEVICE static uint32_t count_parts() { return blocks_per_grid() / blocks_per_cluster(); }
};

// ByPackets and ByChunks carry out a block's part of a call, in packets or in chunks. kRanks is the team's
// size, or 0 if it is not known at compile time.
template <int kRanks>
struct ByPackets : OfBlock {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    if (call.algorithm == Algorithm::kTwoShot) {
      TwoShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
      (void)calls.template all_reduce_bytes<kRanks>(call.input, call.output, call.length_bytes, reduce);
      return calls.finish();
    }
    OneShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
    (void)calls.template all_reduce_bytes<kRanks>(call.input, call.output, call.length_bytes, reduce);
    return calls.finish();
  }
  template <typename Plan>
  VERBENA_DEVICE static SymmStatus exchange(const Launch& launch, const Call&, const Plan& plan,
                                            uint64_t max_bytes) {
    OneShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
    (void)calls.template exchange<kRanks>(plan, max_bytes);
    return calls.finish();
  }
  template <typename Plan, typename Reduce>
  VERBENA_DEVICE static SymmStatus exchange_reduce(const Launch& launch, const Plan& plan, uint64_t max_bytes,
                                                   const Reduce& reduce) {
    OneShot<> calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
    (void)calls.template exchange_reduce<kRanks>(plan, max_bytes, reduce);
    return calls.finish();
  }
};
template <int kRanks>
struct ByChunks : OfBlock {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    if (call.algorithm == Algorithm::kDirect) {
      start_of(launch)();
      return all_reduce_in_windows<kRanks>(launch.workspace.context, block_index(), blocks_per_grid(),
                                           call.input, call.output, call.length_bytes, reduce);
    }
    Bulk<> calls(launch.workspace, block_index(), blocks_per_grid(), launch.chunk_bytes, start_of(launch));
    if (call.algorithm == Algorithm::kBulkOneShot) {
      const Part part = find_part(call.length_bytes, block_index(), blocks_per_grid());
      const auto plan = [&](int32_t) {
        return ExchangeEntry{Rows::contiguous(call.input), Rows::contiguous(call.output), part, part};
      };
      (void)calls.template exchange_reduce<kRanks>(plan, part.length_bytes, reduce);
    } else {
      (void)calls.template all_reduce<kRanks>(call.input, call.output, call.length_bytes,
                                              PlainCodec<Reduce>{reduce});
    }
    return calls.finish();
  }
  template <typename Plan>
  VERBENA_DEVICE static SymmStatus exchange(const Launch& launch, const Call& call, const Plan& plan,
                                            uint64_t max_bytes) {
    Bulk<> calls(launch.workspace, block_index(), blocks_per_grid(), launch.chunk_bytes, start_of(launch));
    const bool is_passed_on = call.lengths == Lengths::kFromRoot &&
                              call.algorithm == Algorithm::kBulkTwoShot &&
                              launch.workspace.context.team_size > 2;
    if (is_passed_on) {
      (void)calls.broadcast(call.input, call.output, call.length_bytes, call.root);
    } else {
      (void)calls.exchange(plan, max_bytes);
    }
    return calls.finish();
  }
  template <typename Plan, typename Reduce>
  VERBENA_DEVICE static SymmStatus exchange_reduce(const Launch& launch, const Plan& plan, uint64_t max_bytes,
                                                   const Reduce& reduce) {
    Bulk<> calls(launch.workspace, block_index(), blocks_per_grid(), launch.chunk_bytes, start_of(launch));
    (void)calls.template exchange_reduce<kRanks>(plan, max_bytes, reduce);
    return calls.finish();
  }
};

// The collectives of a team across hosts. Data for all ranks is sent only once to each host. Data for a
// single rank is sent directly to that rank. The blocks of a cluster share a part, so that NICs carry a few
// long messages although many blocks copy and add.
template <Wire kWire>
struct AcrossHostsWay : OfCluster {
  template <typename Reduce>
  VERBENA_DEVICE static SymmStatus all_reduce(const Launch& launch, const Call& call, const Reduce& reduce) {
    start_of(launch)();
    auto calls = make_calls<Reduce>(launch);
    if constexpr (kWire == Wire::kLossless) {
      (void)calls.all_reduce_lossless(call.input, call.output, call.length_bytes, reduce, Group{});
    } else {
      (void)calls.all_reduce(call.input, call.output, call.length_bytes, reduce, Group{});
    }
    return calls.finish(Group{});
  }
  template <typename Plan>
  VERBENA_DEVICE static SymmStatus exchange(const Launch& launch, const Call& call, const Plan& plan,
                                            uint64_t max_bytes) {
    start_of(launch)();
    const bool is_one_for_all =
        call.lengths == Lengths::kEqual ? call.source.member_bytes == 0 : call.lengths != Lengths::kByPair;
    if (is_one_for_all) {
      auto calls = make_calls<ReduceAny>(launch);
      (void)calls.template gather<kWire>(plan, max_bytes, call.lengths == Lengths::kFromRoot ? call.root : -1,
                                         Group{});
      return calls.finish(Group{});
    }
    Bulk<SymmContext, true> calls(launch.workspace, part(), count_parts(), launch.chunk_bytes);
    (void)calls.template exchange<kWire>(plan, max_bytes, Group{});
    return calls.finish(Group{});
  }
  template <typename Plan, typename Reduce>
  VERBENA_DEVICE static SymmStatus exchange_reduce(const Launch& launch, const Plan& plan, uint64_t max_bytes,
                                                   const Reduce& reduce) {
    start_of(launch)();
    auto calls = make_calls<Reduce>(launch);
    (void)calls.template reduce_scatter<kWire>(plan, max_bytes, reduce, Group{});
    return calls.finish(Group{});
  }

 private:
  template <typename Reduce>
  VERBENA_DEVICE static AcrossHosts<Reduce> make_calls(const Launch& launch) {
    return AcrossHosts<Reduce>(launch.workspace, *launch.host, {launch.hosts, launch.members}, part(),
                               count_parts(), launch.chunk_bytes);
  }
};
using AcrossHostsByChunks = AcrossHostsWay<Wire::kPlain>;
using AcrossHostsLossless = AcrossHostsWay<Wire::kLossless>;

VERBENA_DEVICE ExchangePlan* find_plan() {
#if VERBENA_EMULATED
  static const char key = 0;
  return static_cast<ExchangePlan*>(
      emulation::shared_memory(&key, sizeof(ExchangePlan), alignof(ExchangePlan)));
#else
  VERBENA_SHARED alignas(ExchangePlan) char memory[sizeof(ExchangePlan)];
  return reinterpret_cast<ExchangePlan*>(memory);
#endif
}

// The part of a tensor that the counts in GPU memory assign to a member. is_right is false if the counts are
// invalid.
struct Stretch {
  uint64_t begin_bytes, length_bytes;
  bool is_right;
};
VERBENA_DEVICE Stretch find_stretch(const int64_t* counts, const int64_t* offsets, int32_t member,
                                    const Call& call, uint64_t data_bytes) {
  int64_t offset = 0;
  bool is_right = true;
  for (int32_t i = 0; offsets == nullptr && i < member; ++i) {
    const int64_t count = load<Order::kWeak, Scope::kThreads>(counts + i);
    is_right = is_right && count >= 0 && static_cast<uint64_t>(count) <= data_bytes;
    offset += count;
  }
  if (offsets != nullptr) offset = load<Order::kWeak, Scope::kThreads>(offsets + member);
  const int64_t count = load<Order::kWeak, Scope::kThreads>(counts + member);
  const uint64_t most = data_bytes / call.unit_bytes;
  // FAULT(parts_end_beyond_the_tensor)
  is_right = is_right && count >= 0 && offset >= 0 && static_cast<uint64_t>(count) <= most &&
             static_cast<uint64_t>(offset) <= most - static_cast<uint64_t>(count);
  return {static_cast<uint64_t>(offset) * call.unit_bytes, static_cast<uint64_t>(count) * call.unit_bytes,
          is_right};
}

// Fills a plan's entry for a member if the lengths of messages are in GPU memory. Returns false if the
// lengths are invalid.
VERBENA_DEVICE bool fill_entry_by_counts(const Call& call, int32_t me, int32_t member, ExchangeEntry& entry) {
  Stretch send{0, 0, true}, receive{0, 0, true};
  switch (call.lengths) {
    case Lengths::kByReceiver:
      send = find_stretch(call.counts, call.offsets, member, call, call.input_bytes);
      receive = find_stretch(call.counts, nullptr, me, call, call.input_bytes);
      receive.begin_bytes = 0;
      receive.is_right = receive.is_right && receive.length_bytes <= call.output_bytes;
      break;
    case Lengths::kBySender:
      send = find_stretch(call.counts, nullptr, me, call, call.output_bytes);
      send.begin_bytes = 0;
      send.is_right = send.is_right && send.length_bytes <= call.input_bytes;
      receive = find_stretch(call.counts, call.offsets, member, call, call.output_bytes);
      break;
    default:
      send = find_stretch(call.counts, call.offsets, member, call, call.input_bytes);
      receive = find_stretch(call.receive_counts, call.receive_offsets, member, call, call.output_bytes);
      break;
  }
  entry.source = Rows::contiguous(call.input + send.begin_bytes);
  entry.destination = Rows::contiguous(call.output + receive.begin_bytes);
  entry.send = {0, send.length_bytes};
  entry.receive = {0, receive.length_bytes};
  return send.is_right && receive.is_right;
}
VERBENA_DEVICE void fill_entry(const Call& call, int32_t me, int32_t member, ExchangeEntry& entry) {
  const auto number = static_cast<uint64_t>(member);
  entry.source = {const_cast<char*>(call.input) + number * call.source.member_bytes, call.source.row_bytes,
                  call.source.stride_bytes};
  entry.destination = {call.output + number * call.destination.member_bytes, call.destination.row_bytes,
                       call.destination.stride_bytes};
  const bool is_rooted = call.lengths == Lengths::kFromRoot;
  entry.send = {0, is_rooted && me != call.root ? 0 : call.length_bytes};
  entry.receive = {0, is_rooted && member != call.root ? 0 : call.length_bytes};
}

// Fills the plan of a call. All threads of a block must call it. Returns false if the counts in memory are
// invalid.
template <typename Way>
VERBENA_DEVICE bool fill_plan(const Launch& launch, const Call& call, ExchangePlan& plan) {
  const SymmContext& context = launch.workspace.context;
  const auto member = static_cast<int32_t>(thread_index());
  bool is_right = true;
  const bool has_counts = call.lengths >= Lengths::kByReceiver;
  if (member < context.team_size) {
    ExchangeEntry entry;
    if (has_counts) {
      is_right = fill_entry_by_counts(call, context.team_rank, member, entry);
    } else {
      fill_entry(call, context.team_rank, member, entry);
    }
    entry.send = find_part(entry.send.length_bytes, Way::part(), Way::count_parts());
    entry.receive = find_part(entry.receive.length_bytes, Way::part(), Way::count_parts());
    plan.entries[member] = entry;
  }
  uint64_t most = call.length_bytes;
  if (call.lengths == Lengths::kByReceiver || call.lengths == Lengths::kBySender) {
    most = 0;
    for (int32_t i = 0; i < context.team_size; ++i) {
      const auto count = static_cast<uint64_t>(load<Order::kWeak, Scope::kThreads>(call.counts + i));
      if (count > most) most = count;
    }
    most *= call.unit_bytes;
  }
  if (member == 0)
    plan.max_bytes =
        call.lengths == Lengths::kByPair ? kUnknownLength : find_part_bytes(most, Way::count_parts());
  return !sync_block_any(!is_right);
}

template <typename Way, Content kContent, typename Reduce>
VERBENA_DEVICE SymmStatus run_call(const Launch& launch, const Call& call, const Reduce& reduce) {
  if constexpr (kContent != Content::kExchanges) {
    if (call.kind == Kind::kAllReduce) return Way::all_reduce(launch, call, reduce);
  }
  if constexpr (kContent != Content::kAllReduces) {
    const auto run = [&](const auto& plan, uint64_t max_bytes) {
      return call.kind == Kind::kExchange ? Way::exchange(launch, call, plan, max_bytes)
                                          : Way::exchange_reduce(launch, plan, max_bytes, reduce);
    };
    // If all messages have the same length, neither a plan in memory nor a block barrier after writing the
    // plan is needed. This separate code saves a microsecond.
    if (call.lengths < Lengths::kByReceiver) {
      const int32_t me = launch.workspace.context.team_rank;
      const Part part = find_part(call.length_bytes, Way::part(), Way::count_parts());
      const auto plan = [&](int32_t member) {
        ExchangeEntry entry;
        fill_entry(call, me, member, entry);
        entry.send = entry.send.length_bytes == 0 ? Part{0, 0} : part;
        entry.receive = entry.receive.length_bytes == 0 ? Part{0, 0} : part;
        return entry;
      };
      return run(plan, find_part_bytes(call.length_bytes, Way::count_parts()));
    }
    start_of(launch)();
    ExchangePlan& plan = *find_plan();
    if (!fill_plan<Way>(launch, call, plan)) return SymmStatus::kInvalid;
    return run(plan, plan.max_bytes);
  }
  return SymmStatus::kInvalid;
}

// Fills the output of a failed call with 0xff, which is NaN in every floating-point type. All threads of the
// block call it. Each failed block fills the whole output, because other blocks do not know of the failure.
VERBENA_DEVICE void spoil(const Rows& output, uint64_t length_bytes) {
  constexpr uint64_t kPieceBytes = uint64_t{1} << 30;  // offsets have 32 bits
  constexpr Vector16 kNans{~0U, ~0U, ~0U, ~0U};
  for (uint64_t at = 0; at < length_bytes; at += kPieceBytes) {
    const Rows piece = output.from(at);
    const auto length =
        static_cast<uint32_t>(length_bytes - at < kPieceBytes ? length_bytes - at : kPieceBytes);
    for (uint32_t offset = thread_index() * kVectorBytes; offset < length;
         offset += threads_per_block() * kVectorBytes)
      detail::store_vector(piece, offset, length, kNans);
  }
}
VERBENA_DEVICE_FAR void spoil_tensor(char* output, uint64_t length_bytes) {
  spoil(Rows::contiguous(output), length_bytes);
}
// Fills the outputs of this rank's failed calls, starting with call `first`, with 0xff.
VERBENA_DEVICE_FAR void spoil_outputs(const Call* calls, uint32_t first, uint32_t count, int32_t me,
                                      int32_t size) {
  for (uint32_t i = first; i < count; ++i) {
    const Call& call = calls[i];
    if (call.lengths >= Lengths::kByReceiver) {
      spoil(Rows::contiguous(call.output), call.output_bytes);
    } else if (call.kind == Kind::kExchange && call.destination.member_bytes != 0) {
      for (int32_t member = 0; member < size; ++member) {
        ExchangeEntry entry;
        fill_entry(call, me, member, entry);
        // If the exchange is in place, the rank's message to itself is already in the output, and must not be
        // overwritten.
        if (member != me || entry.source.find(0) != entry.destination.find(0))
          spoil(entry.destination, call.length_bytes);
      }
    } else if (call.lengths == Lengths::kFromRoot && call.root < 0) {  // a barrier has no output
      spoil(Rows::contiguous(call.output), call.output_bytes);
    } else if (call.lengths != Lengths::kFromRoot || me != call.root || call.input != call.output) {
      spoil(Rows::contiguous(call.output), call.length_bytes);
    }
  }
}

// Sets the failure words of this rank, which refuses a call. If `tells_peers` is true, also sets those of its
// peers.
VERBENA_DEVICE_FAR void refuse(const Launch& launch, bool tells_peers) {
  const auto refuse_in = [&](const SymmContext& context) {
    const detail::Awaited call{SymmWait::kCall, 0, static_cast<uint32_t>(context.team_rank)};
    if (tells_peers) {
      detail::fail_team(context, call);
    } else {
      (void)detail::fail_rank(context, call);
    }
  };
  refuse_in(launch.workspace.context);
  if (launch.hosts > 1) refuse_in(launch.host->context);
}

// Reports a failed call to the host. Also reports invalid arguments to the peers, which would otherwise wait
// for this rank until they time out.
VERBENA_DEVICE_FAR void report(const Launch& launch, SymmStatus status) {
  if (thread_index() != 0) return;
  store_relaxed<Scope::kSystem>(launch.status, static_cast<int64_t>(status));
  if (status == SymmStatus::kInvalid) refuse(launch, true);
}

// Runs a kernel's body. `body` returns a SymmStatus and must call start_of() before it accesses memory that
// other kernels use. If `body` fails, `spoil_all()` fills the outputs with 0xff.
template <typename Body, typename SpoilAll>
VERBENA_DEVICE void run_grid(const Launch& launch, const Body& body, const SpoilAll& spoil_all) {
  const SymmStatus status = body();
  // A grid must not end before the grids for which it waits, even if some of its blocks had no work.
  wait_for_earlier_grids();  // FAULT(idle_grid_ends_early)
  if (__builtin_expect(status == SymmStatus::kDone, 1)) return;
  report(launch, status);
  spoil_all();
}

VERBENA_DEVICE void spoil_call(const CallLaunch& launch) {
  const SymmContext& context = launch.workspace.context;
  spoil_outputs(&launch.call, 0, 1, context.team_rank, context.team_size);
}

VERBENA_DEVICE void make_reduction(const Call& call, ReduceAny& reduce) {
  reduce = {static_cast<DataType>(call.type), static_cast<Reduction>(call.reduction)};
}
VERBENA_DEVICE void make_reduction(const Call& call, ReduceFloats& reduce) {
  reduce = {static_cast<DataType>(call.type)};
}

// The bodies of the kernels of VERBENA_OPS_CHECK. Each kernel runs in one block. run_note() writes this
// rank's record, which an exchange then sends to the other ranks. run_compare() compares the records of all
// ranks. If the records differ, every rank refuses its call.
VERBENA_DEVICE void run_note(const CompareLaunch& launch) {
  start_of(launch)();
  if (thread_index() != 0) return;
  CallRecord record = launch.record;
  for (int32_t i = 0; launch.counts != nullptr && i < launch.workspace.context.team_size; ++i)
    record.counts_hash = (record.counts_hash ^ static_cast<uint64_t>(launch.counts[i])) * 0x100000001b3U + 1;
  *launch.own = record;
}
VERBENA_DEVICE void run_compare(const CompareLaunch& launch) {
  run_grid(
      launch,
      [&] {
        start_of(launch)();
        // If the exchange failed, there is nothing to compare.
        if (sync_block_any(load_relaxed<Scope::kSystem>(launch.status) != 0)) return SymmStatus::kTimedOut;
        const auto* const own = reinterpret_cast<const uint64_t*>(launch.own);
        const auto* const all = reinterpret_cast<const uint64_t*>(launch.all);
        const auto ranks = static_cast<uint32_t>(launch.workspace.context.team_size);
        bool is_other = false;
        for (uint32_t i = thread_index(); i < ranks * kRecordWords; i += threads_per_block())
          is_other = is_other || all[i] != own[i % kRecordWords];
        if (!sync_block_any(is_other)) return SymmStatus::kDone;
        if (thread_index() == 0) {
          *launch.refused = *launch.own;
          // Every rank finds the difference itself. The failure word of a peer must not be set, because the
          // peer may still wait for records.
          refuse(launch, false);
        }
        return SymmStatus::kInvalid;
      },
      [] {});
}

template <typename Way, Content kContent, typename Reduce = ReduceAny>
VERBENA_DEVICE void run_call(const CallLaunch& launch) {
  run_grid(
      launch,
      [&] {
        Reduce reduce;
        make_reduction(launch.call, reduce);
        return run_call<Way, kContent>(launch, launch.call, reduce);
      },
      [&] { spoil_call(launch); });
}

// Runs an all-reduce with all_reduce_vectors() of OneShot or TwoShot.
template <typename Calls, int kRanks, typename T>
VERBENA_DEVICE void run_vectors(const CallLaunch& launch) {
  run_grid(
      launch,
      [&] {
        Calls calls(launch.workspace, block_index(), blocks_per_grid(), start_of(launch));
        (void)calls.template all_reduce_vectors<kRanks>(launch.call.input, launch.call.output,
                                                        launch.call.length_bytes, ReduceAs<T>{});
        return calls.finish();
      },
      [&] { spoil_tensor(launch.call.output, launch.call.length_bytes); });
}

template <typename Way, Content kContent = Content::kAnything, typename Reduce = ReduceAny>
VERBENA_DEVICE void run_calls(const GroupLaunch& launch) {
  const SymmContext& context = launch.workspace.context;
  uint32_t done = 0;
  run_grid(
      launch,
      [&] {
        SymmStatus status = SymmStatus::kDone;
        for (; done < launch.count_calls; ++done) {
          // Has the same effect as the end of a kernel: all reads and writes of the group happen before the
          // group's next call.
          if (done > 0) {
            fence<Order::kAcquireRelease, Scope::kSystem>();
            typename Way::Group().sync();
          }
          const Call& call = launch.calls[done];
          Reduce reduce;
          make_reduction(call, reduce);
          status = run_call<Way, kContent>(launch, call, reduce);
          if (status != SymmStatus::kDone) break;
        }
        return status;
      },
      [&] { spoil_outputs(launch.calls, done, launch.count_calls, context.team_rank, context.team_size); });
}

}  // namespace verbena::ops
