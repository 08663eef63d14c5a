// The sending end of a connection. Pure (connection_core.h explains this, and the port). The steps of a
// message, in the order of this file:
//
//   post            the message gets an entry in the ring; without staging, the entry of the receive that it
//                   fills (find_receive: by tag, see wire.h)
//   decide_path     staged (eager): sent at once, into any page of the receiver's shared receive queue, as
//                   far as credits allow; direct (rendezvous): after the receiver has granted an address
//                   (clear to send)
//   cut             split into chunks for any queue pairs; rail_share.h chooses how much each one carries
//   post_chunks     each chunk takes a credit and becomes a work request
//   on_sent         the completion of a chunk
//   absorb_credits  takes the credits that the receiver has returned, and the messages that it has consumed
//   test            the caller learns that it may reuse the buffer
//
// When a queue pair fails: replay (marks the chunks that have not arrived) and post_replays (sends them
// again).
//
// Messages are sent in the order of posting, whatever their numbers are. The numbers belong to the receiver;
// chunks, arrivals, consumption and replays are identified by them. Nothing allocates, and the clock is read
// only if necessary.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "base/hot_path.h"
#include "protocol/chunking.h"
#include "protocol/connection_core.h"
#include "protocol/control_view.h"
#include "protocol/credits.h"
#include "protocol/immediate.h"
#include "protocol/rail_share.h"
#include "protocol/recovery.h"
#include "protocol/replay.h"
#include "protocol/sequence.h"
#include "protocol/wire.h"

namespace verbena::protocol {

// Work requests of one queue pair: for 8 messages, which NCCL keeps open, of 8 pages or stripes each. At
// least every 16th request of a staged run is signaled. One less than a power of two, because the completion
// queues of some devices have one entry more than requested.
inline constexpr uint32_t kSendDepth = 63;

// Options from the receiver's Welcome and from this end's settings.
struct SendOptions {
  uint32_t queue_pairs = 1;
  std::array<uint8_t, kMaxQueuePairs> rail_of{};       // the local rail of each queue pair
  std::array<uint8_t, kMaxQueuePairs> peer_rail_of{};  // the receiver's rail of each queue pair
  uint32_t page_bytes = 0;
  std::array<uint32_t, kMaxQueuePairs> window{};  // receive entries of each queue pair
  uint64_t staging_threshold_bytes = 0;
  uint64_t min_stripe_bytes = 65536;
  // Maximum length of a work request on all rails; a multiple of 128.
  uint32_t max_stripe_bytes = kMaxStripeBytes;
  bool staging = false;            // false: every message needs a grant, which also carries credits
  RailShare::Speeds speed_mbps{};  // speed that each queue pair can expect; 0: unknown
  uint32_t primary = 0;            // the queue pair of short messages
  // Queue pairs on networks with adaptive routing. A message above adaptive_above_bytes is sent there as a
  // plain write, followed by the immediate.
  std::array<bool, kMaxQueuePairs> is_adaptive{};
  uint64_t adaptive_above_bytes = 8192;
  // If a rail has several queue pairs: whether a direct message may use all of them, or only one of each
  // rail.
  bool splits_over_all = false;
  uint32_t first_sequence = 0;
  RecoveryTimes times{};
  int64_t stall_ns = 0;  // 0: stalls are not reported
};

// One work request that the core passes to its port.
struct SendWork {
  bool is_write;  // true: a write to `remote`; false: a send with immediate, into a page
  bool has_imm;   // a write may have none
  bool is_signaled;
  uint32_t imm;
  uint64_t cookie;  // part of its completion
  const uint8_t* data;
  uint32_t length_bytes;
  uint32_t remote_key;
  uint64_t remote;
};

// The cookie of a completion: the number of its message, and the number of bytes it covers.
inline uint64_t make_send_cookie(uint32_t sequence, uint32_t bytes) {
  return uint64_t{bytes} << 32 | sequence;
}
inline uint32_t cookie_sequence(uint64_t cookie) {
  return static_cast<uint32_t>(cookie);
}
inline uint32_t cookie_bytes(uint64_t cookie) {
  return static_cast<uint32_t>(cookie >> 32);
}

// Types: Request is the base class of the objects that the caller holds; Memory is the type of registered
// memory.
template <typename Types>
struct SendMessageOf : Types::Request {
  enum class Path : uint8_t { kUndecided, kStaged, kDirect };
  // What the message waits for, as far as this end knows.
  enum class Wait : uint8_t { kTest, kCompletions, kReplay, kTurn, kGrant, kRoom };

  bool in_use = false;  // not reported as done yet
  bool may_stage = false;
  Path path = Path::kUndecided;
  const uint8_t* data = nullptr;
  const typename Types::Memory* memory = nullptr;
  uint64_t length_bytes = 0;
  uint32_t sequence = 0;
  bool is_posted = false;  // the whole message
  // True: one chunk, on queue pair whole_on; false: `cut` has the position of each chunk.
  bool is_whole = false;
  uint8_t whole_on = 0;
  // Number of signaled work requests without a completion, on each queue pair (at most kSendDepth).
  std::array<uint8_t, kMaxQueuePairs> outstanding{};
  Cut cut;
  Grant grant;  // without staging: valid from the post on

  bool takes_pages() const { return path == Path::kStaged && length_bytes != 0; }
  bool is_complete() const { return is_posted && std::bit_cast<uint64_t>(outstanding) == 0; }
};

// In addition to connection_core.h's list, the port offers control() (a ControlView), make_work(queue_pair,
// memory, SendWork) -> its WorkRequest, post_work(queue_pair, work requests) -> bool, make_replay() ->
// Replay*. It also offers the events note_post, note_post_end, note_chunk, note_replay and note_done (only if
// observed).
template <typename Port, typename Types>
class SendCore : public ConnectionCore<Port, SenderRecovery> {
  using Core = ConnectionCore<Port, SenderRecovery>;
  friend Core;

 public:
  using Message = SendMessageOf<Types>;
  using Path = typename Message::Path;
  using Wait = typename Message::Wait;

  static constexpr uint64_t kTrialCookie = uint64_t{1} << 63;  // the request that tests a new queue pair

  explicit SendCore(const SendOptions& options)
      : Core(options.queue_pairs, options.times, options.stall_ns),
        options_(options),
        next_(options.first_sequence),
        posting_(options.first_sequence),
        granted_(options.first_sequence),
        consumed_(options.first_sequence),
        next_note_(options.first_sequence),
        primary_(options.primary),
        has_choice_(options.queue_pairs > 1),
        has_turns_(find_turns()),
        slots_shift_(is_any_adaptive() ? 1 : 0),
        apart_above_bytes_(is_any_adaptive() ? options.adaptive_above_bytes : UINT64_MAX),
        // FAULT(no_entry_is_kept_for_replays)
        kept_entries_(has_choice_ ? 1 : 0) {
    for (uint32_t q = 0; q < options.queue_pairs; ++q) credits_.set_window(q, options.window[q]);
    share_.start(options.queue_pairs, options.speed_mbps, options.primary, options.min_stripe_bytes);
    update_rails();
  }
  // Call this before the first message, if the port wants the events of every message.
  void observe() { is_observed_ = is_watched_ = true; }

  // --- The steps of a message.

  // Returns null if there is no space now, no receive that the message may fill (in connections without
  // staging, by `tag`), or the connection has failed. `may_stage` means that the caller expects the receiving
  // kernel to unpack. `data` is read until test() reports the message as done.
  Message* post(const void* data, uint64_t length_bytes, const typename Types::Memory* memory, bool may_stage,
                int32_t tag) {
    if (open_ == 0 && !port().enter()) return nullptr;
    if (port().has_failed()) return refuse();
    Message* const place = options_.staging ? find_place() : find_receive(tag);
    if (place == nullptr) [[unlikely]]
      return wait_for_place(tag);
    Message& message = *place;
    ++open_;
    const bool others_wait = posting_ != next_;
    message.in_use = true;
    message.may_stage = may_stage;
    message.path = Path::kUndecided;
    message.data = static_cast<const uint8_t*>(data);
    message.memory = memory;
    message.length_bytes = length_bytes;
    message.is_posted = false;
    order_[next_++ % kMessageRing] = static_cast<uint8_t>(message.sequence % kMessageRing);
    if (is_watched_) [[unlikely]] {
      begin_watched(message, others_wait);
    } else {
      begin(message, others_wait);
    }
    return &message;
  }

  // Returns true if the message is done; its ring entry is then free. Messages may be tested in any order.
  bool test(Message& message) {
    if (port().has_failed()) return false;
    if (!message.is_complete()) {  // the test of another message may have found it complete
      if (!progress()) return false;
      if (!message.is_complete()) {
        if (wait_.is_check_due(this->is_pressing())) check_wait();
        return false;
      }
    }
    finish(message);
    return true;
  }

  // A successful completion. Completions of retired queue pairs must not be passed.
  void on_sent(uint32_t queue_pair, uint64_t cookie) {
    --ring_[cookie_sequence(cookie) % kMessageRing].outstanding[queue_pair];
    if (has_choice_) share_.note_completed(queue_pair, cookie_bytes(cookie), now_ns_);
  }
  // The test of the new queue pair has succeeded.
  [[gnu::cold, gnu::noinline]] void on_trial_passed(uint32_t queue_pair) {
    RecoveryHost host{port()};
    recovery_.pass_trial(host, queue_pair, port().now_ns());
  }

  // --- For diagnosis and tests.
  uint32_t next() const { return next_; }  // number of posted messages, counted from the first number
  // The number of the message that is sent next. Call it while there is one.
  uint32_t leaving() const { return at(posting_).sequence; }
  uint32_t posting() const { return posting_; }  // all messages before this turn were posted completely
  uint32_t consumed() const { return consumed_; }
  const std::array<Message, kMessageRing>& ring() const { return ring_; }
  const SenderCredits& credits() const { return credits_; }
  const RailShare& share() const { return share_; }
  bool stages() const { return options_.staging; }
  bool has_any_replays() const { return is_watched_ && replay_ != nullptr && !replay_->is_empty(); }
  bool is_ring_full() const {
    return options_.staging && count_between(consumed_, next_) >= static_cast<int32_t>(kMessageRing);
  }
  // The tag of the last send for which no receive was found.
  int32_t wanted_tag() const { return wanted_tag_; }
  Wait find_wait(const Message& message) const {
    if (message.is_complete()) return Wait::kTest;
    if (message.is_posted) return Wait::kCompletions;
    if (posting_ == next_ || !is_waiting(message)) return Wait::kReplay;
    if (&message != &at(posting_)) return Wait::kTurn;
    return message.path == Path::kUndecided && options_.staging ? Wait::kGrant : Wait::kRoom;
  }
  // Calls see(message), in the order of numbers, for each message that was not reported as done.
  template <typename See>
  void for_each_open(See&& see) const {
    for_each_number([&](uint32_t sequence) {
      const Message& message = ring_[sequence % kMessageRing];
      if (message.in_use && message.sequence == sequence) see(message);
    });
  }

 protected:
  using Core::open_;
  using Core::port;
  using Core::recovery_;
  using Core::statistics_;
  using Core::wait_;
  using Core::wait_stamps_;

  // Each poll reads the clock while the speed of a rail is being measured.
  void begin_look() { now_ns_ = share_.is_measuring() ? port().now_ns() : kUnknownNs; }
  void end_look() {
    if (now_ns_ != kUnknownNs) share_.note_looked(now_ns_);
  }
  bool progress() {
    if (!port().poll_completions()) return false;
    if (is_anything_wrong()) [[unlikely]] {
      if (!this->recover()) return false;
    }
    if (posting_ == next_) return true;
    if (!post_waiting()) return false;
    return posting_ == next_ || absorb_credits();  // for the next poll
  }
  // Not inlined, so that a post, which rarely calls it, needs few registers.
  [[gnu::noinline, gnu::flatten]] bool progress_apart() { return progress(); }
  std::array<Message, kMessageRing> ring_;

 private:
  static constexpr uint32_t kFewSlots = kSendDepth / 2;
  static constexpr uint32_t kPostBatch = 16;  // work requests in one chain
  static constexpr uint64_t kUnlimitedBytes = UINT64_MAX / (2 * kMaxQueuePairs);

  // --- Posting.

  [[gnu::cold, gnu::noinline]] Message* refuse() {
    if (open_ == 0) port().leave();
    return nullptr;
  }
  // The caller will try again. It may have no request to test meanwhile.
  [[gnu::cold, gnu::noinline]] Message* wait_for_place(int32_t tag) {
    wanted_tag_ = tag;
    const bool goes_on = progress() && absorb_credits();
    const bool is_waiting = !options_.staging || is_ring_full();
    if (goes_on && is_waiting && wait_.is_check_due(this->is_pressing())) check_wait();
    if (open_ == 0) this->rest();
    return nullptr;
  }

  // --- The ring entry of a message.

  Message& at(uint32_t turn) { return ring_[order_[turn % kMessageRing]]; }
  const Message& at(uint32_t turn) const { return ring_[order_[turn % kMessageRing]]; }
  bool is_waiting(const Message& message) const {
    for (uint32_t turn = posting_; turn != next_; ++turn)
      if (&at(turn) == &message) return true;
    return false;
  }
  // Calls `see` for the numbers of messages that may not be consumed yet.
  template <typename See>
  void for_each_number(See&& see) const {
    const uint32_t end = options_.staging ? next_ : granted_;
    for (uint32_t sequence = end - kMessageRing; sequence != end; ++sequence) see(sequence);
  }
  // Returns the entry for the next number. The receiver distinguishes kMessageRing messages by the number, so
  // no message may be further ahead of the consumed ones. A message keeps its entry until it is known to be
  // consumed: if the peer's device has lost it, the entry tells which queue pairs carried it.
  Message* find_place() {
    Message& message = ring_[next_ % kMessageRing];
    if (message.in_use || is_ring_full()) [[unlikely]]
      return nullptr;
    message.sequence = next_;
    return &message;
  }
  // Returns the entry of the oldest receive that is granted, free and has this tag. A ring entry is free if
  // the peer has granted the number of its next message, because the peer consumed the previous one first,
  // and if that one was reported to the caller as done. Usually all granted receives are taken, and the next
  // grant has the tag.
  Message* find_receive(int32_t tag) {
    Message& message = *(ring_.data() + granted_ % kMessageRing);
    // FAULT(receive_of_another_tag_is_taken)
    if (unclaimed_ != 0 || message.in_use || !port().control().read_grant(granted_, message.grant) ||
        message.grant.tag() != tag) [[unlikely]]
      return find_older_receive(tag);
    message.sequence = granted_++;
    return &message;
  }
  // Searches all granted receives. Receives with other tags are left for other sends.
  [[gnu::noinline]] Message* find_older_receive(int32_t tag) {
    const ControlView control = port().control();
    int32_t granted_tag = 0;
    // The receiver grants at most one ring beyond the consumed messages, and consumes only messages that were
    // sent. The loop stops at an entry whose message is not yet reported as done. So all open numbers are
    // within one ring of granted_.
    for (; !ring_[granted_ % kMessageRing].in_use && control.has_grant(granted_, &granted_tag); ++granted_) {
      if (!is_before(granted_, first_unsent() + kMessageRing)) {
        port().fail(Failure::kGrantAhead, granted_);
        return nullptr;
      }
      unclaimed_ |= bit_of(granted_);
    }
    for (uint32_t left = sort_unclaimed(); left != 0; left &= left - 1) {
      const uint32_t sequence = oldest_of(left);
      Message& message = ring_[sequence % kMessageRing];
      if (!control.has_grant(sequence, &granted_tag) || granted_tag != tag) continue;
      // The receive belongs to this send and to no later one with the tag, even if the previous send in the
      // entry was not tested yet.
      if (message.in_use || !control.read_grant(sequence, message.grant)) return nullptr;
      message.sequence = sequence;
      unclaimed_ &= ~bit_of(sequence);  // FAULT(receive_is_taken_twice)
      return &message;
    }
    return nullptr;
  }
  static uint32_t bit_of(uint32_t sequence) { return 1U << sequence % kMessageRing; }
  // Returns the bits in the order of numbers: bit i is number granted_ - kMessageRing + i.
  uint32_t sort_unclaimed() const { return std::rotr(unclaimed_, static_cast<int>(granted_ % kMessageRing)); }
  uint32_t oldest_of(uint32_t sorted) const {
    // FAULT(newest_receive_of_a_tag_is_taken)
    return granted_ - kMessageRing + static_cast<uint32_t>(std::countr_zero(sorted));
  }
  // Returns the lowest number that the receiver cannot have consumed.
  uint32_t first_unsent() const {
    if (options_.staging) return next_;
    return unclaimed_ == 0 ? granted_ : oldest_of(sort_unclaimed());
  }
  // As long as there is space, completions are left to test(), because processing them here would delay this
  // message.
  [[gnu::always_inline]] void begin(Message& message, bool others_wait) {
    const bool is_short = is_for_primary(message.length_bytes);
    if (others_wait || may_lack_slots(is_short)) [[unlikely]] {
      progress_apart();
    } else if (!post_at_once(message)) {
      post_waiting(message, is_short);
    }
  }
  // The usual case: one chunk on the primary queue pair, which has enough slots (begin has checked) and
  // credits. A short form of post_waiting() and its parts, with the same decisions. Returns false if nothing
  // was done and those must be called.
  [[gnu::always_inline]] bool post_at_once(Message& message) {
    // FAULT(short_message_does_not_wait_for_credits)
    if (credits_.available(primary_) < few_credits_ || has_any_replays() || !decide_path(message))
      return false;
    if (message.length_bytes > (message.path == Path::kStaged ? options_.page_bytes : kMaxStripeBytes)) {
      message.path = Path::kUndecided;
      return false;
    }
    if (message.path == Path::kDirect && !take_grant(message)) return true;  // the connection has failed
    const uint32_t q = primary_;
    message.is_whole = message.is_posted = true;
    message.whole_on = static_cast<uint8_t>(q);
    ++posting_;
    post_one(message, q, make_work(message, q, whole_chunk(message)));
    return true;
  }
  [[gnu::cold, gnu::noinline]] void begin_watched(Message& message, bool others_wait) {
    if (replay_ != nullptr) replay_->forget(message.sequence % kMessageRing);
    if (is_observed_) port().note_post(message.sequence, message.length_bytes);
    begin(message, others_wait);
    if (is_observed_) port().note_post_end();
  }

  // Posts all messages that may be posted now, in order.
  bool post_waiting() {
    return posting_ == next_ || post_waiting(at(posting_), is_for_primary(at(posting_).length_bytes));
  }
  // `first` is the next message in order. Not inlined, for the same reason as progress_apart().
  [[gnu::noinline, gnu::flatten]] bool post_waiting(Message& first, bool is_short) {
    if (has_any_replays()) [[unlikely]]
      return true;  // replays come first, because new messages could take the credits that they need
    for (Message* message = &first;;) {
      if (!is_short || may_lack_credits(*message)) [[unlikely]] {
        if (!absorb_credits()) return false;
      }
      if (!post_chunks(*message, is_short)) return false;
      if (!message->is_posted || ++posting_ == next_) return true;
      message = &at(posting_);
      is_short = is_for_primary(message->length_bytes);
    }
  }

  // Posts as many chunks of the message as possible.
  bool post_chunks(Message& message, bool is_short) {
    if (message.path == Path::kUndecided) {
      if (!decide_path(message)) return true;
      if (message.path == Path::kDirect && !take_grant(message)) return false;
      if (!cut(message, is_short)) {
        message.path = Path::kUndecided;
        return true;
      }
    }
    if (message.is_whole) return count_free(message, message.whole_on) == 0 || post_whole(message);
    const bool goes_on = message.path == Path::kStaged ? post_staged(message) : post_direct(message);
    message.is_posted = message.cut.is_empty() && !has_replays(message);
    return goes_on;
  }

  // Returns false if the grant has not arrived.
  bool decide_path(Message& message) {
    if (!options_.staging) {
      message.path = Path::kDirect;
      return true;
    }
    // An empty message needs no address, so it never waits for a grant.
    if (message.length_bytes <= (message.may_stage ? max_staged_bytes_ : 0)) {
      message.path = Path::kStaged;
      return true;
    }
    if (!port().control().read_grant(message.sequence, message.grant)) return false;
    message.path = Path::kDirect;
    return true;
  }
  // Returns false if the connection has failed. In connections without staging, grants carry credits; a later
  // note replaces the earlier ones.
  bool take_grant(const Message& message) {
    if (message.grant.length_bytes < message.length_bytes) [[unlikely]]
      return port().fail(Failure::kShortRoom, message.sequence);
    if (options_.staging) return true;
    if (is_before(next_note_, message.sequence + 1)) next_note_ = message.sequence + 1;
    return absorb_note(message.grant.note);
  }

  // The split is decided once. A chunk that a queue pair cannot take yet waits for its credits. They always
  // come, because no posted message waits for this one, and no share exceeds staged_limit. Returns false if
  // no queue pair is live.
  bool cut(Message& message, bool is_short) {
    const bool is_staged = message.path == Path::kStaged;
    const uint64_t chunk_bytes = is_staged ? options_.page_bytes : options_.max_stripe_bytes;
    message.is_whole = message.length_bytes <= chunk_bytes && can_primary_take(message, is_short, 1);
    message.whole_on = static_cast<uint8_t>(primary_);
    if (message.is_whole) return true;
    if (!recovery_.is_any_live()) return false;
    const uint32_t page_bytes = is_staged ? options_.page_bytes : 0;
    const uint64_t chunks = is_staged ? count_pages(message.length_bytes, page_bytes) : 1;
    if (can_primary_take(message, is_short, chunks)) {
      message.cut.start_one(message.length_bytes, page_bytes, primary_, options_.max_stripe_bytes);
      return true;
    }
    now_ns_ = port().now_ns();
    const uint32_t unit_bytes = is_staged ? page_bytes : kDirectAlignBytes;
    message.cut.start(message.length_bytes, page_bytes,
                      share_.split(message.length_bytes, unit_bytes, find_room(message, unit_bytes), now_ns_),
                      options_.max_stripe_bytes);
    return true;
  }
  // Decides without checking the other queue pairs or the clock.
  bool is_for_primary(uint64_t length_bytes) const {
    return !has_choice_ || share_.is_for_primary(length_bytes);
  }
  bool can_primary_take(const Message& message, bool is_short, uint64_t chunks) {
    return !has_choice_ || (is_short && count_free(message, primary_) >= chunks);
  }
  // A short message should be sent at once, on any queue pair with space, and not wait for the primary.
  [[gnu::noinline]] Shares find_room(const Message& message, uint32_t unit_bytes) {
    const bool is_staged = message.takes_pages();
    Shares now{}, later{};
    uint64_t sum_now = 0;
    const bool takes_one_lap =
        has_turns_ && !options_.splits_over_all && !is_staged && !share_.is_short(message.length_bytes);
    for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q) {
      if (takes_one_lap && find_lap(q) != find_lap(primary_)) continue;
      const uint64_t free = count_free(message, q);
      const uint64_t unlimited = recovery_.is_live(q) ? kUnlimitedBytes : 0;
      later[q] = is_staged ? uint64_t{staged_limit(q)} * unit_bytes : unlimited;
      now[q] = is_staged ? std::min(free * unit_bytes, later[q]) : free != 0 ? unlimited : 0;
      sum_now += now[q];
    }
    const bool leaves_now =
        share_.is_short(message.length_bytes) && sum_now >= std::max<uint64_t>(1, message.length_bytes);
    return leaves_now ? now : later;
  }

  // The caller has checked that there is space.
  [[gnu::always_inline]] bool post_whole(Message& message) {
    const uint32_t q = message.whole_on;
    message.is_posted = true;
    return post_one(message, q, make_work(message, q, whole_chunk(message)));
  }
  // Posts as many chunks as credits and send queues allow.
  [[gnu::noinline]] bool post_staged(Message& message) {
    for (uint32_t q = 0; q < recovery_.queue_pairs() && !message.cut.is_empty(); ++q) {
      uint32_t run = std::min(message.cut.left_chunks(q), count_free(message, q));
      while (run != 0) {
        const uint32_t batch = std::min(run, kPostBatch);
        if (!post_staged_run(message, q, batch)) return false;
        run -= batch;
      }
    }
    return true;
  }
  // One chain; the signaled last request covers all.
  bool post_staged_run(Message& message, uint32_t queue_pair, uint32_t count) {
    typename Port::WorkRequest requests[kPostBatch];
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const Chunk chunk = message.cut.take(queue_pair);
      bytes += chunk.length_bytes;
      SendWork work = make_work(message, queue_pair, chunk);
      work.is_signaled = i + 1 == count;
      work.cookie = make_send_cookie(message.sequence, bytes);
      requests[i] = port().make_work(queue_pair, message.memory, work);
      credits_.take(queue_pair);
    }
    note_posted(message, queue_pair, bytes);
    return port().post_work(queue_pair, {requests, count});
  }
  [[gnu::noinline]] bool post_direct(Message& message) {
    for (uint32_t q = 0; q < recovery_.queue_pairs() && !message.cut.is_empty(); ++q) {
      while (message.cut.left_bytes(q) != 0 && count_free(q) != 0) {
        if (!post_one(message, q, make_work(message, q, message.cut.take(q)))) return false;
      }
    }
    return true;
  }
  static Chunk whole_chunk(const Message& message) {
    return {0, static_cast<uint32_t>(message.length_bytes), 0, true};
  }
  // One chunk, signaled.
  [[gnu::always_inline]] SendWork make_work(const Message& message, uint32_t queue_pair,
                                            const Chunk& chunk) const {
    const bool is_direct = message.path == Path::kDirect;
    return {.is_write = is_direct,
            .has_imm = true,
            .is_signaled = true,
            .imm = encode_tag({static_cast<uint8_t>(message.sequence), chunk.index, chunk.last, is_direct},
                              chunk.length_bytes),
            .cookie = make_send_cookie(message.sequence, chunk.length_bytes),
            .data = message.data + chunk.offset_bytes,
            .length_bytes = chunk.length_bytes,
            .remote_key = is_direct ? message.grant.remote_keys[options_.peer_rail_of[queue_pair]] : 0,
            .remote = is_direct ? message.grant.address + chunk.offset_bytes : 0};
  }
  [[gnu::always_inline]] bool post_one(Message& message, uint32_t queue_pair, const SendWork& work) {
    credits_.take(queue_pair);
    // Assigned member by member, so that the compiler keeps `work` in registers except on this path.
    if (work.length_bytes > apart_above_bytes_) [[unlikely]] {
      return post_apart(message, queue_pair,
                        {work.is_write, work.has_imm, work.is_signaled, work.imm, work.cookie, work.data,
                         work.length_bytes, work.remote_key, work.remote});
    }
    note_posted(message, queue_pair, work.length_bytes);
    return port().post_work(queue_pair, port().make_work(queue_pair, message.memory, work));
  }
  // Posts the bytes first, which the network may spread over all its paths, then the immediate: the device
  // reports it when all earlier writes of its queue pair have been placed. Both are one chain, with one
  // signaled request.
  [[gnu::noinline]] bool post_apart(Message& message, uint32_t queue_pair, const SendWork& work) {
    SendWork bytes = work, rest = work;
    auto tag = decode_tag(work.imm);
    const uint32_t units = std::min(work.length_bytes / kWrittenUnitBytes, kMaxWrittenUnits);
    note_posted(message, queue_pair, work.length_bytes);
    if (!options_.is_adaptive[queue_pair] || units == 0 || !tag || !tag->direct ||
        tag->index > kMaxWrittenIndex)
      return port().post_work(queue_pair, port().make_work(queue_pair, message.memory, work));
    tag->written_bytes = bytes.length_bytes = units * kWrittenUnitBytes;
    bytes.has_imm = bytes.is_signaled = false;
    rest.data += bytes.length_bytes;
    rest.remote += bytes.length_bytes;
    rest.length_bytes -= bytes.length_bytes;
    rest.imm = encode_tag(*tag, rest.length_bytes);
    // FAULT(immediate_overtakes_its_bytes)
    const typename Port::WorkRequest requests[] = {port().make_work(queue_pair, message.memory, bytes),
                                                   port().make_work(queue_pair, message.memory, rest)};
    return port().post_work(queue_pair, std::span(requests));
  }
  // Records one signaled work request, the last one of those that it covers.
  [[gnu::always_inline]] void note_posted(Message& message, uint32_t queue_pair, uint32_t bytes) {
    ++message.outstanding[queue_pair];
    statistics_.sent_rail_bytes[options_.rail_of[queue_pair]] += bytes;
    if (is_observed_) [[unlikely]]
      port().note_chunk(message.sequence, message.path == Path::kStaged, queue_pair, bytes);
    if (!has_choice_) return;
    // Some devices transfer the data before the post returns. For short messages the clock is not read.
    if (bytes >= RailRate::kSampleBytes) now_ns_ = port().now_ns();
    share_.note_posted(queue_pair, bytes, now_ns_);
    if (has_turns_) turn_round();
  }
  // A network chooses a path by the queue pair. If the user has configured several queue pairs on a rail, all
  // of them are used in turn, even for messages that are too short for more than one. Several rails alone are
  // no reason to leave the warm queue pair.
  [[gnu::noinline]] void turn_round() {
    do primary_ = (primary_ + 1) % recovery_.queue_pairs();
    while (!recovery_.is_live(primary_) && recovery_.is_any_live());
    share_.set_primary(primary_);
  }
  bool find_turns() const {
    for (uint32_t q = 0; q < options_.queue_pairs; ++q)
      if (find_lap(q) != 0) return true;
    return false;
  }
  // Returns the number of queue pairs of the same rail before this one.
  uint32_t find_lap(uint32_t queue_pair) const {
    const auto& rails = options_.rail_of;
    return static_cast<uint32_t>(std::count(rails.begin(), rails.begin() + queue_pair, rails[queue_pair]));
  }
  bool is_any_adaptive() const {
    const auto& are = options_.is_adaptive;
    return std::find(are.begin(), are.begin() + options_.queue_pairs, true) !=
           are.begin() + options_.queue_pairs;
  }

  // --- Free space: send queues, credits, the ring.

  // Returns whether completions and credits should be polled before a message is posted, because it may need
  // them. The choice of a rail needs to know which requests have completed.
  bool may_lack_slots(bool is_short) {
    return port().free_slots(primary_) < kFewSlots || !is_short || (has_choice_ && share_.is_measuring());
  }
  bool may_lack_credits(const Message& message) {
    return credits_.available(primary_) < few_credits_ ||
           message.path != Path::kUndecided;  // it was not sent as a whole
  }
  // Returns the number of chunks that a queue pair can take now. If bytes and immediate are sent separately,
  // each counts as two requests.
  uint32_t count_free(uint32_t queue_pair) {
    // FAULT(full_send_queue_is_ignored)
    return std::min(credits_.available(queue_pair), port().free_slots(queue_pair) >> slots_shift_);
  }
  // Returns the number of chunks of this message that the queue pair can take now. Pages stay taken until
  // their message is consumed, and meanwhile an older message may have lost a chunk on another rail. So one
  // entry is kept for chunks that must be sent again (see post_replays_of).
  uint32_t count_free(const Message& message, uint32_t queue_pair) {
    const uint32_t kept = message.takes_pages() ? kept_entries_ : 0,
                   available = credits_.available(queue_pair);
    return available <= kept ? 0 : std::min(available - kept, port().free_slots(queue_pair) >> slots_shift_);
  }
  // Returns how many entries of a queue pair a message may take: see ReceiverCredits::is_update_due.
  uint32_t staged_limit(uint32_t queue_pair) const {
    const uint32_t window = credits_.window(queue_pair);
    return std::min((window + 1) / 2, window - std::min(window, kept_entries_));
  }

  // --- Data from the receiver.

  [[gnu::noinline]] bool absorb_credits() {
    const ControlView control = port().control();
    for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q) {
      if (!credits_.absorb(q, control.read_returned(q))) return port().fail(Failure::kCreditsOfLine, 0, q);
    }
    consumed_ = take_newer(consumed_, control.read_consumed());
    for (CreditNote note; !options_.staging && control.read_note(&next_note_, note);) {
      // Also limits the loop: stamps that continue around the whole number range would make it endless. The
      // receiver grants at most one ring beyond the consumed messages, and consumes only messages that were
      // sent.
      if (!is_before(next_note_ - 1, first_unsent() + kMessageRing))
        return port().fail(Failure::kGrantAhead, next_note_ - 1);
      if (!absorb_note(note)) return false;
    }
    return is_before(first_unsent(), consumed_) ? port().fail(Failure::kConsumed, consumed_) : true;
  }
  bool absorb_note(const CreditNote& note) {
    // The receiver returns credits in batches.
    if (note.returned != last_returned_) {  // FAULT(equal_credits_of_another_queue_pair_are_skipped)
      const uint32_t q = note.queue_pair();
      if (q >= recovery_.queue_pairs() || !credits_.absorb(q, note.expand_returned(credits_.returned(q))))
        return port().fail(Failure::kCreditsOfNote, 0, q);
      last_returned_ = note.returned;
    }
    consumed_ = take_newer(consumed_, note.consumed);
    return is_before(first_unsent(), consumed_) ? port().fail(Failure::kConsumed, consumed_) : true;
  }

  // --- Completion.

  void finish(Message& message) {
    statistics_.sent[static_cast<size_t>(message.path) - 1].count(message.length_bytes);
    if (is_observed_) [[unlikely]]
      port().note_done(message.sequence, message.length_bytes);
    message.in_use = false;
    wait_.note_progress();
    this->finish_request();
  }

  // --- Failure and recovery of a queue pair. recovery.h decides when.

  bool is_anything_wrong() { return port().is_wanted() || !recovery_.are_all_live() || has_any_replays(); }
  bool has_replays(const Message& message) const {
    return replay_ != nullptr && replay_->pending(message.sequence % kMessageRing) != 0;
  }

  struct RecoveryHost {
    Port& port;

    void stop(uint32_t q) {
      SendCore& core = port;
      port.stop_pair(q);
      core.credits_.stop(q);
      core.share_.forget_outstanding(q);
      core.wait_stamps_.restart();
    }
    void send(const RecoveryRecord& record) { port.send_record(record, nullptr); }
    bool replay(uint32_t q, const ArrivedRecord& arrived) {
      return static_cast<SendCore&>(port).replay(q, arrived);
    }
    bool is_usable(uint32_t q) const { return port.is_usable(q); }
    bool offer(uint32_t q, RecoveryRecord& record) { return port.renew_pair(q, record); }
    bool connect(uint32_t q, const RecoveryRecord& answer) {
      static_cast<SendCore&>(port).answers_[q] = {answer.returned, answer.held};
      return port.connect_pair(q, answer) && port.post_trial(q, kTrialCookie);
    }
    void revive(uint32_t q) {
      SendCore& core = port;
      core.credits_.restart(q, core.options_.window[q], core.answers_[q].returned, core.answers_[q].held);
      ++core.statistics_.revived_queue_pairs;
      core.update_rails();
      port.note_revived(q);
    }
  };
  RecoveryHost recovery_host() { return {port()}; }

  // Updates everything that depends on which queue pairs are live.
  void update_rails() {
    primary_ = recovery_.find_live(options_.primary);
    share_.set_primary(primary_);
    few_credits_ = staged_limit(primary_);
    uint32_t staged_chunks = 0;
    for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q) {
      staged_chunks += staged_limit(q);
      if (recovery_.is_live(q)) few_credits_ = std::min(few_credits_, staged_limit(q));
    }
    few_credits_ = std::max(few_credits_, kept_entries_ + 1);
    // In this case post_at_once() is not used.
    if (options_.max_stripe_bytes < kMaxStripeBytes) few_credits_ = UINT32_MAX;
    staged_chunks = std::min(staged_chunks, kMaxChunks);
    max_staged_bytes_ = options_.staging ? std::min(options_.staging_threshold_bytes,
                                                    uint64_t{staged_chunks} * options_.page_bytes)
                                         : 0;
  }

  // Returns false if the peer violates the protocol.
  bool absorb_record(const RecoveryRecord& record, const ArrivedRecord* arrived, int64_t now_ns) {
    RecoveryHost host{port()};
    if (!recovery_.absorb(host, record, arrived, now_ns)) return false;
    // This waits for the peer's record, because a peer that has finished and closed also makes queue pairs
    // fail, and never answers.
    if (arrived != nullptr) port().note_loss(record.queue_pair);
    return true;
  }
  void lose_peer() { port().fail(Failure::kPeerGone, consumed_); }
  void end_for_good(uint32_t queue_pair, uint32_t sequence) {
    port().fail(Failure::kRequest, sequence, queue_pair);
  }
  bool resume() { return has_any_replays() ? post_replays() : true; }

  // `queue_pair` has stopped at both ends, and `arrived` has all chunks that ever arrived on it. Returns
  // false if this is impossible.
  bool replay(uint32_t queue_pair, const ArrivedRecord& arrived) {
    port().retire_pair(queue_pair);
    for (Message& message : ring_) message.outstanding[queue_pair] = 0;
    if (is_before(first_unsent(), arrived.consumed)) return false;
    for (uint32_t ahead = 0; ahead < kMessageRing; ++ahead) {
      Message& message = ring_[(arrived.consumed + ahead) % kMessageRing];
      const bool has_begun = message.sequence == arrived.consumed + ahead && message.path != Path::kUndecided;
      if (has_begun && !mark_missing(message, ahead, queue_pair, arrived)) return false;
    }
    return true;
  }
  // Returns false if data that counted as delivered is lost.
  bool mark_missing(Message& message, uint32_t ahead, uint32_t queue_pair, const ArrivedRecord& arrived) {
    const uint32_t slot = message.sequence % kMessageRing;
    if (message.is_whole && !message.is_posted && !has_replays(message))
      return true;  // no chunk of it was sent
    const uint32_t chunks = message.is_whole ? 1 : message.cut.count();
    if (replay_ == nullptr) replay_ = port().make_replay();
    is_watched_ = true;
    for (uint32_t index = 0; index < chunks; ++index) {
      const uint32_t by_cut = message.is_whole ? message.whole_on : message.cut.carrier_of(index);
      // FAULT(arrived_chunk_is_sent_again)
      if (!replay_->is_carried_by(slot, index, by_cut, queue_pair) || arrived.has(ahead, index)) continue;
      if (!message.in_use) return port().fail(Failure::kDeviceLoss, message.sequence, queue_pair);
      replay_->add(slot, index);
    }
    if (!message.is_whole) message.cut.abandon(queue_pair);
    if (replay_->pending(slot) != 0) message.is_posted = false;
    return true;
  }

  // Posts replays before new messages, oldest first.
  bool post_replays() {
    const uint32_t end = options_.staging ? next_ : granted_;
    for (uint32_t sequence = end - kMessageRing; sequence != end; ++sequence) {
      Message& message = ring_[sequence % kMessageRing];
      if (message.sequence != sequence || !has_replays(message)) continue;
      if (!post_replays_of(message)) return false;
      if (has_replays(message)) return true;
    }
    return true;
  }
  // Sends chunks again to the address that the receiver has granted, whatever path the message used first:
  // later messages may hold every page until this one is complete. A write needs an entry too, but returns it
  // at once.
  bool post_replays_of(Message& message) {
    const uint32_t slot = message.sequence % kMessageRing;
    if (message.length_bytes != 0) {
      if (!port().control().read_grant(message.sequence, message.grant)) return true;
      if (message.grant.length_bytes < message.length_bytes)
        return port().fail(Failure::kShortRoom, message.sequence);
    }
    while (replay_->pending(slot) != 0) {
      uint32_t best = 0;
      for (uint32_t q = 1; q < recovery_.queue_pairs(); ++q)
        if (count_free(q) > count_free(best)) best = q;
      if (count_free(best) == 0) return absorb_credits();
      const uint32_t index = replay_->first(slot);
      const Chunk chunk = message.is_whole ? whole_chunk(message) : message.cut.chunk_at(index);
      replay_->note_sent(slot, index, best);
      ++statistics_.replayed_chunks;
      if (is_observed_) port().note_replay(message.sequence, best, chunk.length_bytes);
      if (!post_again(message, best, chunk)) return false;
    }
    message.is_posted = message.is_whole || message.cut.is_empty();
    return true;
  }
  // A chunk that was to be staged is written to its destination instead, with the same tag.
  bool post_again(Message& message, uint32_t queue_pair, const Chunk& chunk) {
    SendWork work = make_work(message, queue_pair, chunk);
    if (chunk.length_bytes != 0) {
      work.is_write = true;
      work.remote_key = message.grant.remote_keys[options_.peer_rail_of[queue_pair]];
      work.remote = message.grant.address + chunk.offset_bytes;
    }
    return post_one(message, queue_pair, work);
  }

  // --- Waits. A peer that is gone sends no grants; requests that are already posted fail by themselves.

  [[gnu::cold, gnu::noinline]] void check_wait() {
    const int64_t now_ns = port().now_ns();
    if (has_choice_) share_.note_waiting(now_ns);
    const bool is_stall = wait_.begin_check(now_ns);
    check_completions(now_ns);
    if (port().has_failed()) return;
    if (is_stall) port().warn_of_stall();
    if (this->check_rails(consumed_)) this->check_peer(consumed_);
  }
  // Records what each message waits for. If a device never completes a request, its queue pair counts as
  // failed; another queue pair then carries the chunks that the peer does not have.
  void check_completions(int64_t now_ns) {
    for (const Message& message : ring_) {
      if (!message.in_use) continue;
      const Wait wait = find_wait(message);
      const int64_t since_ns = wait_stamps_.note(message.sequence, static_cast<uint8_t>(wait), now_ns);
      if (wait != Wait::kCompletions || now_ns - since_ns < port().patience_ns()) continue;
      for (uint32_t q = 0; q < recovery_.queue_pairs(); ++q)
        if (message.outstanding[q] != 0 && recovery_.is_live(q)) port().give_up_silent_pair(q);
    }
  }

  struct Answer {
    uint32_t returned = 0, held = 0;
  };

  SendOptions options_;
  // Turns: the number of earlier messages. With staging, the turns are also the message numbers.
  uint32_t next_;                              // of the next message
  uint32_t posting_;                           // all messages before it are posted completely
  std::array<uint8_t, kMessageRing> order_{};  // ring entry of the message of each turn
  // Without staging: the grants before this number were seen. Of the last kMessageRing ones, the bits (by
  // number modulo the ring) mark those that no send has taken.
  uint32_t granted_;
  uint32_t unclaimed_ = 0;
  int32_t wanted_tag_ = 0;
  uint32_t consumed_;              // as the receiver has reported
  uint32_t next_note_;             // credits in earlier grants were counted
  uint32_t last_returned_ = 0;     // of the last note
  uint32_t primary_;               // the current queue pair of short messages
  uint32_t few_credits_ = 0;       // with this many credits, the primary can take a chunk of any message
  uint64_t max_staged_bytes_ = 0;  // 0: only empty messages are staged
  bool has_choice_;                // more than one queue pair
  bool has_turns_;                 // more than one queue pair on some rail
  uint8_t slots_shift_;            // 1: a chunk may need two requests
  uint64_t apart_above_bytes_;     // above this length, the immediate may be sent separately
  uint32_t kept_entries_;          // of each queue pair, for chunks that must be sent again
  bool is_watched_ = false;        // each post must be recorded: for replay_, or because it is observed
  bool is_observed_ = false;
  SenderCredits credits_;
  RailShare share_;
  int64_t now_ns_ = 0;        // time of this call, if it was read
  Replay* replay_ = nullptr;  // owned by the port; set at the first failure
  std::array<Answer, kMaxQueuePairs> answers_;
};

}  // namespace verbena::protocol
