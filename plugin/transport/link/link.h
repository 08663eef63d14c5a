// The queue pairs of one connection and the completion queues they report to: one queue of completions for
// each local rail, so that connections on different threads share no lock. It has room for everything that
// may be outstanding, as a failure flushes all of it. A new queue pair in the place of one that failed
// carries nothing before its trial has been polled, which comes behind what the old one flushed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/handshake.h"
#include "verbs/queues.h"

namespace verbena::transport {

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
    // Of each rail: null where its queue pairs have receive queues of their own. Empty: all are null.
    std::span<verbs::SharedReceiveQueue* const> receive_queues;
    // Receives outstanding at most, of each queue pair; empty: this side receives nothing.
    std::span<const uint32_t> receive_entries;
    uint32_t inline_bytes = 0;          // asked of each; what all grant: inline_bytes()
    verbs::Operations operations = {};  // what will be posted
    bool out_of_order = false;          // of every queue pair
    bool receives_to_gpu = false;       // pages of receives are in memory of a GPU
    int traffic_class = -1;
    std::span<const uint8_t> rail_of;                // of each queue pair; empty: they go round the rails
    std::span<const verbs::LocalAddress> addresses;  // what the peer was told; empty: read anew
  };
  // If the queue pairs of one of several rails cannot be created, as on a device that has failed, the link
  // does without that rail: has_rail() is false, and describe() reports the rail to the peer as down. An
  // error if no rail is left.
  static base::Result<Link> create(const Options& options);
  Link() = default;
  Link(Link&&) noexcept = default;
  Link& operator=(Link&& other) noexcept;  // the old queue pairs go before the old completion queues

  uint32_t queue_pairs() const { return static_cast<uint32_t>(rail_of_.size()); }
  uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  uint32_t rail_of(uint32_t queue_pair) const { return rail_of_[queue_pair]; }
  verbs::Device& device(uint32_t rail) { return *rails_[rail]; }
  const verbs::Device& device(uint32_t rail) const { return *rails_[rail]; }
  verbs::QueuePair& pair(uint32_t queue_pair) { return pairs_[queue_pair]; }
  const verbs::QueuePair& pair(uint32_t queue_pair) const { return pairs_[queue_pair]; }
  // Before keep(): whether the queue pairs of this rail were created, if it was to have any.
  bool has_rail(uint32_t rail) const { return addresses_[rail].port.link_layer != 0; }
  bool is_out_of_order() const { return pair_options_.out_of_order; }
  uint32_t inline_bytes() const {
    return std::ranges::min_element(pairs_, {}, &verbs::QueuePair::inline_bytes)->inline_bytes();
  }

  void describe(std::span<protocol::RailRecord> rails, std::span<protocol::QueuePairRecord> pairs) const;
  std::vector<verbs::PortAddress> addresses() const;
  // Goes on with these queue pairs, in this order, and destroys the others. Before connect.
  void keep(std::span<const uint8_t> queue_pairs);
  // `remote_rail_of`: the peer's rail of each queue pair. Checks that our own addresses still stand.
  base::Outcome connect(std::span<const protocol::RailRecord> rails,
                        std::span<const protocol::QueuePairRecord> pairs,
                        std::span<const uint8_t> remote_rail_of);
  // The same in steps: false while a peer's address does not answer, which may take a network's address
  // resolution a while as a large job starts; to be called again with the same arguments. With failover, and
  // another queue pair that is joined, one whose peer does not answer is left to failover after about a
  // second: its requests fail. Otherwise an error where one does not answer for as often and as long as
  // NCCL's own transport would ask. `wanted_pairs`: a bit for each that the peer, which was first, has
  // joined; the others are left to failover at once. So what the second end joins both have joined.
  base::Result<bool> try_connect(std::span<const protocol::RailRecord> rails,
                                 std::span<const protocol::QueuePairRecord> pairs,
                                 std::span<const uint8_t> remote_rail_of, uint32_t wanted_pairs = ~0U);
  // A bit for each that is not left to failover.
  uint32_t joined_pairs() const { return all_pairs() & ~joining_.left_pairs; }
  // A new queue pair in the place of one that was retired, not connected yet, with the rail's address as it
  // is now.
  base::Outcome renew(uint32_t queue_pair, protocol::QueuePairRecord* pair, protocol::RailRecord* rail);
  base::Outcome connect_one(uint32_t queue_pair, const protocol::RailRecord& rail,
                            const protocol::QueuePairRecord& pair);
  // After its stop(): nothing that it completes counts from here on (see poll), and its number stays taken
  // for as long as anything of it may still come.
  void retire_pair(uint32_t queue_pair);
  bool is_replaceable(uint32_t queue_pair) const;
  bool is_healthy(uint32_t queue_pair) const { return rails_[rail_of_[queue_pair]]->is_healthy(); }

  // No DMA of this connection starts any more; what is under way is flushed.
  void stop();
  // After stop(): no receive is under way any more; a last poll finds what there was.
  bool is_drained() const;

  // Hands every completion there is, failed ones too, to `handle(completion, queue_pair)`, those of retired
  // queue pairs to `handle_stale(completion, rail)`. Send completions without error are retired before. False
  // if a completion queue itself failed.
  template <typename Handle, typename HandleStale>
  bool poll(Handle&& handle, HandleStale&& handle_stale) {
    for (auto& [queue, rail] : completions_) {
      verbs::Completion batch[verbs::CompletionQueue::kMaxPollEntries];
      int count = 0;
      do {
        count = queue.poll(batch);
        for (int i = 0; i < count; ++i) {
          const uint32_t q = find_pair(rail, batch[i].qp_number);
          if (q == queue_pairs()) [[unlikely]] {
            handle_stale(batch[i], rail);
            continue;
          }
          if (batch[i].error == 0 && batch[i].kind() == verbs::CompletionKind::kSend) pairs_[q].retire();
          handle(batch[i], q);
        }
      } while (count == verbs::CompletionQueue::kMaxPollEntries);
      if (count < 0) [[unlikely]]
        return false;
    }
    return true;
  }
  // Where nothing is ever retired, or its completions mean nothing.
  template <typename Handle>
  bool poll(Handle&& handle) {
    return poll(handle, [](const verbs::Completion&, uint32_t) {});
  }

  // For a wait that has lasted `waited_ns`: whether this queue pair's address is gone. Some devices neither
  // send again nor fail then. False before VERBENA_PEER_GRACE_MS: a link that bounces may get its address
  // back. For slow paths.
  bool has_lost_address(uint32_t queue_pair, int64_t waited_ns);
  // `rail <device>:<port>, qp <n>: its address <gid> is gone`.
  std::string describe_lost_address(uint32_t queue_pair) const;
  // `rail <device>:<port>, qp <n>`.
  std::string describe(uint32_t queue_pair) const;

  // `<peer>, rail <device>:<port>, qp <n>: <cause>` for a failed completion.
  std::string describe_failure(const verbs::Completion& completion, uint32_t queue_pair) const;

 private:
  struct RailQueue {
    verbs::CompletionQueue queue;
    uint32_t rail;
  };

  base::Outcome make_rail(uint32_t rail);
  void leave_rail(uint32_t rail);
  base::Result<verbs::QueuePair> make_pair(uint32_t queue_pair);
  base::Outcome confirm_addresses() const;
  // Those that are still missing, each path once; an error if one cannot be joined. A round that takes long
  // with nothing joined goes on in the next call: there are asked_pairs then.
  base::Outcome join_missing(std::span<const protocol::RailRecord> rails,
                             std::span<const protocol::QueuePairRecord> pairs,
                             std::span<const uint8_t> remote_rail_of);
  // Whether the device of this queue pair has failed, and the device of another one that is needed has not.
  bool may_go_without(uint32_t queue_pair) const;
  bool may_begin_without_missing() const;
  base::Outcome check_wanted() const;
  void leave_missing_to_failover();
  bool is_joined(uint32_t queue_pair) const { return (joining_.joined_pairs >> queue_pair & 1) != 0; }
  uint32_t all_pairs() const { return (1U << queue_pairs()) - 1; }
  bool is_missing(uint32_t queue_pair) const { return (missing_pairs() >> queue_pair & 1) != 0; }
  uint32_t missing_pairs() const { return joining_.wanted_pairs & ~joining_.joined_pairs; }
  // Whether there are queue pairs on several rails.
  bool has_other_rails() const;
  // Two devices may give out the same number.
  uint32_t find_pair(uint32_t rail, uint32_t qp_number) const {
    const uint32_t count = queue_pairs();
    uint32_t q = 0;
    while (q < count && (pairs_[q].number() != qp_number || rail_of_[q] != rail)) ++q;
    return q;
  }

  std::vector<verbs::Device*> rails_;
  std::vector<verbs::LocalAddress> addresses_;  // one a rail, as the peer is told
  std::vector<uint8_t> rail_of_;                // one a queue pair
  verbs::QueuePairOptions pair_options_;        // of all, but for the rail's receive queue and address
  std::vector<verbs::SharedReceiveQueue*> receive_queues_;  // one a rail, or none
  std::vector<uint32_t> receive_entries_;                   // one a queue pair, or none
  std::vector<RailQueue> completions_;  // of each rail with queue pairs; destroyed after the queue pairs
  struct Retired {
    verbs::QueuePair pair;
    base::Deadline until;
  };
  std::vector<Retired> retired_;
  std::vector<verbs::QueuePair> pairs_;
  struct Joining {                                // of try_connect()
    uint32_t wanted_pairs = 0, joined_pairs = 0;  // a bit for each
    uint32_t left_pairs = 0;                      // to failover
    uint32_t asked_pairs = 0;                     // in this round, in vain
    uint32_t tries = 0;
    int64_t began_at_ns = 0, retry_at_ns = 0;
  };
  Joining joining_;
};

}  // namespace verbena::transport
