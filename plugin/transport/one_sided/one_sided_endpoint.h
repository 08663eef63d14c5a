// The endpoint (verbena/endpoint.h) over queue pairs: a few ports, a completion queue for each port, and
// lanes to each peer. The lanes decide how operations proceed (protocol/lane_core.h). This class does the
// work that concerns all lanes: checks of arguments, completions in the caller's format, records between
// endpoints, and the choice of the rail on which words are accessed.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "protocol/wait_monitor.h"
#include "protocol/word_rail.h"
#include "transport/one_sided/add_agent.h"
#include "transport/one_sided/get_push.h"
#include "transport/one_sided/lane.h"
#include "transport/one_sided/record_links.h"
#include "transport/one_sided/region_table.h"
#include "transport/service/registry.h"
#include "verbena/endpoint.h"
#include "verbs/device.h"

namespace verbena::transport {

// The ports of an endpoint. The caller has opened them for this endpoint and passes them on.
struct EndpointRails {
  std::vector<verbs::Device*> devices;
  std::vector<std::unique_ptr<verbs::Device>> owned;
  std::shared_ptr<const void> keeps_alive;  // owns the objects to which the other members belong
};

class OneSidedEndpoint final : public verbena::Endpoint, public RegistryMember {
 public:
  // Returns the largest number of requests for each lane, at most `wished`, whose completions fit into one
  // completion queue of a device. If not even the minimum fits, returns the minimum; open_on() then reports
  // the error.
  static uint32_t fit_send_depth(uint64_t max_cq_entries, uint32_t count_ranks, uint32_t lanes,
                                 uint32_t wished);
  // Creates an endpoint. If a number is out of range or an object cannot be created, logs the error and
  // writes it to *error.
  static std::unique_ptr<OneSidedEndpoint> open_on(const EndpointOptions& options, EndpointRails rails,
                                                   std::string* error);
  ~OneSidedEndpoint() override;

  std::string describe_rail() const override;
  bool bind_thread() const override;
  bool wants_dmabuf() const override;
  bool has_atomics() const override;
  void add_by_agents() override;
  size_t address_bytes() const override { return measure_peer_address(options_.lanes, options_.rails); }
  size_t region_address_bytes() const override { return measure_region_address(); }

  std::vector<std::byte> local_address(uint32_t peer, std::string* error) override;
  bool connect(uint32_t peer, std::span<const std::byte> address, std::string* error) override;
  // The two steps of connect(), for groups in which all ranks connect or none. Between the two steps the peer
  // must not be used. If drop() is called instead of publish(), the peer needs a new local_address(), at both
  // ends.
  bool prepare(uint32_t peer, std::span<const std::byte> address, std::string* error);
  void publish(uint32_t peer);
  void drop(uint32_t peer);
  bool add_region(uint32_t id, const EndpointMemory& memory, std::string* error) override;
  std::vector<std::byte> region_address(uint32_t id) const override;
  // Returns the address of the peer's region, or 0 if it is not known.
  uint64_t find_remote_base(uint32_t peer, uint32_t id) const {
    const RemoteRegion* region = regions_.find_remote(peer, id);
    return region == nullptr ? 0 : region->base;
  }
  bool add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> address,
                         std::string* error) override;
  void remove_region(uint32_t id) override;
  void remove_remote_regions(uint32_t id) override;

  Posting put(const Transfer& transfer, uint64_t cookie) override;
  Posting get(const Transfer& transfer, uint64_t cookie) override;
  Posting write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) override;
  Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) override;
  Posting read_word(const RemoteWord& word, uint64_t cookie) override;
  void fence(uint32_t peer, uint32_t lane) override;
  void ring() override;
  uint32_t poll(std::span<EndpointCompletion> out) override;
  void give_up(uint32_t peer, const std::string& cause) override;
  const std::string& error(uint32_t peer) const override { return peers_[peer].error; }
  const std::string& refusal() const override { return refusal_; }
  uint64_t count_taken(uint32_t peer, uint32_t lane) const override;

  uint32_t rank() const { return options_.rank; }
  // Sets the traffic class of queue pairs created later; -1 selects VERBENA_TC. Call it before
  // local_address().
  void set_traffic_class(int traffic_class) {
    traffic_class_.store(traffic_class, std::memory_order_relaxed);
  }
  // Returns the sum over all lanes. Only the driver calls it.
  protocol::LaneCounts count_failures() const;

  // --- For its lanes.
  verbs::Device& device(uint32_t rail) const { return *rails_.devices[rail]; }
  uint32_t outstanding_reads_of(uint32_t peer) const { return peers_[peer].outstanding_reads; }
  base::Result<verbs::QueuePair> make_pair(uint32_t rail, uint32_t lane, const verbs::LocalAddress& told);
  void send_record(uint32_t peer, const protocol::LaneRecord& record);
  void fail_lane(const Lane& lane, protocol::LaneFailure failure, uint32_t q);
  // Adds the lane to the list of lanes that have operations to issue, requests to post or completions to
  // report.
  void list(Lane& lane);
  // Requests a call of step(), because a queue pair has failed or works again.
  void note_trouble() { is_troubled_ = true; }
  std::shared_ptr<observe::Connection> observe_lane(const Lane& lane) const;
  void end_observation_of(std::shared_ptr<observe::Connection>& observed) const;

  // --- For its word rail.
  uint32_t rails() const { return static_cast<uint32_t>(rails_.devices.size()); }
  bool is_whole(uint32_t rail) const;
  void stop_rail(uint32_t rail);
  void tell_word_rail(uint32_t rail, uint32_t moves);

 private:
  enum class State : uint8_t { kNew, kAddressed, kConnected, kFailed };
  struct Peer {
    // kConnected passes the lanes to the driver. Only the driver sets kFailed.
    std::atomic<State> state{State::kNew};
    std::unique_ptr<AddRings> add_rings{};  // with an agent; declared before the lanes, which use them
    std::vector<std::unique_ptr<Lane>> lanes{};
    // The indices are the lane and the local rail. Used until the peer is connected.
    std::vector<std::vector<verbs::QueuePair>> pairs{};
    std::vector<verbs::LocalAddress> told{};  // by local rail: the addresses that the peer was sent
    std::vector<std::byte> address{};         // the address that the peer was sent
    std::vector<RailPair> rails{};            // rails that both ends share
    uint32_t outstanding_reads = 1;           // number of reads that the peer serves at a time
    std::string error{};
    // For the driver: numbers of records about words that the peer has sent, and that were sent to the peer.
    uint32_t word_moves_heard = 0, word_moves_told = 0;
    std::vector<protocol::LaneRecord> early{};  // records that came before the peer was connected
  };

  OneSidedEndpoint(const EndpointOptions& options, EndpointRails rails,
                   std::vector<verbs::CompletionQueue> completions, std::unique_ptr<RecordLinks> links);
  // Called first, for devices whose writes to GPU memory must be flushed.
  base::Outcome open_get_push();

  // Setup. Needs setup_mutex_.
  BlobNames name_blob(uint32_t from, uint32_t to) const;
  bool make_pairs(uint32_t peer, std::string* error);
  void choose_word_rail(std::span<const verbs::LocalAddress> told);
  PeerAddress describe_to(uint32_t peer) const;
  bool join(uint32_t peer, const PeerAddress& address, std::string* error);
  void forget(uint32_t peer);
  std::vector<RailPair> pair_rails(uint32_t peer, const PeerAddress& address) const;

  // Operations.
  Lane* admit(uint32_t peer, uint32_t lane);
  Posting move(protocol::LaneOperationKind kind, const Transfer& transfer, uint64_t cookie);
  Posting access_word(protocol::LaneOperationKind kind, const RemoteWord& word, uint64_t operand,
                      uint64_t cookie);
  Posting take(Lane& lane, const Lane::Core::Operation& operation, const void* small);
  __attribute__((format(printf, 2, 3))) Posting refuse(const char* format, ...);

  // Completions.
  uint32_t index_of(uint32_t peer, uint32_t lane) const { return peer * options_.lanes + lane; }
  Lane* find_lane(uint32_t index);
  bool works(uint32_t peer) const {
    return peers_[peer].state.load(std::memory_order_acquire) == State::kConnected;
  }
  void poll_rail(uint32_t rail);
  void serve_adds();
  void finish_answers();
  uint32_t tell_lanes(std::span<EndpointCompletion> out);
  uint32_t tell_lane(Lane& lane, std::span<EndpointCompletion> out, bool* is_told);
  uint32_t tell_failures(std::span<EndpointCompletion> out);
  uint32_t release_held(std::span<EndpointCompletion> out);
  void fail_peer(uint32_t peer, const std::string& cause);
  void fail_all(const std::string& cause);

  // Rare events: recovery.cc.
  void attend();
  void absorb_records();
  void absorb(uint32_t peer, const protocol::LaneRecord& record);
  void step(int64_t now_ns);
  void give_up_dying(int64_t now_ns);
  void look_for_silence();
  std::string describe_failure(const Lane& lane, protocol::LaneFailure failure, uint32_t q) const;
  template <typename Do>
  void for_lanes(const Do& act) const {
    for (uint32_t peer = 0; peer < options_.count_ranks; ++peer)
      for (uint32_t lane = 0; lane < options_.lanes && works(peer); ++lane) act(*peers_[peer].lanes[lane]);
  }

  // Diagnosis.
  bool dump_state(StateDump& dump) override;
  StateDump dump_from_outside() const override;
  StateDump describe() const;

  const EndpointOptions options_;
  const EndpointRails rails_;
  uint64_t max_message_bytes_;
  uint32_t outstanding_reads_;
  std::mutex setup_mutex_;                           // serialises the setup of lanes and regions
  std::vector<verbs::CompletionQueue> completions_;  // by rail
  RegionTable regions_;
  std::unique_ptr<RecordLinks> links_;
  std::vector<Peer> peers_;
  protocol::WordRail word_rail_;
  std::unique_ptr<GetPush> get_push_;  // null if gets need no flush
  std::unique_ptr<AddAgent> agent_;    // null if devices execute adds
  // Lanes with operations to issue, requests to post or completions to report; has capacity for all.
  std::vector<Lane*> listed_;
  std::vector<EndpointCompletion> failures_;  // not reported yet
  std::string refusal_;

  bool is_troubled_ = false;                  // a queue pair is not live, or was not live recently
  std::atomic<bool> needs_attention_{false};  // a peer has connected, or a state dump was requested
  std::atomic<bool> is_asked_{false};
  int64_t attended_at_ns_ = 0, looked_at_ns_ = 0;
  uint32_t idle_polls_ = 0;
  std::vector<int64_t> down_since_ns_;        // by rail; 0 if it is up
  std::vector<protocol::StallClock> stalls_;  // by lane
  const int64_t opened_at_ns_;
  bool is_registered_ = false;            // in the registry of the state dump
  std::atomic<uint32_t> told_word_rail_;  // a copy of word_rail_'s rail for threads that connect
  std::atomic<int> traffic_class_{-1};
};

}  // namespace verbena::transport
