// One end of reliable messages over unreliable datagrams, pure: what leaves when and on which path, what
// counts as lost, what is granted to whom, where pages go. A message, in the order of this file:
//
//   send           it takes its place in its channel's ring
//   admit          as far as eager credits reach it may leave at once; else a wish asks for a grant
//   pump           packets leave: first what was lost, then what may be sent, over one path after the other
//   on_data        a packet is here, once or again, before its receive too
//   post           the receive takes its place in the ring, with what is parked there
//   serve          messages that want them are granted packets, a few messages at a time
//   finish_arrival all packets are here: their pages are lent to the GPU, or copied where they belong
//   release        the receive is consumed
//   send_acks      acknowledgements and grants leave
//   on_ack         what has arrived is done, what should have arrived before it is lost
//   on_timer       acknowledgements that are due, probes, timeouts, wishes that nobody answers
//
// Pure: no clock, verbs, CUDA or socket; what happens is asked of Port, which has the core:
// transport/datagram/engine.h over verbs, tests/protocol/datagram/simulation over a network that a seed
// decides. What a port has to offer:
//
//   now_ns()                      the time, read once a pass
//   rooms() -> uint32_t           a bit for each rail whose send queue takes another packet
//   live_rails() -> uint32_t      a bit for each rail that works
//   post_data(peer, OutPacket) -> uint32_t
//                                 on a rail that has room; of no message: the header alone, for kNoChannel.
//                                 What it returns is for has_left()
//   has_left(uint32_t, Stamp&)    whether that packet has left its send queue, and, if it is known, when at
//                                 the earliest; true of a rail that does not work
//   has_room_for_ack(path) -> bool
//   post_ack(peer, path, Ack)     there is room
//   post_request(peer, path, wishes)    may fail: it is sent again
//   post_pages(rail, queue, count)      idle pages to a receive queue
//   put_back(page)                it is idle
//   copy_page(message, page, offset, length_bytes) -> bool
//                                 copies a page into its receive. True: it is done; false: the page is being
//                                 copied, and idle at note_moved()
//   note_sent(message)            all of it is acknowledged
//   note_received(message)        all of it is in its place, or lent
//   note_silent(peer)             it owes an answer for too long
//   note_stuck(peer, message)     it answers, but a packet for which it has room does not arrive for so long;
//                                 kNoObject: not even one of no message
//
// One thread at a time. No function allocates while no more peers, channels and messages are open than once
// were.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "protocol/datagram/engine_state.h"
#include "protocol/sequence.h"

namespace verbena::protocol::datagram {

// A data packet that leaves.
struct OutPacket {
  uint32_t psn, message, index;
  PacketKind kind;
  uint8_t path;
  bool is_last, asks, is_resent, took_credit;
  uint16_t backlog;
};

// A data packet that is here, its header checked, and the page in which it lies.
struct InPacket {
  uint32_t page;
  uint32_t psn;
  uint16_t channel;
  Place place;
  uint16_t backlog;  // without the credit's bit; 0 of a last one
  bool took_credit;
  bool is_last, asks;
  uint8_t path;
  bool was_marked;  // by a switch whose queue was long
  uint8_t rail;     // where its page was posted
  PageQueue queue;
  Stamp time;
  uint32_t length_bytes;

  bool is_short() const { return queue == PageQueue::kShort; }
};

enum class Verdict : uint8_t {
  kTaken,      // it is the message's
  kDuplicate,  // the rest: nothing is held of it
  kDropped,    // of a channel that is closed: acknowledged
  kRefused,    // not acknowledged: it will be sent again
  kStray,      // makes no sense
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

// The top bit of a packet's backlog: it took an eager credit, however it is sent in the end, and its number
// is one of the eager ones.
inline constexpr uint16_t kTookCredit = 0x8000;
inline constexpr uint16_t kMostBacklog = 0x7FFF;

template <typename Port>
class EngineCore {
 public:
  // The port outlives it.
  EngineCore(Port& port, const EngineOptions& options)
      : port_(port),
        options_(options),
        credits_(options.pages.credits),
        grants_({.quantum = options.pages.quantum,
                 .served_peers = options.served_peers,
                 .patience_ns = options.grant_patience_ns}),
        budget_(options.pages),
        short_budget_(PageBudget::of_short(options.pages)),
        pages_(options.pages.pages + options.pages.short_pages) {
    for (uint32_t path = 0; path < kPaths; ++path) paths_of_rail_[options.rail_of(path)] |= 1U << path;
  }

  // --- Peers and channels. These may take memory.

  // `paths`: a bit for each that leads to it, see set_paths(). `data_bytes`: of a message in a packet that is
  // not its last; the peer says the same.
  uint32_t add_peer(uint32_t paths, uint32_t data_bytes) {
    const uint32_t id = peers_.take();
    Peer& peer = peers_[id];
    peer = Peer{};
    peer.is_open = true;
    peer.data_bytes = data_bytes;
    peer.eager_limit = options_.eager_packets;
    peer.loss = LossTimes(options_.loss);
    peer.guard = SendGuard(options_.window_packets);
    peer.heard_ns = port().now_ns();
    set_paths(id, paths, paths);
    return id;
  }
  // `paths`: a bit for each that this end takes in turn. `reachable`: those, and others over the same address
  // handles, by which the peer may send and an acknowledgement may return.
  void set_paths(uint32_t id, uint32_t paths, uint32_t reachable) {
    peers_[id].paths = PathTable(paths, options_.random + id * 7);
    peers_[id].reachable = reachable;
  }
  // Its channels are closed.
  void remove_peer(uint32_t id) {
    Peer& peer = peers_[id];
    forget_flight(peer);
    if (peer.is_active) leave_active(id);
    if (peer.must_ack) acks_.remove(peers_, id);
    wheel_.remove(id, timers());
    peer = Peer{};
    peers_.give_back(id);
  }
  // Nothing is sent to it any more, nothing of it is awaited, and others have what it held. What is open
  // stays open.
  void mute_peer(uint32_t id) {
    Peer& peer = peers_[id];
    peer.is_gone = true;
    if (peer.is_active) leave_active(id);
    forget_flight(peer);
    peer.ack_ns = peer.wish_ns = peer.owed_since_ns = kNeverNs;
    for (const uint32_t channel : peer.receive_channels) {
      if (channel == kNoObject || receive_channels_[channel].ring == kNoObject) continue;
      for (uint32_t i = 0; i < kRing; ++i) {
        const uint32_t message = receive_channels_[channel].ring * kRing + i;
        if (receives_[message].state != ReceiveState::kPosted) continue;
        withdraw(receives_[message], message);
        note_taken_back(message, receives_[message]);
      }
    }
  }

  // A peer that was muted before anything was sent to it: it is tried again.
  void unmute_peer(uint32_t id) {
    peers_[id].is_gone = false;
    peers_[id].heard_ns = port().now_ns();
  }

  // `wire`: what packets call it; the sender's choice.
  uint32_t open_send(uint32_t peer, uint16_t wire) {
    const uint32_t id = send_channels_.take();
    send_channels_[id] = SendChannel{.peer = peer, .wire = wire};
    enter(peers_[peer].send_channels, wire, id);
    return id;
  }
  uint32_t open_receive(uint32_t peer, uint16_t wire) {
    const uint32_t id = receive_channels_.take();
    receive_channels_[id] = ReceiveChannel{.peer = peer, .wire = wire};
    enter(peers_[peer].receive_channels, wire, id);
    return id;
  }
  // Its messages are done, or nobody wants them any more: what of them is under way is not sent again.
  void close_send(uint32_t channel) {
    SendChannel& closing = send_channels_[channel];
    Peer& peer = peers_[closing.peer];
    if (closing.ring != kNoObject) {
      drop_flight(closing.peer, peer, closing.ring);
      for (uint32_t i = 0; i < kRing; ++i) {
        const uint32_t id = closing.ring * kRing + i;
        give_back_credits(peer, sends_[id]);
        set_state(peer, id, SendState::kFree);
      }
      sends_.rings.give_back(closing.ring);
    }
    peer.send_channels[closing.wire] = kNoObject;
    closing = {};
    send_channels_.give_back(channel);
  }
  // Nothing of its messages is sent any more. They stay until it is closed.
  void stop_send(uint32_t channel) {
    SendChannel& stopped = send_channels_[channel];
    if (stopped.ring == kNoObject) return;
    Peer& peer = peers_[stopped.peer];
    drop_flight(stopped.peer, peer, stopped.ring);
    for (uint32_t i = 0; i < kRing; ++i) {
      const uint32_t id = stopped.ring * kRing + i;
      if (sends_[id].state == SendState::kFree) continue;
      give_back_credits(peer, sends_[id]);
      set_state(peer, id, SendState::kDone);
    }
  }
  // A message of it was too long: no packet of it is taken until it is closed.
  void refuse_receive(uint32_t channel) { receive_channels_[channel].gate = ReceiveChannel::Gate::kRefuses; }
  // What still comes for it is acknowledged and dropped, until forget_receive(). No page of it is being
  // copied any more, and those that were are put back; those that it held or lent are idle now, too.
  void close_receive(uint32_t channel) {
    ReceiveChannel& closing = receive_channels_[channel];
    Peer& peer = peers_[closing.peer];
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
      put_back_pages(message);
      add_idle(message.held + message.moving + message.lent, message.is_short);
      message.held = message.moving = message.lent = 0;
      message.state = ReceiveState::kFree;
    }
    receives_.rings.give_back(std::exchange(closing.ring, kNoObject));
    closing.open = 0;
  }
  void forget_receive(uint32_t channel) {
    ReceiveChannel& closing = receive_channels_[channel];
    peers_[closing.peer].receive_channels[closing.wire] = kNoObject;
    closing = {};
    receive_channels_.give_back(channel);
  }

  // --- The walk of a message.

  // kNoObject: the ring is full. The bytes are read until note_sent().
  uint32_t send(uint32_t channel, uint64_t length_bytes) {
    SendChannel& sending = send_channels_[channel];
    if (sending.ring == kNoObject) sending.ring = sends_.rings.take();
    const uint32_t id = sending.ring * kRing + sending.next % kRing;
    SendMessage& message = sends_[id];
    if (message.state != SendState::kFree) return kNoObject;
    ++sending.open;
    message = SendMessage{};
    message.length_bytes = length_bytes;
    Peer& peer = peers_[sending.peer];
    message.packets = count_packets(peer, length_bytes);
    message.number = sending.next++;
    message.channel = channel;
    set_state(peer, id, SendState::kFresh);
    admit(sending.peer);
    return id;
  }
  // The caller knows that it is done.
  void forget(uint32_t id) {
    SendMessage& message = sends_[id];
    SendChannel& sending = send_channels_[message.channel];
    message.state = SendState::kFree;
    if (--sending.open == 0) sends_.rings.give_back(std::exchange(sending.ring, kNoObject));
  }

  // kNoObject: the ring is full. `most_pages`: that the GPU may be lent for this message; 0: it is copied.
  // settle() follows once the port has noted its side.
  uint32_t post(uint32_t channel, uint64_t room_bytes, uint32_t most_pages) {
    ReceiveChannel& receiving = receive_channels_[channel];
    if (receiving.next - receiving.consumed >= kRing) return kNoObject;
    const uint32_t id = find_receive(receiving, receiving.next);
    ReceiveMessage& message = receives_[id];
    Peer& peer = peers_[receiving.peer];
    if (message.state == ReceiveState::kFree) begin_receive(message, channel, receiving.next);
    ++receiving.next;
    message.room_bytes = room_bytes;
    message.most_pages = most_pages;
    message.is_copied = most_pages == 0 || message.is_short;
    budget_of(message).unpark(message.held);
    settle_parked(peer, message);
    message.state = ReceiveState::kPosted;
    if (message.received != 0) must_ack(receiving.peer);  // its eager credits are free again
    // A wish may be as large as its sender likes, or of an earlier message. Packets say what is too long.
    message.wanted = std::min(message.wanted, count_packets(peer, room_bytes));
    want_grants(receiving.peer, peer, id, message);
    return id;
  }
  bool is_too_long(uint32_t id) const { return receives_[id].bytes > receives_[id].room_bytes; }

  // A data packet. What becomes of its page is the core's business.
  [[gnu::always_inline]] Placed on_data(uint32_t peer_id, const InPacket& packet) {
    Peer& peer = peers_[peer_id];
    note_taken(packet.rail, packet.queue);
    note_heard(peer);
    ++statistics_.received_packets;
    const auto arrival = packet.took_credit ? peer.eager.judge(packet.psn) : peer.window.judge(packet.psn);
    if (arrival != ReceiveWindow::Arrival::kNew) [[unlikely]]
      return refuse_known(peer_id, peer, packet, arrival);
    Arrived arrived;
    const Placed placed = place(peer, packet, arrived);
    if (placed.verdict > Verdict::kDropped) [[unlikely]] {
      ++(placed.verdict == Verdict::kRefused ? statistics_.refused_packets : statistics_.strays);
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
  // After post(): what was here before its receive.
  void settle(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    is_complete(message) ? finish_arrival(id, message) : move_early(id, message);
  }

  // Of a message that is kDone. Its lent pages are idle, and put back.
  void release(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    ReceiveChannel& receiving = receive_channels_[message.channel];
    put_back_pages(message);
    budget_.note_returned(message.lent);
    add_idle(message.lent);
    message.lent = 0;
    message.state = ReceiveState::kFree;
    while (receiving.consumed != receiving.next &&
           receives_[find_receive(receiving, receiving.consumed)].state == ReceiveState::kFree)
      ++receiving.consumed;
    if (--receiving.open == 0) receives_.rings.give_back(std::exchange(receiving.ring, kNoObject));
  }
  // The pages of a message that is done: visit(page, offset, length_bytes).
  template <typename Visit>
  void for_each_page(uint32_t id, const Visit& visit) const {
    const ReceiveMessage& message = receives_[id];
    const uint64_t data_bytes = peers_[receive_channels_[message.channel].peer].data_bytes;
    for (uint32_t page = message.first_page; page != kNoObject; page = pages_[page].next)
      visit(page, pages_[page].index * data_bytes, pages_[page].length_bytes);
  }
  // Pages of a message have been copied, are put back and idle again.
  void note_moved(uint32_t id, uint32_t pages) {
    ReceiveMessage& message = receives_[id];
    message.moving -= pages;
    budget_of(message).note_moved(pages);
    add_idle(pages, message.is_short);
    if (message.state == ReceiveState::kMoving && message.moving == 0 && message.held == 0)
      hand_over(id, message);
  }

  void on_ack(uint32_t peer_id, uint32_t cumulative, uint32_t base, const AckBody& body,
              std::span<const GrantRecord> grants) {
    Peer& peer = peers_[peer_id];
    note_heard(peer);
    if (count_between(peer.unacked, cumulative) > static_cast<int32_t>(peer.sent_span())) {
      ++statistics_.strays;  // of what was never sent
      return;
    }
    const uint32_t delivered = absorb_slice(peer, cumulative, base, body) + absorb_eager(peer, body);
    if (body.hold != kNoSample) absorb_round_trip(peer, body);
    if (delivered != 0) {
      peer.loss.note_answer();
      peer.loss.note_delivered(delivered);
      peer.has_probed = false;
    }
    absorb_duplicates(peer, body.duplicates);
    if (body.late_paths != 0) peer.paths.note_late(body.late_paths);
    if (is_before(peer.eager_limit, body.eager_limit) &&
        count_between(peer.eager_reserved, body.eager_limit) <= static_cast<int32_t>(kEagerSpan))
      peer.eager_limit = body.eager_limit;
    for (const GrantRecord& grant : grants) absorb_grant(peer, grant);
    if (delivered != 0) find_lost(peer);
    if (!peer.flight.is_empty() || !peer.lost.is_empty()) peer.owed_since_ns = peer.heard_ns;
    if (peer.known == 0 && peer.records != kNoObject)
      tables_.give_back(std::exchange(peer.records, kNoObject));
    admit(peer_id);
    file_timer(peer_id, peer);
  }

  // Whether the peer is there: it answers, or note_silent() follows.
  void ask(uint32_t peer_id) {
    Peer& peer = peers_[peer_id];
    if (peer.is_gone) return;
    post_request(peer_id, peer, {});
    file_timer(peer_id, peer);
  }

  // What messages wait for. Of no message: the peer wants to know that we are here.
  void on_request(uint32_t peer_id, std::span<const Wish> wishes) {
    Peer& peer = peers_[peer_id];
    note_heard(peer);
    must_ack(peer_id);
    for (const Wish& wish : wishes) absorb_wish(peer_id, peer, wish);
  }

  // --- A pass.

  // `now_ns` is the port's, and the same for all calls of a pass.
  void tick(int64_t now_ns) {
    wheel_.advance(now_ns, timers(), [&](uint32_t id, int64_t at_ns) { on_timer(id, at_ns, now_ns); });
    if (grants_.audit_ns() <= now_ns) grants_.audit(*this, now_ns);
  }
  // Grants, then acknowledgements, then packets, as far as there is room.
  void pump() {
    if (grants_.is_any_wanted()) serve();
    post_idle();
    while (!acks_.is_empty()) send_acks(acks_.first());
    if (!active_.is_empty()) send_packets();
  }
  int64_t next_timer_ns() const { return std::min(wheel_.find_next_ns(), grants_.audit_ns()); }
  bool has_packets_to_send() const { return !active_.is_empty(); }

  // Pages that were not the budget's before, or are free again.
  void add_idle(uint32_t pages, bool are_short = false) { (are_short ? short_idle_ : idle_) += pages; }
  // A page that was posted, with nothing in it that is of use.
  void drop_page(uint32_t page, uint32_t rail, PageQueue queue) {
    note_taken(rail, queue);
    free_page(page, queue == PageQueue::kShort);
  }

  // --- For the port, for people and for tests.
  const EngineOptions& options() const { return options_; }
  Peer& peer(uint32_t id) { return peers_[id]; }
  const Peer& peer(uint32_t id) const { return peers_[id]; }
  uint32_t peers() const { return peers_.used(); }
  SendMessage& send_message(uint32_t id) { return sends_[id]; }
  ReceiveMessage& receive_message(uint32_t id) { return receives_[id]; }
  SendChannel& send_channel(uint32_t id) { return send_channels_[id]; }
  ReceiveChannel& receive_channel(uint32_t id) { return receive_channels_[id]; }
  PageBudget& budget() { return budget_; }
  const PageBudget& budget() const { return budget_; }
  const PageBudget& short_budget() const { return short_budget_; }
  const EngineStatistics& statistics() const { return statistics_; }
  // A datagram of no peer, or one that cannot be received.
  void count_stray() { ++statistics_.strays; }
  const Grants& grants() const { return grants_; }
  uint32_t outstanding() const { return grants_.outstanding(); }
  uint32_t idle() const { return idle_; }
  uint32_t short_idle() const { return short_idle_; }
  void must_ack(uint32_t id) {
    Peer& peer = peers_[id];
    if (peer.must_ack || peer.is_gone) return;
    peer.must_ack = true;
    acks_.append(peers_, id);
  }
  // For what carries no data. Another one each time: the one before may be dead. In no order, as in turns a
  // question and its answer might always meet a living path and a dead one.
  uint32_t pick_control_path(Peer& peer) {
    const uint32_t live = paths_of(port().live_rails()) & peer.paths.all();
    const uint32_t good = live & ~peer.paths.resting(), any = good != 0   ? good
                                                              : live != 0 ? live
                                                                          : peer.paths.all();
    control_draw_ = control_draw_ * 1664525 + 1013904223;
    const uint32_t turn = control_draw_ >> 27;
    static_assert(kPaths == 1U << (32 - 27));
    return (turn + static_cast<uint32_t>(std::countr_zero(std::rotr(any, static_cast<int>(turn))))) % kPaths;
  }

 private:
  using Told = ReceiveMessage::Told;

  Port& port() { return port_; }

  static constexpr uint32_t kMaxRecords = 0xFFFF;
  static constexpr uint32_t kTurnPackets = 4;  // of one peer, before the next has its turn
  static constexpr int64_t kFreshPathNs = 1'000'000;
  static constexpr int64_t kFirstWishNs = 250'000;
  static constexpr uint8_t kMostWishDoublings = 10;
  static constexpr uint32_t kRepeatedRequests = 4;  // at a time
  static constexpr uint32_t kMostAcks = 8;          // in a row
  static constexpr uint8_t kEagerTries = 2;         // then a packet waits for its grant

  auto timers() {
    return [this](uint32_t id) -> TimerLink& { return peers_[id].timer; };
  }
  Stamp now() { return make_stamp(port().now_ns()); }
  // Of a pass.
  struct Moment {
    int64_t ns;
    Stamp stamp;
  };
  Moment moment() { return {port().now_ns(), now()}; }
  static uint32_t count_packets(const Peer& peer, uint64_t bytes) {
    const uint64_t packets = (bytes + peer.data_bytes - 1) / peer.data_bytes;
    return packets == 0 ? 1 : static_cast<uint32_t>(packets);
  }
  static void enter(std::vector<uint32_t>& channels, uint16_t wire, uint32_t id) {
    if (channels.size() <= wire) channels.resize(size_t{wire} + 1, kNoObject);
    channels[wire] = id;
  }

  // --- Sending.

  void set_state(Peer& peer, uint32_t id, SendState state) {
    SendMessage& message = sends_[id];
    if (LinkedList<StateLink>* list = list_of(peer, message.state)) list->remove(sends_, id);
    message.state = state;
    if (LinkedList<StateLink>* list = list_of(peer, state)) list->append(sends_, id);
  }
  static LinkedList<StateLink>* list_of(Peer& peer, SendState state) {
    switch (state) {
      case SendState::kFresh:
        return &peer.fresh;
      case SendState::kReady:
        return &peer.ready;
      case SendState::kWaiting:
        return &peer.waiting;
      case SendState::kSent:
        return &peer.sent;
      default:
        return nullptr;
    }
  }
  // Of packets that were never sent.
  static void give_back_credits(Peer& peer, const SendMessage& message) {
    if (message.state == SendState::kReady && message.next < message.eager)
      peer.eager_reserved -= message.eager - message.next;
  }
  // Eager credits go to the oldest message without leave. The others tell the receiver what they want.
  void admit(uint32_t peer_id) {
    Peer& peer = peers_[peer_id];
    if (peer.is_gone) return;
    while (!peer.fresh.is_empty()) {
      const uint32_t id = peer.fresh.first();
      SendMessage& message = sends_[id];
      const int32_t left = std::min(count_between(peer.eager_reserved, peer.eager_limit),
                                    count_between(peer.eager_reserved, peer.eager_unacked + kEagerSpan));
      if (left <= 0) break;
      message.eager = std::min(static_cast<uint32_t>(left), message.packets);
      peer.eager_reserved += message.eager;
      set_state(peer, id, SendState::kReady);
    }
    if (!peer.ready.is_empty() || !peer.lost.is_empty() || has_wishes(peer)) enter_active(peer_id, peer);
  }
  bool has_wishes(const Peer& peer) const {
    return !peer.fresh.is_empty() && !sends_[peer.fresh.last()].has_wished;
  }
  // Of those that the peer has not been told of.
  void send_wishes(uint32_t peer_id, Peer& peer) {
    WishList wishes;
    // The oldest of them: from the newest back to the first that it has been told of.
    uint32_t first = kNoObject;
    for (uint32_t id = peer.fresh.last(); id != kNoObject && !sends_[id].has_wished;
         id = sends_[id].link.previous)
      first = id;
    for (uint32_t id = first; id != kNoObject && !wishes.is_full(); id = sends_[id].link.next)
      add_wish(wishes, id);
    post_request(peer_id, peer, wishes.get());
    if (peer.wish_ns == kNeverNs) wish_later(peer_id, peer);
  }
  // Of all that wait, in turn: the wish may be lost, or the grant.
  [[gnu::noinline]] void repeat_wishes(uint32_t peer_id, Peer& peer) {
    for (uint32_t left = kRepeatedRequests; left != 0; --left) {
      WishList wishes;
      uint32_t skip = peer.wish_turn;
      for (const uint32_t head : {peer.fresh.first(), peer.waiting.first(), peer.sent.first()}) {
        for (uint32_t id = head; id != kNoObject && !wishes.is_full(); id = sends_[id].link.next) {
          if (sends_[id].granted == sends_[id].packets) continue;
          skip != 0 ? static_cast<void>(--skip) : add_wish(wishes, id);
        }
      }
      const bool is_round_over = !wishes.is_full();
      peer.wish_turn = is_round_over ? 0 : peer.wish_turn + kMaxWishesPerRequest;
      if (wishes.count != 0 || left == kRepeatedRequests) post_request(peer_id, peer, wishes.get());
      if (is_round_over) break;
    }
    wish_later(peer_id, peer);
  }
  struct WishList {
    std::array<Wish, kMaxWishesPerRequest> wishes;
    uint32_t count = 0;
    bool is_full() const { return count == wishes.size(); }
    std::span<const Wish> get() const { return {wishes.data(), count}; }
  };
  void add_wish(WishList& list, uint32_t id) {
    SendMessage& message = sends_[id];
    message.has_wished = true;
    list.wishes[list.count++] = {send_channels_[message.channel].wire,
                                 static_cast<uint16_t>(message.number % kMessageNumbers), message.packets};
  }
  void post_request(uint32_t peer_id, Peer& peer, std::span<const Wish> wishes) {
    ++statistics_.sent_requests;
    if (peer.owed_since_ns == kNeverNs) peer.owed_since_ns = port().now_ns();
    port().post_request(peer_id, pick_control_path(peer), wishes);
  }
  void wish_later(uint32_t peer_id, Peer& peer) {
    peer.wish_ns = port().now_ns() + (kFirstWishNs << peer.wish_doublings);
    if (peer.wish_doublings < kMostWishDoublings) ++peer.wish_doublings;
    file_timer(peer_id, peer);
  }

  void enter_active(uint32_t id, Peer& peer) {
    if (peer.is_active || peer.is_gone) return;
    peer.is_active = true;
    active_.append(peers_, id);
  }
  void leave_active(uint32_t id) {
    peers_[id].is_active = false;
    active_.remove(peers_, id);
  }
  // Peers in turn, a few packets each, while a rail has room. One whose rails have none holds up no other:
  // all are tried once more since anything was sent.
  void send_packets() {
    const Moment now = moment();
    uint32_t rooms = port().rooms(), blocked = kNoObject;
    uint64_t sent_packets = 0;  // when `blocked` was found to be that
    while (rooms != 0 && !active_.is_empty()) {
      const uint32_t id = active_.first();
      Peer& peer = peers_[id];
      active_.remove(peers_, id);
      peer.is_active = false;
      if (has_wishes(peer)) send_wishes(id, peer);
      uint32_t left = kTurnPackets;
      while (left != 0 && rooms != 0 && send_next(id, peer, rooms, now)) {
        --left;
        rooms = port().rooms();
      }
      file_timer(id, peer);
      if (!has_room(peer) || (peer.lost.is_empty() && !may_send_new(peer))) continue;
      enter_active(id, peer);
      if (left != kTurnPackets) [[likely]]
        continue;
      if (blocked == id && sent_packets == statistics_.sent_packets) return;
      if (blocked == kNoObject || sent_packets != statistics_.sent_packets)
        blocked = id, sent_packets = statistics_.sent_packets;
    }
  }
  // Eager packets are bounded by their credits: what is granted has room whatever becomes of them.
  static bool has_room(const Peer& peer) { return peer.in_flight < peer.guard.window(); }
  static bool has_numbers(const Peer& peer) {
    return peer.sent_span() < kSpan && peer.known < RecordTable::kMost;
  }
  bool may_send_new(const Peer& peer) const {
    if (peer.ready.is_empty()) return false;
    const SendMessage& message = sends_[peer.ready.first()];
    return message.next < message.eager || has_numbers(peer);
  }
  // False: nothing may be sent now.
  bool send_next(uint32_t id, Peer& peer, uint32_t rooms, const Moment& now) {
    if (!has_room(peer)) return false;
    const uint32_t lost = peer.lost.first();
    if (lost == kNoObject && (!may_send_new(peer) || records_.used() >= kMaxRecords)) return false;
    const uint32_t avoided = lost != kNoObject ? records_[lost].path : kPaths;
    const uint32_t path = peer.paths.pick(paths_of(rooms), avoided, now.stamp);
    if (path == PathTable::kNoPath) return false;
    lost != kNoObject ? resend(id, peer, lost, path, now) : send_new(id, peer, path, now);
    return true;
  }
  void send_new(uint32_t peer_id, Peer& peer, uint32_t path, const Moment& now) {
    const uint32_t id = peer.ready.first();
    SendMessage& message = sends_[id];
    if (peer.flight.is_empty() && peer.lost.is_empty()) peer.newest_paths = 0, peer.has_newest = false;
    const uint32_t record_id = records_.take();
    SendRecord& record = records_[record_id];
    record = SendRecord{};
    record.message = id;
    record.index = message.next++;
    record.took_credit = record.index < message.eager;
    if (record.took_credit) {
      if (peer.eager_unacked == peer.eager_next) peer.eager_oldest_ns = now.ns;
      record.psn = peer.eager_next++;
      peer.eager_records[record.psn % kEagerSpan] = static_cast<uint16_t>(record_id);
    } else {
      if (peer.records == kNoObject) peer.records = tables_.take();
      if (peer.unacked == peer.next) peer.oldest_ns = now.ns;
      record.psn = peer.next++;
      tables_[peer.records].enter(records_, record_id);
      ++peer.known;
      peer.open.set(record.psn);
    }
    if (message.next == message.packets) {
      set_state(peer, id, SendState::kSent);
    } else if (message.next >= message.allowed()) {
      set_state(peer, id, SendState::kWaiting);
      if (peer.wish_ns == kNeverNs) wish_later(peer_id, peer);
    }
    post_record(peer_id, peer, record_id, record, &message, path, now);
  }
  [[gnu::noinline]] void resend(uint32_t peer_id, Peer& peer, uint32_t record_id, uint32_t path,
                                const Moment& now) {
    SendRecord& record = records_[record_id];
    const bool is_probe = record.where == SendRecord::Where::kFlight;
    if (is_probe && record.path != path) peer.paths.note_unknown(record.path, now.stamp);
    leave_list(peer, record_id);
    ++statistics_.resent_packets;
    const SendMessage* const message = record.message == kNoObject ? nullptr : &sends_[record.message];
    post_record(peer_id, peer, record_id, record, message, path, now);
  }
  // `message`: null if its channel is closed.
  [[gnu::always_inline]] void post_record(uint32_t peer_id, Peer& peer, uint32_t record_id,
                                          SendRecord& record, const SendMessage* message, uint32_t path,
                                          const Moment& now) {
    record.path = static_cast<uint8_t>(path);
    record.sent = now.stamp;
    enter_list(peer, record_id, record, SendRecord::Where::kFlight);
    peer.sent_ns = now.ns;
    if (peer.owed_since_ns == kNeverNs) peer.owed_since_ns = peer.sent_ns;
    ++statistics_.sent_packets;
    const bool is_resent = record.tries != 0;
    if (record.tries != UINT8_MAX) ++record.tries;
    OutPacket packet{.psn = record.psn,
                     .message = record.message,
                     .index = record.index,
                     .kind = PacketKind::kEager,
                     .path = record.path,
                     .is_last = false,
                     .asks = is_resent,
                     .is_resent = is_resent,
                     .took_credit = record.took_credit,
                     .backlog = 0};
    if (message != nullptr) [[likely]] {
      const uint32_t behind = message->packets - record.index - 1;
      if (record.index < message->granted) packet.kind = PacketKind::kGranted;
      packet.is_last = behind == 0;
      packet.asks |= packet.is_last;
      packet.backlog = static_cast<uint16_t>(std::min<uint32_t>(behind, kMostBacklog));
    }
    record.posted = port().post_data(peer_id, packet);
  }
  static LinkedList<StateLink>& list_of(Peer& peer, SendRecord::Where where) {
    return where == SendRecord::Where::kFlight ? peer.flight
           : where == SendRecord::Where::kLost ? peer.lost
                                               : peer.held_back;
  }
  void enter_list(Peer& peer, uint32_t record_id, SendRecord& record, SendRecord::Where where) {
    record.where = where;
    if (where == SendRecord::Where::kFlight && !record.took_credit) ++peer.in_flight;
    list_of(peer, where).append(records_, record_id);
  }
  void leave_list(Peer& peer, uint32_t record_id) {
    SendRecord& record = records_[record_id];
    if (record.where == SendRecord::Where::kFlight && !record.took_credit) --peer.in_flight;
    list_of(peer, record.where).remove(records_, record_id);
  }
  uint32_t paths_of(uint32_t rails) const {
    if (options_.rails == 1) return rails != 0 ? ~0U : 0;
    uint32_t paths = 0;
    for (; rails != 0; rails &= rails - 1)
      paths |= paths_of_rail_[static_cast<uint32_t>(std::countr_zero(rails))];
    return paths;
  }
  // Back the way that data came: of that rail both ends' ports work. Our own paths to this peer may never
  // have carried anything that would have told.
  uint32_t pick_ack_path(Peer& peer) {
    const bool is_fresh = peer.data_path != kPaths && port().now_ns() - peer.echo_ns < kFreshPathNs;
    const bool works =
        is_fresh && ((paths_of(port().live_rails()) & peer.reachable) >> peer.data_path & 1) != 0;
    return works ? peer.data_path : pick_control_path(peer);
  }

  // --- Receiving.

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
      ++statistics_.strays;
      return {Verdict::kStray};
    }
    free_page(packet.page, packet.is_short());
    ++statistics_.duplicates;
    peer.window.count_duplicate();
    const bool is_burst = ++peer.unacked_duplicates >= options_.ack_packets;
    owe_ack(peer_id, peer, packet.asks || is_burst);
    return {Verdict::kDuplicate};
  }
  struct Arrived {
    ReceiveMessage* message = nullptr;  // of a packet that is taken
    uint64_t least_bytes = 0;           // that it has
  };
  // Where it belongs, and whether it may lie there. Nothing has changed unless it is taken or dropped.
  [[gnu::always_inline]] Placed place(Peer& peer, const InPacket& packet, Arrived& arrived) {
    if (packet.channel >= peer.receive_channels.size() || peer.receive_channels[packet.channel] == kNoObject)
        [[unlikely]]
      return place_nowhere(peer, packet);
    const uint32_t channel_id = peer.receive_channels[packet.channel];
    ReceiveChannel& channel = receive_channels_[channel_id];
    if (channel.gate != ReceiveChannel::Gate::kOpen) [[unlikely]] {
      if (!channel.is_closed()) return {Verdict::kTooLong};
      if (packet.took_credit) ++peer.eager_settled;
      return {Verdict::kDropped};
    }
    const uint32_t ahead = (packet.place.message - channel.consumed) % kMessageNumbers;
    const bool is_full = packet.length_bytes == peer.data_bytes;
    if (packet.length_bytes > peer.data_bytes || (!packet.is_last && !is_full)) return {Verdict::kStray};
    if (packet.place.index + 1 + packet.backlog >= kMaxPacketIndex) return {Verdict::kStray};
    if (packet.is_short() && !is_all_of_short(packet)) return {Verdict::kStray};
    if (ahead >= kRing) return {ahead < kMessageNumbers / 2 ? Verdict::kRefused : Verdict::kStray};
    const uint32_t id = find_receive(channel, channel.consumed + ahead);
    ReceiveMessage& message = receives_[id];
    const uint64_t least_bytes = find_least_bytes(peer, packet);
    arrived = {&message, least_bytes};
    if (message.state == ReceiveState::kPosted) [[likely]] {
      if (contradicts(message, packet, least_bytes)) return {Verdict::kStray};
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
  // Whose message has one packet, which is as long as a short page at most.
  static bool is_all_of_short(const InPacket& packet) {
    return packet.is_last && packet.place.index == 0 && packet.length_bytes <= kShortBytes;
  }
  [[gnu::cold, gnu::noinline]] static Placed place_nowhere(Peer& peer, const InPacket& packet) {
    if (packet.channel != kNoChannel) return {Verdict::kRefused};  // its hello has not come
    if (packet.took_credit) ++peer.eager_settled;
    return {Verdict::kDropped};
  }
  // So many bytes its message has at least; as many if it is the last.
  static uint64_t find_least_bytes(const Peer& peer, const InPacket& packet) {
    const uint64_t before = uint64_t{packet.place.index + packet.backlog} * peer.data_bytes;
    return before + (packet.is_last ? packet.length_bytes : 1);
  }
  // The last packet says how many there are, each other how many come behind it. Wishes have no numbers: what
  // a late one says of an earlier message contradicts nothing.
  static bool contradicts(const ReceiveMessage& message, const InPacket& packet, uint64_t least_bytes) {
    const uint32_t end = packet.place.index + 1;
    if (message.received != 0 && message.is_short != packet.is_short())
      return true;  // its pages are of a kind
    if (message.total != 0)
      return end + packet.backlog > message.total || (packet.is_last && end != message.total);
    return packet.is_last && (message.received >= end || message.bytes > least_bytes);
  }
  bool may_park(const Peer& peer, const InPacket& packet) const {
    const PageBudget& budget = packet.is_short() ? short_budget_ : budget_;
    return peer.parked < options_.eager_packets && budget.may_park();
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
    if (packet.is_short()) message.is_short = message.is_copied = true;
    const uint32_t pages = packet.length_bytes != 0 ? 1 : 0;
    pages != 0 ? hold(message, packet) : free_page(packet.page, packet.is_short());
    if (message.state == ReceiveState::kParked) [[unlikely]] {
      budget_of(message).note_parked(pages);
      ++peer.parked;
      return note_to_ack(peer_id, peer, packet.asks || is_complete(message));
    }
    budget_of(message).note_held(pages);
    if (is_complete(message)) {
      settle_eager(peer, message);
      note_to_ack(peer_id, peer, true);
      return finish_arrival(id, message);
    }
    if (message.granted != 0) settle_eager(peer, message);
    if (message.granted < message.wanted && !message.is_wanting) want_grants(peer_id, peer, id, message);
    note_to_ack(peer_id, peer, packet.asks);
    move_early(id, message);
  }
  // Behind the others of its message.
  void hold(ReceiveMessage& message, const InPacket& packet) {
    ++message.held;
    pages_[packet.page] = {kNoObject, packet.place.index, packet.length_bytes};
    (message.first_page == kNoObject ? message.first_page : pages_[message.last_page].next) = packet.page;
    message.last_page = packet.page;
  }
  // What is copied before the rest is here: by choice, or as there are more pages than may be lent.
  void move_early(uint32_t id, ReceiveMessage& message) {
    if (!message.is_copied && message.held <= message.most_pages) [[likely]]
      return;
    message.is_copied = true;
    move_held(id, message);
  }
  void note_delay(Peer& peer, const InPacket& packet) {
    const Stamp stamp = now();
    peer.echo = packet.time;
    peer.echo_ns = port().now_ns();
    peer.has_echo = true;
    peer.data_path = packet.path;
    const uint32_t late = peer.delay.note(packet.time, stamp);
    if (packet.was_marked || late > static_cast<uint32_t>(options_.late_ns / kStampNs)) {
      peer.late_paths |= 1U << packet.path;
      ++statistics_.late_marks;
    }
  }
  void note_heard(Peer& peer) {
    peer.heard_ns = port().now_ns();
    peer.owed_since_ns = kNeverNs;
  }
  void note_to_ack(uint32_t peer_id, Peer& peer, bool at_once) {
    ++peer.unacked_packets;
    owe_ack(peer_id, peer, at_once || peer.unacked_packets >= options_.ack_packets);
  }
  void owe_ack(uint32_t peer_id, Peer& peer, bool at_once) {
    if (at_once) return must_ack(peer_id);
    if (peer.ack_ns != kNeverNs || peer.must_ack) return;
    peer.ack_ns = port().now_ns() + options_.loss.ack_delay;
    wheel_.file(peer_id, peer.ack_ns, timers());
  }
  void settle_parked(Peer& peer, ReceiveMessage& message) {
    if (message.state != ReceiveState::kParked) return;
    peer.parked -= message.received;
    if (is_complete(message)) settle_eager(peer, message);
  }
  // They are free again once the message is here, or its grants have taken over: of a message that waits for
  // its turn the sender has sent enough.
  static void settle_eager(Peer& peer, ReceiveMessage& message) {
    peer.eager_settled += std::exchange(message.eager, 0);
  }

  void finish_arrival(uint32_t id, ReceiveMessage& message) {
    withdraw(message, id);
    ++statistics_.received_messages;
    const bool is_lent = !message.is_copied && message.moving == 0 && message.held <= message.most_pages &&
                         budget_.may_lend(message.held);  // I1
    if (is_lent) {
      budget_.lend(message.held);
      message.lent = std::exchange(message.held, 0);
      ++statistics_.lent_messages;
      return hand_over(id, message);
    }
    if (!message.is_copied) ++statistics_.evacuations;
    message.is_copied = true;
    ++statistics_.copied_messages;
    message.state = ReceiveState::kMoving;
    if (message.held != 0) move_held(id, message);
    if (message.held == 0 && message.moving == 0 && message.state == ReceiveState::kMoving)
      hand_over(id, message);
  }
  void hand_over(uint32_t id, ReceiveMessage& message) {
    message.state = ReceiveState::kDone;
    port().note_received(id);
  }
  // The port copies them at once, or in its time.
  void move_held(uint32_t id, ReceiveMessage& message) {
    const uint64_t data_bytes = peers_[receive_channels_[message.channel].peer].data_bytes;
    uint32_t count = 0, moved = 0;
    for (uint32_t page = std::exchange(message.first_page, kNoObject); page != kNoObject; ++count) {
      const HeldPage held = pages_[page];
      // on_data() has compared the two; this is the last line before somebody else's memory.
      const uint64_t offset = held.index * data_bytes;
      const bool fits = offset + held.length_bytes <= message.room_bytes;
      if (!fits || port().copy_page(id, page, offset, held.length_bytes)) {
        port().put_back(page);
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
      port().put_back(std::exchange(page, pages_[page].next));
  }
  void free_page(uint32_t page, bool is_short) {
    port().put_back(page);
    add_idle(1, is_short);
  }

  // --- Grants.

  friend Grants;
  auto& receives() { return receives_; }
  uint32_t peer_of(const ReceiveMessage& message) const { return receive_channels_[message.channel].peer; }
  GrantAccount& account(uint32_t peer) { return peers_[peer].grants; }
  uint32_t count_grantable(uint32_t outstanding) {
    return budget_.count_grantable(outstanding, port().live_rails());
  }
  void note_granted(uint32_t id, ReceiveMessage& message) {
    settle_eager(peers_[receive_channels_[message.channel].peer], message);
    announce(id, message);
  }
  // Its sender has stopped: pages that wait for the rest of it are not held for that.
  void note_taken_back(uint32_t id, ReceiveMessage&) { evacuate(id); }

  void want_grants(uint32_t peer_id, Peer& peer, uint32_t id, ReceiveMessage& message) {
    if (message.granted >= message.wanted || message.state != ReceiveState::kPosted || peer.is_gone) return;
    grants_.want(*this, id, message, peer_id, peer.grants);
  }
  // Not served any more, nothing awaited.
  void withdraw(ReceiveMessage& message, uint32_t id) {
    grants_.withdraw(*this, id, message);
    if (message.told != Told::kAll) {
      Peer& peer = peers_[receive_channels_[message.channel].peer];
      take_out(message.told == Told::kNot ? peer.not_told : peer.told_once, id);
      message.told = Told::kAll;
    }
  }
  [[gnu::noinline]] void serve() {
    grants_.serve(*this, port().now_ns());
    if (grants_.is_any_wanted() && grants_.outstanding() < credits_ && budget_.moving() == 0) evacuate();
  }
  // Packets wait for pages: what posted receives hold is copied, the oldest first, until something moves.
  [[gnu::cold, gnu::noinline]] void evacuate() {
    grants_.for_each_wanting(*this, [this](uint32_t id) {
      evacuate(id);
      return budget_.moving() == 0;
    });
  }
  void evacuate(uint32_t id) {
    ReceiveMessage& message = receives_[id];
    if (message.held == 0) return;
    if (!message.is_copied) ++statistics_.evacuations;
    message.is_copied = true;
    move_held(id, message);
  }
  void announce(uint32_t id, ReceiveMessage& message) {
    const uint32_t peer_id = receive_channels_[message.channel].peer;
    must_ack(peer_id);
    Peer& peer = peers_[peer_id];
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
      if (is_before(number, channel.next)) return;  // consumed
      begin_receive(message, channel_id, number);
    }
    if (message.state > ReceiveState::kPosted) return;
    const bool is_posted = message.state == ReceiveState::kPosted;
    const uint32_t most = is_posted ? count_packets(peer, message.room_bytes) : kMaxPacketIndex;
    if (message.total == 0) message.wanted = std::max(message.wanted, std::min(wish.packets, most));
    if (!is_posted) return;
    if (message.outstanding() != 0) announce(id, message);  // which the sender does not know
    want_grants(peer_id, peer, id, message);
  }

  // --- Acknowledgements.

  void send_acks(uint32_t id) {
    Peer& peer = peers_[id];
    acks_.remove(peers_, id);
    peer.must_ack = false;
    peer.ack_ns = kNeverNs;
    if (peer.is_gone) return;
    // One for what is usual. More where a burst was longer than it can tell of: what is not told of soon
    // counts as lost.
    int left = static_cast<int>(std::min(peer.unacked_packets / (kSlicePackets / 4), kMostAcks));
    do {
      const uint32_t path = pick_ack_path(peer);
      if (!port().has_room_for_ack(path)) [[unlikely]]
        return owe_ack(id, peer, false);  // soon: the others go first
      Ack ack;
      ack.cumulative = peer.window.cumulative();
      ack.base = peer.window.choose_slice();
      peer.window.read_slice(ack.base, ack.body.received);
      const int64_t hold = (port().now_ns() - peer.echo_ns) / kStampNs;
      ack.body.echo = peer.echo;
      ack.body.hold =
          std::exchange(peer.has_echo, false) && hold < kNoSample ? static_cast<uint16_t>(hold) : kNoSample;
      ack.body.duplicates = peer.window.duplicates();
      ack.body.late_paths = std::exchange(peer.late_paths, 0);
      ack.body.eager_limit = peer.eager_settled + options_.eager_packets;
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
      ++statistics_.sent_acks;
      port().post_ack(id, path, ack);
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

  // Which packets the peer has; how many of them are news.
  uint32_t absorb_slice(Peer& peer, uint32_t cumulative, uint32_t base, const AckBody& body) {
    uint32_t delivered = 0;
    const auto take = [&](uint32_t first, uint64_t bits) {
      bits &= peer.open.word(first);
      for (; bits != 0; bits &= bits - 1, ++delivered) {
        const uint32_t psn = first + static_cast<uint32_t>(std::countr_zero(bits));
        peer.open.clear(psn);
        --peer.known;
        deliver(peer, tables_[peer.records].remove(records_, psn));
      }
    };
    if (is_before(peer.unacked, cumulative)) {
      for (uint32_t word = peer.unacked / 64 * 64; is_before(word, cumulative); word += 64) {
        const int32_t left = count_between(word, cumulative);
        take(word, left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1);
      }
      peer.unacked = cumulative;
      peer.oldest_ns = port().now_ns();
    }
    if (base % 64 != 0) return delivered;
    for (uint32_t i = 0; i < body.received.size(); ++i) {
      const uint32_t word = base + i * 64;
      const bool is_live = count_between(word, peer.next) > 0 && count_between(peer.unacked, word + 63) >= 0;
      if (is_live && body.received[i] != 0) take(word, body.received[i]);
    }
    return delivered;
  }
  uint32_t absorb_eager(Peer& peer, const AckBody& body) {
    if (count_between(body.eager_cumulative, peer.eager_next) < 0) return 0;  // of what was never sent
    uint32_t delivered = 0;
    const auto take = [&](uint32_t number) {
      uint16_t& record = peer.eager_records[number % kEagerSpan];
      if (record == kNoRecord || records_[record].psn != number) return;
      deliver(peer, std::exchange(record, kNoRecord));
      ++delivered;
    };
    if (is_before(peer.eager_unacked, body.eager_cumulative)) peer.eager_oldest_ns = port().now_ns();
    for (; is_before(peer.eager_unacked, body.eager_cumulative); ++peer.eager_unacked)
      take(peer.eager_unacked);
    for (uint32_t bits = body.eager_received; bits != 0; bits &= bits - 1)
      take(body.eager_cumulative + static_cast<uint32_t>(std::countr_zero(bits)));
    return delivered;
  }
  void deliver(Peer& peer, uint32_t record_id) {
    SendRecord& record = records_[record_id];
    leave_list(peer, record_id);
    Stamp left;
    (void)has_left(record, left);  // the news of that may be behind that of its arrival
    if (!peer.has_newest || is_before(peer.newest, left)) peer.newest = left, peer.has_newest = true;
    const uint32_t bit = 1U << record.path;
    if ((peer.newest_paths & bit) == 0 || is_before(peer.newest_of[record.path], left)) {
      peer.newest_of[record.path] = left;
      peer.newest_paths |= bit;
    }
    peer.paths.note_delivered(record.path);
    const uint32_t message_id = record.message;
    records_.give_back(record_id);
    if (message_id == kNoObject) return;  // its channel is closed
    SendMessage& message = sends_[message_id];
    if (++message.acked == message.packets) {
      set_state(peer, message_id, SendState::kDone);
      ++statistics_.sent_messages;
      port().note_sent(message_id);
    }
  }
  void absorb_round_trip(Peer& peer, const AckBody& body) {
    const Stamp units = now() - body.echo - body.hold;
    if (units > kLongestSample) return;  // of no packet of ours
    const int64_t sample_ns = int64_t{units} * kStampNs, now_ns = port().now_ns();
    peer.loss.note_round_trip(sample_ns, now_ns);
    peer.guard.note_round_trip(sample_ns, peer.loss.shortest_ns(), int64_t{credits_} * options_.packet_ns,
                               now_ns);
  }
  void absorb_duplicates(Peer& peer, uint16_t duplicates) {
    const auto more = static_cast<int16_t>(duplicates - peer.told_duplicates);
    if (more <= 0) return;
    peer.told_duplicates = duplicates;
    statistics_.in_vain += static_cast<uint64_t>(more);
    peer.loss.note_in_vain(port().now_ns());
  }
  void absorb_grant(Peer& peer, const GrantRecord& grant) {
    if (grant.channel >= peer.send_channels.size() || peer.send_channels[grant.channel] == kNoObject) return;
    SendChannel& channel = send_channels_[peer.send_channels[grant.channel]];
    const Place place = Place::decode(grant.place);
    const uint32_t back = (channel.next - place.message) % kMessageNumbers;
    if (back == 0 || back > kRing || channel.ring == kNoObject) return;
    const uint32_t number = channel.next - back, id = channel.ring * kRing + number % kRing;
    SendMessage& message = sends_[id];
    if (message.number != number || message.state == SendState::kFree || place.index <= message.granted)
      return;
    message.granted = std::min(place.index, message.packets);
    peer.wish_doublings = 0;
    if (peer.wish_ns != kNeverNs) peer.wish_ns = std::min(peer.wish_ns, port().now_ns() + kFirstWishNs);
    release_held_back(peer, id);
    if ((message.state == SendState::kFresh || message.state == SendState::kWaiting) &&
        message.next < message.granted)
      set_state(peer, id, SendState::kReady);
  }

  // Packets that are granted now.
  void release_held_back(Peer& peer, uint32_t message_id) {
    for (uint32_t id = peer.held_back.first(); id != kNoObject;) {
      const SendRecord& record = records_[id];
      const uint32_t next = record.link.next;
      if (record.message == message_id && record.index < sends_[message_id].granted)
        release_held_back_record(peer, id);
      id = next;
    }
  }
  // The time for which it was held back is not the peer's.
  void release_held_back_record(Peer& peer, uint32_t id) {
    leave_list(peer, id);
    enter_list(peer, id, records_[id], SendRecord::Where::kLost);
    if (records_[id].psn == peer.eager_unacked) peer.eager_oldest_ns = port().now_ns();
  }

  // --- Losses.

  // `when`: at the earliest.
  bool has_left(const SendRecord& record, Stamp& when) {
    when = record.sent;
    const bool has = port().has_left(record.posted, when);
    if (is_before(when, record.sent)) when = record.sent;
    return has;
  }
  // What left so much before something that has arrived. When a packet was posted says little of that: it may
  // wait in a long send queue while others overtake it in a short one.
  void find_lost(Peer& peer) {
    if (!peer.has_newest) return;
    const auto same = static_cast<int32_t>(peer.loss.same_path_ns() / kStampNs);
    const auto across = static_cast<int32_t>(peer.loss.across_paths_ns() / kStampNs);
    for (uint32_t id = peer.flight.first(); id != kNoObject;) {
      SendRecord& record = records_[id];
      if (count_between(record.sent + static_cast<Stamp>(same), peer.newest) <= 0) break;
      const uint32_t next = record.link.next;
      Stamp left;
      if (has_left(record, left)) {
        const bool is_overtaken = (peer.newest_paths >> record.path & 1) != 0 &&
                                  count_between(left, peer.newest_of[record.path]) > same;
        if (is_overtaken || count_between(left, peer.newest) > across) lose(peer, id);
      }
      id = next;
    }
  }
  void lose(Peer& peer, uint32_t record_id) {
    SendRecord& record = records_[record_id];
    leave_list(peer, record_id);
    // An eager packet may have found no page, which is not its path's fault, and will find none the next
    // time.
    const bool may_be_refused =
        record.took_credit && record.message != kNoObject && record.index >= sends_[record.message].granted;
    if (may_be_refused) {
      peer.paths.note_unknown(record.path, now());
    } else if (peer.paths.note_lost(record.path, now())) {
      ++statistics_.rested_paths;
    }
    const bool is_held_back = may_be_refused && record.tries >= kEagerTries;
    enter_list(peer, record_id, record,
               is_held_back ? SendRecord::Where::kHeldBack : SendRecord::Where::kLost);
    if (is_held_back && peer.wish_ns == kNeverNs) peer.wish_ns = port().now_ns();
  }
  // Records of messages that are no more: their numbers are still to be told.
  void drop_flight(uint32_t peer_id, Peer& peer, uint32_t ring) {
    for (LinkedList<StateLink>* list : {&peer.flight, &peer.lost, &peer.held_back}) {
      for (uint32_t id = list->first(); id != kNoObject;) {
        SendRecord& record = records_[id];
        const uint32_t next = record.link.next;
        if (record.message != kNoObject && record.message / kRing == ring) {
          record.message = kNoObject;
          if (list == &peer.held_back) release_held_back_record(peer, id);
        }
        id = next;
      }
    }
    if (!peer.lost.is_empty()) enter_active(peer_id, peer);
  }
  void forget_flight(Peer& peer) {
    for (LinkedList<StateLink>* list : {&peer.flight, &peer.lost, &peer.held_back}) {
      while (!list->is_empty()) {
        const uint32_t id = list->first();
        list->remove(records_, id);
        records_.give_back(id);
      }
    }
    peer.in_flight = peer.known = 0;
    peer.open = {};
    peer.unacked = peer.next;
    peer.eager_unacked = peer.eager_next;
    peer.eager_records.fill(kNoRecord);
    give_back_table(peer);
  }
  void give_back_table(Peer& peer) {
    if (peer.records == kNoObject) return;
    tables_[peer.records] = {};
    tables_.give_back(std::exchange(peer.records, kNoObject));
  }

  // --- Time.

  int64_t age_ns(Stamp sent) { return int64_t{now() - sent} * kStampNs; }
  int64_t find_probe_ns(const Peer& peer) const {
    return peer.has_probed || peer.flight.is_empty()
               ? kNeverNs
               : std::max(peer.sent_ns, peer.heard_ns) + peer.loss.probe_ns();
  }
  int64_t find_timeout_ns(const Peer& peer) {
    if (peer.flight.is_empty()) return kNeverNs;
    return port().now_ns() - age_ns(records_[peer.flight.first()].sent) + peer.loss.timeout_ns();
  }
  void file_timer(uint32_t id, Peer& peer) {
    if (peer.is_gone) return;
    const int64_t silence_ns =
        peer.owed_since_ns == kNeverNs ? kNeverNs : peer.owed_since_ns + options_.silence_ns;
    const int64_t next_ns =
        std::min({peer.ack_ns, peer.wish_ns, find_probe_ns(peer), find_timeout_ns(peer), silence_ns});
    if (next_ns != kNeverNs) wheel_.file(id, next_ns, timers());
  }
  [[gnu::noinline]] void on_timer(uint32_t id, int64_t filed_ns, int64_t now_ns) {
    Peer& peer = peers_[id];
    if (peer.is_gone || !peer.is_open) return;
    if (now_ns - filed_ns > options_.silence_ns / 8) [[unlikely]]
      forgive_pause(peer, filed_ns, now_ns);
    if (peer.ack_ns <= now_ns) {
      peer.ack_ns = kNeverNs;
      must_ack(id);
    }
    if (peer.owed_since_ns != kNeverNs && now_ns - peer.owed_since_ns >= options_.silence_ns) {
      port().note_silent(id);
      if (peer.is_gone || !peer.is_open) return;
      peer.owed_since_ns = now_ns;
    }
    if (const uint32_t stuck = find_stuck(peer, now_ns); stuck != kNoObject) [[unlikely]] {
      port().note_stuck(id, records_[stuck].message);
      if (peer.is_gone || !peer.is_open) return;
      peer.oldest_ns = peer.eager_oldest_ns = now_ns;
    }
    if (find_timeout_ns(peer) <= now_ns) {
      time_out(peer);
      enter_active(id, peer);
    } else if (find_probe_ns(peer) <= now_ns) {
      const uint32_t newest = peer.flight.last();
      const uint32_t path = peer.paths.pick(paths_of(port().rooms()), records_[newest].path, now());
      peer.has_probed = true;
      if (path != PathTable::kNoPath) ++statistics_.probes, resend(id, peer, newest, path, moment());
    }
    if (peer.wish_ns <= now_ns) {
      peer.wish_ns = kNeverNs;
      if (!peer.fresh.is_empty() || !peer.waiting.is_empty() || !peer.held_back.is_empty()) {
        repeat_wishes(id, peer);
      } else {
        peer.wish_doublings = 0;
      }
    }
    file_timer(id, peer);
  }
  // We were not there: stopped, frozen or without a processor, as the peer may have been. What it said
  // meanwhile may be lost, and nobody asked again: that time is not the peer's.
  static void forgive_pause(Peer& peer, int64_t from_ns, int64_t to_ns) {
    for (int64_t* const since : {&peer.owed_since_ns, &peer.oldest_ns, &peer.eager_oldest_ns})
      if (*since != kNeverNs) *since = std::min(*since + (to_ns - from_ns), to_ns);
  }
  // The record of a packet that should have arrived. What the peer is silent about is another matter. An
  // eager packet without a grant may find no page for as long as the application likes.
  uint32_t find_stuck(const Peer& peer, int64_t now_ns) const {
    if (peer.known != 0 && now_ns - peer.oldest_ns >= options_.silence_ns) {
      uint32_t oldest = peer.unacked;
      while (!peer.open.has(oldest)) ++oldest;  // some that is known is open
      return tables_[peer.records].find(records_, oldest);
    }
    if (peer.eager_unacked == peer.eager_next || now_ns - peer.eager_oldest_ns < options_.silence_ns)
      return kNoObject;
    const uint16_t oldest = peer.eager_records[peer.eager_unacked % kEagerSpan];
    const bool is_free = oldest != kNoRecord && records_[oldest].where != SendRecord::Where::kHeldBack;
    return is_free ? oldest : kNoObject;
  }
  // Nothing of what was sent so long ago is heard of.
  void time_out(Peer& peer) {
    ++statistics_.timeouts;
    const int64_t timeout_ns = peer.loss.timeout_ns();
    peer.loss.note_timeout();
    peer.has_probed = false;
    while (!peer.flight.is_empty() && age_ns(records_[peer.flight.first()].sent) >= timeout_ns)
      lose(peer, peer.flight.first());
  }

  // --- Pages.

  // By a packet.
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
      port().post_pages(target->rail, are_short ? PageQueue::kShort : target->queue, count);
    }
  }

  // What arrived in a page, and the next one of its message.
  struct HeldPage {
    uint32_t next = kNoObject;
    uint32_t index = 0;  // of the packet in its message
    uint32_t length_bytes = 0;
  };

  static constexpr Stamp kLongestSample = 4'000'000'000 / kStampNs;

  // Messages by number: a ring each 32.
  template <typename Ring>
  struct Messages {
    Slabs<Ring, 2> rings;
    auto& operator[](uint32_t id) { return rings[id / kRing][id % kRing]; }
    const auto& operator[](uint32_t id) const { return rings[id / kRing][id % kRing]; }
  };

  Port& port_;
  EngineStatistics statistics_;
  const EngineOptions options_;
  const uint32_t credits_;
  Grants grants_;
  std::array<uint32_t, kMaxEngineRails> paths_of_rail_{};
  PageBudget budget_, short_budget_;
  std::vector<HeldPage> pages_;  // by the port's number
  Slabs<Peer, 4> peers_;
  Slabs<SendChannel, 8> send_channels_;
  Slabs<ReceiveChannel, 8> receive_channels_;
  Messages<SendRing> sends_;
  Messages<ReceiveRing> receives_;
  Slabs<SendRecord, 64> records_;
  Slabs<RecordTable, 2> tables_;
  TimerWheel wheel_;
  LinkedList<ActiveLink> active_;
  LinkedList<AckLink> acks_;
  uint32_t idle_ = 0, short_idle_ = 0;  // pages
  uint32_t control_draw_ = 0;           // of a linear congruential generator: its upper bits
};

}  // namespace verbena::protocol::datagram
