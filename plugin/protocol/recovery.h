// How the two ends of a connection agree that a queue pair has failed, which chunks must be sent again, and
// when a new queue pair replaces it. Pure: all actions are calls of `Host`, and the caller passes the time
// (monotonic nanoseconds).
//
//   sender                                  receiver
//   a failure: stop, kDown      ------>     stop, kDown (either end may begin)
//   stop                        <------
//                                           both ends are stopped, and no packet is in flight:
//   send missing chunks again   <------     kArrived, grants are written again
//   ... after a while:
//   kOffer                      ------>     a new queue pair
//   connect, test it            <------     kAnswer (or kRefusal: try again later)
//   it works: kLive             ------>     used for grants again
//
// Invariants:
//  * No chunk is sent again before both queue pairs of its generation are in the error state: no delayed
//    write can reach a closed message, and no delayed grant can overwrite a newer one.
//  * Only chunks that the receiver does not have are sent again, so that no chunk is ever in flight twice.
//  * A record of an older generation is obsolete, and dropped. Any other record that does not fit the phase
//    means that the peer is faulty.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "protocol/recovery_record.h"

namespace verbena::protocol {

struct RecoveryTimes {
  int64_t retry_ns;  // time after which a failed queue pair is created again; doubles while it keeps failing
  int64_t max_retry_ns;  // maximum of that time
  int64_t trial_ns;      // time limit for the first request of a new queue pair
  int64_t limit_ns;      // without any rail, or without an answer, after which the connection fails
  int64_t poll_ns;       // between checks of events that no notification reports
};

inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The state of each queue pair, which both ends keep.
class QueuePairStates {
 public:
  enum class Phase : uint8_t {
    kLive,
    kStopping,  // this end's queue pair is stopped, the exchange is in progress
    kDown,      // neither end has a queue pair
    kOffered,   // sender: waits for the answer
    kTrial,     // there is a new queue pair, which has carried no request yet
  };

  QueuePairStates(uint32_t queue_pairs, const RecoveryTimes& times)
      : queue_pairs_(queue_pairs), times_(times) {}

  uint32_t queue_pairs() const { return queue_pairs_; }
  Phase phase(uint32_t queue_pair) const { return lives_[queue_pair].phase; }
  bool is_live(uint32_t queue_pair) const { return phase(queue_pair) == Phase::kLive; }
  // Returns whether requests of the queue pair may be in flight. On any other queue pair, failed requests are
  // flushed ones.
  bool is_in_use(uint32_t queue_pair) const {
    return is_live(queue_pair) || phase(queue_pair) == Phase::kTrial;
  }
  const RecoveryTimes& times() const { return times_; }
  int64_t phase_since_ns(uint32_t queue_pair) const { return lives_[queue_pair].since_ns; }
  bool is_any_live() const { return dead_ != all(); }
  bool are_all_live() const { return dead_ == 0; }
  uint32_t count_live() const { return queue_pairs_ - static_cast<uint32_t>(__builtin_popcount(dead_)); }
  uint32_t generation(uint32_t queue_pair) const { return lives_[queue_pair].generation; }
  // Returns the first live queue pair from `from` on, cyclically; `from` if none is live.
  uint32_t find_live(uint32_t from) const {
    for (uint32_t i = 0; i < queue_pairs_; ++i) {
      const uint32_t q = (from + i) % queue_pairs_;
      if (is_live(q)) return q;
    }
    return from;
  }
  // Returns since when this end has waited because no rail is left, or the other end does not answer; kNever
  // if it does not wait.
  int64_t find_waiting_since() const {
    int64_t since = is_any_live() ? kNever : all_dead_since_ns_;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      if (phase(q) == Phase::kStopping) since = std::min(since, lives_[q].since_ns);
    }
    return since;
  }
  bool is_overdue(int64_t now_ns) const {
    const int64_t since = find_waiting_since();
    return since != kNever && now_ns - since >= times_.limit_ns;
  }

 protected:
  struct Life {
    Phase phase = Phase::kLive;
    bool is_peer_stopped = false;
    uint32_t generation = 0;
    int64_t since_ns = 0;  // beginning of the phase
    int64_t live_since_ns = 0;
    int64_t retry_at_ns = 0, retry_ns = 0;  // retry_ns is 0 until it has failed
  };

  void enter(uint32_t queue_pair, Phase phase, int64_t now_ns) {
    Life& life = lives_[queue_pair];
    // A queue pair that was live for long starts again with the shortest time.
    const bool has_lived = life.phase == Phase::kLive && now_ns - life.live_since_ns >= times_.max_retry_ns;
    if (has_lived) life.retry_ns = 0;
    life.phase = phase;
    life.since_ns = now_ns;
    const bool was_any_live = is_any_live();
    if (phase == Phase::kLive) {
      dead_ &= ~(1U << queue_pair);
      life.live_since_ns = now_ns;
    } else {
      dead_ |= 1U << queue_pair;
    }
    if (!was_any_live || is_any_live()) return;
    all_dead_since_ns_ = now_ns;
    // Queue pairs that were not retried for long, because others were live, are needed now.
    for (Life& other : lives_) other.retry_at_ns = std::min(other.retry_at_ns, now_ns + times_.retry_ns);
  }

  // A queue pair that keeps failing is retried at increasing intervals while others are live. If none is
  // live, the first try is made at once, and the intervals do not grow.
  void plan_retry(uint32_t q, int64_t now_ns) {
    Life& life = lives_[q];
    const bool is_first = life.retry_ns == 0;
    if (is_first) {
      life.retry_ns = times_.retry_ns;
    } else if (is_any_live()) {
      life.retry_ns = std::min(2 * life.retry_ns, times_.max_retry_ns);
    }
    const int64_t impatient_ns = is_first ? 0 : times_.retry_ns;
    life.retry_at_ns = now_ns + (is_any_live() ? life.retry_ns : impatient_ns);
  }

  // Returns whether a new queue pair must be offered now.
  template <typename Host>
  bool may_retry(Host& host, uint32_t q, int64_t now_ns) {
    if (phase(q) != Phase::kDown || now_ns < lives_[q].retry_at_ns) return false;
    if (host.is_usable(q)) return true;
    lives_[q].retry_at_ns = now_ns + times_.retry_ns;  // does not count as another failure
    return false;
  }

  // The peer uses the new queue pair of `generation`, or refuses to create it. Returns false if the peer
  // violates the protocol.
  template <typename Host>
  bool take_live(Host& host, uint32_t q, uint32_t of_generation, int64_t now_ns) {
    // The queue pair may have failed here since.
    if (of_generation != generation(q) || (phase(q) != Phase::kTrial && phase(q) != Phase::kStopping))
      return false;
    if (phase(q) != Phase::kTrial) return true;
    enter(q, Phase::kLive, now_ns);
    host.revive(q);
    return true;
  }
  bool take_refusal(uint32_t q, uint32_t of_generation, int64_t now_ns) {
    if (phase(q) != Phase::kOffered || of_generation != generation(q) + 1) return false;
    enter(q, Phase::kDown, now_ns);
    plan_retry(q, now_ns);
    return true;
  }

  RecoveryRecord make_record(RecoveryKind kind, uint32_t q) const {
    RecoveryRecord record;
    record.kind = kind;
    record.queue_pair = static_cast<uint8_t>(q);
    record.generation = generation(q);
    return record;
  }

  uint32_t queue_pairs_;
  RecoveryTimes times_;
  std::array<Life, kMaxQueuePairs> lives_{};

 private:
  uint32_t all() const { return (1U << queue_pairs_) - 1; }

  uint32_t dead_ = 0;  // a bit for each queue pair that is not live
  int64_t all_dead_since_ns_ = 0;
};

// Host offers: stop(q), send(record), replay(q, arrived) -> bool, is_usable(q), offer(q, record) -> bool
// (creates a queue pair and describes it), connect(q, answer) -> bool (and posts a request to test it),
// revive(q).
class SenderRecovery : public QueuePairStates {
 public:
  using QueuePairStates::QueuePairStates;

  // This end's queue pair has failed, or must be given up.
  template <typename Host>
  void fail(Host& host, uint32_t q, int64_t now_ns) {
    if (!is_in_use(q)) return;
    host.stop(q);
    enter(q, Phase::kStopping, now_ns);
    host.send(make_record(RecoveryKind::kDown, q));
  }

  // Returns false if the peer violates the protocol. `arrived` is part of a kArrived record.
  template <typename Host>
  bool absorb(Host& host, const RecoveryRecord& record, const ArrivedRecord* arrived, int64_t now_ns) {
    const uint32_t q = record.queue_pair;
    switch (record.kind) {
      case RecoveryKind::kDown:
        if (record.generation > generation(q)) return false;
        if (record.generation == generation(q)) fail(host, q, now_ns);
        return true;
      case RecoveryKind::kArrived:
        if (phase(q) != Phase::kStopping || record.generation != generation(q) || arrived == nullptr)
          return false;
        enter(q, Phase::kDown, now_ns);
        plan_retry(q, now_ns);
        return host.replay(q, *arrived);
      case RecoveryKind::kAnswer:
        if (phase(q) != Phase::kOffered || record.generation != generation(q) + 1) return false;
        ++lives_[q].generation;
        enter(q, Phase::kTrial, now_ns);
        if (!host.connect(q, record)) fail(host, q, now_ns);
        return true;
      case RecoveryKind::kRefusal:
        return take_refusal(q, record.generation, now_ns);
      default:
        return false;
    }
  }

  // The test of the new queue pair has succeeded.
  template <typename Host>
  void pass_trial(Host& host, uint32_t q, int64_t now_ns) {
    if (phase(q) != Phase::kTrial) return;
    enter(q, Phase::kLive, now_ns);
    host.revive(q);
    host.send(make_record(RecoveryKind::kLive, q));
  }

  template <typename Host>
  void step(Host& host, int64_t now_ns) {
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      if (phase(q) == Phase::kTrial && now_ns - lives_[q].since_ns >= times_.trial_ns) fail(host, q, now_ns);
      if (!may_retry(host, q, now_ns)) continue;
      RecoveryRecord record = make_record(RecoveryKind::kOffer, q);
      ++record.generation;
      if (host.offer(q, record)) {
        enter(q, Phase::kOffered, now_ns);
        host.send(record);
      } else {
        plan_retry(q, now_ns);
      }
    }
  }

  // Returns whether it waits for an event that no notification reports.
  bool is_polling() const {
    for (uint32_t q = 0; q < queue_pairs_; ++q)
      if (phase(q) == Phase::kTrial) return true;
    return false;
  }
  // Returns when step() must be called at the latest.
  int64_t find_next_ns() const {
    int64_t next = kNever;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      if (phase(q) == Phase::kDown) next = std::min(next, lives_[q].retry_at_ns);
      if (phase(q) == Phase::kTrial) next = std::min(next, lives_[q].since_ns + times_.trial_ns);
    }
    return next;
  }
};

// Host offers: stop(q), send(record), is_drained(q) (after stop: all arrivals were processed, and none can
// follow), send_arrived(record) (adds the ArrivedRecord), regrant(), answer(q, offer, record) -> bool
// (creates and connects a queue pair and describes it), revive(q).
class ReceiverRecovery : public QueuePairStates {
 public:
  using QueuePairStates::QueuePairStates;

  template <typename Host>
  void fail(Host& host, uint32_t q, int64_t now_ns) {
    if (!is_in_use(q)) return;
    host.stop(q);
    lives_[q].is_peer_stopped = false;
    enter(q, Phase::kStopping, now_ns);
    host.send(make_record(RecoveryKind::kDown, q));
  }

  // Returns false if the peer violates the protocol.
  template <typename Host>
  bool absorb(Host& host, const RecoveryRecord& record, int64_t now_ns) {
    const uint32_t q = record.queue_pair;
    switch (record.kind) {
      case RecoveryKind::kDown:
        if (record.generation != generation(q) || phase(q) == Phase::kDown) return false;
        fail(host, q, now_ns);
        lives_[q].is_peer_stopped = true;
        step(host, now_ns);
        return true;
      case RecoveryKind::kOffer:
        if (phase(q) != Phase::kDown || record.generation != generation(q) + 1) return false;
        answer(host, record, now_ns);
        return true;
      case RecoveryKind::kLive:
        return take_live(host, q, record.generation, now_ns);
      default:
        return false;
    }
  }

  template <typename Host>
  void step(Host& host, int64_t now_ns) {
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      // FAULT(replay_overtakes_the_stop)
      if (phase(q) != Phase::kStopping || !lives_[q].is_peer_stopped || !host.is_drained(q)) continue;
      enter(q, Phase::kDown, now_ns);
      host.send_arrived(make_record(RecoveryKind::kArrived, q));
      host.regrant();
    }
  }

  // Returns whether step() waits for an event that no notification reports.
  bool is_polling() const {
    for (uint32_t q = 0; q < queue_pairs_; ++q)
      if (phase(q) == Phase::kStopping && lives_[q].is_peer_stopped) return true;
    return false;
  }
  int64_t find_next_ns() const { return kNever; }  // the receiver never begins an exchange

 private:
  template <typename Host>
  void answer(Host& host, const RecoveryRecord& offer, int64_t now_ns) {
    const uint32_t q = offer.queue_pair;
    RecoveryRecord record = make_record(RecoveryKind::kAnswer, q);
    ++record.generation;
    if (host.answer(q, offer, record)) {
      ++lives_[q].generation;
      enter(q, Phase::kTrial, now_ns);
    } else {
      record.kind = RecoveryKind::kRefusal;
    }
    host.send(record);
  }
};

}  // namespace verbena::protocol
