#include "transport/link.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/log.h"

namespace verbena::transport {

static_assert(sizeof(verbs::PortAddress) == sizeof(protocol::RailRecord));

base::Result<Link> Link::create(const Options& options) {
  Link link;
  link.rails_.assign(options.rails.begin(), options.rails.end());
  const uint32_t pairs_per_rail = (options.queue_pairs + link.rails() - 1) / link.rails();
  for (verbs::Device* device : link.rails_) {
    const uint32_t depth = pairs_per_rail * options.send_depth + options.receive_entries + 16;
    auto queue = verbs::CompletionQueue::create(*device, std::min(depth, device->max_cq_entries()));
    if (!queue) return queue.error();
    link.completions_.push_back(std::move(*queue));
  }
  for (uint32_t q = 0; q < options.queue_pairs; ++q) {
    const uint32_t rail = link.rail_of(q);
    verbs::QueuePairOptions pair_options;
    pair_options.send_depth = options.send_depth;
    pair_options.receive_queue = options.receive_queues.empty() ? nullptr : options.receive_queues[rail];
    pair_options.traffic_class = options.traffic_class;
    auto pair = verbs::QueuePair::create(link.device(rail), link.completions_[rail], pair_options);
    if (!pair) return pair.error();
    link.pairs_.push_back(std::move(*pair));
  }
  return link;
}

void Link::describe(std::span<protocol::RailRecord> rails, std::span<protocol::QueuePairRecord> pairs) const {
  for (size_t r = 0; r < rails_.size(); ++r) {
    const verbs::PortAddress address = rails_[r]->address();
    std::memcpy(rails[r].bytes, &address, sizeof(address));
  }
  for (size_t q = 0; q < pairs_.size(); ++q) {
    const auto address = pairs_[q].address();
    pairs[q] = {address.number, address.first_psn};
  }
}

base::Outcome Link::connect(std::span<const protocol::RailRecord> rails,
                            std::span<const protocol::QueuePairRecord> pairs) {
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    verbs::PortAddress remote;
    std::memcpy(&remote, rails[q % rails.size()].bytes, sizeof(remote));
    auto outcome = pairs_[q].connect(remote, {pairs[q].number, pairs[q].first_psn});
    if (!outcome) return outcome;
  }
  return {};
}

void Link::stop() {
  for (auto& pair : pairs_) pair.stop();
}

std::string Link::describe_failure(const verbs::Completion& completion, uint32_t queue_pair) const {
  const verbs::Device& device = *rails_[rail_of(queue_pair)];
  char text[384];
  std::snprintf(text, sizeof(text), "rail %s:%d, qp %u: %s (status %d, vendor error 0x%x)",
                device.name().c_str(), device.port_number(), completion.qp_number,
                verbs::describe_completion_error(completion.error), completion.error,
                completion.vendor_error);
  return text;
}

}  // namespace verbena::transport
