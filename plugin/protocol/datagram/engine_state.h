// What an engine keeps of its peers, channels, messages and packets under way; send_side.h and
// receive_side.h work on it.
//
// An engine is one end for all datagrams of a GPU in a process, a peer another engine, a channel one of
// NCCL's connections in one direction, a message one isend with its irecv. Packet numbers, acknowledgements,
// paths and round trips are of a peer, whatever its channels; grants and completion are of a message.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "protocol/datagram/grants.h"
#include "protocol/datagram/loss_times.h"
#include "protocol/datagram/packet.h"
#include "protocol/datagram/packet_window.h"
#include "protocol/datagram/page_budget.h"
#include "protocol/datagram/path_table.h"
#include "protocol/datagram/receive_message.h"
#include "protocol/datagram/send_guard.h"
#include "protocol/datagram/slab.h"
#include "protocol/datagram/timer_wheel.h"

namespace verbena::protocol::datagram {

inline constexpr uint32_t kRing = 32;  // messages of a channel that are open at a time
inline constexpr uint16_t kNoRecord = 0xFFFF;

// --- The sending side.

// Where a message stands.
enum class SendState : uint8_t {
  kFree,
  kFresh,    // the peer has heard of it by a wish at most, and it has no leave to send anything
  kReady,    // has packets that it may send now
  kWaiting,  // has sent what it may
  kSent,     // all packets are sent, some not acknowledged
  kDone,     // all are; the caller has not been told
};

struct SendMessage {
  uint64_t length_bytes = 0;
  uint32_t packets = 0;
  uint32_t next = 0;     // index of the first packet that was never sent
  uint32_t granted = 0;  // packets before it may be sent
  uint32_t eager = 0;    // ... and before it, by eager credits
  uint32_t acked = 0;    // packets
  uint32_t number = 0;
  uint32_t channel = 0;
  SendState state = SendState::kFree;
  bool has_wished = false;
  ListLink link;  // of the peer's list for its state

  uint32_t allowed() const { return granted > eager ? granted : eager; }
};

using SendRing = std::array<SendMessage, kRing>;

struct SendChannel {
  uint32_t peer = kNoObject;
  uint32_t ring = kNoObject;  // only while messages are open
  uint32_t next = 0;          // number of the next message
  uint16_t wire = 0;          // what packets call it
  uint16_t open = 0;          // messages
};

// A packet under way.
struct SendRecord {
  uint32_t psn = 0;                 // or the number among the eager ones
  uint32_t message = 0, index = 0;  // message: kNoObject once its channel is closed
  Stamp sent = 0;                   // to its send queue
  uint32_t posted = 0;              // the port's name for it there
  uint8_t path = 0, tries = 0;
  bool took_credit = false;
  enum class Where : uint8_t { kFlight, kLost, kHeldBack } where = Where::kFlight;
  uint16_t behind = 0;  // in the table
  ListLink link;        // of one of the peer's lists
};

// Which record each packet of a peer that is under way or lost has (eager ones aside). Far fewer packets are
// without an acknowledgement than the span has numbers: those of one place hang behind each other.
class RecordTable {
 public:
  static constexpr uint32_t kMost = 896;  // packets

  RecordTable() { places_.fill(kNoRecord); }
  template <typename Records>
  void enter(Records& records, uint32_t record) {
    uint16_t& place = places_[records[record].psn % kPlaces];
    records[record].behind = place;
    place = static_cast<uint16_t>(record);
  }
  // Of one that is there.
  template <typename Records>
  uint32_t find(const Records& records, uint32_t psn) const {
    uint32_t record = places_[psn % kPlaces];
    while (records[record].psn != psn) record = records[record].behind;
    return record;
  }
  template <typename Records>
  uint32_t remove(Records& records, uint32_t psn) {
    uint16_t* place = &places_[psn % kPlaces];
    while (records[*place].psn != psn) place = &records[*place].behind;
    const uint32_t record = *place;
    *place = records[record].behind;
    return record;
  }

 private:
  static constexpr uint32_t kPlaces = 1024;

  std::array<uint16_t, kPlaces> places_;
};

struct EngineOptions {
  uint32_t rails = 1;
  uint32_t window_packets = 256;          // of a peer, under way
  uint32_t eager_packets = 8;             // of a peer, beyond its grants
  uint32_t served_peers = 8;              // that are granted packets in turn, for a message each
  int64_t grant_patience_ns = 2'000'000;  // a grant that brings nothing for so long is taken back
  uint32_t ack_packets = 16;
  int64_t packet_ns = 83;  // a full packet's time on the link
  PageSettings pages{};    // with credits and quantum
  LossSettings loss{};
  int64_t late_ns = 6'000;             // later than usual: then a packet's path is said to be late
  int64_t silence_ns = 2'000'000'000;  // a peer that owes an answer for so long is gone
  uint32_t random = 0;                 // where peers' turns begin

  // Paths take the rails in turn.
  uint32_t rail_of(uint32_t path) const { return path % rails; }
  // What follows from how fast the rails are together: a full packet's time on them. Credits for five times
  // what is under way in 8 us; windows for several rails.
  void fit(int64_t all_rails_packet_ns) {
    packet_ns = std::max<int64_t>(all_rails_packet_ns, 1);
    pages.credits = static_cast<uint32_t>(std::clamp<int64_t>(kCreditNs / packet_ns, 128, 4096));
    window_packets = std::min(256 * rails, RecordTable::kMost - 128);
  }
  static constexpr int64_t kCreditNs = 42'500;
};

// --- The receiving side.

using ReceiveRing = std::array<ReceiveMessage, kRing>;

struct ReceiveChannel {
  uint32_t peer = kNoObject;
  uint32_t ring = kNoObject;
  uint32_t next = 0;      // number of the next receive
  uint32_t consumed = 0;  // all before are
  uint16_t wire = 0;
  uint16_t open = 0;  // entries of the ring in use
  // Packets are taken; refused, as one was too long, until their sender knows; or acknowledged and dropped.
  enum class Gate : uint8_t { kOpen, kRefuses, kClosed } gate = Gate::kOpen;

  bool is_closed() const { return gate == Gate::kClosed; }
};

// Messages by number: a ring each 32.
template <typename Ring>
struct Messages {
  Slabs<Ring, 2> rings;
  auto& operator[](uint32_t id) { return rings[id / kRing][id % kRing]; }
  const auto& operator[](uint32_t id) const { return rings[id / kRing][id % kRing]; }
};

// --- Links of the lists.

struct StateLink {
  static ListLink& of(SendMessage& message) { return message.link; }
  static ListLink& of(SendRecord& record) { return record.link; }
};

struct Peer;
struct ActiveLink {
  static ListLink& of(Peer& peer);
};
struct AckLink {
  static ListLink& of(Peer& peer);
};

// The one-way delay that is usual now, in stamps. What all packets suffer, at the receiver's own link for
// one, is no path's fault: a path is late if it is slower than the others. The clocks' difference cancels,
// and that they drift does not matter.
class UsualDelay {
 public:
  // How much later than usual this packet came, in stamps.
  uint32_t note(Stamp sent, Stamp now) {
    const Stamp delay = now - sent;
    const auto error = static_cast<int32_t>(delay - usual_);
    if (!is_known_ || error > kImplausible || error < -kImplausible) {
      usual_ = delay;
      is_known_ = true;
      return 0;
    }
    usual_ += static_cast<Stamp>(error / kSmoothing);
    return error > 0 ? static_cast<uint32_t>(error) : 0;
  }

 private:
  static constexpr int32_t kSmoothing = 16, kImplausible = 1'000'000'000 / kStampNs;
  Stamp usual_ = 0;
  bool is_known_ = false;
};

struct Peer {
  uint32_t data_bytes = 0;  // of a message in a packet that is not its last

  // Sending.
  uint32_t unacked = 0, next = 0;   // packet numbers: the oldest without an acknowledgement; the next one
  uint32_t records = kNoObject;     // RecordTable, while packets are under way
  uint32_t in_flight = 0;           // packets, but eager ones, that do not count as lost
  uint32_t known = 0;               // packets, but eager ones, that have a record: those, and those that do
  PacketBits open;                  // sent, not acknowledged
  LinkedList<StateLink> flight;     // in order of sending
  LinkedList<StateLink> lost;       // to be sent again
  LinkedList<StateLink> held_back;  // eager packets that were lost more than once: they wait for a grant
  LinkedList<StateLink> fresh, ready, waiting, sent;  // messages, by state
  // Eager packets: may have been sent; leave has been given to messages; sent; acknowledged, all before it.
  uint32_t eager_limit = 0, eager_reserved = 0, eager_next = 0, eager_unacked = 0;
  std::array<uint16_t, kEagerSpan> eager_records{};  // kNoRecord
  uint16_t told_duplicates = 0;                      // that the peer has seen
  bool has_newest = false, has_probed = false;
  Stamp newest = 0;                       // when the newest delivered packet was sent
  std::array<Stamp, kPaths> newest_of{};  // ... on each path
  uint32_t newest_paths = 0;              // that have one
  int64_t sent_ns = 0, heard_ns = 0;      // last; heard: an acknowledgement of something new, or any at all
  int64_t owed_since_ns = kNeverNs;       // nothing heard though something is owed
  // Since when the oldest packet without an acknowledgement is that; eager ones: or is granted.
  int64_t oldest_ns = 0, eager_oldest_ns = 0;
  int64_t wish_ns = kNeverNs;  // when to ask for grants again
  uint8_t wish_doublings = 0;
  uint32_t wish_turn = 0;  // of those that wait, how many have been asked for again
  LossTimes loss{LossSettings{}};
  SendGuard guard{0};
  PathTable paths{1, 0};
  uint32_t reachable = 0;  // paths: a bit for each that leads to the peer, by a handle that others share too

  // Receiving.
  ReceiveWindow window;
  EagerWindow eager;
  uint32_t parked = 0;         // packets
  uint32_t eager_settled = 0;  // eager packets that are not parked any more
  uint32_t unacked_packets = 0, unacked_duplicates = 0;
  int64_t ack_ns = kNeverNs;  // when an acknowledgement is due
  Stamp echo = 0;
  int64_t echo_ns = 0;  // when that packet arrived
  bool has_echo = false, must_ack = false;
  uint32_t late_paths = 0;
  UsualDelay delay;
  // Receives whose grants are to be told, and those that are told once more with the next acknowledgement: a
  // lost one would cost much.
  struct Chain {
    uint32_t first = kNoObject, last = kNoObject;
  } not_told, told_once;
  uint8_t data_path = kPaths;  // of the newest data packet
  GrantAccount grants;

  // Both.
  TimerLink timer;
  ListLink active, acks;
  bool is_active = false, is_open = false, is_gone = false;
  std::vector<uint32_t> send_channels, receive_channels;  // by their number on the wire; kNoObject

  Peer() { eager_records.fill(kNoRecord); }
  uint32_t sent_span() const { return next - unacked; }
};

inline ListLink& ActiveLink::of(Peer& peer) {
  return peer.active;
}
inline ListLink& AckLink::of(Peer& peer) {
  return peer.acks;
}

// What an engine did; for people.
struct EngineStatistics {
  uint64_t sent_packets = 0, resent_packets = 0, probes = 0, timeouts = 0;
  uint64_t received_packets = 0, duplicates = 0, refused_packets = 0, strays = 0;
  uint64_t sent_acks = 0, sent_requests = 0;
  uint64_t in_vain = 0;  // packets sent again that the peer had
  uint64_t sent_messages = 0, received_messages = 0, lent_messages = 0, copied_messages = 0;
  uint64_t evacuations = 0, rested_paths = 0, late_marks = 0;
};

}  // namespace verbena::protocol::datagram
