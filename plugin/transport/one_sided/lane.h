// Connects protocol/lane_core.h to verbs: a lane to one peer, with a queue pair on each rail that both ends
// share.
//
// The requests of each queue pair are collected in a chain and posted together. A request is signaled if the
// core asks for it, if the device needs it (after a number of requests), and at the end of each chain, so
// that every posted request is covered by a completion. Each operation on a word has a registered buffer,
// selected by the operation's position in the ring.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "observe/connection.h"
#include "protocol/lane_core.h"
#include "transport/one_sided/region_table.h"
#include "verbs/queues.h"

namespace verbena::transport {

class OneSidedEndpoint;
struct AddRings;

struct LaneTypes {
  using Local = LocalRegion;
  using Remote = RemoteRegion;
};

// A queue pair and the requests that will be posted to it.
class PairChain {
 public:
  static constexpr uint32_t kMaxRequests = 32;
  static constexpr uint32_t kMaxInterval = 32;  // maximum distance between signaled requests

  PairChain() { pending_.reserve(kMaxRequests); }

  verbs::QueuePair& pair() { return pair_; }
  const verbs::QueuePair& pair() const { return pair_; }
  void begin(verbs::QueuePair pair) {
    pair_ = std::move(pair);
    pending_.clear();
  }
  bool has_pending() const { return !pending_.empty(); }
  void drop_pending() { pending_.clear(); }
  // Adds a request. A full chain is posted at once.
  base::Outcome append(const verbs::OneSidedRequest& request);
  base::Outcome ring();

 private:
  verbs::QueuePair pair_;
  std::vector<verbs::OneSidedRequest> pending_;  // has capacity kMaxRequests
};

// The cookie of a request, which tells where its completion belongs.
struct LaneCookie {
  uint32_t lane;      // index of the lane in the endpoint, 20 bits
  uint32_t rail;      // of the pair of endpoints, 3 bits
  uint32_t life;      // low 9 bits of the queue pair's generation
  uint32_t position;  // of the request

  static constexpr uint32_t kLaneBits = 20, kRailBits = 3, kLifeBits = 9;
  static LaneCookie parse(uint64_t value);
  uint64_t pack() const;
};

// Used by get_push.h, not by a lane.
inline constexpr uint32_t kPushIndex = (1U << LaneCookie::kLaneBits) - 1;
inline constexpr uint32_t kLoopIndex = kPushIndex - 1;  // used by word_loop.h, not by a lane

// The pairs of rails that two endpoints share. Both ends have the same list in the same order.
struct RailPair {
  uint8_t here = 0, there = 0;
};

class Lane final : public protocol::LaneCore<Lane, LaneTypes> {
 public:
  using Core = protocol::LaneCore<Lane, LaneTypes>;

  struct Memory {
    Memory(uint32_t operations, uint32_t rails, uint32_t posted);
    protocol::LaneStorage<LaneTypes> storage() { return {operations, shares, posted}; }

    std::vector<protocol::LaneOperation<LaneTypes>> operations;
    std::vector<protocol::LaneShare> shares;
    std::vector<protocol::LanePosted> posted;
    std::unique_ptr<uint64_t[]> words;  // by operation, registered on each rail
  };
  struct Options {
    uint32_t peer = 0, lane = 0, index = 0;  // `index` is the number of the lane in its endpoint
    std::vector<RailPair> rails{};
    protocol::LaneRole role = protocol::LaneRole::kOffers;
    uint32_t send_depth = 256;
    uint64_t max_request_bytes = UINT64_MAX;
    AddRings* add_rings = nullptr;  // null if the device executes adds as atomics
  };
  // The queue pairs are connected, and in the order of the shared rails.
  static base::Result<std::unique_ptr<Lane>> create(OneSidedEndpoint& endpoint, const Options& options,
                                                    std::vector<verbs::QueuePair> pairs);
  Lane(OneSidedEndpoint& endpoint, const Options& options, std::unique_ptr<Memory> memory);
  // After the destructor returns, the device does not access the lane's memory.
  ~Lane();

  uint32_t peer() const { return options_.peer; }
  uint32_t number() const { return options_.lane; }
  uint32_t index() const { return options_.index; }
  uint32_t rails() const { return static_cast<uint32_t>(options_.rails.size()); }
  RailPair rail(uint32_t q) const { return options_.rails[q]; }
  const verbs::QueuePair& pair(uint32_t q) const { return chains_[q].pair(); }

  // Takes an operation; there must be space for it. `small` has the bytes of a put of at most eight bytes,
  // which are copied now.
  void take(const Core::Operation& operation, const void* small);
  uint64_t count_taken() const { return count_taken_; }
  uint64_t count_done() const { return count_done_; }
  void ring();
  // Takes a completion. Returns false if it belongs to an earlier generation of the queue pair.
  bool take_completion(const LaneCookie& cookie, const verbs::Completion& completion);
  // For adds by agents (add_agent.h): takes the answers of the peer's agent. Returns whether there were any.
  bool take_answers();
  // Posts a request that tests whether the peer is alive, if the peer's agent must answer and no request is
  // outstanding.
  void probe_agent();
  // For this rank's agent: finds the add that the peer requested `ahead` adds after the next one; returns
  // false if it has not arrived. The next function answers the next add with the previous value of the word.
  bool find_asked(uint32_t ahead, protocol::AddEntry* entry) const;
  void answer_asked(uint64_t value);

  // Returns the result of a complete operation on a word.
  uint64_t read_word(uint32_t slot) const { return memory_->words[slot]; }
  void take_told();
  void stop();

  // Returns a text such as `rail mlx5_0:1, qp 17`.
  std::string describe(uint32_t q) const;
  // Returns, for every queue pair that is not live, why it failed last.
  std::string describe_causes() const;
  void note_cause(uint32_t q, std::string cause) { causes_[q] = std::move(cause); }
  const std::string& cause(uint32_t q) const { return causes_[q]; }
  // Returns since when a queue pair has outstanding requests of which none has completed since the last
  // check.
  int64_t find_silent_since(uint32_t q, int64_t now_ns);
  // Returns since when the peer's agent has not answered, if it must answer.
  int64_t find_unanswered_since(int64_t now_ns);
  bool has_lost_address(uint32_t q) { return chains_[q].pair().has_lost_address(); }
  observe::Connection* observed() const { return observed_.get(); }
  // Whether the lane is in its endpoint's list of lanes to process.
  bool is_listed = false;

 private:
  friend Core;

  // --- The port of the core.
  int64_t now_ns() const;
  uint32_t packets_of(uint32_t q, uint64_t bytes) const { return chains_[q].pair().count_packets(bytes); }
  void post(uint32_t q, const Core::Request& request);
  void write_entry(uint32_t q, const Core::Request& request, verbs::OneSidedRequest& work);
  void write_answers(uint32_t q, const Core::Request& request, verbs::OneSidedRequest& work);
  protocol::AddRing& ring_of_adds() const;
  void stop_pair(uint32_t q, protocol::LaneRecord& record);
  void retire_pair(uint32_t q) { chains_[q].begin({}); }
  bool is_usable(uint32_t q) const;
  bool renew_pair(uint32_t q, protocol::LaneRecord& record);
  bool connect_pair(uint32_t q, const protocol::LaneRecord& record);
  void send_record(const protocol::LaneRecord& record);
  void fail(protocol::LaneFailure failure, uint32_t q);
  void note_lost(uint32_t q);
  void note_settled(uint32_t q, uint32_t repeated);
  void note_revived(uint32_t q);

  verbs::Device& device(uint32_t q) const;
  void note_refusal(uint32_t q, base::Outcome outcome);
  void give_up_refused();

  struct Progress {
    uint32_t retired = 0;
    int64_t since_ns = 0;
  };

  OneSidedEndpoint& endpoint_;
  const Options options_;
  std::unique_ptr<Memory> memory_;  // declared before the members that refer to it
  std::vector<verbs::MemoryRegion> word_regions_;
  std::array<PairChain, protocol::kMaxRails> chains_;
  // Address of a new queue pair that the peer was told.
  std::array<verbs::LocalAddress, protocol::kMaxRails> told_{};
  std::array<uint32_t, protocol::kMaxRails> outstanding_reads_{};
  std::array<std::string, protocol::kMaxRails> causes_;
  std::array<Progress, protocol::kMaxRails> progress_{};
  Progress answers_{};
  // The adds that the peer's agent has not answered.
  std::array<uint32_t, protocol::kAddSlots> asked_slots_{};
  uint32_t refused_ = 0;  // a bit for each queue pair whose device rejected a request
  uint64_t count_taken_ = 0, count_done_ = 0;
  std::shared_ptr<observe::Connection> observed_;  // null if no output is enabled
};

}  // namespace verbena::transport
