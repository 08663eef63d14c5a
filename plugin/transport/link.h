// The queue pairs of one connection and the completion queues they report to: one queue of completions for
// each local rail, so that connections on different threads share no lock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/handshake.h"
#include "verbs/queues.h"

namespace verbena::transport {

// A send completion's cookie: which queue pair, and what the owner wants to remember.
inline uint64_t make_cookie(uint32_t queue_pair, uint32_t value) {
  return uint64_t{queue_pair} << 32 | value;
}
inline uint32_t cookie_queue_pair(uint64_t cookie) {
  return static_cast<uint32_t>(cookie >> 32);
}
inline uint32_t cookie_value(uint64_t cookie) {
  return static_cast<uint32_t>(cookie);
}

// A message's rails as addresses.
std::vector<verbs::PortAddress> read_addresses(const protocol::RailRecord* rails, uint32_t count);
// ` (ours 2, the peer's 1)` for a version error, otherwise nothing.
std::string describe_versions(protocol::HandshakeError error, const protocol::HandshakeHeader& theirs);

class Link {
 public:
  struct Options {
    std::span<verbs::Device* const> rails;
    uint32_t queue_pairs = 1;
    uint32_t send_depth = 128;
    std::span<verbs::SharedReceiveQueue* const>
        receive_queues;            // one a rail; empty: this side receives nothing
    uint32_t receive_entries = 0;  // most receive completions outstanding on one rail
    int traffic_class = -1;
    std::span<const uint8_t> rail_of;                // of each queue pair; empty: they go round the rails
    std::span<const verbs::LocalAddress> addresses;  // what the peer was told; empty: read anew
  };
  static base::Result<Link> create(const Options& options);
  Link() = default;
  Link(Link&&) noexcept = default;
  Link& operator=(Link&& other) noexcept;  // the old queue pairs go before the old completion queues

  uint32_t queue_pairs() const { return static_cast<uint32_t>(pairs_.size()); }
  uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  uint32_t rail_of(uint32_t queue_pair) const { return rail_of_[queue_pair]; }
  verbs::Device& device(uint32_t rail) { return *rails_[rail]; }
  verbs::QueuePair& pair(uint32_t queue_pair) { return pairs_[queue_pair]; }

  void describe(std::span<protocol::RailRecord> rails, std::span<protocol::QueuePairRecord> pairs) const;
  std::vector<verbs::PortAddress> addresses() const;
  // Goes on with these queue pairs, in this order, and destroys the others. Before connect.
  void keep(std::span<const uint8_t> queue_pairs);
  // `remote_rail_of`: the peer's rail of each queue pair. Checks that our own addresses still stand.
  base::Outcome connect(std::span<const protocol::RailRecord> rails,
                        std::span<const protocol::QueuePairRecord> pairs,
                        std::span<const uint8_t> remote_rail_of);
  // No DMA of this connection starts any more; what is under way is flushed.
  void stop();
  // After stop(): no receive is under way any more; a last poll finds what there was.
  bool is_drained() const;

  // Hands every completion there is, failed ones too, to `handle(completion, queue_pair)`. Send completions
  // without error are retired before. False if a completion queue itself failed.
  template <typename Handle>
  bool poll(Handle&& handle) {
    for (uint32_t rail = 0; rail < rails(); ++rail) {
      verbs::Completion batch[16];
      int count = 0;
      do {
        count = completions_[rail].poll(batch);
        if (count < 0) return false;
        for (int i = 0; i < count; ++i) {
          const uint32_t pair = find_pair(rail, batch[i].qp_number);
          if (pair == queue_pairs()) continue;
          if (batch[i].error == 0 && batch[i].kind == verbs::CompletionKind::kSend) pairs_[pair].retire();
          handle(batch[i], pair);
        }
      } while (count == 16);
    }
    return true;
  }

  // For a wait that has lasted `waited_ns`: `rail <device>:<port>, qp <n>: its address <gid> is gone` for the
  // first queue pair that has lost it. Some devices neither send again nor fail then. Empty else, and before
  // VERBENA_PEER_GRACE_MS: a link that bounces may get its address back. For slow paths.
  std::string describe_lost_address(int64_t waited_ns);

  // `<peer>, rail <device>:<port>, qp <n>: <cause>` for a failed completion.
  std::string describe_failure(const verbs::Completion& completion, uint32_t queue_pair) const;

 private:
  // Two devices may give out the same number.
  uint32_t find_pair(uint32_t rail, uint32_t qp_number) const {
    uint32_t q = 0;
    while (q < pairs_.size() && (pairs_[q].number() != qp_number || rail_of_[q] != rail)) ++q;
    return q;
  }

  std::vector<verbs::Device*> rails_;
  std::vector<verbs::LocalAddress> addresses_;       // one a rail, as the peer is told
  std::vector<uint8_t> rail_of_;                     // one a queue pair
  std::vector<verbs::CompletionQueue> completions_;  // before the pairs: destroyed after them
  std::vector<verbs::QueuePair> pairs_;
};

}  // namespace verbena::transport
