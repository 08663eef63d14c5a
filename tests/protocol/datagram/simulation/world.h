// Hosts with engines (the plugin's own code) on a fabric, in virtual time. Bytes are never moved: each packet
// carries a number that follows from whose message it is and where it belongs, and the receiver checks it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/datagram/engine_core.h"
#include "protocol/datagram/free_pages.h"
#include "protocol/datagram/simulation/event_queue.h"
#include "protocol/datagram/simulation/fabric.h"
#include "protocol/random.h"

namespace verbena::protocol::datagram::sim {

class World;

// How hosts behave. Times in ns.
struct HostTemper {
  int64_t packet_ns = 10;   // of the engines, for a packet in or out
  int64_t poll_gap_ns = 0;  // the engine looks up to so late after an arrival or a deadline
  int64_t copy_ns = 3'000;  // of an evacuation
  int64_t copy_page_ns = 100;
  int64_t consume_ns = 5'000;  // until the GPU gives pages back
  uint32_t nic_packets = 32;   // that wait in the NIC before it has no room
  uint32_t pages = 16'384, short_pages = 0, paths = kPaths, data_bytes = 3'968;
  uint32_t receive_delay_percent = 0;  // chance that a receive is posted late, up to 200 us
  bool checks_all = false;             // every packet of every message, page and credit
};

// What a datagram is to the hosts.
struct Cargo {
  PacketKind kind;
  bool is_last, asks, took_credit;
  PageQueue queue;  // that it takes a page of
  uint8_t path;
  uint16_t slot;  // the target's peer
  uint16_t channel, backlog;
  uint16_t wishes;
  uint32_t psn, place, length_bytes;
  Stamp time;
  uint64_t content;
  union {
    Ack ack;
    Wish wish[kMaxWishesPerRequest];
  };
  Cargo() : ack() {}
};

// One direction between two hosts.
struct Flow {
  uint32_t source = 0, target = 0;
  uint32_t send_channel = kNoObject, receive_channel = kNoObject;
  uint64_t bytes = 0;           // of each message; 0: drawn for each
  uint64_t most_bytes = 0;      // of those drawn
  uint32_t depth = 8;           // messages open, receives posted ahead
  uint64_t limit = UINT64_MAX;  // messages
  bool is_stepped = false;      // messages leave one by one
  bool hoards = false;          // its GPU keeps all pages until World::stop_hoarding()
  uint64_t sent = 0, done = 0, posted = 0, received = 0, consumed = 0;
  uint64_t received_bytes = 0;
  uint64_t measured_bytes = 0;            // since the measurement began
  int64_t last_ns = 0;                    // something was received
  std::array<int64_t, kRing> began_ns{};  // of the messages that are open
};

class Host : public EngineCore<Host> {
 public:
  Host(World& world, uint32_t number, const EngineOptions& options);

  // --- The port of the core.
  int64_t now_ns() const { return now_ns_; }
  uint32_t rooms();
  uint32_t live_rails() const { return live_rails_; }
  uint32_t post_data(uint32_t peer, const OutPacket& packet);
  static bool has_left(uint32_t, Stamp&) { return true; }  // the fabric's first queue is the send queue
  bool has_room_for_ack(uint32_t) const { return true; }
  void post_ack(uint32_t peer, uint32_t path, const Ack& ack);
  void post_request(uint32_t peer, uint32_t path, std::span<const Wish> wishes);
  void post_pages(uint32_t rail, PageQueue queue, uint32_t count) {
    posted_pages_ += count, posted_[static_cast<uint32_t>(queue)][rail] += count;
  }
  void put_back(uint32_t page) { pages_.put_back(page); }
  bool copy_page(uint32_t message, uint32_t page, uint64_t offset, uint32_t length_bytes);
  void note_sent(uint32_t message);
  void note_received(uint32_t message);
  void note_silent(uint32_t peer);
  void note_stuck(uint32_t peer, uint32_t) { note_silent(peer); }

 private:
  friend class World;
  struct RemotePeer {
    uint32_t host = 0;
    uint16_t slot = 0;  // of us, there
    uint32_t labels = 0;
  };
  struct Arrived {
    uint32_t cargo;
    uint8_t plane;
    bool is_marked;
  };

  void wake(int64_t now_ns);
  void take(const Arrived& arrived);
  void put(uint32_t peer, uint32_t path, uint32_t bytes, uint32_t cargo);
  void want_wake(int64_t at_ns);

  World& world_;
  const uint32_t number_;
  int64_t now_ns_ = 0, busy_until_ns_ = 0, next_wake_ns_ = kNeverNs, stopped_until_ns_ = 0;
  uint32_t live_rails_;
  uint32_t packets_ = 0;  // of this pass
  uint64_t posted_pages_ = 0;
  std::array<std::array<uint32_t, kMaxEngineRails>, 3> posted_{};
  FreePages pages_;
  uint32_t copied_message_ = kNoObject, copied_pages_ = 0;  // at copied_ns_
  int64_t copied_ns_ = 0;
  std::deque<Arrived> arrived_;
  std::vector<RemotePeer> remotes_;                       // by peer
  std::vector<uint32_t> flow_of_send_, flow_of_receive_;  // by channel
  struct Indexes {
    std::vector<bool> has;  // by index, where everything is checked
  };
  std::vector<std::unique_ptr<Indexes>> placed_;  // by message
};

struct Totals {
  uint64_t messages = 0, bytes = 0;
  uint64_t wrong = 0;                 // packets at the wrong place, or twice
  uint64_t silent = 0;                // peers given up
  std::vector<int64_t> latencies_ns;  // of messages that were measured
};

class World {
 public:
  World(const FabricShape& shape, const FabricTemper& temper, const HostTemper& host,
        const EngineOptions& engine, uint64_t seed);

  Fabric& fabric() { return fabric_; }
  Random& random() { return random_; }
  const HostTemper& host_temper() const { return temper_; }
  int64_t now_ns() const { return now_ns_; }
  // Made at first use.
  Host& host(uint32_t number);
  uint32_t add_flow(const Flow& flow);
  Flow& flow(uint32_t id) { return flows_[id]; }
  uint32_t flows() const { return static_cast<uint32_t>(flows_.size()); }

  // Lets a flow send one message more, or as many as it may; post the receives that it may.
  void send_one(uint32_t flow);
  void fill(uint32_t flow);
  // Receives are posted; messages leave one by one by send_one(), the first at once if it may.
  void begin_steps(uint32_t flow, bool sends_first);
  void stop_hoarding();
  // A host does nothing until then; kNeverNs: for good.
  void stop_host(uint32_t host, int64_t until_ns);
  void at(int64_t at_ns, std::function<void()> action);
  // Called for each message that has arrived: of a flow, its number.
  std::function<void(uint32_t flow, uint64_t number)> on_received;

  // Until then, or until nothing happens any more, or `is_over` (asked every few thousand events).
  void run(int64_t until_ns, const std::function<bool()>& is_over = {});
  void measure(bool on) { is_measuring_ = on; }
  Totals& totals() { return totals_; }
  EngineStatistics sum_statistics() const;
  // In packets that have arrived, of messages that are not complete too.
  uint64_t sum_received_bytes() const { return received_bytes_; }
  uint64_t events() const { return taken_events_; }
  // Both ends; what is under way of it is given up.
  void close_flow(uint32_t flow);
  // Whether every page, credit and message of every host is where it was at the start; what is not. But for a
  // host that has stopped for good, and what others have under way to it.
  std::string find_leftovers(uint32_t stopped = kNoObject);

  // Of hosts.
  enum EventKind : uint32_t { kFabric, kWake, kMoved, kConsume, kPost, kAction };
  EventQueue& queue() { return events_; }
  void add_event(int64_t at_ns, EventKind kind, uint32_t place, uint32_t payload) {
    events_.add({at_ns, static_cast<uint32_t>(kind) << 28 | place, payload});
  }
  uint32_t take_cargo();
  void give_back_cargo(uint32_t cargo) { free_cargo_.push_back(cargo); }
  Cargo& cargo(uint32_t id) { return cargo_[id]; }
  void note_received(Host& host, uint32_t flow, uint32_t message);
  void note_sent(Host& host, uint32_t flow, uint32_t message);
  void note_bytes(uint32_t flow, uint32_t bytes) {
    received_bytes_ += bytes;
    if (is_measuring_) flows_[flow].measured_bytes += bytes;
  }
  uint64_t draw_bytes(const Flow& flow, uint64_t number) const;
  uint64_t content_of(uint32_t flow, uint64_t number, uint32_t index) const;

 private:
  friend class Host;
  uint32_t find_peer(Host& from, uint32_t to);
  void post_receives(uint32_t flow);
  void on_event(const Event& event);

  HostTemper temper_;
  EngineOptions engine_;
  Random random_;
  EventQueue events_;
  Fabric fabric_;
  int64_t now_ns_ = 0;
  uint64_t seed_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::vector<std::pair<uint32_t, uint32_t>>> peer_of_;  // of a host: other host, peer
  std::deque<Flow> flows_;
  std::deque<Cargo> cargo_;
  std::vector<uint32_t> free_cargo_;
  struct Move {
    uint32_t message, page;
  };
  std::vector<Move> moves_;
  std::vector<uint32_t> free_moves_;
  std::vector<std::function<void()>> actions_;
  Totals totals_;
  bool is_measuring_ = true, is_hoarding_ = true;
  std::vector<std::pair<uint32_t, uint32_t>> hoarded_;  // host, message
  uint64_t taken_events_ = 0, received_bytes_ = 0;
};

}  // namespace verbena::protocol::datagram::sim
