// One end of all datagrams of a net device in this process: connects protocol/datagram/engine_core.h to
// verbs. The engine lives while a listener, a channel or a connection attempt needs it. The thread that holds
// the token (service/progress_token.h) works for all channels: a thread of NCCL during NCCL's calls,
// otherwise the service thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/datagram/engine_core.h"
#include "protocol/datagram/greeting.h"
#include "transport/datagram/channel.h"
#include "transport/datagram/page_pool.h"
#include "transport/datagram/peer.h"
#include "transport/datagram/placer.h"
#include "transport/datagram/process_life.h"
#include "transport/datagram/rail.h"
#include "transport/link/nic.h"
#include "transport/service/progress_token.h"
#include "transport/service/registry.h"

namespace verbena::transport::datagram {

class Connector;
class Listener;

class Engine final : public ProgressToken, public RegistryMember {
 public:
  using Core = protocol::datagram::EngineCore<Engine>;

  // Returns the device's engine, and creates it if there is none. `nics` has the device. `unpacks` means that
  // NCCL was offered UNPACK.
  static base::Result<std::shared_ptr<Engine>> find(const Nic& nic, std::shared_ptr<NicRegistry> nics,
                                                    bool unpacks);
  virtual ~Engine();

  const Nic& nic() const { return nic_; }
  const protocol::datagram::EngineName& name() const { return name_; }
  const protocol::datagram::ProcessName& process() const { return process_; }
  std::span<const std::unique_ptr<Rail>> rails() const { return rails_; }
  bool has_many_peers() const { return core_.peers() >= kManyPeers; }

  using ProgressToken::enter;
  // Waits for the token, which no thread holds for long.
  void enter_soon();
  // Call it after the token was refused, if the thread will ask again soon.
  static void give_way();

  // --- All functions below need the token.

  Core& core() { return core_; }
  // Polls completions, and sends the packets that may be sent.
  void pass();
  base::Outcome failure() const { return failure_; }
  // Any thread may call it.
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }

  // Keeps a way until the datagrams of the rail's control pair no longer read it, and releases earlier ways.
  void retire_way(GreetingWay used);
  Peer& peer_of(uint32_t id) { return *peers_of_[id]; }
  // Returns the failure of the engine or of this peer. It is final and applies to all ends that lead to the
  // peer.
  base::Outcome failure_of(uint32_t peer) const {
    return failure_.has_failed() ? failure_ : peers_of_[peer]->failure;
  }
  bool has_met(const protocol::datagram::Greeting& greeting) const {
    return judge(greeting).standing == Standing::kMet;
  }
  // Returns the peer with this name, and adds it if it is not known. If the peer was given up but its process
  // is alive, it is added again with another number.
  uint32_t take_peer(const protocol::datagram::EngineName& name, const protocol::RailRecord& port,
                     const protocol::datagram::ProcessName& process);
  // Completes a peer with the data of its greeting. Call it once for each peer.
  base::Outcome meet(uint32_t peer, const protocol::datagram::Greeting& greeting, Ways ways);
  // Returns a channel number that no channel to this peer uses, or kNoChannel if all are used.
  uint16_t choose_wire(uint32_t peer);

  void listen(uint64_t nonce, Listener* listener) { listeners_[nonce] = listener; }
  void forget_listener(uint64_t nonce) { listeners_.erase(nonce); }
  void await(Connector* connector, uint32_t peer);
  void forget_connector(Connector* connector, uint32_t peer);
  protocol::datagram::Greeting make_greeting(uint32_t peer, uint16_t channel, uint64_t nonce) const {
    return make_greeting(static_cast<uint16_t>(peer), peers_of_[peer]->name.id, channel, nonce);
  }
  void post_greeting(protocol::datagram::PacketKind kind, const protocol::datagram::Greeting& greeting,
                     const protocol::datagram::EngineName& to, const GreetingWay& way, uint32_t pair_number) {
    post_greeting(kind, greeting, to, way.rail, way.way.get(), pair_number);
  }
  void welcome(uint32_t peer, uint16_t channel, uint64_t nonce,
               protocol::datagram::GreetingRefusal refusal = protocol::datagram::GreetingRefusal::kNone);
  // Opens a channel that the peer has requested. Returns kNoObject if it is open already.
  uint32_t open_receive_of(uint32_t peer, uint16_t wire, uint64_t nonce);

  void attach(SendEnd* end);
  void attach(ReceiveEnd* end);
  void detach(SendEnd* end);
  void detach(ReceiveEnd* end);
  void attach(uint32_t message, SendRequest* request);
  void attach(uint32_t message, ReceiveRequest* request);

  // Returns null if no receives are unpacked.
  const std::shared_ptr<PageSpace>& space() const { return pool_.space(); }
  bool may_lend() const { return pool_.is_reached_by_kernels(); }
  // Handles a message that is longer than its receive: the end fails, and the other end is notified.
  void refuse_too_long(ReceiveEnd& end, uint64_t room_bytes);
  // See ReceiveEnd::flush().
  bool has_to_flush() const { return placer_->has_to_flush(); }
  void flush(ChannelFlush* request) { placer_->flush(request); }

  int64_t now_ns() const { return now_ns_; }
  std::string describe() const;         // with all peers, in several lines
  std::string describe_counts() const;  // one line without the newline

 private:
  // The parts of the core. The engine is the port of the core.
  friend Core;
  friend protocol::datagram::SendSide<Engine>;
  friend protocol::datagram::ReceiveSide<Engine>;
  friend protocol::datagram::EngineShared<Engine>;
  static constexpr size_t kManyPeers = 256;
  static constexpr int64_t kLookNs = 250 * base::kNsPerMs;  // how often peers are checked

  Engine(const Nic& nic, std::shared_ptr<NicRegistry> nics, const protocol::datagram::EngineOptions& options);
  base::Outcome prepare(bool unpacks, uint32_t page_bytes);

  // --- The core's port.
  uint32_t rooms() const;
  uint32_t live_rails() const { return live_rails_; }
  uint32_t post_data(uint32_t peer, const protocol::datagram::OutPacket& packet);
  bool has_left(uint32_t posted, protocol::datagram::Stamp& when) const;
  bool has_room_for_ack(uint32_t path) const;
  void post_ack(uint32_t peer, uint32_t path, const protocol::datagram::Ack& ack);
  void post_request(uint32_t peer, uint32_t path, std::span<const protocol::datagram::Wish> wishes);
  void post_pages(uint32_t rail, protocol::datagram::PageQueue queue, uint32_t count);
  void put_back(uint32_t page) { pool_.put_back(page); }
  bool copy_page(uint32_t message, uint32_t page, uint64_t offset, uint32_t length_bytes);
  void note_sent(uint32_t message);
  void note_received(uint32_t message);
  void note_silent(uint32_t peer);
  void note_stuck(uint32_t peer, uint32_t message);

  void post_control(uint32_t peer, uint32_t path, protocol::datagram::PacketKind kind,
                    protocol::datagram::PacketHeader header, std::span<const uint8_t> body);
  protocol::datagram::Greeting make_greeting(uint16_t slot, uint64_t other_id, uint16_t channel,
                                             uint64_t nonce) const;
  void post_greeting(protocol::datagram::PacketKind kind, const protocol::datagram::Greeting& greeting,
                     const protocol::datagram::EngineName& to, uint32_t rail, ibv_ah* way,
                     uint32_t pair_number);
  // On the service thread: answers a peer that is not connected and calls a listener that does not exist.
  void refuse_caller();
  // Takes the token again after leave_as_service().
  void return_as_service();
  void post_farewell(uint32_t peer, const protocol::datagram::Farewell& farewell);
  void poll_rail(uint32_t number);
  void poll_sends(uint32_t number);
  void poll_pages(uint32_t number, int rounds);
  template <typename Take>
  void poll(uint32_t rail, verbs::CompletionQueue& queue, int rounds, const Take& take);
  void note_left(uint32_t message);
  void note_live_rails(uint32_t live);
  void take_control(uint32_t immediate, std::span<const uint8_t> bytes);
  void take_page(uint32_t rail, uint64_t cookie, uint32_t immediate, uint32_t length_bytes);
  struct Ended {
    uint32_t peer = 0, looks = 0;  // number of checks since it was recorded
    // Counts of posted datagrams at the time of the last datagram to this peer, by rail and mark.
    std::vector<uint32_t> added;
  };
  // The relation between this engine and the sender of a greeting, by the number that the sender has for this
  // engine. An engine only increases these numbers.
  enum class Standing : uint8_t {
    kNew,      // not connected, or it has restarted since
    kMet,      // connected as `peer`
    kGivenUp,  // given up as `peer`, which does not know that
    kOld,      // sent before the peer restarted, or not sent by that engine
  };
  struct Judgement {
    Standing standing;
    uint32_t peer = protocol::datagram::kNoObject;
  };
  Judgement judge(const protocol::datagram::Greeting& greeting) const;
  void take_greeting(protocol::datagram::PacketKind kind, std::span<const uint8_t> bytes);
  void take_farewell(uint32_t peer, const protocol::datagram::Farewell& farewell);
  void place_pages();
  void lend(uint32_t message, ReceiveRequest& request);
  // faults.cc: failures of channels, queue pairs and rails, and who is notified.
  void note_too_long(SendEnd& end);
  void stop(SendEnd& end, const base::Outcome& failure);
  void note_send_failure(uint32_t rail, SendQueue& pair, const verbs::Completion& completion);
  void note_receive_failure(uint32_t rail, const verbs::Completion& completion);
  void note_placement_failure(const std::string& cause);
  void mend(uint32_t rail);
  void give_up_rail(uint32_t rail, const std::string& cause);
  void empty_pairs_of(uint32_t first_message, uint32_t messages);
  // restart.cc: gives up a peer. Except for the messages below, no packet is sent to the peer or accepted
  // from it, and its ends fail.
  void give_up(uint32_t peer, const base::Outcome& failure);
  void note_given_up(uint32_t peer);  // the peer has given up this end
  void answer_given_up(uint32_t peer);
  void look_for_life(uint32_t peer);
  void post_life(uint32_t peer, const protocol::datagram::LifeRecord& record);
  // If `is_awaited`, the ends of that process fail.
  void note_end(const protocol::datagram::ProcessName& process, bool is_awaited);
  // A process on this host that may have ended. `asker` is the peer that asks, or kNoObject for this engine.
  struct Suspect {
    protocol::datagram::ProcessName process;
    bool is_awaited = false;
    uint32_t asker = 0;
    bool operator==(const Suspect&) const = default;
  };
  void suspect(const Suspect& suspect);
  void look_at_suspects();
  void doubt(const protocol::datagram::ProcessName& process, uint32_t witness);
  void look_at_doubt(uint32_t peer);
  void look_for_ended();
  void note_gone(uint32_t peer);
  void note_departure(uint32_t peer);
  void take_back_pages(uint32_t peer);
  // Removes a peer that is gone, once this process no longer uses it. Returns true when it is removed.
  bool remove_gone(Ended& ended);
  bool is_used(uint32_t peer) const;
  void note_state(ChannelEnd& end) const;
  void take_reset(uint32_t peer, std::span<const uint8_t> body);
  void finish(uint32_t message, SendRequest& request);
  void look_around();
  void linger();
  void tell_departure(const base::Deadline& deadline);
  uint32_t find_peer(const protocol::datagram::Immediate& immediate) const;
  void note(const base::Outcome& outcome);
  template <typename Body>
  void for_each_end(const Body& body) {
    for (SendEnd* end : send_ends_)
      if (end != nullptr) body(*end);
    for (const ReceiveEntry& channel : receive_channels_)
      if (channel.end != nullptr) body(*channel.end);
  }

  // --- For ProgressToken and RegistryMember.
  int64_t progress_idle() override;
  int64_t find_next_try() override;
  bool dump_state(StateDump& dump) override;
  StateDump dump_from_outside() const override;
  StateDump dump() const;

  Core core_;
  const Nic& nic_;
  const std::shared_ptr<NicRegistry> nics_;  // keeps `nic_` alive
  protocol::datagram::EngineName name_{};
  // By the core's number. Declared before the rails, because queue pairs may read the peers' address handles
  // until they are destroyed.
  std::vector<std::unique_ptr<Peer>> peers_of_;
  struct UsedWay {
    GreetingWay used;
    uint32_t added = 0;  // keep until this many datagrams of the rail's control pair were sent
  };
  std::vector<UsedWay> used_ways_;
  PagePool pool_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::unique_ptr<Placer> placer_;
  base::Outcome failure_;  // of the whole engine; final
  std::atomic<bool> has_failed_{false};

  int64_t now_ns_ = 0, looked_ns_ = 0, heard_ns_ = 0;
  uint32_t live_rails_ = 0;
  std::atomic<bool> is_asked_{false};  // a state dump was requested

  protocol::datagram::ProcessName process_{};
  std::vector<Ended> ended_;  // peers that send nothing any more
  std::vector<Suspect> suspects_;
  uint32_t ended_turn_ = 0;                                            // the peer to check next
  std::unordered_map<uint64_t, uint32_t> peers_by_id_;                 // by the engine's id
  std::unordered_map<uint64_t, std::vector<uint32_t>> peers_of_host_;  // by ProcessName::space
  std::unordered_map<uint64_t, Listener*> listeners_;                  // by nonce
  std::vector<Connector*> connectors_;
  // The connect request that refuse_caller() answers next.
  std::optional<protocol::datagram::Greeting> refused_;
  uint32_t refusals_ = 0;
  std::vector<SendEnd*> send_ends_;  // by the core's channel number
  struct ReceiveEntry {
    ReceiveEnd* end = nullptr;
    uint64_t nonce = 0;  // of the listener that the sender called
  };
  std::vector<ReceiveEntry> receive_channels_;
  std::vector<SendRequest*> sends_of_;  // by the core's message number
  std::vector<ReceiveRequest*> receives_of_;
};

// Holds the token during its lifetime.
class EngineGuard {
 public:
  explicit EngineGuard(Engine& engine) : engine_(engine), is_taken_(engine.enter()) {
    if (!is_taken_) [[unlikely]]
      Engine::give_way();
  }
  struct Waits {};
  EngineGuard(Engine& engine, Waits) : engine_(engine), is_taken_(true) { engine.enter_soon(); }
  ~EngineGuard() {
    if (is_taken_) engine_.leave();
  }
  EngineGuard(const EngineGuard&) = delete;
  EngineGuard& operator=(const EngineGuard&) = delete;
  explicit operator bool() const { return is_taken_; }

 private:
  Engine& engine_;
  const bool is_taken_;
};

}  // namespace verbena::transport::datagram
