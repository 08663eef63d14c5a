// Ranks of a fleet in hosts of equally many ranks, out of each other's reach, with put queues and a NIC each:
// functions of the emulated world, which do what is asked of them whenever the seed lets them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/random.h"
#include "device/symm/fleet.h"
#include "verbena/device/collectives/across_hosts.cuh"

namespace verbena::device_test {

class Hosts {
 public:
  // Rank r is in host r / of_host; `are_mixed`: in host r modulo their number.
  Hosts(Fleet& fleet, int32_t of_host, bool are_mixed = false)
      : fleet_(fleet), of_host_(of_host), hosts_(fleet.size() / of_host), are_mixed_(are_mixed) {
    for (int32_t rank = 0; rank < fleet.size(); ++rank) make_rank(rank);
  }

  int32_t count() const { return hosts_; }
  int32_t host_of(int32_t rank) const { return are_mixed_ ? rank % hosts_ : rank / of_host_; }
  device::HostPlaces places(int32_t rank) const {
    const Rank& one = *ranks_[static_cast<size_t>(rank)];
    return {static_cast<uint32_t>(hosts_), one.members.data()};
  }
  SymmWorkspace<> team_workspace(int32_t rank, uint64_t blocks, uint64_t slot_bytes) {
    return fleet_.workspace(rank, 0, blocks, slot_bytes);
  }
  // Returns the bytes of a rank's two workspaces.
  static uint64_t measure(int32_t ranks, uint64_t blocks, uint64_t slot_bytes) {
    return 2 * Fleet::measure_workspace(ranks, blocks, slot_bytes);
  }
  // Of the rank's host alone: what Fleet lays out for all, for fewer.
  SymmWorkspace<> host_workspace(int32_t rank, uint64_t blocks, uint64_t slot_bytes) {
    const Rank& one = *ranks_[static_cast<size_t>(rank)];
    SymmWorkspace<> made = fleet_.workspace(rank, 1, blocks, slot_bytes);
    SymmContext& context = made.context;
    context.team_size = context.lsa_size = of_host_;
    context.has_remote = 0;
    context.more_deltas = nullptr;
    for (int32_t i = 0; i < of_host_; ++i) {
      const int32_t peer = one.neighbours[static_cast<size_t>(i)];
      context.inline_deltas[i] = find_delta(rank, peer);
      if (peer == rank) context.team_rank = i;
    }
    return made;
  }

  // NICs serve until so many blocks, of all ranks together, have ended.
  void serve(emulator::World& world, uint64_t seed, uint32_t blocks) {
    left_ = static_cast<int32_t>(blocks);
    for (int32_t rank = 0; rank < fleet_.size(); ++rank) {
      world.add_host([this, rank, seed] {
        Random random(seed * 64 + static_cast<uint64_t>(rank));
        // Some NICs are slow in some runs.
        const uint32_t lag_ns = random.between(0, 3) == 0 ? 100'000 : 100;
        for (;;) {
          const bool is_over = left_.load() == 0;
          bool was_idle = true;
          for (uint32_t queue = 0; queue < kQueues; ++queue)
            was_idle &= !serve_one(rank, queue, random, lag_ns);
          if (was_idle && is_over) return;
          emulator::yield();
        }
      });
    }
  }
  // NICs carry out puts a second time now and then, late, as after a failure: at any time before they write
  // the word that follows.
  void repeat_puts() { repeats_puts_ = true; }
  // What all NICs have carried so far: bytes of puts and words, and their number. Repeated puts do not count.
  uint64_t wire_bytes() const { return wire_bytes_; }
  uint64_t requests() const { return requests_; }
  // By a thread of each block, when the block asks for nothing more.
  void end() { left_.fetch_sub(1); }

 private:
  static constexpr uint32_t kQueues = 2, kDepthShift = 3;
  struct Rank {
    std::vector<PutDescriptor> ring{kQueues << kDepthShift};
    std::vector<PutCursors> cursors{kQueues};
    std::vector<PutProgress> progress{kQueues};
    std::vector<PutReply> replies{kQueues << kDepthShift};
    uint64_t next[kQueues] = {};
    std::vector<PutDescriptor> open[kQueues];  // puts that no word has followed
    std::vector<int64_t> deltas;
    std::vector<int32_t> world_ranks;
    std::vector<uint8_t> members, neighbours;
  };

  int64_t find_delta(int32_t rank, int32_t peer) { return fleet_.data(peer) - fleet_.data(rank); }

  void make_rank(int32_t rank) {
    Rank& one = *ranks_.emplace_back(std::make_unique<Rank>());
    SymmContext& context = fleet_.context(rank);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      const bool is_reached = host_of(peer) == host_of(rank);
      one.deltas.push_back(is_reached ? find_delta(rank, peer) : kSymmOutOfReach);
      one.world_ranks.push_back(peer);
      if (is_reached) one.neighbours.push_back(static_cast<uint8_t>(peer));
    }
    for (int32_t host = 0; host < hosts_; ++host)
      for (int32_t peer = 0; peer < fleet_.size(); ++peer)
        if (host_of(peer) == host) one.members.push_back(static_cast<uint8_t>(peer));
    context.lsa_size = of_host_;
    context.has_remote = hosts_ > 1;
    std::copy_n(one.deltas.begin(), std::min(fleet_.size(), kSymmInlineDeltas), context.inline_deltas);
    std::copy_n(one.world_ranks.begin(), std::min(fleet_.size(), kSymmInlineDeltas),
                context.inline_world_ranks);
    if (fleet_.size() > kSymmInlineDeltas) {
      context.more_deltas = one.deltas.data();
      context.more_world_ranks = one.world_ranks.data();
    }
    context.queues = {one.ring.data(),
                      one.cursors.data(),
                      one.progress.data(),
                      one.replies.data(),
                      kQueues,
                      kDepthShift,
                      1};
  }

  bool serve_one(int32_t rank, uint32_t queue, Random& random, uint32_t lag_ns) {
    Rank& one = *ranks_[static_cast<size_t>(rank)];
    const uint64_t position = one.next[queue], depth = uint64_t{1} << kDepthShift;
    const PutDescriptor& slot = one.ring[queue * depth + position % depth];
    const auto turn = static_cast<uint16_t>((position >> kDepthShift) + 1);
    const uint64_t action = __atomic_load_n(&slot.action, __ATOMIC_ACQUIRE);
    const uint64_t place = __atomic_load_n(&slot.place, __ATOMIC_ACQUIRE);
    if (action >> kPutTurnShift != turn || place >> kPutTurnShift != turn) return false;
    device::emulation::pause(random.between(0, lag_ns));
    const auto peer = static_cast<int32_t>(action & 0xffffffff);
    const auto operation = static_cast<PutOperation>((action & ~kPutReports) >> kPutOperationShift & 0xff);
    char* const there = reinterpret_cast<char*>(fleet_.context(peer).heap_begin) + (place & kPutMaxOffset);
    emulator::require(host_of(peer) != host_of(rank), "a NIC is asked for a peer in reach");
    if (operation == PutOperation::kPut) {
      put(there, reinterpret_cast<const char*>(fleet_.context(rank).heap_begin) + slot.operand, slot.extent,
          random);
      wire_bytes_ += slot.extent;
      if (repeats_puts_) one.open[queue].push_back({slot.operand, slot.extent, place, action});
    } else {
      emulator::require(operation == PutOperation::kWriteWord, "what the NIC does not know");
      for (const PutDescriptor& before : one.open[queue]) {
        if (random.between(0, 1) == 0) continue;
        device::emulation::pause(random.between(0, lag_ns));
        const auto its_peer = static_cast<int32_t>(before.action & 0xffffffff);
        put(reinterpret_cast<char*>(fleet_.context(its_peer).heap_begin) + (before.place & kPutMaxOffset),
            reinterpret_cast<const char*>(fleet_.context(rank).heap_begin) + before.operand, before.extent,
            random);
      }
      one.open[queue].clear();
      __atomic_store_n(reinterpret_cast<uint64_t*>(there), slot.operand, __ATOMIC_RELEASE);
      wire_bytes_ += kWordBytes;
    }
    ++requests_;
    ++one.next[queue];
    __atomic_store_n(&one.progress[queue].consumed, one.next[queue], __ATOMIC_RELEASE);
    __atomic_store_n(&one.progress[queue].completed, one.next[queue], __ATOMIC_RELEASE);
    return true;
  }

  // In two parts, the later one first in every other case: words of 4 bytes arrive whole, in any order.
  void put(char* there, const char* here, uint64_t length_bytes, Random& random) {
    constexpr uint64_t kWholeBytes = 4;
    const uint64_t words = length_bytes / kWholeBytes;
    const uint64_t middle = random.between(0, static_cast<uint32_t>(words)) * kWholeBytes;
    const bool is_end_first = random.between(0, 1) == 0;
    for (const bool is_end : {is_end_first, !is_end_first}) {
      const uint64_t begin = is_end ? middle : 0, end = is_end ? length_bytes : middle;
      if (begin != end) std::memcpy(there + begin, here + begin, end - begin);
      emulator::yield();
    }
  }

  static constexpr uint64_t kWordBytes = sizeof(uint64_t);
  Fleet& fleet_;
  const int32_t of_host_, hosts_;
  const bool are_mixed_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<int32_t> left_{0};
  std::atomic<uint64_t> wire_bytes_{0}, requests_{0};
  bool repeats_puts_ = false;
};

}  // namespace verbena::device_test
