// Decides which peer may send how much: it serves the receives whose senders want more grants in turn, and
// counts the packets that were granted and have not arrived. page_budget.h decides whether there are pages
// for them; this file is about fairness, and about senders that do not send.
//
//   turns   Peers get a quantum each, in turn, for one of their messages after the other. Only a few peers
//           are served at the same time, each until its message is fully granted, because a message holds
//           pages until it is complete. This is done separately in each class of lengths, and the classes
//           take turns too, so that a short message does not wait for a long one.
//   share   A peer holds at most kShare times what is left for all, unless it is the only one. The last
//           quantum is reserved for a peer that holds nothing. So peers that stop leave something for the
//           others, whatever they have announced.
//   audit   A grant is revoked if no packet arrives for a period: its peer may have stopped or died, or never
//           intended to send. The message is then in doubt, and so is its peer if nothing else arrived from
//           it. A peer holds at most one quantum for messages in doubt. A packet ends the doubt.
//
// A sender is not notified when its grant is revoked. The packets that it sends still find a page, or are
// lost and sent again. Grants keep a receiver's queues short, but correctness does not depend on them.
//
// `Owner` has the messages and their peers, and offers:
//   receives()                          messages by number
//   peer_of(message)                    number of the message's peer
//   account(peer)                       the peer's GrantAccount
//   count_grantable(outstanding)        packets that may be granted while `outstanding` are
//   note_granted(id, message)           the sender must be notified
//   note_taken_back(id, message)        the message has no grant any more
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>

#include "protocol/datagram/receive_message.h"
#include "protocol/datagram/timer_wheel.h"

namespace verbena::protocol::datagram {

// Messages of each class are four times as long as those of the previous one.
inline constexpr uint32_t kLengthClasses = 8;

// A set of length classes, one bit each.
class ClassSet {
 public:
  bool is_empty() const { return bits_ == 0; }
  bool has(uint32_t length_class) const { return (bits_ >> length_class & 1) != 0; }
  void add(uint32_t length_class) { bits_ |= 1U << length_class; }
  void remove(uint32_t length_class) { bits_ &= ~(1U << length_class); }
  // Returns the first class from `turn` on, cyclically.
  uint32_t find(uint32_t turn) const {
    const uint32_t ahead = bits_ & ~0U << turn;
    return static_cast<uint32_t>(std::countr_zero(ahead != 0 ? ahead : bits_));
  }

 private:
  uint32_t bits_ = 0;
};

struct LinkItself {
  static ListLink& of(ListLink& link) { return link; }
};

// The packets that a peer holds and wants.
struct GrantAccount {
  uint32_t outstanding = 0;    // packets granted and not arrived
  uint32_t doubts = 0;         // number of messages in doubt, plus one if the peer is in doubt
  uint32_t given = 0;          // total packets granted and not revoked, wrapping
  uint32_t audited = 0;        // of these, arrived at the last audit
  uint32_t tried = kNoObject;  // the message that has a grant although it is in doubt
  bool is_doubted = false;
  ClassSet wanting;  // classes in which it has messages
  std::array<LinkedList<DemandLink>, kLengthClasses> messages;
  std::array<ListLink, kLengthClasses> turns;

  uint32_t arrived() const { return given - outstanding; }
};

class Grants {
 public:
  struct Settings {
    uint32_t quantum = 16;
    uint32_t served_peers = 8;        // peers served at the same time
    int64_t patience_ns = 2'000'000;  // period of the audit
  };
  explicit Grants(const Settings& settings) : settings_(settings) {}

  uint32_t outstanding() const { return outstanding_; }
  bool is_any_wanted() const { return wanting_peers_ != 0; }
  // Returns when audit() is due; kNeverNs while nothing is granted.
  int64_t audit_ns() const { return audit_ns_; }
  uint64_t taken_back() const { return taken_back_; }  // total packets

  // A packet of the message has arrived.
  [[gnu::always_inline]] void note_arrival(ReceiveMessage& message, GrantAccount& account) {
    if (message.received++ < message.granted) {  // FAULT(arrival_leaves_its_grant_open)
      --outstanding_;
      --account.outstanding;
    }
    if (account.doubts != 0) [[unlikely]]
      trust(message, account);  // FAULT(packet_does_not_end_doubts)
  }

  // The message has fewer grants than it wants.
  template <typename Owner>
  void want(Owner& owner, uint32_t id, ReceiveMessage& message, uint32_t peer, GrantAccount& account) {
    if (message.is_wanting) return;
    const uint32_t length_class = find_class(message.wanted);
    message.is_wanting = true;
    message.length_class = static_cast<uint8_t>(length_class);
    account.messages[length_class].append(owner.receives(), id);
    if (account.wanting.is_empty()) ++wanting_peers_;
    if (account.wanting.has(length_class)) return;
    account.wanting.add(length_class);
    have_turns(owner, peer, length_class);
  }

  // The message wants no further grants, and no packet of it is expected.
  template <typename Owner>
  void withdraw(Owner& owner, uint32_t id, ReceiveMessage& message) {
    const uint32_t peer = owner.peer_of(message);
    GrantAccount& account = owner.account(peer);
    if (message.is_wanting) stop_wanting(owner, id, message, peer, account);
    const uint32_t outstanding = message.outstanding();
    outstanding_ -= outstanding;
    account.outstanding -= outstanding;
    account.given -= outstanding;
    message.granted = std::min(message.granted, message.received);
    if (std::exchange(message.is_granted, false)) granted_.remove(owner.receives(), id);
    if (std::exchange(message.is_doubted, false)) [[unlikely]]
      --account.doubts;
    if (account.tried == id) [[unlikely]]
      account.tried = kNoObject;
  }

  // Grants as many packets as there is space for.
  template <typename Owner>
  void serve(Owner& owner, int64_t now_ns) {
    ClassSet left = classes_;
    std::array<uint32_t, kLengthClasses> refused{};  // peers in a row that got nothing
    uint32_t room = owner.count_grantable(outstanding_);
    while (room != 0 && !left.is_empty()) {
      const uint32_t length_class = left.find(class_turn_);
      Turns& turns = turns_[length_class];
      // FAULT(every_peer_has_turns_at_once)
      if (turns.next == kNoObject || turns.served >= settings_.served_peers)
        turns.next = turns.peers.first(), turns.served = 0;
      const uint32_t peer = turns.next;
      GrantAccount& account = owner.account(peer);
      const uint32_t id = account.messages[length_class].first();
      ReceiveMessage& message = owner.receives()[id];
      const uint32_t base = std::max(message.granted, message.received);
      const uint32_t wish = std::min(settings_.quantum, message.wanted - std::min(base, message.wanted));
      if (room < wish && outstanding_ != 0) return;  // prefers few large grants to many small ones
      const uint32_t more = std::min(wish, room);
      turns.next = account.turns[length_class].next;  // FAULT(one_message_is_served_until_it_is_done)
      // FAULT(doubtful_message_is_granted_like_others)
      const bool is_trial = account.is_doubted || message.is_doubted;
      if (has_its_share(account, more, room) || (is_trial && has_trial(owner, account))) {
        // Serves only a few peers at a time, because each of them holds pages.
        // FAULT(peer_with_its_share_keeps_others_from_their_turns)
        if (++refused[length_class] >= turns.size) left.remove(length_class);
        continue;
      }
      refused[length_class] = 0;
      class_turn_ = (length_class + 1) % kLengthClasses;
      if (account.outstanding == 0) account.audited = account.arrived();
      message.granted = base + more;
      outstanding_ += more;
      account.outstanding += more;
      account.given += more;
      if (!message.is_granted) begin_audits(owner, id, message, now_ns);
      if (is_trial) account.tried = id;
      if (message.granted >= message.wanted || is_trial) {
        stop_wanting(owner, id, message, peer, account);
        if (account.wanting.has(length_class)) {  // its next message waits until the others were served
          have_no_turns(owner, peer, length_class);
          have_turns(owner, peer, length_class);
        }
        if (turns.size == 0) left.remove(length_class);
      } else {
        ++turns.served;
      }
      room = owner.count_grantable(outstanding_);
      owner.note_granted(id, message);
    }
  }

  // Calls visit(id) for each message that wants grants, until it returns false.
  template <typename Owner, typename Visit>
  void for_each_wanting(Owner& owner, const Visit& visit) {
    for (uint32_t length_class = 0; length_class < kLengthClasses; ++length_class)
      for (uint32_t peer = turns_[length_class].peers.first(); peer != kNoObject;
           peer = owner.account(peer).turns[length_class].next)
        for (uint32_t id = owner.account(peer).messages[length_class].first(); id != kNoObject;
             id = owner.receives()[id].demand.next)
          if (!visit(id)) return;
  }

  // Call this when audit_ns() has come. If this end calls it a period late, it does not know what would have
  // arrived meanwhile, and waits another period. It does so only once in a row, because some ends are always
  // late.
  template <typename Owner>
  void audit(Owner& owner, int64_t now_ns) {
    has_put_off_ = !has_put_off_ && now_ns - audit_ns_ >= settings_.patience_ns;
    if (has_put_off_) {
      audit_ns_ = now_ns + settings_.patience_ns;
      return;
    }
    for (uint32_t id = granted_.first(); id != kNoObject;) {
      ReceiveMessage& message = owner.receives()[id];
      const uint32_t next = message.audits.next;
      if (message.outstanding() == 0) {
        message.is_granted = false;
        granted_.remove(owner.receives(), id);
      } else {
        GrantAccount& account = owner.account(owner.peer_of(message));
        // FAULT(grants_that_bring_nothing_stay)
        if (has_been_idle(message, account)) take_back(owner, id, message, account);
      }
      id = next;
    }
    for (uint32_t id = granted_.first(); id != kNoObject; id = owner.receives()[id].audits.next) {
      GrantAccount& account = owner.account(owner.peer_of(owner.receives()[id]));
      account.audited = account.arrived();
    }
    audit_ns_ = granted_.is_empty() ? kNeverNs : now_ns + settings_.patience_ns;
  }

 private:
  static constexpr uint32_t kShare = 4;
  // Audits without a packet before a grant is revoked: at least one whole period; more while the peer sends
  // other messages, which may come first.
  static constexpr uint8_t kIdle = 2, kIdleBehindOthers = 16;

  struct Turns {
    LinkedList<LinkItself> peers;
    uint32_t size = 0;
    uint32_t next = kNoObject, served = 0;  // the next peer, and the number of peers that were served
  };
  template <typename Owner>
  struct Links {
    Owner& owner;
    const uint32_t length_class;
    ListLink& operator[](uint32_t peer) { return owner.account(peer).turns[length_class]; }
  };

  uint32_t find_class(uint32_t packets) const {
    const auto digits = static_cast<uint32_t>(std::bit_width(packets / settings_.quantum));
    // FAULT(messages_of_all_lengths_have_turns_together)
    return std::min((digits + 1) / 2, kLengthClasses - 1);
  }
  bool has_its_share(const GrantAccount& account, uint32_t more, uint32_t room) const {
    const uint32_t left = room - more, share = std::max(kShare * left, 2 * settings_.quantum);
    if (account.outstanding == 0) return false;  // FAULT(peer_may_hold_everything)
    // FAULT(last_quantum_is_anybodys)
    if (account.outstanding + more <= share && left >= settings_.quantum) return false;
    // FAULT(peer_alone_has_a_share)
    return account.outstanding != outstanding_ || wanting_peers_ != 1;  // other peers hold or want grants
  }

  template <typename Owner>
  static bool has_trial(Owner& owner, const GrantAccount& account) {
    // FAULT(all_doubtful_messages_are_tried_at_once)
    return account.tried != kNoObject && owner.receives()[account.tried].outstanding() != 0;
  }

  template <typename Owner>
  void have_turns(Owner& owner, uint32_t peer, uint32_t length_class) {
    Links<Owner> links{owner, length_class};
    turns_[length_class].peers.append(links, peer);
    ++turns_[length_class].size;
    classes_.add(length_class);
  }
  template <typename Owner>
  void have_no_turns(Owner& owner, uint32_t peer, uint32_t length_class) {
    Links<Owner> links{owner, length_class};
    Turns& turns = turns_[length_class];
    if (turns.next == peer) turns.next = links[peer].next;
    turns.peers.remove(links, peer);
    if (--turns.size == 0) classes_.remove(length_class);
  }
  template <typename Owner>
  void stop_wanting(Owner& owner, uint32_t id, ReceiveMessage& message, uint32_t peer,
                    GrantAccount& account) {
    const uint32_t length_class = message.length_class;
    message.is_wanting = false;
    account.messages[length_class].remove(owner.receives(), id);
    if (!account.messages[length_class].is_empty()) return;
    account.wanting.remove(length_class);
    if (account.wanting.is_empty()) --wanting_peers_;
    have_no_turns(owner, peer, length_class);
  }
  template <typename Owner>
  void begin_audits(Owner& owner, uint32_t id, ReceiveMessage& message, int64_t now_ns) {
    message.is_granted = true;
    message.audited = message.received;
    message.idle_audits = 0;
    granted_.append(owner.receives(), id);
    if (audit_ns_ == kNeverNs) audit_ns_ = now_ns + settings_.patience_ns;
  }
  static bool has_been_idle(ReceiveMessage& message, const GrantAccount& account) {
    if (std::exchange(message.audited, message.received) != message.received) {
      message.idle_audits = 0;
      return false;
    }
    const bool has_sent_others = account.arrived() != account.audited;
    // FAULT(message_behind_others_is_in_doubt)
    return ++message.idle_audits >= (has_sent_others ? kIdleBehindOthers : kIdle);
  }
  template <typename Owner>
  [[gnu::cold, gnu::noinline]] void take_back(Owner& owner, uint32_t id, ReceiveMessage& message,
                                              GrantAccount& account) {
    const bool is_peer_idle = account.arrived() == account.audited;
    taken_back_ += message.outstanding();
    withdraw(owner, id, message);
    message.is_doubted = true;
    ++account.doubts;
    if (is_peer_idle && !std::exchange(account.is_doubted, true)) ++account.doubts;
    owner.note_taken_back(id, message);
  }
  // The peer has sent a packet of the message.
  [[gnu::cold, gnu::noinline]] static void trust(ReceiveMessage& message, GrantAccount& account) {
    if (std::exchange(message.is_doubted, false)) --account.doubts;
    if (std::exchange(account.is_doubted, false)) --account.doubts;
  }

  const Settings settings_;
  std::array<Turns, kLengthClasses> turns_;
  ClassSet classes_;  // classes in which peers wait
  uint32_t class_turn_ = 0;
  uint32_t wanting_peers_ = 0;
  uint32_t outstanding_ = 0;
  LinkedList<AuditLink> granted_;  // messages with grants
  int64_t audit_ns_ = kNeverNs;
  bool has_put_off_ = false;  // the last audit was postponed
  uint64_t taken_back_ = 0;
};

}  // namespace verbena::protocol::datagram
