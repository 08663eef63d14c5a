// How the two ends of a lane (lane_core.h) agree that a queue pair has failed, which of its requests were
// executed, and when a new queue pair replaces it. Both ends issue requests and both execute requests, so
// both do the same; only creating the new queue pair is not symmetric: the lower rank offers it. Pure, like
// recovery.h.
//
//   either end                              the other
//   a failure: stop, kDown      ------>     stop, kDown (either may begin, or both)
//   settle its requests         <------     settle its requests
//   ... after a while, the lower rank:
//   kOffer                      ------>     a new queue pair
//   connect, test it            <------     kAnswer (or kRefusal: try again later)
//   it works: kLive             ------>     used again
//
// Invariants:
//  * A stopped queue pair executes no further requests, so the count in kDown is final: counted packets were
//    executed, and the others never will be.
//  * No request is posted again before two conditions hold: this end's queue pair is stopped (it has no
//    outstanding requests), and the peer's kDown has arrived.
//  * Each end sends one kDown for each generation, and no record of an earlier generation can follow it.
#pragma once

#include <cstdint>

#include "protocol/lane_record.h"
#include "protocol/recovery.h"

namespace verbena::protocol {

// Which end creates a new queue pair. An endpoint's lane to its own rank is one queue pair connected to
// itself.
enum class LaneRole : uint8_t { kOffers, kAnswers, kOwn };

// Host offers: stop(q, record) (stops the queue pair and writes what it has executed), send(record),
// settle(q, record) -> bool (both ends are stopped; `record` has what the peer's end has executed),
// is_usable(q), offer(q, record) -> bool (creates a queue pair and describes it), connect(q, answer) -> bool
// (and posts a request to test it), answer(q, offer, record) -> bool (creates and connects a queue pair and
// describes it), revive(q).
class LaneRecovery : public QueuePairStates {
 public:
  LaneRecovery(uint32_t rails, const RecoveryTimes& times, uint8_t lane, LaneRole role)
      : QueuePairStates(rails, times), lane_(lane), role_(role) {}

  LaneRole role() const { return role_; }
  // Returns whether the results of all its requests are known.
  bool is_settled(uint32_t q) const { return phase(q) != Phase::kStopping; }

  // This rail has no queue pair, and never will.
  void leave_out(uint32_t q) {
    enter(q, Phase::kDown, 0);
    lives_[q].retry_at_ns = kNever;
  }

  // This end's queue pair has failed, or must be given up.
  template <typename Host>
  bool fail(Host& host, uint32_t q, int64_t now_ns) {
    if (!is_in_use(q)) return true;
    LaneRecord record = make(LaneRecordKind::kDown, q);
    host.stop(q, record);
    enter(q, Phase::kStopping, now_ns);
    if (role_ == LaneRole::kOwn) return settle(host, q, record, now_ns);  // both ends are this rank
    host.send(record);
    return true;
  }

  // Returns false if the peer violates the protocol, or its record is impossible.
  template <typename Host>
  bool absorb(Host& host, const LaneRecord& record, int64_t now_ns) {
    const uint32_t q = record.rail;
    switch (record.kind) {
      case LaneRecordKind::kDown:
        if (record.generation != generation(q) || (!is_in_use(q) && is_settled(q))) return false;
        return fail(host, q, now_ns) && settle(host, q, record, now_ns);
      case LaneRecordKind::kOffer:
        if (role_ != LaneRole::kAnswers || phase(q) != Phase::kDown || record.generation != generation(q) + 1)
          return false;
        answer(host, record, now_ns);
        return true;
      case LaneRecordKind::kAnswer:
        if (phase(q) != Phase::kOffered || record.generation != generation(q) + 1) return false;
        ++lives_[q].generation;
        enter(q, Phase::kTrial, now_ns);
        return host.connect(q, record) || fail(host, q, now_ns);
      case LaneRecordKind::kRefusal:
        return take_refusal(q, record.generation, now_ns);
      case LaneRecordKind::kLive:
        return role_ == LaneRole::kAnswers && take_live(host, q, record.generation, now_ns);
      default:
        return false;
    }
  }

  // The test of the new queue pair has succeeded.
  template <typename Host>
  void pass_trial(Host& host, uint32_t q, int64_t now_ns) {
    if (phase(q) != Phase::kTrial || role_ == LaneRole::kAnswers) return;
    enter(q, Phase::kLive, now_ns);
    host.revive(q);
    if (role_ == LaneRole::kOffers) host.send(make(LaneRecordKind::kLive, q));
  }

  template <typename Host>
  bool step(Host& host, int64_t now_ns) {
    if (role_ == LaneRole::kAnswers) return true;
    for (uint32_t q = 0; q < queue_pairs_; ++q) {
      const bool is_late = phase(q) == Phase::kTrial && now_ns - lives_[q].since_ns >= times_.trial_ns;
      if (is_late && !fail(host, q, now_ns)) return false;
      if (may_retry(host, q, now_ns) && !retry(host, q, now_ns)) return false;
    }
    return true;
  }

 private:
  LaneRecord make(LaneRecordKind kind, uint32_t q) const {
    LaneRecord record;
    record.kind = kind;
    record.lane = lane_;
    record.rail = static_cast<uint8_t>(q);
    record.generation = generation(q);
    return record;
  }

  template <typename Host>
  bool settle(Host& host, uint32_t q, const LaneRecord& record, int64_t now_ns) {
    enter(q, Phase::kDown, now_ns);
    plan_retry(q, now_ns);
    return host.settle(q, record);
  }

  template <typename Host>
  bool retry(Host& host, uint32_t q, int64_t now_ns) {
    LaneRecord record = make(LaneRecordKind::kOffer, q);
    ++record.generation;
    if (!host.offer(q, record)) {
      plan_retry(q, now_ns);
    } else if (role_ == LaneRole::kOffers) {
      enter(q, Phase::kOffered, now_ns);
      host.send(record);
    } else {
      ++lives_[q].generation;
      enter(q, Phase::kTrial, now_ns);
      return host.connect(q, record) || fail(host, q, now_ns);
    }
    return true;
  }

  template <typename Host>
  void answer(Host& host, const LaneRecord& offer, int64_t now_ns) {
    const uint32_t q = offer.rail;
    LaneRecord record = make(LaneRecordKind::kAnswer, q);
    ++record.generation;
    if (host.is_usable(q) && host.answer(q, offer, record)) {  // FAULT(answer_without_a_queue_pair)
      ++lives_[q].generation;
      enter(q, Phase::kTrial, now_ns);
    } else {
      record.kind = LaneRecordKind::kRefusal;
    }
    host.send(record);
  }

  const uint8_t lane_;
  const LaneRole role_;
};

}  // namespace verbena::protocol
