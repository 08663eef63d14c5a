// The queue pairs of one connection and their completion queues. Each local rail has its own completion queue
// for this connection, so that connections on different threads share no lock. A completion queue has space
// for all outstanding requests, because a failure flushes all of them. A new queue pair that replaces a
// failed one carries no data before the completion of its test request was polled. That completion comes
// after the flushed requests of the old queue pair.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/handshake.h"
#include "verbs/queues.h"

namespace verbena::transport {

// Converts a message's rails to addresses.
std::vector<verbs::PortAddress> read_addresses(const protocol::RailRecord* rails, uint32_t count);
// Returns ` (ours 2, the peer's 1)` for a version error, and an empty string for any other error.
std::string describe_versions(protocol::HandshakeError error, const protocol::HandshakeHeader& theirs);

class Link {
 public:
  struct Options {
    std::span<verbs::Device* const> rails;
    uint32_t queue_pairs = 1;
    uint32_t send_depth = 128;
    // The shared receive queue of each rail; null for a rail whose queue pairs have their own receive queues.
    // An empty span means null for all rails.
    std::span<verbs::SharedReceiveQueue* const> receive_queues;
    // The maximum number of outstanding receives of each queue pair. Empty if this end does not receive.
    std::span<const uint32_t> receive_entries;
    uint32_t inline_bytes = 0;          // requested; inline_bytes() is what all queue pairs granted
    verbs::Operations operations = {};  // the operations that will be posted
    bool out_of_order = false;          // for every queue pair
    bool receives_to_gpu = false;       // the pages of receives are in GPU memory
    int traffic_class = -1;
    std::span<const uint8_t> rail_of;                // rail of each queue pair; empty: round robin
    std::span<const verbs::LocalAddress> addresses;  // the addresses sent to the peer; empty: read them again
  };
  // If no queue pair can be created on one of several rails, for example because its device has failed, the
  // link continues without that rail: has_rail() is false, and describe() reports the rail to the peer as
  // down. Returns an error if no rail is left.
  static base::Result<Link> create(const Options& options);
  Link() = default;
  Link(Link&&) noexcept = default;
  Link& operator=(Link&& other) noexcept;  // destroys the old queue pairs before the old completion queues

  uint32_t queue_pairs() const { return static_cast<uint32_t>(rail_of_.size()); }
  uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  uint32_t rail_of(uint32_t queue_pair) const { return rail_of_[queue_pair]; }
  verbs::Device& device(uint32_t rail) { return *rails_[rail]; }
  const verbs::Device& device(uint32_t rail) const { return *rails_[rail]; }
  verbs::QueuePair& pair(uint32_t queue_pair) { return pairs_[queue_pair]; }
  const verbs::QueuePair& pair(uint32_t queue_pair) const { return pairs_[queue_pair]; }
  // Returns whether the queue pairs of this rail were created. Valid before keep(), for rails that were to
  // have queue pairs.
  bool has_rail(uint32_t rail) const { return addresses_[rail].port.link_layer != 0; }
  bool is_out_of_order() const { return pair_options_.out_of_order; }
  uint32_t inline_bytes() const {
    return std::ranges::min_element(pairs_, {}, &verbs::QueuePair::inline_bytes)->inline_bytes();
  }

  void describe(std::span<protocol::RailRecord> rails, std::span<protocol::QueuePairRecord> pairs) const;
  std::vector<verbs::PortAddress> addresses() const;
  // Keeps only these queue pairs, in this order, and destroys the others. Call it before connect().
  void keep(std::span<const uint8_t> queue_pairs);
  // `remote_rail_of` has the peer's rail of each queue pair. Checks that the addresses of this end have not
  // changed.
  base::Outcome connect(std::span<const protocol::RailRecord> rails,
                        std::span<const protocol::QueuePairRecord> pairs,
                        std::span<const uint8_t> remote_rail_of);
  // Connects in steps. Returns false while the address of a peer does not answer: address resolution may take
  // a while when a large job starts. Call it again with the same arguments.
  //
  // If failover is on and another queue pair is connected, the function leaves a queue pair whose peer does
  // not answer to failover after about a second. The requests of this queue pair fail until failover connects
  // it. Otherwise the function returns an error if an address does not answer for as many tries and as long
  // as in NCCL's own transport.
  //
  // `wanted_pairs` has a bit for each queue pair that the peer, which connects first, has connected. The
  // other queue pairs are left to failover at once. So both ends have connected the queue pairs that the
  // second end connects.
  base::Result<bool> try_connect(std::span<const protocol::RailRecord> rails,
                                 std::span<const protocol::QueuePairRecord> pairs,
                                 std::span<const uint8_t> remote_rail_of, uint32_t wanted_pairs = ~0U);
  // Returns a bit for each queue pair that is not left to failover.
  uint32_t joined_pairs() const { return all_pairs() & ~joining_.left_pairs; }
  // Creates a new queue pair in place of a retired one, with the current address of the rail. The new queue
  // pair is not connected.
  base::Outcome renew(uint32_t queue_pair, protocol::QueuePairRecord* pair, protocol::RailRecord* rail);
  base::Outcome connect_one(uint32_t queue_pair, const protocol::RailRecord& rail,
                            const protocol::QueuePairRecord& pair);
  // Retires a queue pair after its stop(). Its later completions are ignored (see poll()). Its number stays
  // reserved as long as completions may arrive.
  void retire_pair(uint32_t queue_pair);
  bool is_replaceable(uint32_t queue_pair) const;
  bool is_healthy(uint32_t queue_pair) const { return rails_[rail_of_[queue_pair]]->is_healthy(); }

  // Stops all queue pairs. The connection starts no further DMA, and outstanding requests are flushed.
  void stop();
  // Returns whether no receive is outstanding after stop(). A last poll then returns all remaining
  // completions.
  bool is_drained() const;

  // Passes every completion, also of failed requests, to `handle(completion, queue_pair)`. Completions of
  // retired queue pairs are passed to `handle_stale(completion, rail)`. Successful send completions are
  // retired before the call. Returns false if a completion queue itself failed.
  template <typename Handle, typename HandleStale>
  bool poll(Handle&& handle, HandleStale&& handle_stale) {
    for (RailQueue& source : completions_) {
      verbs::Completion batch[verbs::CompletionQueue::kMaxPollEntries];
      const verbs::Completion* completion = nullptr;
      do {
        completion = batch;
        int left = source.queue.poll(batch);
        if (left < 0) [[unlikely]]
          return false;
        for (; left > 0; --left, ++completion) {
          const uint32_t number = completion->qp_number;
          if (number != source.last_number && !find_pair(source, number)) [[unlikely]] {
            handle_stale(*completion, source.rail);
            continue;
          }
          const uint32_t q = source.last_pair;
          if (completion->error == 0 && completion->kind() == verbs::CompletionKind::kSend)
            pairs_[q].retire();
          handle(*completion, q);
        }
      } while (completion == batch + verbs::CompletionQueue::kMaxPollEntries);
    }
    return true;
  }
  // For a link that never retires a queue pair, or whose stale completions can be ignored.
  template <typename Handle>
  bool poll(Handle&& handle) {
    return poll(handle, [](const verbs::Completion&, uint32_t) {});
  }

  // Returns whether the address of this queue pair is gone, during a wait that has lasted for `waited_ns`.
  // Some devices neither retransmit nor fail in this case. Returns false before VERBENA_PEER_GRACE_MS,
  // because a link that goes down briefly may get its address back. For slow paths.
  bool has_lost_address(uint32_t queue_pair, int64_t waited_ns);
  // Returns `rail <device>:<port>, qp <n>: its address <gid> is gone`.
  std::string describe_lost_address(uint32_t queue_pair) const;
  // Returns `rail <device>:<port>, qp <n>`.
  std::string describe(uint32_t queue_pair) const;

  // Returns `<peer>, rail <device>:<port>, qp <n>: <cause>` for a failed completion.
  std::string describe_failure(const verbs::Completion& completion, uint32_t queue_pair) const;

 private:
  static constexpr uint32_t kNoNumber = UINT32_MAX;  // queue pair numbers have 24 bits

  struct RailQueue {
    verbs::CompletionQueue queue;
    uint32_t rail;
    // The queue pair of the last completion, whose number need not be searched. See forget_last_pairs().
    uint32_t last_number = kNoNumber, last_pair = 0;
  };

  base::Outcome make_rail(uint32_t rail);
  void leave_rail(uint32_t rail);
  base::Result<verbs::QueuePair> make_pair(uint32_t queue_pair);
  base::Outcome confirm_addresses() const;
  // Connects the queue pairs that are not connected yet. Tries each path once. Returns an error if a queue
  // pair cannot be connected. A round that takes long while no queue pair is connected continues in the next
  // call; asked_pairs then has the pairs already tried.
  base::Outcome join_missing(std::span<const protocol::RailRecord> rails,
                             std::span<const protocol::QueuePairRecord> pairs,
                             std::span<const uint8_t> remote_rail_of);
  // Returns whether the device of this queue pair has failed while the device of another needed queue pair
  // works.
  bool may_go_without(uint32_t queue_pair) const;
  bool may_begin_without_missing() const;
  base::Outcome check_wanted() const;
  void leave_missing_to_failover();
  bool is_joined(uint32_t queue_pair) const { return (joining_.joined_pairs >> queue_pair & 1) != 0; }
  uint32_t all_pairs() const { return (1U << queue_pairs()) - 1; }
  bool is_missing(uint32_t queue_pair) const { return (missing_pairs() >> queue_pair & 1) != 0; }
  uint32_t missing_pairs() const { return joining_.wanted_pairs & ~joining_.joined_pairs; }
  // Returns whether the queue pairs use several rails.
  bool has_other_rails() const;
  // Sets source.last_pair. Returns false for the number of a retired queue pair.
  [[gnu::noinline]] bool find_pair(RailQueue& source, uint32_t number);
  // Call this after every change of pairs_ once completions may have been polled. Otherwise poll() passes
  // completions that a former queue pair has left to the queue pair that has its index now.
  void forget_last_pairs();

  std::vector<verbs::Device*> rails_;
  std::vector<verbs::LocalAddress> addresses_;  // one for each rail, as sent to the peer
  std::vector<uint8_t> rail_of_;                // one for each queue pair
  verbs::QueuePairOptions pair_options_;  // of all queue pairs, without the rail's receive queue and address
  std::vector<verbs::SharedReceiveQueue*> receive_queues_;  // one for each rail, or empty
  std::vector<uint32_t> receive_entries_;                   // one for each queue pair, or empty
  std::vector<RailQueue> completions_;  // of each rail with queue pairs; destroyed after the queue pairs
  struct Retired {
    verbs::QueuePair pair;
    base::Deadline until;
  };
  std::vector<Retired> retired_;
  std::vector<verbs::QueuePair> pairs_;
  struct Joining {                                // state of try_connect()
    uint32_t wanted_pairs = 0, joined_pairs = 0;  // a bit for each queue pair
    uint32_t left_pairs = 0;                      // left to failover
    uint32_t asked_pairs = 0;                     // tried without an answer in this round
    uint32_t tries = 0;
    int64_t began_at_ns = 0, retry_at_ns = 0;
  };
  Joining joining_;
};

}  // namespace verbena::transport
