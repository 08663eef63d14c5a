// The sending side of an engine's core. The steps of a message:
//
//   send           it gets an entry in its channel's ring
//   admit          as far as eager credits allow, it may be sent at once; else a request asks for a grant
//   send_packets   sends packets: first lost ones, then those that may be sent, on the paths in turn
//   on_ack         packets that have arrived are done; packets that should have arrived before are lost
//   on_timer       probes, timeouts, and requests without an answer
//   forget         the caller knows that the message is done
//
// Part of engine_core.h, which describes the port.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>

#include "protocol/datagram/engine_shared.h"

namespace verbena::protocol::datagram {

// A data packet to send.
struct OutPacket {
  uint32_t psn, message, index;
  PacketKind kind;
  uint8_t path;
  bool is_last, asks, is_resent, took_credit;
  uint16_t backlog;
};

template <typename Port>
class SendSide {
 public:
  using Shared = EngineShared<Port>;

  explicit SendSide(Shared& shared) : shared_(shared) {}

  // `wire` is the channel's number in packets, which the sender chooses.
  uint32_t open_send(uint32_t peer, uint16_t wire) {
    const uint32_t id = send_channels_.take();
    send_channels_[id] = SendChannel{.peer = peer, .wire = wire};
    Shared::enter(shared_.peers[peer].send_channels, wire, id);
    return id;
  }
  // The messages of the channel are done, or given up: their packets in flight are not sent again.
  void close_send(uint32_t channel) {
    SendChannel& closing = send_channels_[channel];
    Peer& peer = shared_.peers[closing.peer];
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
  // Stops sending the messages of the channel. They stay until it is closed.
  void stop_send(uint32_t channel) {
    SendChannel& stopped = send_channels_[channel];
    if (stopped.ring == kNoObject) return;
    Peer& peer = shared_.peers[stopped.peer];
    drop_flight(stopped.peer, peer, stopped.ring);
    for (uint32_t i = 0; i < kRing; ++i) {
      const uint32_t id = stopped.ring * kRing + i;
      if (sends_[id].state == SendState::kFree) continue;
      give_back_credits(peer, sends_[id]);  // FAULT(credits_of_a_stopped_channel_are_lost)
      set_state(peer, id, SendState::kDone);
    }
  }
  // Returns kNoObject if the ring is full. The bytes are read until note_sent().
  uint32_t send(uint32_t channel, uint64_t length_bytes) {
    SendChannel& sending = send_channels_[channel];
    if (sending.ring == kNoObject) sending.ring = sends_.rings.take();
    const uint32_t id = sending.ring * kRing + sending.next % kRing;
    SendMessage& message = sends_[id];
    if (message.state != SendState::kFree) return kNoObject;
    ++sending.open;
    message = SendMessage{};
    message.length_bytes = length_bytes;
    Peer& peer = shared_.peers[sending.peer];
    message.packets = Shared::count_packets(peer, length_bytes);
    message.number = sending.next++;
    message.channel = channel;
    set_state(peer, id, SendState::kFresh);
    admit(sending.peer);
    return id;
  }
  // The caller knows that the message is done.
  void forget(uint32_t id) {
    SendMessage& message = sends_[id];
    SendChannel& sending = send_channels_[message.channel];
    message.state = SendState::kFree;
    if (--sending.open == 0) sends_.rings.give_back(std::exchange(sending.ring, kNoObject));
  }
  void on_ack(uint32_t peer_id, uint32_t cumulative, uint32_t base, const AckBody& body,
              std::span<const GrantRecord> grants) {
    Peer& peer = shared_.peers[peer_id];
    shared_.note_heard(peer);
    if (count_between(peer.unacked, cumulative) > static_cast<int32_t>(peer.sent_span())) {
      ++shared_.statistics.strays;  // it acknowledges packets that were never sent
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
  // Tests whether the peer is alive: it answers, or note_silent() follows.
  void ask(uint32_t peer_id) {
    Peer& peer = shared_.peers[peer_id];
    if (peer.is_gone) return;
    post_request(peer_id, peer, {});
    file_timer(peer_id, peer);
  }
  bool has_packets_to_send() const { return !active_.is_empty(); }
  SendMessage& send_message(uint32_t id) { return sends_[id]; }
  SendChannel& send_channel(uint32_t id) { return send_channels_[id]; }
  // Packets in flight to the peer are forgotten.
  void drop_peer(uint32_t id) {
    Peer& peer = shared_.peers[id];
    if (peer.is_active) leave_active(id);  // FAULT(given_up_peer_is_sent_to)
    forget_flight(peer);
    peer.wish_ns = peer.owed_since_ns = kNeverNs;
  }
  // Handles silent peers, stuck packets, timeouts, probes and requests.
  [[gnu::noinline]] void on_timer(uint32_t id, int64_t filed_ns, int64_t now_ns) {
    Peer& peer = shared_.peers[id];
    if (now_ns - filed_ns > shared_.options.silence_ns / 8) [[unlikely]]
      forgive_pause(peer, filed_ns, now_ns);
    if (peer.owed_since_ns != kNeverNs && now_ns - peer.owed_since_ns >= shared_.options.silence_ns) {
      shared_.port.note_silent(id);
      if (peer.is_gone || !peer.is_open) return;
      peer.owed_since_ns = now_ns;
    }
    if (const uint32_t stuck = find_stuck(peer, now_ns); stuck != kNoObject) [[unlikely]] {
      shared_.port.note_stuck(id, records_[stuck].message);
      if (peer.is_gone || !peer.is_open) return;
      peer.oldest_ns = peer.eager_oldest_ns = now_ns;
    }
    if (find_timeout_ns(peer) <= now_ns) {  // FAULT(nothing_times_out)
      time_out(peer);
      enter_active(id, peer);
    } else if (find_probe_ns(peer) <= now_ns) {  // FAULT(probe_is_never_sent)
      const uint32_t newest = peer.flight.last();
      const uint32_t path =
          peer.paths.pick(shared_.paths_of(shared_.port.rooms()), records_[newest].path, shared_.now());
      peer.has_probed = true;
      if (path != PathTable::kNoPath)
        ++shared_.statistics.probes, resend(id, peer, newest, path, shared_.moment());
    }
    if (peer.wish_ns <= now_ns) {
      peer.wish_ns = kNeverNs;
      if (!peer.fresh.is_empty() || !peer.waiting.is_empty() || !peer.held_back.is_empty()) {
        repeat_wishes(id, peer);  // FAULT(wish_is_not_repeated)
      } else {
        peer.wish_doublings = 0;
      }
    }
    file_timer(id, peer);
  }
  void pump_packets() {
    if (!active_.is_empty()) send_packets();
  }

 private:
  static constexpr uint32_t kMaxRecords = 0xFFFF;
  static constexpr uint32_t kTurnPackets = 4;  // packets to one peer before the next peer is served
  static constexpr int64_t kFirstWishNs = 250'000;
  static constexpr uint8_t kMostWishDoublings = 10;
  static constexpr uint32_t kRepeatedRequests = 4;  // at a time
  static constexpr uint8_t kEagerTries = 2;         // afterwards a packet waits for its grant
  static constexpr Stamp kLongestSample = 4'000'000'000 / kStampNs;

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
  // Returns the credits of packets that were never sent.
  static void give_back_credits(Peer& peer, const SendMessage& message) {
    if (message.state == SendState::kReady && message.next < message.eager)
      peer.eager_reserved -= message.eager - message.next;
  }
  // Gives eager credits to the oldest messages without permission to send. The receiver is told what the
  // others want.
  void admit(uint32_t peer_id) {
    Peer& peer = shared_.peers[peer_id];
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
  // Sends the requests that the peer has not received yet.
  void send_wishes(uint32_t peer_id, Peer& peer) {
    WishList wishes;
    // Finds the oldest of them, going back from the newest to the first one that the peer was told of.
    uint32_t first = kNoObject;
    for (uint32_t id = peer.fresh.last(); id != kNoObject && !sends_[id].has_wished;
         id = sends_[id].link.previous)
      first = id;
    for (uint32_t id = first; id != kNoObject && !wishes.is_full(); id = sends_[id].link.next)
      add_wish(wishes, id);
    post_request(peer_id, peer, wishes.get());
    if (peer.wish_ns == kNeverNs) wish_later(peer_id, peer);
  }
  // Repeats the requests of all waiting messages, in turn, because the request or the grant may be lost.
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
      // FAULT(only_the_first_wishes_are_repeated)
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
    ++shared_.statistics.sent_requests;
    if (peer.owed_since_ns == kNeverNs) peer.owed_since_ns = shared_.port.now_ns();
    shared_.port.post_request(peer_id, shared_.pick_control_path(peer), wishes);
  }
  void wish_later(uint32_t peer_id, Peer& peer) {
    peer.wish_ns = shared_.port.now_ns() + (kFirstWishNs << peer.wish_doublings);
    if (peer.wish_doublings < kMostWishDoublings) ++peer.wish_doublings;
    file_timer(peer_id, peer);
  }
  void enter_active(uint32_t id, Peer& peer) {
    if (peer.is_active || peer.is_gone) return;
    peer.is_active = true;
    active_.append(shared_.peers, id);
  }
  void leave_active(uint32_t id) {
    shared_.peers[id].is_active = false;
    active_.remove(shared_.peers, id);
  }
  // Sends a few packets to each peer in turn, while a rail has space. A peer whose rails have no space does
  // not block the others: all peers are tried once more after a packet was sent.
  void send_packets() {
    const Moment now = shared_.moment();
    uint32_t rooms = shared_.port.rooms(), blocked = kNoObject;
    uint64_t sent_packets = 0;  // value when `blocked` was determined
    while (rooms != 0 && !active_.is_empty()) {
      const uint32_t id = active_.first();
      Peer& peer = shared_.peers[id];
      active_.remove(shared_.peers, id);
      peer.is_active = false;
      if (has_wishes(peer)) send_wishes(id, peer);
      uint32_t left = kTurnPackets;
      while (left != 0 && rooms != 0 && send_next(id, peer, rooms, now)) {
        --left;
        rooms = shared_.port.rooms();
      }
      file_timer(id, peer);
      if (!has_room(peer) || (peer.lost.is_empty() && !may_send_new(peer))) continue;
      enter_active(id, peer);
      if (left != kTurnPackets) [[likely]]
        continue;
      if (blocked == id && sent_packets == shared_.statistics.sent_packets) return;
      if (blocked == kNoObject || sent_packets != shared_.statistics.sent_packets)
        blocked = id, sent_packets = shared_.statistics.sent_packets;
    }
  }
  // Eager packets are limited by their credits, so granted packets always have space.
  static bool has_room(const Peer& peer) { return peer.in_flight < peer.guard.window(); }
  static bool has_numbers(const Peer& peer) {
    return peer.sent_span() < kSpan && peer.known < RecordTable::kMost;
  }
  bool may_send_new(const Peer& peer) const {
    if (peer.ready.is_empty()) return false;
    const SendMessage& message = sends_[peer.ready.first()];
    return message.next < message.eager || has_numbers(peer);
  }
  // Returns false if nothing may be sent now.
  bool send_next(uint32_t id, Peer& peer, uint32_t rooms, const Moment& now) {
    if (!has_room(peer)) return false;
    const uint32_t lost = peer.lost.first();
    // FAULT(lost_packet_takes_its_path_again)
    if (lost == kNoObject && (!may_send_new(peer) || records_.used() >= kMaxRecords)) return false;
    const uint32_t avoided = lost != kNoObject ? records_[lost].path : kPaths;
    const uint32_t path = peer.paths.pick(shared_.paths_of(rooms), avoided, now.stamp);
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
    // FAULT(trial_ends_untold_by_a_probe)
    if (is_probe && record.path != path) peer.paths.note_unknown(record.path, now.stamp);
    leave_list(peer, record_id);
    ++shared_.statistics.resent_packets;
    const SendMessage* const message = record.message == kNoObject ? nullptr : &sends_[record.message];
    post_record(peer_id, peer, record_id, record, message, path, now);
  }
  // `message` is null if its channel is closed.
  [[gnu::always_inline]] void post_record(uint32_t peer_id, Peer& peer, uint32_t record_id,
                                          SendRecord& record, const SendMessage* message, uint32_t path,
                                          const Moment& now) {
    record.path = static_cast<uint8_t>(path);
    record.sent = now.stamp;
    enter_list(peer, record_id, record, SendRecord::Where::kFlight);
    peer.sent_ns = now.ns;
    if (peer.owed_since_ns == kNeverNs) peer.owed_since_ns = peer.sent_ns;
    ++shared_.statistics.sent_packets;
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
    record.posted = shared_.port.post_data(peer_id, packet);
  }
  static LinkedList<StateLink>& list_of(Peer& peer, SendRecord::Where where) {
    return where == SendRecord::Where::kFlight ? peer.flight
           : where == SendRecord::Where::kLost ? peer.lost
                                               : peer.held_back;
  }
  void enter_list(Peer& peer, uint32_t record_id, SendRecord& record, SendRecord::Where where) {
    record.where = where;
    // FAULT(window_does_not_count_what_is_sent_again)
    if (where == SendRecord::Where::kFlight && !record.took_credit) ++peer.in_flight;
    list_of(peer, where).append(records_, record_id);
  }
  void leave_list(Peer& peer, uint32_t record_id) {
    SendRecord& record = records_[record_id];
    if (record.where == SendRecord::Where::kFlight && !record.took_credit) --peer.in_flight;
    list_of(peer, record.where).remove(records_, record_id);
  }
  // Processes the packets that the peer has received. Returns how many of them are new.
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
    if (is_before(peer.unacked, cumulative)) {  // FAULT(old_acknowledgement_counts_as_news)
      for (uint32_t word = peer.unacked / 64 * 64; is_before(word, cumulative); word += 64) {
        const int32_t left = count_between(word, cumulative);
        take(word, left >= 64 ? ~uint64_t{0} : (uint64_t{1} << left) - 1);
      }
      peer.unacked = cumulative;
      peer.oldest_ns = shared_.port.now_ns();
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
    // Acknowledges packets that were never sent.
    if (count_between(body.eager_cumulative, peer.eager_next) < 0) return 0;
    uint32_t delivered = 0;
    const auto take = [&](uint32_t number) {
      uint16_t& record = peer.eager_records[number % kEagerSpan];
      if (record == kNoRecord || records_[record].psn != number) return;
      deliver(peer, std::exchange(record, kNoRecord));
      ++delivered;
    };
    if (is_before(peer.eager_unacked, body.eager_cumulative)) peer.eager_oldest_ns = shared_.port.now_ns();
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
    (void)has_left(record, left);  // the completion of the send may be reported after its acknowledgement
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
      ++shared_.statistics.sent_messages;
      shared_.port.note_sent(message_id);
    }
  }
  void absorb_round_trip(Peer& peer, const AckBody& body) {
    const Stamp units = shared_.now() - body.echo - body.hold;
    if (units > kLongestSample) return;  // the echo of a packet that was not sent by this end
    const int64_t sample_ns = int64_t{units} * kStampNs, now_ns = shared_.port.now_ns();
    peer.loss.note_round_trip(sample_ns, now_ns);
    peer.guard.note_round_trip(sample_ns, peer.loss.shortest_ns(),
                               int64_t{shared_.options.pages.credits} * shared_.options.packet_ns, now_ns);
  }
  void absorb_duplicates(Peer& peer, uint16_t duplicates) {
    const auto more = static_cast<int16_t>(duplicates - peer.told_duplicates);
    if (more <= 0) return;
    peer.told_duplicates = duplicates;
    shared_.statistics.in_vain += static_cast<uint64_t>(more);
    peer.loss.note_in_vain(shared_.port.now_ns());
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
    peer.wish_doublings = 0;  // FAULT(lost_grant_is_not_asked_for_again_soon)
    if (peer.wish_ns != kNeverNs) peer.wish_ns = std::min(peer.wish_ns, shared_.port.now_ns() + kFirstWishNs);
    release_held_back(peer, id);
    if ((message.state == SendState::kFresh || message.state == SendState::kWaiting) &&
        message.next < message.granted)
      set_state(peer, id, SendState::kReady);
  }
  // Releases packets that were granted now.
  void release_held_back(Peer& peer, uint32_t message_id) {
    for (uint32_t id = peer.held_back.first(); id != kNoObject;) {
      const SendRecord& record = records_[id];
      const uint32_t next = record.link.next;
      // FAULT(packet_that_is_held_back_stays_so)
      if (record.message == message_id && record.index < sends_[message_id].granted)
        release_held_back_record(peer, id);
      id = next;
    }
  }
  // The time for which the packet was held back must not count against the peer.
  void release_held_back_record(Peer& peer, uint32_t id) {
    leave_list(peer, id);
    enter_list(peer, id, records_[id], SendRecord::Where::kLost);
    // FAULT(wait_for_a_grant_counts_as_silence)
    if (records_[id].psn == peer.eager_unacked) peer.eager_oldest_ns = shared_.port.now_ns();
  }

  // --- Losses.

  // `when` is the earliest possible time.
  bool has_left(const SendRecord& record, Stamp& when) {
    when = record.sent;
    const bool has = shared_.port.has_left(record.posted, when);
    if (is_before(when, record.sent)) when = record.sent;  // FAULT(times_of_departure_do_not_count)
    return has;
  }
  // Finds packets that were sent at least a window of time before a packet that has arrived. The time of
  // posting is not used: a packet may wait in a long send queue while others overtake it in a short one.
  void find_lost(Peer& peer) {
    if (!peer.has_newest) return;
    const auto same = static_cast<int32_t>(peer.loss.same_path_ns() / kStampNs);
    const auto across = static_cast<int32_t>(peer.loss.across_paths_ns() / kStampNs);
    for (uint32_t id = peer.flight.first(); id != kNoObject;) {
      SendRecord& record = records_[id];
      if (count_between(record.sent + static_cast<Stamp>(same), peer.newest) <= 0) break;
      const uint32_t next = record.link.next;
      Stamp left;
      if (has_left(record, left)) {  // FAULT(packet_in_its_send_queue_is_lost)
        const bool is_overtaken = (peer.newest_paths >> record.path & 1) != 0 &&
                                  count_between(left, peer.newest_of[record.path]) > same;
        // FAULT(paths_are_not_told_apart)
        if (is_overtaken || count_between(left, peer.newest) > across) lose(peer, id);
      }
      id = next;
    }
  }
  void lose(Peer& peer, uint32_t record_id) {
    SendRecord& record = records_[record_id];
    leave_list(peer, record_id);
    // An eager packet may have found no page. This is not its path's fault, and the packet will probably find
    // none the next time.
    const bool may_be_refused =
        record.took_credit && record.message != kNoObject && record.index >= sends_[record.message].granted;
    if (may_be_refused) {
      peer.paths.note_unknown(record.path, shared_.now());  // FAULT(trial_ends_untold_by_an_eager_packet)
    } else if (peer.paths.note_lost(record.path, shared_.now())) {
      ++shared_.statistics.rested_paths;
    }
    const bool is_held_back = may_be_refused && record.tries >= kEagerTries;
    enter_list(peer, record_id, record,
               is_held_back ? SendRecord::Where::kHeldBack : SendRecord::Where::kLost);
    if (is_held_back && peer.wish_ns == kNeverNs) peer.wish_ns = shared_.port.now_ns();
  }
  // The records of messages that no longer exist: their packet numbers must still be acknowledged.
  void drop_flight(uint32_t peer_id, Peer& peer, uint32_t ring) {
    for (LinkedList<StateLink>* list : {&peer.flight, &peer.lost, &peer.held_back}) {
      for (uint32_t id = list->first(); id != kNoObject;) {
        SendRecord& record = records_[id];
        const uint32_t next = record.link.next;
        if (record.message != kNoObject && record.message / kRing == ring) {
          record.message = kNoObject;  // FAULT(closed_channels_packets_are_forgotten)
          if (list == &peer.held_back) release_held_back_record(peer, id);
        }
        id = next;
      }
    }
    if (!peer.lost.is_empty()) enter_active(peer_id, peer);  // FAULT(closed_channels_packets_stay_unsaid)
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

  int64_t age_ns(Stamp sent) { return int64_t{shared_.now() - sent} * kStampNs; }
  int64_t find_probe_ns(const Peer& peer) const {
    return peer.has_probed || peer.flight.is_empty()
               ? kNeverNs
               : std::max(peer.sent_ns, peer.heard_ns) + peer.loss.probe_ns();
  }
  int64_t find_timeout_ns(const Peer& peer) {
    if (peer.flight.is_empty()) return kNeverNs;
    return shared_.port.now_ns() - age_ns(records_[peer.flight.first()].sent) + peer.loss.timeout_ns();
  }
  void file_timer(uint32_t id, Peer& peer) {
    if (peer.is_gone) return;
    const int64_t silence_ns =
        peer.owed_since_ns == kNeverNs ? kNeverNs : peer.owed_since_ns + shared_.options.silence_ns;
    const int64_t soon_ns = std::min(std::min(peer.ack_ns, peer.wish_ns), silence_ns);
    const int64_t next_ns = std::min(std::min(soon_ns, find_probe_ns(peer)), find_timeout_ns(peer));
    if (next_ns != kNeverNs) shared_.wheel.file(id, next_ns, shared_.timers());
  }
  // Returns the record of a packet that should have arrived. A silent peer is handled elsewhere. An eager
  // packet without a grant may find no page for as long as the application likes.
  uint32_t find_stuck(const Peer& peer, int64_t now_ns) const {
    // FAULT(packet_that_never_arrives_is_not_told)
    if (peer.known != 0 && now_ns - peer.oldest_ns >= shared_.options.silence_ns) {
      uint32_t oldest = peer.unacked;
      while (!peer.open.has(oldest)) ++oldest;  // a known packet is not acknowledged
      return tables_[peer.records].find(records_, oldest);
    }
    if (peer.eager_unacked == peer.eager_next || now_ns - peer.eager_oldest_ns < shared_.options.silence_ns)
      return kNoObject;
    const uint16_t oldest = peer.eager_records[peer.eager_unacked % kEagerSpan];
    // FAULT(eager_packet_without_a_grant_counts_as_lost)
    const bool is_free = oldest != kNoRecord && records_[oldest].where != SendRecord::Where::kHeldBack;
    return is_free ? oldest : kNoObject;  // FAULT(eager_packet_that_never_arrives_is_not_told)
  }
  // No packet that was sent before the timeout has been acknowledged.
  void time_out(Peer& peer) {
    ++shared_.statistics.timeouts;
    const int64_t timeout_ns = peer.loss.timeout_ns();
    peer.loss.note_timeout();
    peer.has_probed = false;
    while (!peer.flight.is_empty() && age_ns(records_[peer.flight.first()].sent) >= timeout_ns)
      lose(peer, peer.flight.first());
  }
  // This process was stopped, frozen or without a CPU, and so may have been the peer. Answers sent meanwhile
  // may be lost, and this process did not ask again, so this time does not count against the peer.
  static void forgive_pause(Peer& peer, int64_t from_ns, int64_t to_ns) {
    for (int64_t* const since : {&peer.owed_since_ns, &peer.oldest_ns, &peer.eager_oldest_ns})
      if (*since != kNeverNs) *since = std::min(*since + (to_ns - from_ns), to_ns);
  }

  Shared& shared_;
  Slabs<SendChannel, 8> send_channels_;
  Messages<SendRing> sends_;
  Slabs<SendRecord, 64> records_;
  Slabs<RecordTable, 2> tables_;
  LinkedList<ActiveLink> active_;
};

}  // namespace verbena::protocol::datagram
