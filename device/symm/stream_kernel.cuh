// The kernel that executes a call on a stream. The kernel returns no result: a wait that times out is
// recorded in the team's failure word or in the context's abort word.
#pragma once

#include "device/symm/stream_call.h"
#include "verbena/device/symm.cuh"

namespace verbena::symm {

// Copies this block's part by loads and stores.
template <typename Copy>
VERBENA_DEVICE void copy_in_parts(const StreamCall& call, const Copy& copy) {
  constexpr uint64_t kUnit = 128;
  const uint64_t blocks = device::blocks_per_grid();
  const uint64_t part = (call.length_bytes + blocks * kUnit - 1) / (blocks * kUnit) * kUnit;
  const uint64_t begin = part * device::block_index();
  if (begin >= call.length_bytes) return;
  const uint64_t rest = call.length_bytes - begin;
  copy(reinterpret_cast<char*>(call.destination + begin), reinterpret_cast<const char*>(call.source + begin),
       rest < part ? rest : part);
}

// Runs a call, with kStreamThreads threads per block. All calls use one block, except copies to and from
// mapped memory.
VERBENA_DEVICE void run_stream_call(const SymmContext& context, const StreamCall& call) {
  const device::BlockGroup block;
  switch (call.kind) {
    case StreamCall::Kind::kBarrier:
      static_cast<void>(device::symm_barrier(context, call.number, block));
      return;
    case StreamCall::Kind::kSignal:
      // The signal takes effect after all puts of earlier kernels of the stream, by any block of these
      // kernels.
      device::symm_signal_after_puts(context, call.number, call.peer, call.value,
                                     static_cast<SymmSignalOperation>(call.operation), block);
      return;
    case StreamCall::Kind::kWait:
      static_cast<void>(device::symm_signal_wait_until<int64_t>(
          context, call.number, static_cast<SymmCompare>(call.operation), static_cast<int64_t>(call.value),
          nullptr, block));
      return;
    case StreamCall::Kind::kPut:
      return copy_in_parts(call, [&](char* destination, const char* source, uint64_t length_bytes) {
        device::symm_put_async(context, destination, source, length_bytes, call.peer, block);
      });
    case StreamCall::Kind::kPutPieces: {
      const auto count = static_cast<uint32_t>(call.value);
      const uint32_t part = (count + device::blocks_per_grid() - 1) / device::blocks_per_grid();
      const uint32_t first = part * device::block_index();
      if (first >= count) return;
      device::symm_put_pieces(context, call.pieces + first, count - first < part ? count - first : part,
                              call.peer, block);
      return;
    }
    case StreamCall::Kind::kGet:
      return copy_in_parts(call, [&](char* destination, const char* source, uint64_t length_bytes) {
        device::symm_get(context, destination, source, length_bytes, call.peer, block);
      });
    case StreamCall::Kind::kQuiet:
      static_cast<void>(device::symm_quiet(context, block));
      return;
  }
}

}  // namespace verbena::symm
