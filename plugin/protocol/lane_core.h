// One lane of a one-sided endpoint (verbena/endpoint.h) to one peer. Pure: no clock, socket, verbs or
// allocation. A lane has a queue pair on each rail that the two endpoints share. The steps of an operation,
// in the order of this file:
//
//   post          it gets a slot in the ring of operations
//   issue         it is issued, in the order of posting: a long put is split into shares for different rails;
//                 every other operation uses the main queue pair, on the rail where the peer's words are
//                 accessed
//   on_completed  a request, and all earlier ones on its queue pair, are complete
//   take_told     the caller learns which operations are complete, in order
//
// When a queue pair fails: settle (requests that the peer's device has executed are done; all others of the
// queue pair are issued again, in their old order). lane_recovery.h decides when.
//
// Why no request is executed twice, and words take effect in order:
//  * A reliable connection executes requests in the order posted, and its responder counts their packets.
//    When both ends of a queue pair are stopped, this count tells which requests were executed: exactly the
//    others are issued again. If a device does not report the count, puts may be repeated, because the peer
//    was not notified of them: a word after them waits for the same queue pair. Words must not be repeated:
//    in this case the lane fails.
//  * A word, a get, and a put after a fence are issued only while no other queue pair of the lane has
//    outstanding requests. All earlier operations are then complete, or on the same queue pair. If
//    writes of a queue pair may overtake each other (adaptive routing), a written word also waits for its own
//    queue pair (words_wait). So all outstanding words are on one queue pair, and those left after a failure
//    are the last ones.
//  * All ranks add to a peer's words through one device, the device of the peer's word rail, because adds of
//    two devices are not atomic with each other. The peer chooses the rail. Before it changes the rail, it
//    stops every queue pair on the old one.
//  * On devices without atomics, the peer's agent adds (add_ring.h). kAskAdd is a put of an entry; it is
//    issued under the same conditions as a written word, and is complete when the agent's answer has also
//    arrived. Entries may be repeated, because the agent accepts each number only once. A put before an entry
//    must not be repeated unless the device reports that it was not executed. Later operations that need the
//    order wait for the answers of all earlier adds.
//
// `Port` derives from LaneCore<Port, Types> and offers:
//   now_ns()
//   packets_of(queue_pair, bytes): number of packets of a request with this many bytes
//   post(queue_pair, LaneRequest): adds to the chain of the queue pair, which the port posts when it likes.
//     For a kAskAdd: the entry of this operation; for LanePosted::kAnswers: `length_bytes` answers from
//     `offset` on
//   stop_pair(q, record), retire_pair(q), is_usable(q)
//   renew_pair(q, record) -> bool, connect_pair(q, record) -> bool, send_record(record)
//   fail(LaneFailure, q): the lane has failed, and makes no further calls of the port
//   events: note_lost(q), note_settled(q), note_revived(q), note_replay(q, requests)
//
// One thread at a time uses a lane.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "protocol/add_ring.h"
#include "protocol/lane_recovery.h"

namespace verbena::protocol {

// kAddWord uses an atomic of the device; kAskAdd uses the peer's agent. An endpoint uses only one of them.
enum class LaneOperationKind : uint8_t { kPut, kGet, kWriteWord, kAddWord, kReadWord, kAskAdd };

// Why a lane gives up its peer.
enum class LaneFailure : uint8_t {
  kRequest,     // the device or the peer rejected a request that would fail on any rail
  kOverdue,     // no rail is left, or the peer does not answer
  kPeerGone,    // the peer's process is gone
  kNoWordRail,  // the failed rail for the peer's words was not restored in time
  kUncertain,   // words were outstanding, and the device does not report which were executed
  kDeviceLoss,  // the peer's device lost data that it had acknowledged
  kRecord,      // a record is invalid
  kGivenUp,     // the peer has given up this rank
};

inline constexpr uint32_t kWordBytes = 8;

inline bool changes_word(LaneOperationKind kind) {
  return kind == LaneOperationKind::kWriteWord || kind == LaneOperationKind::kAddWord ||
         kind == LaneOperationKind::kAskAdd;
}

inline bool is_read(LaneOperationKind kind) {
  return kind == LaneOperationKind::kGet || kind == LaneOperationKind::kReadWord;
}

inline bool has_answer(LaneOperationKind kind) {
  return kind != LaneOperationKind::kPut && kind != LaneOperationKind::kWriteWord;
}

// Types: Local and Remote are the types of registered memory of the caller and of the peer.
template <typename Types>
struct LaneOperation {
  LaneOperationKind kind = LaneOperationKind::kPut;
  bool is_fenced = false;       // starts after all answers of earlier gets and adds have arrived
  bool is_answer_lost = false;  // an add that was executed, but whose answer is lost
  uint8_t shares = 0;           // 0: not split yet
  uint8_t open_shares = 0;      // incomplete shares; for kAskAdd also the answer
  // Number of earlier kAskAdd operations on the lane modulo 2^16; of a kAskAdd: its number.
  uint16_t asked_before = 0;
  const typename Types::Local* local = nullptr;  // null for a word
  const typename Types::Remote* remote = nullptr;
  uint64_t local_offset = 0, remote_offset = 0;
  uint64_t length_bytes = 0;  // kWordBytes for a word
  uint64_t operand = 0;       // value to write or add
  uint64_t cookie = 0;        // not 0: the caller wants a completion

  // FAULT(operation_is_done_before_its_last_share)
  bool is_complete() const { return shares != 0 && open_shares == 0; }
};

// One request that the core passes to its port.
template <typename Types>
struct LaneRequest {
  const LaneOperation<Types>* operation;  // null: the request tests a new queue pair, or carries answers
  uint32_t slot;                          // slot of the operation in its ring; or kTrial, kAnswers
  uint64_t offset, length_bytes;          // of the operation's bytes
  uint32_t position;                      // part of the cookie of its completion
  bool is_signaled, is_fenced;
};

// The part of an operation that is assigned to one queue pair at a time. A get of no bytes has one of one
// byte; a put of no bytes has none.
struct LaneShare {
  uint64_t issued = 0, done = 0, end = 0;  // of the operation's bytes; it begins where `done` is initially
  uint8_t queue_pair = 0;
};

// A request that was posted and is not complete.
struct LanePosted {
  static constexpr uint32_t kTrial = UINT32_MAX, kAnswers = UINT32_MAX - 1, kProbe = UINT32_MAX - 2;

  uint32_t slot = 0;     // of its operation, or kTrial or kAnswers
  uint32_t packets = 0;  // packet count of the queue pair, including this request
  uint64_t end = 0;      // the end of the share's bytes that are done when the request is complete
  uint8_t share = 0;
};

struct LaneOptions {
  uint32_t rails = 1;
  uint8_t lane = 0;
  LaneRole role = LaneRole::kOffers;
  uint32_t send_depth = 256;                // maximum number of outstanding requests of each queue pair
  uint32_t signal_interval = 32;            // maximum distance between signaled requests
  uint64_t max_request_bytes = UINT64_MAX;  // has at most PacketNumbers::max_under_way() packets
  uint32_t packet_number_bits = PacketNumbers::kBits;
  uint64_t min_stripe_bytes = 65536;
  // Writes of a queue pair may overtake each other, so a written word is issued only when all earlier
  // requests are complete. Adds are atomics, which keep their order, unless the peer's agent executes them.
  bool words_wait = false;
  uint32_t add_slots = 0;  // length of the add rings, a power of two; 0: adds are atomics
  RecoveryTimes times{};
};

// The memory of a lane. Lengths are powers of two. `shares` has `rails` entries for each operation; `posted`
// has at least send_depth entries for each rail.
template <typename Types>
struct LaneStorage {
  std::span<LaneOperation<Types>> operations;
  std::span<LaneShare> shares;
  std::span<LanePosted> posted;
};

struct LaneCounts {
  uint64_t replayed_requests = 0, failed_queue_pairs = 0, revived_queue_pairs = 0;
};

template <typename Port, typename Types>
class LaneCore {
 public:
  using Operation = LaneOperation<Types>;
  using Request = LaneRequest<Types>;

  LaneCore(const LaneOptions& options, const LaneStorage<Types>& storage)
      : options_(options),
        operations_(storage.operations),
        shares_(storage.shares),
        mask_(static_cast<uint32_t>(storage.operations.size() - 1)),
        operation_depth_(options.send_depth - (options.add_slots != 0 ? 1 : 0)),
        posted_per_rail_(static_cast<uint32_t>(storage.posted.size() / options.rails)),
        numbers_(options.packet_number_bits),
        recovery_(options.rails, options.times, options.lane, options.role) {
    for (uint32_t q = 0; q < options.rails; ++q)
      pairs_[q].posted = storage.posted.subspan(size_t{q} * posted_per_rail_, posted_per_rail_);
  }

  // --- The steps of an operation.

  bool has_room() const { return posted_ - told_ <= mask_; }
  // Posts an operation; there must be space. Returns its slot.
  uint32_t post(const Operation& operation) {
    const uint32_t slot = posted_ & mask_;
    Operation& taken = operations_[slot];
    taken = operation;
    taken.is_fenced = is_fence_due_;
    is_fence_due_ = false;
    open_answers_ += has_answer(operation.kind) ? 1 : 0;
    ++posted_;
    return slot;
  }
  // Operations posted later wait for the answers of earlier gets and adds.
  void fence() { is_fence_due_ |= open_answers_ != 0; }
  // Returns whether an operation waits to be issued.
  bool has_unissued() const { return issued_ != posted_; }
  // Issues all operations that may be issued now. Never waits.
  void issue() {
    is_blocked_ = false;
    while (issued_ != posted_ && issue_operation(issued_ & mask_)) ++issued_;
    if (!is_blocked_) {
      blocked_since_ns_ = kNever;
    } else if (blocked_since_ns_ == kNever) {
      blocked_since_ns_ = kUnknown;
    }
  }

  // The request at this position, and all earlier ones, are complete. Completions of retired queue pairs must
  // not be passed.
  void on_completed(uint32_t q, uint32_t position) {
    Pair& pair = pairs_[q];
    for (; pair.head != position + 1; ++pair.head) {
      const LanePosted& posted = entry(pair, pair.head);
      pair.retired_packets = posted.packets;
      if (posted.slot >= LanePosted::kProbe) [[unlikely]] {
        pass_special(q, posted);
      } else {
        complete(q, posted);
      }
    }
  }
  // Returns whether a request at this position is outstanding.
  bool is_under_way(uint32_t q, uint32_t position) const {
    const Pair& pair = pairs_[q];
    return position - pair.head < pair.tail - pair.head;
  }

  // Returns the next complete operation that was not reported to the caller, in order, or null.
  const Operation* find_told() const {
    if (told_ == posted_) return nullptr;
    const Operation& operation = operations_[told_ & mask_];
    return operation.is_complete() ? &operation : nullptr;
  }
  uint32_t told_slot() const { return told_ & mask_; }
  // Returns the queue pair that last carried the operation, or its first part.
  uint32_t carrier(uint32_t slot) const { return shares_[size_t{slot} * options_.rails].queue_pair; }
  // Returns the number of operations posted before the one in this slot, wrapping.
  uint32_t turn_of(uint32_t slot) const { return told_ + ((slot - told_) & mask_); }
  // The caller has been notified of the operation. Frees its slot.
  void take_told() {
    open_answers_ -= has_answer(operations_[told_ & mask_].kind) ? 1 : 0;
    ++told_;
  }

  // --- Adds by the peer's agent.

  // The answer to the oldest unanswered add has arrived. `slot` is the slot of that add.
  uint16_t answered() const { return answered_; }
  bool awaits_answers() const { return answered_ != asked_; }
  // Returns whether `slot` has the oldest unanswered add, and its request is complete. Until then the answer
  // must wait, because the device may still read the entry. An answer to an add that was not posted is
  // invalid.
  bool may_be_answered(uint32_t slot) const {
    const Operation& operation = operations_[slot];
    return operation.kind == LaneOperationKind::kAskAdd && operation.asked_before == answered_ &&
           operation.open_shares == 1 && awaits_answers();
  }
  void on_answered(uint32_t slot) {
    --operations_[slot].open_shares;
    ++answered_;
  }
  // Tests whether the agent is alive, because a dead agent sends no answer: writes the entry of the oldest
  // unanswered add in `slot` again, once the request of the add is complete. The request fails if the agent
  // is dead. Call this from time to time while awaits_answers().
  [[gnu::cold]] void probe(uint32_t slot) {
    if (!may_be_answered(slot)) return;  // FAULT(probe_leaves_before_its_add_is_complete)
    const uint32_t q = recovery_.is_live(main_) ? main_ : recovery_.find_live(main_);
    if (!recovery_.is_live(q) || under_way(q) != 0 || !has_numbers(q, kWordBytes)) return;
    is_probing_ = true;
    post_request(q, {LanePosted::kProbe, 0, 0, 0}, {&operations_[slot], slot, 0, kWordBytes, 0, true, false});
  }
  // For this rank's agent: the number of the peer's adds that were executed, modulo 2^16.
  uint16_t served() const { return served_; }
  void on_served(uint16_t served) { served_ = served; }
  bool owes_answers() const { return served_ != confirmed_answers_; }
  // Returns whether issue_answers() has an answer to send now.
  bool has_answers() const { return sent_answers_ == confirmed_answers_ && served_ != confirmed_answers_; }
  // Sends the answers, one request at a time. An answer may be repeated: its slot has either the same answer,
  // or a later one that the peer expects there.
  void issue_answers() {
    if (!has_answers()) return;
    const uint32_t q = recovery_.is_live(main_) ? main_ : recovery_.find_live(main_);
    const uint32_t first = confirmed_answers_ & (options_.add_slots - 1);
    const uint32_t due = static_cast<uint16_t>(served_ - confirmed_answers_);
    const uint32_t count = std::min(due, options_.add_slots - first);
    const uint64_t length = count * sizeof(AddAnswer);
    if (!recovery_.is_live(q) || under_way(q) == options_.send_depth || !has_numbers(q, length)) return;
    sent_answers_ = static_cast<uint16_t>(confirmed_answers_ + count);
    post_request(q, {LanePosted::kAnswers, 0, 0, 0},
                 {nullptr, LanePosted::kAnswers, first * sizeof(AddAnswer), length, 0, true, false});
  }

  // --- Failures and recovery.

  // Sets the queue pair of all operations that are not split.
  void set_main(uint32_t q) { main_ = q; }
  uint32_t main() const { return main_; }

  // Handles a queue pair that has failed or must be given up; the port knows the cause.
  [[gnu::cold, gnu::noinline]] void fail_queue_pair(uint32_t q) {
    if (!recovery_.is_in_use(q)) return;
    Host host{port()};
    if (!recovery_.fail(host, q, port().now_ns())) note_nonsense(q);
  }
  // Do not pass further records after this has failed the lane.
  [[gnu::cold, gnu::noinline]] void absorb(const LaneRecord& record) {
    Host host{port()};
    if (!recovery_.absorb(host, record, port().now_ns())) note_nonsense(record.rail);
  }
  // Call this from time to time while a queue pair is not live.
  [[gnu::cold, gnu::noinline]] void step() {
    const int64_t now_ns = port().now_ns();
    Host host{port()};
    if (!recovery_.step(host, now_ns)) return note_nonsense(0);
    if (has_failed_) return;
    if (recovery_.is_overdue(now_ns)) return fail(LaneFailure::kOverdue, 0);
    if (blocked_since_ns_ == kUnknown) blocked_since_ns_ = now_ns;
    const bool is_late = blocked_since_ns_ != kNever && now_ns - blocked_since_ns_ >= options_.times.limit_ns;
    if (is_late) fail(LaneFailure::kNoWordRail, main_);
  }
  // The peer's process is gone: operations that wait for it fail. Live queue pairs may still report
  // completions.
  void lose_peer() {
    if (recovery_.find_waiting_since() != kNever) fail(LaneFailure::kPeerGone, 0);
  }

  // --- For the port, for diagnosis and for tests.
  const LaneRecovery& recovery() const { return recovery_; }
  LaneRecovery& recovery() { return recovery_; }
  const LaneCounts& counts() const { return counts_; }
  bool has_failed() const { return has_failed_; }
  uint32_t open_operations() const { return posted_ - told_; }
  uint32_t unissued_operations() const { return posted_ - issued_; }
  uint32_t under_way(uint32_t q) const { return pairs_[q].tail - pairs_[q].head; }
  bool waits_for_word_rail() const { return blocked_since_ns_ != kNever; }
  // Returns the total number of completed requests, to see whether there is progress.
  uint32_t count_retired(uint32_t q) const { return pairs_[q].head; }

 protected:
  Port& port() { return static_cast<Port&>(*this); }

 private:
  static constexpr int64_t kUnknown = 0;
  static constexpr uint8_t kNobody = 0xFF;
  static constexpr uint64_t kShareAlignBytes = 4096;

  struct Pair {
    std::span<LanePosted> posted;  // ring
    uint32_t head = 0, tail = 0;   // of the outstanding requests
    // Total packets, up to the last posted and the last completed request.
    uint32_t packets = 0, retired_packets = 0;
    uint32_t unsignaled = 0;
  };

  LanePosted& entry(Pair& pair, uint32_t position) { return pair.posted[position & (posted_per_rail_ - 1)]; }
  LaneShare& share(uint32_t slot, uint32_t index) { return shares_[size_t{slot} * options_.rails + index]; }

  // --- Issuing.

  // Returns false if not all requests of the operation could be posted.
  bool issue_operation(uint32_t slot) {
    Operation& operation = operations_[slot];
    if (operation.shares == 0) cut(operation, slot);
    for (uint32_t index = 0; index < operation.shares; ++index) {
      LaneShare& part = share(slot, index);
      if (part.issued == part.end) continue;
      if (!choose_carrier(operation, part)) return false;
      if (!issue_share(operation, slot, index, part)) return false;
    }
    return true;
  }

  void cut(Operation& operation, uint32_t slot) {
    const uint64_t extent = std::max<uint64_t>(operation.length_bytes, 1);
    uint32_t count = 1;
    if (options_.rails > 1 && operation.kind == LaneOperationKind::kPut && !operation.is_fenced) {
      const uint64_t most = operation.length_bytes / options_.min_stripe_bytes;
      count = static_cast<uint32_t>(std::clamp<uint64_t>(most, 1, std::max(recovery_.count_live(), 1U)));
    }
    uint64_t begin = 0;
    for (uint32_t index = 0; index < count; ++index) {
      const uint64_t rest = extent - begin;
      uint64_t length = rest / (count - index);
      if (index + 1 < count) length = std::max(length / kShareAlignBytes * kShareAlignBytes, uint64_t{1});
      share(slot, index) = {begin, begin, begin + length, kNobody};
      begin += length;
    }
    operation.shares = operation.open_shares = static_cast<uint8_t>(count);
    operation.asked_before = asked_;
    if (operation.kind == LaneOperationKind::kPut && operation.length_bytes == 0) {
      operation.open_shares = 0;  // needs no request, because some devices reject a write of no bytes
      share(slot, 0).end = 0;
    }
    if (operation.kind != LaneOperationKind::kAskAdd) return;
    ++operation.open_shares;  // FAULT(add_is_done_before_its_answer)
    ++asked_;
  }

  // A part stays on its queue pair as long as requests of it are outstanding there, or not settled. A part
  // that has not begun gets a new queue pair, because the main queue pair may have changed.
  bool choose_carrier(const Operation& operation, LaneShare& part) {
    // FAULT(waiting_part_stays_on_its_rail)
    if (part.issued != part.done) return recovery_.is_live(part.queue_pair);
    uint32_t q = main_;
    if (operation.kind == LaneOperationKind::kPut && operation.shares > 1) {
      q = find_least_loaded();
    } else if (!changes_word(operation.kind) && !recovery_.is_live(q)) {  // FAULT(word_takes_any_live_rail)
      q = recovery_.find_live(q);
    }
    if (!recovery_.is_live(q)) {
      is_blocked_ |= changes_word(operation.kind);
      return false;
    }
    const bool is_ordered = operation.kind != LaneOperationKind::kPut || operation.is_fenced;
    if (is_ordered && !is_alone(q)) return false;                 // FAULT(word_does_not_wait_for_other_rails)
    if (is_ordered && !may_follow_adds(operation)) return false;  // FAULT(word_does_not_wait_for_adds)
    const bool is_ask = operation.kind == LaneOperationKind::kAskAdd;
    const bool is_write = operation.kind == LaneOperationKind::kWriteWord || is_ask;
    // FAULT(written_word_does_not_wait_for_its_own_rail)
    if (is_write && options_.words_wait && pairs_[q].head != pairs_[q].tail) return false;
    part.queue_pair = static_cast<uint8_t>(q);
    return true;
  }
  // An add needs a free slot, which a probe may still read. Any other operation needs all answers.
  bool may_follow_adds(const Operation& operation) const {
    const auto open = static_cast<int16_t>(operation.asked_before - answered_);
    const bool is_ask = operation.kind == LaneOperationKind::kAskAdd;
    if (is_ask && is_probing_) return false;  // FAULT(add_takes_the_slot_that_a_probe_reads)
    return open <= (is_ask ? static_cast<int32_t>(options_.add_slots) - 1 : 0);
  }
  // Returns whether no other queue pair has outstanding or unsettled requests.
  bool is_alone(uint32_t q) const {
    for (uint32_t other = 0; other < options_.rails; ++other)
      // FAULT(unsettled_rail_counts_as_empty)
      if (other != q && pairs_[other].head != pairs_[other].tail) return false;
    return true;
  }
  // Returns the live queue pair with the fewest outstanding requests; the main one if equal.
  uint32_t find_least_loaded() const {
    uint32_t best = main_;
    for (uint32_t q = 0; q < options_.rails; ++q) {
      if (!recovery_.is_live(q)) continue;
      if (!recovery_.is_live(best) || under_way_bytes_[q] < under_way_bytes_[best]) best = q;
    }
    return best;
  }

  bool issue_share(Operation& operation, uint32_t slot, uint32_t index, LaneShare& part) {
    const uint32_t q = part.queue_pair;
    while (part.issued != part.end) {
      const uint64_t length = std::min(part.end - part.issued, options_.max_request_bytes);
      if (under_way(q) >= operation_depth_ || !has_numbers(q, length)) return false;
      const bool is_last = part.issued + length == part.end;
      const bool is_fenced = operation.is_fenced && part.issued == 0;  // FAULT(fence_does_not_hold)
      const uint64_t offset = part.issued;
      part.issued += length;
      under_way_bytes_[q] += length;
      post_request(q, {slot, 0, part.issued, static_cast<uint8_t>(index)},
                   {&operation, slot, offset, operation.length_bytes == 0 ? 0 : length, 0,
                    is_last && operation.cookie != 0, is_fenced});
    }
    return true;
  }

  // If too many packets were outstanding, the packet count that the peer's device reports would be ambiguous.
  bool has_numbers(uint32_t q, uint64_t length_bytes) {
    const Pair& pair = pairs_[q];
    const uint32_t under_way = numbers_.count(pair.retired_packets, pair.packets);
    // FAULT(packet_numbers_wrap)
    return under_way + port().packets_of(q, length_bytes) <= numbers_.max_under_way();
  }

  void post_request(uint32_t q, LanePosted posted, Request request) {
    Pair& pair = pairs_[q];
    // FAULT(trial_is_not_counted)
    pair.packets = numbers_.add(pair.packets, port().packets_of(q, request.length_bytes));
    posted.packets = pair.packets;
    request.position = pair.tail;
    request.is_signaled |= ++pair.unsignaled >= options_.signal_interval;
    if (request.is_signaled) pair.unsignaled = 0;
    entry(pair, pair.tail++) = posted;
    port().post(q, request);
  }

  // --- Completion.

  void complete(uint32_t q, const LanePosted& posted) {
    LaneShare& part = share(posted.slot, posted.share);
    under_way_bytes_[q] -= posted.end - part.done;
    part.done = posted.end;
    if (part.done == part.end) --operations_[posted.slot].open_shares;
  }

  [[gnu::noinline]] void pass_special(uint32_t q, const LanePosted& posted) {
    if (posted.slot == LanePosted::kTrial) return pass_trial(q);
    if (posted.slot == LanePosted::kAnswers) confirmed_answers_ = sent_answers_;
    if (posted.slot == LanePosted::kProbe) is_probing_ = false;
  }
  [[gnu::cold, gnu::noinline]] void pass_trial(uint32_t q) {
    Host host{port()};
    recovery_.pass_trial(host, q, port().now_ns());
  }

  // --- A queue pair that has stopped at both ends.

  // `record` is the peer's final record for the queue pair. Returns false if the record is impossible.
  bool settle(uint32_t q, const LaneRecord& record) {
    Pair& pair = pairs_[q];
    const uint32_t posted = numbers_.count(pair.retired_packets, pair.packets);
    const uint32_t carried_out =
        record.has_count != 0 ? numbers_.count(pair.retired_packets, record.packets) : 0;
    if (record.has_count != 0 && carried_out > posted) return fail(LaneFailure::kDeviceLoss, q), true;
    // FAULT(words_are_repeated_without_counts)
    if (record.has_count == 0 && has_words(pair)) return fail(LaneFailure::kUncertain, q), true;
    const uint32_t answered = find_answered(pair, carried_out);
    uint32_t first = posted_;
    uint32_t repeated = 0;
    for (; pair.head != pair.tail; ++pair.head) {
      const LanePosted& request = entry(pair, pair.head);
      // FAULT(failed_answers_are_not_sent_again)
      if (request.slot == LanePosted::kAnswers) sent_answers_ = confirmed_answers_;
      if (request.slot == LanePosted::kProbe) is_probing_ = false;
      if (request.slot >= LanePosted::kProbe) continue;
      // FAULT(one_request_too_many_counts_as_done)
      const bool was_carried_out = numbers_.count(pair.retired_packets, request.packets) <= carried_out;
      const bool has_answer = count_between_turns(pair.head, answered) > 0;
      if (was_carried_out && finish(request, has_answer)) continue;  // FAULT(done_request_is_issued_again)
      LaneShare& part = share(request.slot, request.share);
      part.issued = part.done;
      part.queue_pair = kNobody;
      first = find_earlier(first, request.slot);
      ++repeated;
    }
    pair.packets = pair.retired_packets = pair.unsignaled = 0;
    under_way_bytes_[q] = 0;
    // FAULT(failed_requests_are_not_issued_again)
    if (count_between_turns(first, issued_) > 0) issued_ = first;
    counts_.replayed_requests += repeated;
    port().retire_pair(q);
    port().note_settled(q, repeated);
    return true;
  }
  // Returns whether requests must not be repeated: words; or puts and gets before a fence, because a word
  // after them may already be visible.
  bool has_words(Pair& pair) {
    bool has_put = false, has_get = false, has_fence = false;
    for (uint32_t position = pair.head; position != pair.tail; ++position) {
      const LanePosted& request = entry(pair, position);
      if (request.slot >= LanePosted::kProbe) continue;
      const LaneOperationKind kind = operations_[request.slot].kind;
      has_fence |= has_get && operations_[request.slot].is_fenced;
      const bool is_ask = kind == LaneOperationKind::kAskAdd;
      // FAULT(puts_are_repeated_behind_an_add)
      if (is_ask ? has_put || has_fence : changes_word(kind)) return true;
      has_put |= kind == LaneOperationKind::kPut;
      has_get |= is_read(kind);
    }
    return false;
  }
  // Returns the position up to which answers have arrived: if a request after a fence was executed, all
  // requests before the fence have their answers.
  uint32_t find_answered(Pair& pair, uint32_t carried_out) {
    uint32_t answered = pair.head;
    for (uint32_t position = pair.head; position != pair.tail; ++position) {
      const LanePosted& request = entry(pair, position);
      if (numbers_.count(pair.retired_packets, request.packets) > carried_out) break;
      // FAULT(answered_get_is_repeated)
      if (request.slot < LanePosted::kProbe && operations_[request.slot].is_fenced) answered = position;
    }
    return answered;
  }
  // Completes a request that the device executed. If its answer may be lost, a get is repeated, and an add is
  // not.
  bool finish(const LanePosted& request, bool has_answer) {
    Operation& operation = operations_[request.slot];
    // FAULT(get_without_its_answer_counts_as_done)
    if (is_read(operation.kind) && !has_answer) return false;
    operation.is_answer_lost = operation.kind == LaneOperationKind::kAddWord && !has_answer;
    LaneShare& part = share(request.slot, request.share);
    part.done = request.end;
    if (part.done == part.end) --operation.open_shares;
    return true;
  }
  // Returns the smaller one of `turn` and the turn (see issued_) of the operation in this slot.
  uint32_t find_earlier(uint32_t turn, uint32_t slot) const {
    const uint32_t candidate = turn_of(slot);
    return count_between_turns(candidate, turn) > 0 ? candidate : turn;
  }
  static int32_t count_between_turns(uint32_t earlier, uint32_t later) {
    return static_cast<int32_t>(later - earlier);
  }

  void note_nonsense(uint32_t q) {
    if (!has_failed_) fail(LaneFailure::kRecord, q);
  }
  void fail(LaneFailure failure, uint32_t q) {
    has_failed_ = true;
    port().fail(failure, q);
  }

  struct Host {
    Port& port;

    void stop(uint32_t q, LaneRecord& record) {
      LaneCore& core = port;
      if (core.recovery_.is_live(q)) {
        ++core.counts_.failed_queue_pairs;
        port.note_lost(q);
      }
      port.stop_pair(q, record);
    }
    void send(const LaneRecord& record) { port.send_record(record); }
    bool settle(uint32_t q, const LaneRecord& record) {
      return static_cast<LaneCore&>(port).settle(q, record);
    }
    bool is_usable(uint32_t q) const { return port.is_usable(q); }
    bool offer(uint32_t q, LaneRecord& record) { return port.renew_pair(q, record); }
    bool connect(uint32_t q, const LaneRecord& answer) {
      if (!port.connect_pair(q, answer)) return false;
      static_cast<LaneCore&>(port).post_request(q, {LanePosted::kTrial, 0, 0, 0},
                                                {nullptr, LanePosted::kTrial, 0, 0, 0, true, false});
      return true;
    }
    bool answer(uint32_t q, const LaneRecord& offer, LaneRecord& record) {
      return port.renew_pair(q, record) && port.connect_pair(q, offer);
    }
    void revive(uint32_t q) {
      ++static_cast<LaneCore&>(port).counts_.revived_queue_pairs;
      port.note_revived(q);
    }
  };

  const LaneOptions options_;
  const std::span<Operation> operations_;
  const std::span<LaneShare> shares_;
  const uint32_t mask_, operation_depth_, posted_per_rail_;
  const PacketNumbers numbers_;
  // Turns: the number of earlier operations. Operations [told_, posted_) have a slot in the ring. All
  // operations before issued_ were issued completely; after a failure issued_ goes back to the first
  // operation that was not.
  uint32_t told_ = 0, issued_ = 0, posted_ = 0;
  uint32_t main_ = 0;
  // Adds by agents, modulo 2^16. This rank's adds: issued at least once, answered. The peer's adds: executed;
  // answers posted; answers arrived.
  uint16_t asked_ = 0, answered_ = 0;
  uint16_t served_ = 0, sent_answers_ = 0, confirmed_answers_ = 0;
  uint32_t open_answers_ = 0;  // gets and adds that were not reported to the caller
  bool is_probing_ = false;    // the entry of an add is being written again
  bool is_fence_due_ = false;
  bool has_failed_ = false;
  bool is_blocked_ = false;            // in this call, a word waits until the main queue pair is live
  int64_t blocked_since_ns_ = kNever;  // since when, as step() has seen; kUnknown: not checked yet
  std::array<Pair, kMaxRails> pairs_{};
  std::array<uint64_t, kMaxRails> under_way_bytes_{};
  LaneRecovery recovery_;
  LaneCounts counts_;
};

}  // namespace verbena::protocol
