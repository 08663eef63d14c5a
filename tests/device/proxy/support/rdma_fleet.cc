#include "device/proxy/support/rdma_fleet.h"

#include <algorithm>
#include <stdexcept>

namespace verbena::device_test {

namespace {

constexpr uint64_t kLineBytes = 64;
constexpr int64_t kSpin_us = 50;  // two CPUs serve all proxies

}  // namespace

RdmaFleet::RdmaFleet(const FleetShape& shape)
    : shape_(shape),
      endpoints_(transport::make_group(static_cast<uint32_t>(shape.domains.size()),
                                       {.lanes = shape.queues.count, .send_depth = shape.send_depth},
                                       kHeapBytes)) {
  std::vector<int32_t> world;
  for (size_t rank = 0; rank < endpoints_.size(); ++rank) {
    auto queues = symm::PutQueue::create(shape.queues);
    auto abort = symm::AbortWord::create();
    if (!queues || !abort) throw std::runtime_error("no memory");
    ranks_.push_back(std::make_unique<Rank>());
    Rank& made = *ranks_.back();
    made.queues = *std::move(queues);
    made.abort = *std::move(abort);
    made.proxy = std::make_unique<symm::Proxy>(
        endpoints_[rank]->endpoint(), made.queues, made.abort,
        symm::ProxyOptions{.count_ranks = static_cast<uint32_t>(endpoints_.size()),
                           .spin_us = kSpin_us,
                           .timeout_ms = shape.proxy_timeout_ms});
    if (!made.proxy->add_window(0, kHeapBytes, transport::kRegion)) throw std::runtime_error("no window");
    world.push_back(static_cast<int32_t>(rank));
  }
  add_team(world);
  for (const auto& rank : ranks_) {
    if (shape.starts && !rank->proxy->start()) throw std::runtime_error("no thread");
  }
}

// Proxies first: none asks a peer's memory for anything that is gone.
RdmaFleet::~RdmaFleet() {
  for (const auto& rank : ranks_) rank->proxy->stop();
}

size_t RdmaFleet::add_team(const std::vector<int32_t>& members) {
  const uint64_t offset = words_end_;
  words_end_ += 8 * (2 * kSymmSignals + uint64_t{kSymmBarrierRows} * members.size() + 1);
  words_end_ = (words_end_ + kLineBytes - 1) / kLineBytes * kLineBytes;
  if (words_end_ > kDataOffset) throw std::runtime_error("too many teams for the heap");
  for (int32_t rank = 0; rank < size(); ++rank) {
    at(rank).contexts.emplace_back();
    if (std::count(members.begin(), members.end(), rank) != 0) make_context(at(rank), rank, members, offset);
  }
  return at(0).contexts.size() - 1;
}

void RdmaFleet::make_context(Rank& rank, int32_t number, const std::vector<int32_t>& members,
                             uint64_t words_offset) {
  SymmContext& context = rank.contexts.back();
  const auto size = static_cast<int32_t>(members.size());
  auto& deltas = *rank.deltas.emplace_back(std::make_unique<std::vector<int64_t>>());
  auto& world_ranks = *rank.world_ranks.emplace_back(std::make_unique<std::vector<int32_t>>(members));
  auto& rounds = *rank.rounds.emplace_back(std::make_unique<std::vector<uint64_t>>(kSymmBarrierRows));
  context.type = kSymmVerbena;
  context.rank = number;
  context.world_size = this->size();
  context.team_size = size;
  context.heap_begin = reinterpret_cast<uint64_t>(heap(number));
  context.heap_end = context.heap_begin + kHeapBytes;
  for (int32_t peer = 0; peer < size; ++peer) {
    const int32_t other = members[static_cast<size_t>(peer)];
    const bool is_reached =
        shape_.domains[static_cast<size_t>(other)] == shape_.domains[static_cast<size_t>(number)];
    deltas.push_back(is_reached ? heap(other) - heap(number) : kSymmOutOfReach);
    if (other == number) context.team_rank = peer;
    if (is_reached && context.lsa_size++ == 0) context.lsa_base_rank = peer;
    if (is_reached && peer < 64) context.lsa_mask |= uint64_t{1} << peer;
  }
  context.has_remote = context.lsa_size < size;
  if (size <= kSymmInlineDeltas) {
    std::copy(deltas.begin(), deltas.end(), context.inline_deltas);
    std::copy(world_ranks.begin(), world_ranks.end(), context.inline_world_ranks);
  } else {
    context.more_deltas = deltas.data();
    context.more_world_ranks = world_ranks.data();
  }
  context.signals = reinterpret_cast<uint64_t*>(context.heap_begin + words_offset);
  context.remote_signals = context.signals + kSymmSignals;
  context.arrivals = context.remote_signals + kSymmSignals;
  context.failure = context.arrivals + uint64_t{kSymmBarrierRows} * members.size();
  context.rounds = rounds.data();
  context.timeout_ns = 60'000'000'000;
  context.abort_word = rank.abort.device();
  context.queues = rank.queues.view();
}

}  // namespace verbena::device_test
