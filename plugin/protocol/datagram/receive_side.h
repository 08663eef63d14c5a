// The receiving side of an engine's core. The steps of a message:
//
//   on_data        a packet has arrived, once or more often, perhaps before its receive
//   post           the receive gets an entry in the ring, with the packets that have arrived already
//   serve          messages that need grants get them, a few messages at a time
//   finish_arrival all packets have arrived: their pages are lent to the GPU, or copied to the destination
//   release        the receive is consumed
//   send_acks      sends acknowledgements and grants
//
// Part of engine_core.h, which describes the port.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "protocol/datagram/engine_shared.h"

namespace verbena::protocol::datagram {

// A received data packet whose header was checked, and its page.
struct InPacket {
  uint32_t page;
  uint32_t psn;
  uint16_t channel;
  Place place;
  uint16_t backlog;  // without the bit of the credit; 0 for the last packet
  bool took_credit;
  bool is_last, asks;
  uint8_t path;
  bool was_marked;  // ECN-marked by a switch
  uint8_t rail;     // where its page was posted
  PageQueue queue;
  Stamp time;
  uint32_t length_bytes;

  bool is_short() const { return queue == PageQueue::kShort; }
};

enum class Verdict : uint8_t {
  kTaken,      // it belongs to the message now
  kDuplicate,  // of an earlier packet; with this and the verdicts below, no page is held
  kDropped,    // of a closed channel: acknowledged
  kRefused,    // not acknowledged: it will be sent again
  kStray,      // invalid
  kTooLong,    // longer than its receive
};
struct Placed {
  Verdict verdict;
  uint32_t message = kNoObject;
};

struct Ack {
  uint32_t cumulative, base;
  AckBody body;
  std::array<GrantRecord, kMaxGrantsPerAck> grants;
  uint32_t grant_count;
};

// The top bit of a packet's backlog: the packet took an eager credit, whether or not it is finally sent as an
// eager packet, and its number is an eager number.
inline constexpr uint16_t kTookCredit = 0x8000;
inline constexpr uint16_t kMostBacklog = 0x7FFF;

template <typename Port>
class ReceiveSide {
 public:
  using Shared = EngineShared<Port>;

  ReceiveSide(Shared& shared, const EngineOptions& options)
      : shared_(shared),
        grants_({.quantum = options.pages.quantum,
                 .served_peers = options.served_peers,
                 .patience_ns = options.grant_patience_ns}),
        budget_(options.pages),
        short_budget_(PageBudget::of_short(options.pages)),
        pages_(options.pages.pages + options.pages.short_pages) {}

  uint32_t open_receive(uint32_t peer, uint16_t wire) {
    const uint32_t id = receive_channels_.take();
    receive_channels_[id] = ReceiveChannel{.peer = peer, .wire = wire};
    Shared::enter(shared_.peers[peer].receive_channels, wire, id);
    return id;
  }
  // A message of the channel was too long: no packet is accepted until the channel is closed.
  void refuse_receive(uint32_t channel) { receive_channels_[channel].gate = ReceiveChannel::Gate::kRefuses; }
  // Packets that still arrive are acknowledged and dropped, until forget_receive(). No page of the channel is
  // being copied any more; copied pages, and pages that were held or lent, are idle.
  void close_receive(uint32_t channel) {
    ReceiveChannel& closing = receive_channels_[channel];
    Peer& peer = shared_.peers[closing.peer];
    closing.gate = ReceiveChannel::Gate::kClosed;
    if (closing.ring == kNoObject) return;
    for (uint32_t i = 0; i < kRing; ++i) {
      const uint32_t id = closing.ring * kRing + i;
      ReceiveMessage& message = receives_[id];
      if (message.state == ReceiveState::kFree) continue;
      withdraw(message, id);
      PageBudget& budget = budget_of(message);
      if (message.state == ReceiveState::kParked) {
        settle_parked(peer, message);
        budget.drop_parked(message.held);
      } else {
        budget.drop_held(message.held);
        budget.note_moved(message.moving);
        budget.note_returned(message.lent);
      }
      settle_eager(peer, message);
      put_back_pages(message);  // FAULT(pages_of_a_closed_message_are_not_put_back)
      add_idle(message.held + message.moving + message.lent, message.is_short);
      message.held = message.moving = message.lent = 0;
      message.state = ReceiveState::kFree;
    }
    receives_.rings.give_back(std::exchange(closing.ring, kNoObject));
    closing.open = 0;
  }
  void forget_receive(uint32_t channel) {
    ReceiveChannel& closing = receive_channels_[channel];
    shared_.peers[closing.peer].receive_channels[closing.wire] = kNoObject;
    closing = {};
    receive_channels_.give_back(channel);
  }
  // Returns kNoObject if the ring is full. `most_pages` is the number of pages that the GPU may borrow for
  // this message; 0: the message is copied. settle() follows once the port has recorded the receive.
  uint32_t post(uint32_t channel, uint64_t room_bytes, uint32_t most_pages) {
    ReceiveChannel& receiving = receive_channels_[channel];
    if (receiving.next - receiving.consumed >= kRing) return kNoObject;
    const uint32_t id = find_receive(receiving, receiving.next);
    ReceiveMessage& message = receives_[id];
    Peer& peer = shared_.peers[receiving.peer];
    if (message.state == ReceiveState::kFree) begin_receive(message, channel, receiving.next);
    ++receiving.next;
    message.room_bytes = room_bytes;
    message.most_pages = most_pages;
    message.is_copied = most_pages == 0 || message.is_short;
    budget_of(message).unpark(message.held);
    settle_parked(peer, message);
    message.state = ReceiveState::kPosted;
    if (message.received != 0) must_ack(receiving.peer);  // returns its eager credits
    // A request may be as large as its sender likes, or belong to an earlier message. Only packets show that
    // a message is too long.
    message.wanted = std::min(message.wanted, Shared::count_packets(peer, room_bytes));
    want_grants(receiving.peer, peer, id, message);
    return id;
  }
  bool is_too_long(uint32_t id) const { return receives_[id].bytes > receives_[id].room_bytes; }
  // Handles a data packet. The core decides what happens to its page.
  [[gnu::always_inline]] Placed on_data(uint32_t peer_id, const InPacket& packet) {
    Peer& peer = shared_.peers[peer_id];
    note_taken(packet.rail, packet.queue);
    shared_.note_heard(peer);
    ++shared_.statistics.received_packets;
    const auto arrival = packet.took_credit ? peer.eager.judge(packet.psn) : peer.window.judge(packet.psn);
    if (arrival != ReceiveWindow::Arrival::kNew) [[unlikely]]
      return refuse_known(peer_id, peer, packet, arrival);
    Arrived arrived;
    const Placed placed = place(peer, packet, arrived);
    if (placed.verdict > Verdict::kDropped) [[unlikely]] {
      ++(placed.verdict == Verdict::kRefused ? shared_.statistics.refused_packets
                                             : shared_.statistics.strays);
      // FAULT(page_of_a_refused_packet_is_not_put_back, refused_packet_is_acknowledged)
      free_page(packet.page, packet.is_short());
      return placed;
    }
    if (packet.took_credit) {
      peer.eager.record(packet.psn);
    } else {
      peer.window.record(packet.psn);
    }
    note_delay(peer, packet);
    if (placed.verdict == Verdict::kDropped) [[unlikely]] {
      note_to_ack(peer_id, peer, packet.asks);
      free_page(packet.page, packet.is_short());
      return placed;
    }
    take_packet(peer_id, peer, placed.message, arrived, packet);
    return placed;
  }
  // Call this after post(): handles packets that arrived before the receive.
  void settle(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    is_complete(message) ? finish_arrival(id, message) : move_early(id, message);
  }
  // For a message that is kDone. Its lent pages become idle, and are put back.
  void release(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    ReceiveChannel& receiving = receive_channels_[message.channel];
    put_back_pages(message);  // FAULT(pages_that_were_lent_are_not_put_back)
    budget_.note_returned(message.lent);
    add_idle(message.lent);
    message.lent = 0;
    message.state = ReceiveState::kFree;
    while (receiving.consumed != receiving.next &&
           receives_[find_receive(receiving, receiving.consumed)].state == ReceiveState::kFree)
      ++receiving.consumed;
    if (--receiving.open == 0) receives_.rings.give_back(std::exchange(receiving.ring, kNoObject));
  }
  // Calls visit(page, offset, length_bytes) for each page of a message that is done.
  template <typename Visit>
  void for_each_page(uint32_t id, const Visit& visit) const {
    const ReceiveMessage& message = receives_[id];
    const uint64_t data_bytes = shared_.peers[receive_channels_[message.channel].peer].data_bytes;
    for (uint32_t page = message.first_page; page != kNoObject; page = pages_[page].next)
      visit(page, pages_[page].index * data_bytes, pages_[page].length_bytes);
  }
  // Pages of a message were copied, and are idle again.
  void note_moved(uint32_t id, uint32_t pages) {
    ReceiveMessage& message = receives_[id];
    message.moving -= pages;
    budget_of(message).note_moved(pages);
    add_idle(pages, message.is_short);  // FAULT(copied_pages_are_lost)
    if (message.state == ReceiveState::kMoving && message.moving == 0 && message.held == 0)
      hand_over(id, message);
  }
  // Handles requests for grants. Without a message, the peer tests whether this end is alive.
  void on_request(uint32_t peer_id, std::span<const Wish> wishes) {
    Peer& peer = shared_.peers[peer_id];
    shared_.note_heard(peer);
    must_ack(peer_id);
    for (const Wish& wish : wishes) absorb_wish(peer_id, peer, wish);
  }
  // Adds pages that are new, or free again.
  // FAULT(short_page_comes_back_as_another)
  void add_idle(uint32_t pages, bool are_short = false) { (are_short ? short_idle_ : idle_) += pages; }
  // A posted page is returned without useful data.
  void drop_page(uint32_t page, uint32_t rail, PageQueue queue) {
    note_taken(rail, queue);
    free_page(page, queue == PageQueue::kShort);
  }
  ReceiveMessage& receive_message(uint32_t id) { return receives_[id]; }
  ReceiveChannel& receive_channel(uint32_t id) { return receive_channels_[id]; }
  PageBudget& budget() { return budget_; }
  const PageBudget& budget() const { return budget_; }
  const PageBudget& short_budget() const { return short_budget_; }
  const Grants& grants() const { return grants_; }
  uint32_t outstanding() const { return grants_.outstanding(); }
  uint32_t idle() const { return idle_; }
  uint32_t short_idle() const { return short_idle_; }
  void must_ack(uint32_t id) {
    Peer& peer = shared_.peers[id];
    if (peer.must_ack || peer.is_gone) return;
    peer.must_ack = true;
    acks_.append(shared_.peers, id);
  }
  // Nothing is expected from the peer any more, and its grants go to other peers.
  void drop_grants(Peer& peer) {
    peer.ack_ns = kNeverNs;
    for (const uint32_t channel : peer.receive_channels) {
      if (channel == kNoObject || receive_channels_[channel].ring == kNoObject) continue;
      for (uint32_t i = 0; i < kRing; ++i) {
        const uint32_t message = receive_channels_[channel].ring * kRing + i;
        if (receives_[message].state != ReceiveState::kPosted) continue;
        withdraw(receives_[message], message);  // FAULT(given_up_peer_keeps_its_grants)
        note_taken_back(message, receives_[message]);
      }
    }
  }
  void drop_ack(uint32_t id) {
    if (shared_.peers[id].must_ack) acks_.remove(shared_.peers, id);
  }
  void audit(int64_t now_ns) {
    if (grants_.audit_ns() <= now_ns) grants_.audit(*this, now_ns);
  }
  void pump_acks() {
    if (grants_.is_any_wanted()) serve();
    post_idle();
    while (!acks_.is_empty()) send_acks(acks_.first());
  }

 private:
  using Told = ReceiveMessage::Told;
  static constexpr int64_t kFreshPathNs = 1'000'000;
  static constexpr uint32_t kMostAcks = 8;  // acknowledgements in a row

  // Returns the path on which data has arrived, because the ports of both ends work there. This end's own
  // paths to the peer may never have carried a packet that would have tested them.
  uint32_t pick_ack_path(Peer& peer) {
    const bool is_fresh = peer.data_path != kPaths && shared_.port.now_ns() - peer.echo_ns < kFreshPathNs;
    const bool works =
        is_fresh &&
        ((shared_.paths_of(shared_.port.live_rails()) & peer.reachable) >> peer.data_path & 1) != 0;
    return works ? peer.data_path : shared_.pick_control_path(peer);  // FAULT(acknowledgement_takes_any_path)
  }
  uint32_t find_receive(ReceiveChannel& channel, uint32_t number) {
    if (channel.ring == kNoObject) {
      channel.ring = receives_.rings.take();
      for (ReceiveMessage& message : receives_.rings[channel.ring]) message.state = ReceiveState::kFree;
    }
    return channel.ring * kRing + number % kRing;
  }
  void begin_receive(ReceiveMessage& message, uint32_t channel, uint32_t number) {
    message = ReceiveMessage{};
    message.number = number;
    message.channel = channel;
    message.state = ReceiveState::kParked;
    ++receive_channels_[channel].open;
  }
  static bool is_complete(const ReceiveMessage& message) {
    return message.total != 0 && message.received == message.total;
  }
  [[gnu::cold, gnu::noinline]] Placed refuse_known(uint32_t peer_id, Peer& peer, const InPacket& packet,
                                                   ReceiveWindow::Arrival arrival) {
    if (arrival == ReceiveWindow::Arrival::kBeyond) {
      free_page(packet.page, packet.is_short());
      ++shared_.statistics.strays;
      return {Verdict::kStray};
    }
    free_page(packet.page, packet.is_short());
    ++shared_.statistics.duplicates;
    peer.window.count_duplicate();
    const bool is_burst = ++peer.unacked_duplicates >= shared_.options.ack_packets;
    owe_ack(peer_id, peer, packet.asks || is_burst);
    return {Verdict::kDuplicate};
  }
  struct Arrived {
    ReceiveMessage* message = nullptr;  // of an accepted packet
    uint64_t least_bytes = 0;           // minimum length of the message
  };
  // Finds the packet's message and position, and checks whether it may be stored there. Changes nothing
  // unless the packet is accepted or dropped.
  [[gnu::always_inline]] Placed place(Peer& peer, const InPacket& packet, Arrived& arrived) {
    if (packet.channel >= peer.receive_channels.size() || peer.receive_channels[packet.channel] == kNoObject)
        [[unlikely]]
      return place_nowhere(peer, packet);
    const uint32_t channel_id = peer.receive_channels[packet.channel];
    ReceiveChannel& channel = receive_channels_[channel_id];
    if (channel.gate != ReceiveChannel::Gate::kOpen) [[unlikely]] {
      if (!channel.is_closed()) return {Verdict::kTooLong};  // FAULT(refused_packet_counts_as_arrived)
      if (packet.took_credit) ++peer.eager_settled;
      return {Verdict::kDropped};
    }
    const uint32_t ahead = (packet.place.message - channel.consumed) % kMessageNumbers;
    const bool is_full = packet.length_bytes == peer.data_bytes;
    if (packet.length_bytes > peer.data_bytes || (!packet.is_last && !is_full)) return {Verdict::kStray};
    if (packet.place.index + 1 + packet.backlog >= kMaxPacketIndex) return {Verdict::kStray};
    // FAULT(short_packet_may_be_of_any_message)
    if (packet.is_short() && !is_all_of_short(packet)) return {Verdict::kStray};
    if (ahead >= kRing) return {ahead < kMessageNumbers / 2 ? Verdict::kRefused : Verdict::kStray};
    const uint32_t id = find_receive(channel, channel.consumed + ahead);
    ReceiveMessage& message = receives_[id];
    const uint64_t least_bytes = find_least_bytes(peer, packet);
    arrived = {&message, least_bytes};
    if (message.state == ReceiveState::kPosted) [[likely]] {
      if (contradicts(message, packet, least_bytes)) return {Verdict::kStray};
      // FAULT(long_message_is_placed_beyond_its_receive)
      if (least_bytes > message.room_bytes) return {Verdict::kTooLong, id};
      return {Verdict::kTaken, id};
    }
    if (message.state == ReceiveState::kFree && !is_before(channel.consumed + ahead, channel.next)) {
      if (!may_park(peer, packet)) return give_up_ring(channel), Placed{Verdict::kRefused};
      begin_receive(message, channel_id, channel.consumed + ahead);
      return {Verdict::kTaken, id};
    }
    if (message.state != ReceiveState::kParked || contradicts(message, packet, least_bytes))
      return {Verdict::kStray};
    return {may_park(peer, packet) ? Verdict::kTaken : Verdict::kRefused, id};
  }
  // Returns whether the message has one packet, and fits into a small-message buffer.
  static bool is_all_of_short(const InPacket& packet) {
    return packet.is_last && packet.place.index == 0 && packet.length_bytes <= kShortBytes;
  }
  [[gnu::cold, gnu::noinline]] static Placed place_nowhere(Peer& peer, const InPacket& packet) {
    // The connect request of the channel has not arrived.
    if (packet.channel != kNoChannel) return {Verdict::kRefused};
    if (packet.took_credit) ++peer.eager_settled;
    return {Verdict::kDropped};
  }
  // Returns the minimum length of the message; its exact length if the packet is the last one.
  static uint64_t find_least_bytes(const Peer& peer, const InPacket& packet) {
    const uint64_t before = uint64_t{packet.place.index + packet.backlog} * peer.data_bytes;
    // FAULT(long_message_is_found_by_its_last_packet_alone)
    return before + (packet.is_last ? packet.length_bytes : 1);
  }
  // The last packet tells the number of packets, and each other packet tells how many follow it. Requests
  // have no numbers, so a delayed one of an earlier message is not a contradiction.
  static bool contradicts(const ReceiveMessage& message, const InPacket& packet, uint64_t least_bytes) {
    const uint32_t end = packet.place.index + 1;
    // FAULT(message_has_pages_of_two_kinds)
    if (message.received != 0 && message.is_short != packet.is_short())
      return true;  // all its pages are of one kind
    if (message.total != 0)
      // FAULT(second_end_of_a_message_is_believed)
      return end + packet.backlog > message.total || (packet.is_last && end != message.total);
    return packet.is_last && (message.received >= end || message.bytes > least_bytes);
  }
  bool may_park(const Peer& peer, const InPacket& packet) const {
    const PageBudget& budget = packet.is_short() ? short_budget_ : budget_;
    return peer.parked < shared_.options.eager_packets && budget.may_park();
  }
  void give_up_ring(ReceiveChannel& channel) {
    if (channel.open == 0 && channel.ring != kNoObject)
      receives_.rings.give_back(std::exchange(channel.ring, kNoObject));
  }
  [[gnu::always_inline]] void take_packet(uint32_t peer_id, Peer& peer, uint32_t id, const Arrived& arrived,
                                          const InPacket& packet) {
    ReceiveMessage& message = *arrived.message;
    grants_.note_arrival(message, peer.grants);
    message.bytes = std::max(message.bytes, arrived.least_bytes);
    const uint32_t wanted = packet.place.index + 1 + packet.backlog;
    if (wanted > message.wanted) message.wanted = wanted;
    if (packet.is_last) {
      message.total = packet.place.index + 1;
      message.wanted = std::max(message.total, message.granted);  // the difference is unsigned
    }
    message.eager += packet.took_credit ? 1 : 0;
    message.rails |= static_cast<uint8_t>(1U << packet.rail);
    if (packet.is_short()) message.is_short = message.is_copied = true;  // FAULT(short_message_is_lent)
    const uint32_t pages = packet.length_bytes != 0 ? 1 : 0;
    pages != 0 ? hold(message, packet) : free_page(packet.page, packet.is_short());
    if (message.state == ReceiveState::kParked) [[unlikely]] {
      budget_of(message).note_parked(pages);
      ++peer.parked;
      return note_to_ack(peer_id, peer, packet.asks || is_complete(message));
    }
    budget_of(message).note_held(pages);
    if (is_complete(message)) {
      settle_eager(peer, message);  // FAULT(eager_credits_of_a_complete_message_stay_taken)
      note_to_ack(peer_id, peer, true);
      return finish_arrival(id, message);
    }
    if (message.granted != 0) settle_eager(peer, message);
    if (message.granted < message.wanted && !message.is_wanting) want_grants(peer_id, peer, id, message);
    note_to_ack(peer_id, peer, packet.asks);
    move_early(id, message);
  }
  // Appends the page to the list of the message.
  void hold(ReceiveMessage& message, const InPacket& packet) {
    ++message.held;
    // FAULT(page_goes_where_another_belongs)
    pages_[packet.page] = {kNoObject, packet.place.index, packet.length_bytes};
    (message.first_page == kNoObject ? message.first_page : pages_[message.last_page].next) = packet.page;
    message.last_page = packet.page;
  }
  // Copies pages before the rest has arrived: by choice, or because there are more pages than may be lent.
  void move_early(uint32_t id, ReceiveMessage& message) {
    if (!message.is_copied && message.held <= message.most_pages) [[likely]]
      return;
    message.is_copied = true;
    move_held(id, message);
  }
  void note_delay(Peer& peer, const InPacket& packet) {
    const Stamp stamp = shared_.now();
    peer.echo = packet.time;
    peer.echo_ns = shared_.port.now_ns();
    peer.has_echo = true;
    peer.data_path = packet.path;
    const uint32_t late = peer.delay.note(packet.time, stamp);
    if (packet.was_marked || late > static_cast<uint32_t>(shared_.options.late_ns / kStampNs)) {
      peer.late_paths |= 1U << packet.path;
      ++shared_.statistics.late_marks;
    }
  }
  void note_to_ack(uint32_t peer_id, Peer& peer, bool at_once) {
    ++peer.unacked_packets;
    owe_ack(peer_id, peer, at_once || peer.unacked_packets >= shared_.options.ack_packets);
  }
  void owe_ack(uint32_t peer_id, Peer& peer, bool at_once) {
    if (at_once) return must_ack(peer_id);
    if (peer.ack_ns != kNeverNs || peer.must_ack) return;
    peer.ack_ns = shared_.port.now_ns() + shared_.options.loss.ack_delay;
    shared_.wheel.file(peer_id, peer.ack_ns, shared_.timers());
  }
  void settle_parked(Peer& peer, ReceiveMessage& message) {
    if (message.state != ReceiveState::kParked) return;
    peer.parked -= message.received;  // FAULT(parked_message_is_not_counted_down)
    if (is_complete(message)) settle_eager(peer, message);
  }
  // The eager credits are free again once the message has arrived, or its grants have taken over: the sender
  // of a message that waits for a grant has sent enough.
  static void settle_eager(Peer& peer, ReceiveMessage& message) {
    peer.eager_settled += std::exchange(message.eager, 0);
  }
  void finish_arrival(uint32_t id, ReceiveMessage& message) {
    withdraw(message, id);
    ++shared_.statistics.received_messages;
    const bool is_lent = !message.is_copied && message.moving == 0 && message.held <= message.most_pages &&
                         budget_.may_lend(message.held);  // I1
    if (is_lent) {
      budget_.lend(message.held);
      message.lent = std::exchange(message.held, 0);
      ++shared_.statistics.lent_messages;
      return hand_over(id, message);
    }
    if (!message.is_copied) ++shared_.statistics.evacuations;
    message.is_copied = true;
    ++shared_.statistics.copied_messages;
    message.state = ReceiveState::kMoving;
    if (message.held != 0) move_held(id, message);
    if (message.held == 0 && message.moving == 0 && message.state == ReceiveState::kMoving)
      hand_over(id, message);
  }
  void hand_over(uint32_t id, ReceiveMessage& message) {
    message.state = ReceiveState::kDone;
    shared_.port.note_received(id);
  }
  // The port copies the pages at once, or later.
  void move_held(uint32_t id, ReceiveMessage& message) {
    const uint64_t data_bytes = shared_.peers[receive_channels_[message.channel].peer].data_bytes;
    uint32_t count = 0, moved = 0;
    for (uint32_t page = std::exchange(message.first_page, kNoObject); page != kNoObject; ++count) {
      const HeldPage held = pages_[page];
      // on_data() has compared the two. This is the last check before memory of the application is written.
      const uint64_t offset = held.index * data_bytes;
      const bool fits = offset + held.length_bytes <= message.room_bytes;
      if (!fits || shared_.port.copy_page(id, page, offset, held.length_bytes)) {
        shared_.port.put_back(page);
        ++moved;
      }
      page = held.next;
    }
    message.held -= count;
    message.moving += count;
    budget_of(message).move(count);
    if (moved != 0) note_moved(id, moved);
  }
  void put_back_pages(ReceiveMessage& message) {
    for (uint32_t page = std::exchange(message.first_page, kNoObject); page != kNoObject;)
      shared_.port.put_back(std::exchange(page, pages_[page].next));
  }
  void free_page(uint32_t page, bool is_short) {
    shared_.port.put_back(page);
    add_idle(1, is_short);
  }

  // --- Grants.

  friend Grants;
  auto& receives() { return receives_; }
  uint32_t peer_of(const ReceiveMessage& message) const { return receive_channels_[message.channel].peer; }
  GrantAccount& account(uint32_t peer) { return shared_.peers[peer].grants; }
  uint32_t count_grantable(uint32_t outstanding) {
    return budget_.count_grantable(outstanding, shared_.port.live_rails());
  }
  void note_granted(uint32_t id, ReceiveMessage& message) {
    // FAULT(eager_credits_of_a_granted_message_stay_taken)
    settle_eager(shared_.peers[receive_channels_[message.channel].peer], message);
    announce(id, message);
  }
  // The sender has stopped, so pages are not held while waiting for the rest of its message.
  // FAULT(pages_of_a_withdrawn_grant_are_kept)
  void note_taken_back(uint32_t id, ReceiveMessage&) { evacuate(id); }
  void want_grants(uint32_t peer_id, Peer& peer, uint32_t id, ReceiveMessage& message) {
    if (message.granted >= message.wanted || message.state != ReceiveState::kPosted || peer.is_gone) return;
    grants_.want(*this, id, message, peer_id, peer.grants);
  }
  // The message is no longer served, and no packet is expected.
  void withdraw(ReceiveMessage& message, uint32_t id) {
    grants_.withdraw(*this, id, message);
    if (message.told != Told::kAll) {
      Peer& peer = shared_.peers[receive_channels_[message.channel].peer];
      // FAULT(done_message_is_still_to_be_told_of)
      take_out(message.told == Told::kNot ? peer.not_told : peer.told_once, id);
      message.told = Told::kAll;
    }
  }
  [[gnu::noinline]] void serve() {
    grants_.serve(*this, shared_.port.now_ns());
    if (grants_.is_any_wanted() && grants_.outstanding() < shared_.options.pages.credits &&
        budget_.moving() == 0)
      evacuate();  // FAULT(nothing_is_evacuated)
  }
  // Packets wait for pages: copies the pages that posted receives hold, the oldest first, until some are
  // being copied.
  [[gnu::cold, gnu::noinline]] void evacuate() {
    grants_.for_each_wanting(*this, [this](uint32_t id) {
      evacuate(id);
      return budget_.moving() == 0;
    });
  }
  void evacuate(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    if (message.held == 0) return;
    if (!message.is_copied) ++shared_.statistics.evacuations;
    message.is_copied = true;
    move_held(id, message);
  }
  void announce(uint32_t id, ReceiveMessage& message) {
    const uint32_t peer_id = receive_channels_[message.channel].peer;
    must_ack(peer_id);
    Peer& peer = shared_.peers[peer_id];
    if (message.told == Told::kNot) return;
    if (message.told == Told::kOnce) take_out(peer.told_once, id);
    message.told = Told::kNot;
    append(peer.not_told, id);
  }
  void append(Peer::Chain& chain, uint32_t id) {
    receives_[id].next_told = kNoObject;
    (chain.first == kNoObject ? chain.first : receives_[chain.last].next_told) = id;
    chain.last = id;
  }
  uint32_t take_first(Peer::Chain& chain) {
    const uint32_t id = chain.first;
    chain.first = receives_[id].next_told;
    if (chain.first == kNoObject) chain.last = kNoObject;
    return id;
  }
  void take_out(Peer::Chain& chain, uint32_t taken) {
    for (Peer::Chain rest = std::exchange(chain, {}); rest.first != kNoObject;)
      if (const uint32_t id = take_first(rest); id != taken) append(chain, id);
  }
  void absorb_wish(uint32_t peer_id, Peer& peer, const Wish& wish) {
    if (wish.channel >= peer.receive_channels.size()) return;
    const uint32_t channel_id = peer.receive_channels[wish.channel];
    if (channel_id == kNoObject || wish.packets == 0 || wish.packets >= kMaxPacketIndex) return;
    ReceiveChannel& channel = receive_channels_[channel_id];
    const uint32_t ahead = (wish.message - channel.consumed) % kMessageNumbers;
    if (channel.gate != ReceiveChannel::Gate::kOpen || ahead >= kRing) return;
    const uint32_t number = channel.consumed + ahead, id = find_receive(channel, number);
    ReceiveMessage& message = receives_[id];
    if (message.state == ReceiveState::kFree) {
      if (is_before(number, channel.next)) return;  // consumed already
      begin_receive(message, channel_id, number);
    }
    if (message.state > ReceiveState::kPosted) return;
    const bool is_posted = message.state == ReceiveState::kPosted;
    const uint32_t most = is_posted ? Shared::count_packets(peer, message.room_bytes) : kMaxPacketIndex;
    // FAULT(wish_is_granted_without_room)
    if (message.total == 0) message.wanted = std::max(message.wanted, std::min(wish.packets, most));
    if (!is_posted) return;
    if (message.outstanding() != 0) announce(id, message);  // the sender does not know its grants
    want_grants(peer_id, peer, id, message);
  }

  // --- Acknowledgements.

  void send_acks(uint32_t id) {
    Peer& peer = shared_.peers[id];
    acks_.remove(shared_.peers, id);
    peer.must_ack = false;
    peer.ack_ns = kNeverNs;
    if (peer.is_gone) return;
    // Usually one acknowledgement. More if a burst was longer than one can report, because packets that are
    // not reported soon count as lost.
    int left = static_cast<int>(std::min(peer.unacked_packets / (kSlicePackets / 4), kMostAcks));
    do {
      const uint32_t path = pick_ack_path(peer);
      if (!shared_.port.has_room_for_ack(path)) [[unlikely]]
        return owe_ack(id, peer, false);  // later, after other peers
      Ack ack;
      ack.cumulative = peer.window.cumulative();
      ack.base = peer.window.choose_slice();
      peer.window.read_slice(ack.base, ack.body.received);
      const int64_t hold = (shared_.port.now_ns() - peer.echo_ns) / kStampNs;
      ack.body.echo = peer.echo;
      ack.body.hold =  // FAULT(old_echo_is_measured)
          std::exchange(peer.has_echo, false) && hold < kNoSample ? static_cast<uint16_t>(hold) : kNoSample;
      ack.body.duplicates = peer.window.duplicates();
      ack.body.late_paths = std::exchange(peer.late_paths, 0);
      ack.body.eager_limit = peer.eager_settled + shared_.options.eager_packets;
      ack.body.eager_cumulative = peer.eager.cumulative();
      ack.body.eager_received = peer.eager.bits();
      ack.grant_count = 0;
      Peer::Chain again;
      while (peer.not_told.first != kNoObject && ack.grant_count < kMaxGrantsPerAck) {
        const uint32_t told = take_first(peer.not_told);
        add_grant(ack, told);
        append(again, told);
      }
      while (peer.told_once.first != kNoObject && ack.grant_count < kMaxGrantsPerAck) {
        const uint32_t told = take_first(peer.told_once);
        add_grant(ack, told);
        receives_[told].told = Told::kAll;
      }
      while (again.first != kNoObject) {
        const uint32_t told = take_first(again);
        receives_[told].told = Told::kOnce;
        append(peer.told_once, told);
      }
      ++shared_.statistics.sent_acks;
      shared_.port.post_ack(id, path, ack);
      --left;
    } while (peer.not_told.first != kNoObject || (left > 0 && peer.window.has_untold()));
    peer.unacked_packets = peer.unacked_duplicates = 0;
  }
  void add_grant(Ack& ack, uint32_t id) {
    const ReceiveMessage& message = receives_[id];
    if (message.outstanding() == 0) return;
    ack.grants[ack.grant_count++] = {
        receive_channels_[message.channel].wire, 0,
        Place{static_cast<uint16_t>(message.number % kMessageNumbers), message.granted}.encode()};
  }

  // --- Pages.

  // A packet has taken a page.
  void note_taken(uint32_t rail, PageQueue queue) {
    queue == PageQueue::kShort ? short_budget_.note_taken(rail, PageQueue::kEager)
                               : budget_.note_taken(rail, queue);
  }
  PageBudget& budget_of(const ReceiveMessage& message) { return message.is_short ? short_budget_ : budget_; }
  void post_idle() {
    if (idle_ != 0) post_idle(budget_, idle_, false);
    if (short_idle_ != 0) post_idle(short_budget_, short_idle_, true);
  }
  void post_idle(PageBudget& budget, uint32_t& idle, bool are_short) {
    while (idle != 0) {
      const auto target = budget.choose_target();
      if (!target) return;
      const uint32_t count = std::min(idle, target->count);
      budget.note_posted(target->rail, target->queue, count);
      idle -= count;
      shared_.port.post_pages(target->rail, are_short ? PageQueue::kShort : target->queue, count);
    }
  }
  // The content of a page, and the next page of its message.
  struct HeldPage {
    uint32_t next = kNoObject;
    uint32_t index = 0;  // of the packet in its message
    uint32_t length_bytes = 0;
  };

  Shared& shared_;
  Grants grants_;
  PageBudget budget_, short_budget_;
  std::vector<HeldPage> pages_;  // by the port's page number
  Slabs<ReceiveChannel, 8> receive_channels_;
  Messages<ReceiveRing> receives_;
  LinkedList<AckLink> acks_;
  uint32_t idle_ = 0, short_idle_ = 0;  // number of pages
};

}  // namespace verbena::protocol::datagram
