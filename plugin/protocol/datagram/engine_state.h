// The data that an engine keeps about its peers, channels, messages and packets in flight. send_side.h and
// receive_side.h use it.
//
// An engine is one end of all datagrams of a GPU in a process. A peer is another engine. A channel is one of
// NCCL's connections in one direction. A message is one isend with its irecv. Packet numbers,
// acknowledgements, paths and round trips belong to a peer, and all its channels share them. Grants and
// completion belong to a message.
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

inline constexpr uint32_t kRing = 32;  // open messages of a channel
inline constexpr uint16_t kNoRecord = 0xFFFF;

// --- The sending side.

// The state of a message that is sent.
enum class SendState : uint8_t {
  kFree,
  kFresh,    // the peer has at most seen its request; no packet may be sent yet
  kReady,    // has packets that may be sent now
  kWaiting,  // has sent all packets that it may send
  kSent,     // all packets are sent, some not acknowledged
  kDone,     // all packets were acknowledged; not reported to the caller yet
};

struct SendMessage {
  uint64_t length_bytes = 0;
  uint32_t packets = 0;
  uint32_t next = 0;     // index of the first packet that was never sent
  uint32_t granted = 0;  // packets before this index may be sent
  uint32_t eager = 0;    // the same, by eager credits
  uint32_t acked = 0;    // number of acknowledged packets
  uint32_t number = 0;
  uint32_t channel = 0;
  SendState state = SendState::kFree;
  bool has_wished = false;
  ListLink link;  // in the peer's list for its state

  uint32_t allowed() const { return granted > eager ? granted : eager; }
};

using SendRing = std::array<SendMessage, kRing>;

struct SendChannel {
  uint32_t peer = kNoObject;
  uint32_t ring = kNoObject;  // set only while messages are open
  uint32_t next = 0;          // number of the next message
  uint16_t wire = 0;          // the channel's number in packets
  uint16_t open = 0;          // number of open messages
};

// A packet in flight.
struct SendRecord {
  uint32_t psn = 0;                 // or its number among the eager packets
  uint32_t message = 0, index = 0;  // message is kNoObject once its channel is closed
  Stamp sent = 0;                   // when it was posted to its send queue
  uint32_t posted = 0;              // the port's handle for has_left()
  uint8_t path = 0, tries = 0;
  bool took_credit = false;
  enum class Where : uint8_t { kFlight, kLost, kHeldBack } where = Where::kFlight;
  uint16_t behind = 0;  // next record in the table
  ListLink link;        // in one of the peer's lists
};

// Finds the record of a packet in flight or lost, by peer (except for eager packets). Far fewer packets are
// unacknowledged than the span has numbers. Records with the same slot form a chain.
class RecordTable {
 public:
  static constexpr uint32_t kMost = 896;  // maximum number of packets

  RecordTable() { places_.fill(kNoRecord); }
  template <typename Records>
  void enter(Records& records, uint32_t record) {
    uint16_t& place = places_[records[record].psn % kPlaces];
    records[record].behind = place;
    place = static_cast<uint16_t>(record);
  }
  // The record must be in the table.
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
  uint32_t window_packets = 256;          // packets in flight to a peer
  uint32_t eager_packets = 8;             // packets to a peer without a grant
  uint32_t served_peers = 8;              // peers that get grants at the same time, for one message each
  int64_t grant_patience_ns = 2'000'000;  // a grant is revoked if no packet arrives for this time
  uint32_t ack_packets = 16;
  int64_t packet_ns = 83;  // time of a full packet on the link
  PageSettings pages{};    // with credits and quantum
  LossSettings loss{};
  // A packet's path counts as delayed if the packet comes this much later than usual.
  int64_t late_ns = 6'000;
  int64_t silence_ns = 2'000'000'000;  // a peer that does not answer for this time is gone
  uint32_t random = 0;                 // the peer that is served first

  // Paths use the rails in turn.
  uint32_t rail_of(uint32_t path) const { return path % rails; }
  // Sets the options that depend on the speed of all rails together, given as the time of a full packet:
  // credits for five times the data in flight in 8 us, and windows for several rails.
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
  uint32_t consumed = 0;  // all receives before this number are consumed
  uint16_t wire = 0;
  uint16_t open = 0;  // used entries of the ring
  // kOpen: packets are accepted. kRefuses: packets are rejected because one was too long, until the sender
  // knows. kClosed: packets are acknowledged and dropped.
  enum class Gate : uint8_t { kOpen, kRefuses, kClosed } gate = Gate::kOpen;

  bool is_closed() const { return gate == Gate::kClosed; }
};

// Messages by number, in rings of 32.
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

// The current usual one-way delay, in stamps. A delay that all packets have, for example at the receiver's
// own link, is not caused by a path: a path counts as delayed only if it is slower than the others. The
// difference of the two clocks cancels, and their drift does not matter.
class UsualDelay {
 public:
  // Returns how much later than usual this packet came, in stamps.
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
  uint32_t data_bytes = 0;  // bytes of a message in a packet that is not the last

  // For sending.
  uint32_t unacked = 0, next = 0;   // packet numbers: the oldest unacknowledged one; the next one
  uint32_t records = kNoObject;     // a RecordTable, while packets are in flight
  uint32_t in_flight = 0;           // packets, except eager ones, that do not count as lost
  uint32_t known = 0;               // packets, except eager ones, that have a record: in flight or lost
  PacketBits open;                  // sent and not acknowledged
  LinkedList<StateLink> flight;     // in the order of sending
  LinkedList<StateLink> lost;       // to be sent again
  LinkedList<StateLink> held_back;  // eager packets that were lost more than once, and wait for a grant
  LinkedList<StateLink> fresh, ready, waiting, sent;  // messages, by state
  // Counters of eager packets: limit from the receiver; promised to messages; sent; all before this were
  // acknowledged.
  uint32_t eager_limit = 0, eager_reserved = 0, eager_next = 0, eager_unacked = 0;
  std::array<uint16_t, kEagerSpan> eager_records{};  // kNoRecord
  uint16_t told_duplicates = 0;                      // duplicates that the peer has reported
  bool has_newest = false, has_probed = false;
  Stamp newest = 0;                       // when the newest delivered packet was sent
  std::array<Stamp, kPaths> newest_of{};  // the same for each path
  uint32_t newest_paths = 0;              // the paths that have one
  int64_t sent_ns = 0, heard_ns = 0;      // last time; heard: a new acknowledgement, or any packet
  int64_t owed_since_ns = kNeverNs;       // since when the peer has not answered although it should
  // Since when the oldest packet has been the oldest unacknowledged one; for eager packets, or since its
  // grant.
  int64_t oldest_ns = 0, eager_oldest_ns = 0;
  int64_t wish_ns = kNeverNs;  // when grants are requested again
  uint8_t wish_doublings = 0;
  uint32_t wish_turn = 0;  // position among the waiting messages that were requested again
  LossTimes loss{LossSettings{}};
  SendGuard guard{0};
  PathTable paths{1, 0};
  uint32_t reachable = 0;  // a bit for each path that leads to the peer, also over shared address handles

  // For receiving.
  ReceiveWindow window;
  EagerWindow eager;
  uint32_t parked = 0;         // packets of unexpected messages
  uint32_t eager_settled = 0;  // eager packets that are no longer parked
  uint32_t unacked_packets = 0, unacked_duplicates = 0;
  int64_t ack_ns = kNeverNs;  // when an acknowledgement is due
  Stamp echo = 0;
  int64_t echo_ns = 0;  // when that packet arrived
  bool has_echo = false, must_ack = false;
  uint32_t late_paths = 0;
  UsualDelay delay;
  // Receives whose grants must be sent, and receives whose grants are repeated in the next acknowledgement,
  // because a lost grant would cost much time.
  struct Chain {
    uint32_t first = kNoObject, last = kNoObject;
  } not_told, told_once;
  uint8_t data_path = kPaths;  // path of the newest data packet
  GrantAccount grants;

  // For both.
  TimerLink timer;
  ListLink active, acks;
  bool is_active = false, is_open = false, is_gone = false;
  std::vector<uint32_t> send_channels, receive_channels;  // by their number in packets; kNoObject

  Peer() { eager_records.fill(kNoRecord); }
  uint32_t sent_span() const { return next - unacked; }
};

inline ListLink& ActiveLink::of(Peer& peer) {
  return peer.active;
}
inline ListLink& AckLink::of(Peer& peer) {
  return peer.acks;
}

// Counters of an engine, for diagnosis.
struct EngineStatistics {
  uint64_t sent_packets = 0, resent_packets = 0, probes = 0, timeouts = 0;
  uint64_t received_packets = 0, duplicates = 0, refused_packets = 0, strays = 0;
  uint64_t sent_acks = 0, sent_requests = 0;
  uint64_t in_vain = 0;  // retransmitted packets that the peer already had
  uint64_t sent_messages = 0, received_messages = 0, lent_messages = 0, copied_messages = 0;
  uint64_t evacuations = 0, rested_paths = 0, late_marks = 0;
};

}  // namespace verbena::protocol::datagram
