// protocol/lane_core.h over verbs: a lane to one peer, with a queue pair on each rail that both ends share.
//
// Requests are collected in a chain for each queue pair and leave together. They are signaled where somebody
// asked, where the device needs it (every so many) and at the end of each chain, so that whatever was posted
// is told of. Words have a registered place each, that of their operation in the ring.
#pragma once

#include <array>
#include <memory>
#include <optional>
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

// A queue pair and what is to be posted to it.
class PairChain {
 public:
  static constexpr uint32_t kMaxRequests = 32;
  static constexpr uint32_t kMaxInterval = 32;  // requests from one that is signaled to the next

  PairChain() { pending_.reserve(kMaxRequests); }

  verbs::QueuePair& pair() { return pair_; }
  const verbs::QueuePair& pair() const { return pair_; }
  void begin(verbs::QueuePair pair) {
    pair_ = std::move(pair);
    pending_.clear();
  }
  bool has_pending() const { return !pending_.empty(); }
  void drop_pending() { pending_.clear(); }
  // A full chain goes out at once.
  base::Outcome append(const verbs::OneSidedRequest& request);
  base::Outcome ring();

 private:
  verbs::QueuePair pair_;
  std::vector<verbs::OneSidedRequest> pending_;  // capacity kMaxRequests
};

// Where a completion belongs; travels as the cookie of its request.
struct LaneCookie {
  uint32_t lane;      // its index in the endpoint, 20 bits
  uint32_t rail;      // of the pair of endpoints, 3 bits
  uint32_t life;      // of the queue pair, its generation's low 9 bits
  uint32_t position;  // of the request

  static constexpr uint32_t kLaneBits = 20, kRailBits = 3, kLifeBits = 9;
  static LaneCookie parse(uint64_t value);
  uint64_t pack() const;
};

inline constexpr uint32_t kPushIndex = (1U << LaneCookie::kLaneBits) - 1;  // no lane's: get_push.h
inline constexpr uint32_t kLoopIndex = kPushIndex - 1;                     // no lane's: word_loop.h

// Which rails of two endpoints meet: the same list, in the same order, at both ends.
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
    std::unique_ptr<uint64_t[]> words;  // by operation, registered by each rail
  };
  struct Options {
    uint32_t peer = 0, lane = 0, index = 0;  // index: of the lane in its endpoint
    std::vector<RailPair> rails{};
    protocol::LaneRole role = protocol::LaneRole::kOffers;
    uint32_t send_depth = 256;
    uint64_t max_request_bytes = UINT64_MAX;
    AddRings* add_rings = nullptr;  // null: adds are atomics of the device
  };
  // With queue pairs that are connected, by rail of the pair of endpoints.
  static base::Result<std::unique_ptr<Lane>> create(OneSidedEndpoint& endpoint, const Options& options,
                                                    std::vector<verbs::QueuePair> pairs);
  Lane(OneSidedEndpoint& endpoint, const Options& options, std::unique_ptr<Memory> memory);
  // Nothing that the device may still do reaches memory that goes with it.
  ~Lane();

  uint32_t peer() const { return options_.peer; }
  uint32_t number() const { return options_.lane; }
  uint32_t index() const { return options_.index; }
  uint32_t rails() const { return static_cast<uint32_t>(options_.rails.size()); }
  RailPair rail(uint32_t q) const { return options_.rails[q]; }
  const verbs::QueuePair& pair(uint32_t q) const { return chains_[q].pair(); }

  // Into the room there is. `small`: the bytes of a put of at most eight, which are taken now.
  void take(const Core::Operation& operation, const void* small);
  uint64_t count_taken() const { return count_taken_; }
  uint64_t count_done() const { return count_done_; }
  void ring();
  // A completion of this queue pair's life; false if it is stale.
  bool take_completion(const LaneCookie& cookie, const verbs::Completion& completion);
  // Adds by agents (add_agent.h). Takes the answers of the peer's agent that have come; whether there were
  // any.
  bool take_answers();
  // Asks for a sign of life where the peer's agent owes an answer and nothing is under way.
  void probe_agent();
  // As the peer's agent: the add that it asks for `ahead` adds after the next, if that is there; and what the
  // word of the next was before.
  bool find_asked(uint32_t ahead, protocol::AddEntry* entry) const;
  void answer_asked(uint64_t value);

  // Of an operation that is complete: what came back.
  uint64_t read_word(uint32_t slot) const { return memory_->words[slot]; }
  void take_told();
  void stop();

  // `rail mlx5_0:1, qp 17`.
  std::string describe(uint32_t q) const;
  // Of every queue pair that does not live, why it failed last.
  std::string describe_causes() const;
  void note_cause(uint32_t q, std::string cause) { causes_[q] = std::move(cause); }
  const std::string& cause(uint32_t q) const { return causes_[q]; }
  // A queue pair with requests under way of which none has been completed since the last look: since when.
  int64_t find_silent_since(uint32_t q, int64_t now_ns);
  // The same of the peer's agent, which owes answers.
  int64_t find_unanswered_since(int64_t now_ns);
  bool has_lost_address(uint32_t q) { return chains_[q].pair().has_lost_address(); }
  observe::Connection* observed() const { return observed_.get(); }
  // Whether it is on its endpoint's list of lanes to look at.
  bool is_listed = false;

 private:
  friend Core;

  // --- Its port.
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
  std::unique_ptr<Memory> memory_;  // before what refers to it
  std::vector<verbs::MemoryRegion> word_regions_;
  std::array<PairChain, protocol::kMaxRails> chains_;
  std::array<verbs::LocalAddress, protocol::kMaxRails> told_{};  // where the peer was told that a new pair is
  std::array<uint32_t, protocol::kMaxRails> outstanding_reads_{};
  std::array<std::string, protocol::kMaxRails> causes_;
  std::array<Progress, protocol::kMaxRails> progress_{};
  Progress answers_{};
  std::array<uint32_t, protocol::kAddSlots> asked_slots_{};  // of adds that the peer's agent owes an answer
  uint32_t refused_ = 0;  // a bit for each queue pair whose device refused what was posted
  uint64_t count_taken_ = 0, count_done_ = 0;
  std::shared_ptr<observe::Connection> observed_;  // null: nobody wants to know
};

}  // namespace verbena::transport
