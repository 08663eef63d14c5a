// Ranks of a world as emulated GPUs, each with its heap, put queues, proxy and endpoint over softverbs. Ranks
// of one domain reach each other by loads and stores, all others by their proxies' threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>
#include <vector>

#include "device/emulator/world.h"
#include "device/proxy/proxy.h"
#include "device/support/run_kernel.h"
#include "transport/one_sided/support/group.h"
#include "verbena/symm_abi.h"

namespace verbena::device_test {

struct FleetShape {
  std::vector<int32_t> domains;  // of each rank
  symm::PutQueueShape queues = {.count = 2, .depth = 16};
  uint32_t send_depth = 64;
  bool starts = true;  // the proxies' threads
  int64_t proxy_timeout_ms = -1;
};

// All ranks of a world apart, or all in domains of so many.
inline FleetShape make_shape(int32_t ranks, int32_t domain_ranks = 1) {
  FleetShape shape;
  for (int32_t rank = 0; rank < ranks; ++rank) shape.domains.push_back(rank / domain_ranks);
  return shape;
}

class RdmaFleet {
 public:
  static constexpr uint64_t kHeapBytes = 1 << 20;
  static constexpr uint64_t kDataOffset = 1 << 19;  // the words of teams are before it
  static constexpr uint64_t kDataBytes = kHeapBytes - kDataOffset;

  explicit RdmaFleet(const FleetShape& shape);
  ~RdmaFleet();

  int32_t size() const { return static_cast<int32_t>(ranks_.size()); }
  // Of the world's team, which is team 0, or another one's.
  SymmContext& context(int32_t rank, size_t team = 0) { return at(rank).contexts[team]; }
  // Collective: the team's number. Ranks that are no members have a context that says nothing.
  size_t add_team(const std::vector<int32_t>& members);

  template <typename T = uint8_t>
  T* data(int32_t rank, uint64_t offset_bytes = 0) {
    return reinterpret_cast<T*>(heap(rank) + kDataOffset + offset_bytes);
  }
  std::byte* heap(int32_t rank) { return endpoints_[static_cast<size_t>(rank)]->at(0); }
  symm::Proxy& proxy(int32_t rank) { return *at(rank).proxy; }
  symm::PutQueue& queues(int32_t rank) { return at(rank).queues; }
  symm::AbortWord& abort(int32_t rank) { return at(rank).abort; }
  verbena::Endpoint& endpoint(int32_t rank) { return endpoints_[static_cast<size_t>(rank)]->endpoint(); }

 private:
  struct Rank {
    symm::PutQueue queues;
    symm::AbortWord abort;
    std::unique_ptr<symm::Proxy> proxy;
    std::vector<SymmContext> contexts;
    std::vector<std::unique_ptr<std::vector<int64_t>>> deltas;
    std::vector<std::unique_ptr<std::vector<int32_t>>> world_ranks;
    std::vector<std::unique_ptr<std::vector<uint64_t>>> rounds;
  };

  Rank& at(int32_t rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void make_context(Rank& rank, int32_t number, const std::vector<int32_t>& members, uint64_t words_offset);

  const FleetShape shape_;
  std::vector<std::unique_ptr<transport::Rank>> endpoints_;  // and heaps
  std::vector<std::unique_ptr<Rank>> ranks_;
  uint64_t words_end_ = 0;  // in heaps, of all teams
};

// Runs one grid of `threads` on every rank: `kernel(rank)`. The test fails if the run does.
inline void run_on_all(RdmaFleet& fleet, uint64_t seed, uint32_t blocks, uint32_t threads,
                       const std::function<void(int32_t rank)>& kernel,
                       const std::source_location& at = std::source_location::current()) {
  emulator::run_on_ranks(seed, fleet.size(), blocks, threads, kernel,
                         {.steps = UINT64_MAX, .outside_patience_s = 20}, at);
}

}  // namespace verbena::device_test
