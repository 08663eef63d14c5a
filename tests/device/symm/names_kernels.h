// Kernels as TileScale generates them, by its names and NVSHMEM's, for teams of every shape.
#pragma once

#include <nvshmem.h>
#include <nvshmemx.h>
#include <tl_templates/cuda/common.h>
#include <tl_templates/cuda/distributed.h>
#include <tl_templates/cuda/intrin.h>
#include <tl_templates/cuda/ldst.h>
#include <tl_templates/cuda/sync.h>

#include <algorithm>
#include <vector>

#include "device/emulator/world.h"

namespace verbena::device_test {

using emulator::require;
using emulator::require_done;

// What the host writes before a launch; all threads of a block, first.
template <typename Ranks, typename IsInReach>
void write_table(Ranks& fleet, int32_t rank, const IsInReach& is_in_reach) {
  if (device::thread_index() == 0) {
    uint64_t* const table = tl::detail::find_table();
    std::fill_n(table, tl::kTilescaleTableWords, 0);
    table[0] = static_cast<uint64_t>(rank);
    table[1] = static_cast<uint64_t>(fleet.size());
    for (int32_t peer = 0; peer < fleet.size(); ++peer)
      table[2 + peer] = is_in_reach(peer) ? reinterpret_cast<uint64_t>(fleet.data(peer)) : 0;
    table[tl::kTilescaleTableWords - 1] = reinterpret_cast<uint64_t>(&fleet.context(rank));
  }
  device::sync_block();
}

// What TileScale's code generator writes for T.putmem_nbi_block, T.signal_op, T.signal_wait_until and others:
// a ring: each block sends its part to the next rank, and doubles what has come.
inline void ring_kernel(float* A, float* B, uint64_t* signals, float* sums) {
  const int bx = static_cast<int>(device::block_index()), tx = static_cast<int>(device::thread_index());
  const int mype = nvshmem_my_pe();
  const int npes = nvshmem_n_pes();
  nvshmemx_putmem_signal_nbi_block((&(B[bx * 64])), (&(A[bx * 64])), 256, (&(signals[bx])), 1,
                                   NVSHMEM_SIGNAL_ADD, (mype + 1) % npes);
  if (tx == 0) {
    nvshmem_signal_wait_until((&(signals[bx])), NVSHMEM_CMP_GE, 1);
  }
  device::sync_block();
  sums[(bx * 64) + tx] = B[(bx * 64) + tx] * 2.000000e+00f;
  nvshmem_quiet();
}

// What ring_kernel() takes.
template <typename Ranks>
void fill_ring(Ranks& fleet) {
  for (int32_t rank = 0; rank < fleet.size(); ++rank) {
    for (int i = 0; i < 128; ++i) fleet.template data<float>(rank)[i] = static_cast<float>(1000 * rank + i);
  }
}
template <typename Ranks>
void run_ring(Ranks& fleet, int32_t rank, std::vector<std::vector<float>>& sums) {
  ring_kernel(fleet.template data<float>(rank), fleet.template data<float>(rank, 4096),
              fleet.template data<uint64_t>(rank, 8192), sums[static_cast<size_t>(rank)].data());
}
// Whether each rank has twice what the one before it had.
inline bool is_doubled(const std::vector<std::vector<float>>& sums) {
  for (size_t rank = 0; rank < sums.size(); ++rank) {
    const size_t before = (rank + sums.size() - 1) % sums.size();
    for (size_t i = 0; i < 128; ++i)
      if (sums[rank][i] != 2.0f * static_cast<float>(1000 * before + i)) return false;
  }
  return true;
}

// Puts and gets by a thread, a warp and a block, told by words and by a barrier.
template <typename Ranks>
void every_scope(Ranks& fleet, int32_t rank) {
  constexpr size_t kBytes = 96;
  auto* const mine = fleet.data(rank);
  const int next = (rank + 1) % fleet.size(), before = (rank + fleet.size() - 1) % fleet.size();
  const uint32_t me = device::thread_index();
  for (uint32_t i = me; i < 3 * kBytes; i += 64)
    mine[i] = static_cast<uint8_t>(17 * rank + static_cast<int>(i));
  device::sync_block();
  if (me == 0) nvshmem_putmem(mine + 4096, mine, kBytes, next);
  if (me >= 32) nvshmemx_putmem_nbi_warp(mine + 4096 + kBytes, mine + kBytes, kBytes, next);
  device::sync_block();
  nvshmemx_putmem_signal_block(mine + 4096 + 2 * kBytes, mine + 2 * kBytes, kBytes,
                               fleet.template data<uint64_t>(rank, 8192), 5, NVSHMEM_SIGNAL_SET, next);
  require_done(nvshmemx_barrier_all_block(), "barrier");
  for (uint32_t i = me; i < 3 * kBytes; i += 64)
    require(mine[4096 + i] == static_cast<uint8_t>(17 * before + static_cast<int>(i)), "what was put");
  require(nvshmem_signal_fetch(fleet.template data<uint64_t>(rank, 8192)) == 5, "the signal");
  if (me == 0) {
    nvshmem_getmem_nbi(mine + 12288, mine, kBytes, before);
    nvshmem_quiet();
    require(mine[12288 + kBytes - 1] == static_cast<uint8_t>(17 * before + static_cast<int>(kBytes) - 1),
            "got");
  }
  nvshmemx_getmem_block(mine + 16384, mine, 2 * kBytes, before);
  for (uint32_t i = me; i < 2 * kBytes; i += 64)
    require(mine[16384 + i] == static_cast<uint8_t>(17 * before + static_cast<int>(i)), "got");
  require_done(nvshmemx_sync_all_block(), "sync");
  if (me == 0) {
    nvshmem_fence();
    require(nvshmem_barrier_all() == SymmStatus::kDone && nvshmem_sync_all() == SymmStatus::kDone,
            "by a thread");
    nvshmemx_signal_op(fleet.template data<uint64_t>(rank, 8200), 3, NVSHMEM_SIGNAL_ADD, next);
    require(nvshmem_signal_wait_until(fleet.template data<uint64_t>(rank, 8200), NVSHMEM_CMP_EQ, 3) == 3,
            "a signal");
    require(nvshmemx_signal_op(fleet.template data<uint64_t>(rank, 8200), 3, 4, next) == SymmStatus::kInvalid,
            "no such operation");
  }
}

template <typename Ranks>
void broadcast_and_collect(Ranks& fleet, int32_t rank) {
  auto* const numbers = fleet.template data<int32_t>(rank);
  const uint32_t me = device::thread_index();
  const int root = fleet.size() - 1;
  if (me < 10) numbers[me] = 100 * rank + static_cast<int32_t>(me);
  require_done(nvshmemx_broadcast_block(NVSHMEM_TEAM_WORLD, numbers + 64, numbers, 10, root), "broadcast");
  if (me < 10) require(numbers[64 + me] == 100 * root + static_cast<int32_t>(me), "the root's");
  const nvshmem_team_t team = &fleet.context(rank);
  require_done(nvshmemx_fcollectmem_block(team, numbers + 128, numbers, 40), "collect");
  for (uint32_t i = me; i < 10 * static_cast<uint32_t>(fleet.size()); i += 64)
    require(numbers[128 + i] == 100 * static_cast<int32_t>(i / 10) + static_cast<int32_t>(i % 10), "all");
  require(nvshmem_team_my_pe(team) == rank && nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) == fleet.size(),
          "places");
}

// A value by itself: where stores reach.
template <typename Ranks, typename IsInReach>
void store_a_value(Ranks& fleet, int32_t rank, const IsInReach& is_in_reach) {
  const int next = (rank + 1) % fleet.size(), before = (rank + fleet.size() - 1) % fleet.size();
  int* const word = fleet.template data<int>(rank);
  require(nvshmem_int_p(word, 9 + rank, next) ==
              (is_in_reach(next) ? SymmStatus::kDone : SymmStatus::kUnreachable),
          "a value");
  require_done(nvshmem_barrier_all(), "barrier");
  require(*word == (is_in_reach(before) ? 9 + before : 0), "what came");
}

}  // namespace verbena::device_test
