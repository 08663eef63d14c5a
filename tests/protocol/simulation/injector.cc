#include "protocol/simulation/injector.h"

namespace verbena::protocol::simulation {

using Phase = QueuePairStates::Phase;

void Injector::step() {
  if (next_ == run_.shape.fault_count) return;
  const Fault& fault = run_.shape.faults[next_];
  if (++waited_steps_ <= fault.delay_steps) return;
  const uint32_t pairs = run_.shape.queue_pairs, first = waited_steps_ % pairs;
  for (uint32_t i = 0; i < pairs; ++i) {
    const uint32_t q = (first + i) % pairs;
    if (!is_in_state(fault.state, q) || !inject(fault, q)) continue;
    ++counts_[static_cast<uint32_t>(fault.kind)][static_cast<uint32_t>(fault.state)];
    ++injected_;
    ++next_;
    waited_steps_ = 0;
    return;
  }
  if (waited_steps_ < fault.delay_steps + kPatienceSteps) return;
  ++next_;
  waited_steps_ = 0;
}

const Lane* Injector::find_lane(uint32_t queue_pair) const {
  uint32_t id = run_.sender.lane(queue_pair);
  if (id == kNoLane) id = run_.receiver.lane(queue_pair);
  return id == kNoLane ? nullptr : &run_.network.lane(id);
}

bool Injector::is_in_state(State state, uint32_t q) const {
  const SenderRecovery& sender = run_.sender.recovery();
  const ReceiverRecovery& receiver = run_.receiver.recovery();
  const Lane* lane = find_lane(q);
  const bool is_live = sender.is_live(q) && receiver.is_live(q);
  switch (state) {
    case State::kIdle:
      return is_live && lane->packets.acknowledged == lane->packets.size() &&
             lane->controls.acknowledged == lane->controls.size();
    case State::kPosted:
      return is_live && lane->packets.flying < lane->packets.size();
    case State::kFlying:
      return is_live && lane->packets.placed < lane->packets.flying;
    case State::kPlaced:
      return is_live && lane->packets.acknowledged < lane->packets.placed;
    case State::kAcknowledged:
      return is_live && lane->unseen_sent != 0;
    case State::kArrived:
      return is_live && lane->unseen_received != 0;
    case State::kGrantUnderWay:
      return is_live && lane->has_controls(true);
    case State::kCreditsUnderWay:
      return is_live && lane->has_controls(false);
    case State::kReplaying:
      return is_live && lane->has_replays();
    case State::kRevived:
      return is_live && sender.generation(q) != 0;
    case State::kLast:
      return is_live && sender.count_live() == 1;
    case State::kOneEndDead:
      return lane != nullptr && lane->sender.has_failed != lane->receiver.has_failed;
    case State::kSenderStopping:
      return sender.phase(q) == Phase::kStopping;
    case State::kReceiverStopping:
      return receiver.phase(q) == Phase::kStopping;
    case State::kDown:
      return sender.phase(q) == Phase::kDown;
    case State::kOffered:
      return sender.phase(q) == Phase::kOffered;
    case State::kTrial:
      return sender.phase(q) == Phase::kTrial;
    case State::kReplaysPending:
      return run_.sender.has_any_replays();
  }
  return false;
}

bool Injector::fail_ends(uint32_t q, bool is_sender, bool is_receiver) {
  const uint32_t sender = run_.sender.lane(q), receiver = run_.receiver.lane(q);
  if (is_sender && sender != kNoLane) run_.network.fail_sender(sender);
  if (is_receiver && receiver != kNoLane) run_.network.fail_receiver(receiver);
  return (is_sender && sender != kNoLane) || (is_receiver && receiver != kNoLane);
}

// Of the end that has something under way, or of either.
bool Injector::refuse_request(uint32_t q) {
  const bool is_sender = run_.random.happens(50);
  const uint32_t id = is_sender ? run_.sender.lane(q) : run_.receiver.lane(q);
  if (id == kNoLane) return false;
  Lane& lane = run_.network.lane(id);
  (is_sender ? lane.sender : lane.receiver).refuses = true;
  may_fail_ = true;
  return fail_ends(q, is_sender, !is_sender);
}

// Not the last one.
bool Injector::kill_rail(uint32_t rail) {
  for (uint32_t r = 0; r < run_.shape.rails; ++r) {
    if (r == rail || run_.network.is_dead_for_ever(r)) continue;
    run_.network.take_down(rail, INT64_MAX);
    may_fail_ |= !run_.shape.is_window_wide();
    return true;
  }
  return false;
}

bool Injector::inject(const Fault& fault, uint32_t q) {
  Network& network = run_.network;
  const int64_t until_ns = network.now_ns() + fault.duration_steps * kStepNs;
  const uint32_t rail = q % run_.shape.rails;
  switch (fault.kind) {
    case FaultKind::kSenderEnd:
      return fail_ends(q, true, false);
    case FaultKind::kReceiverEnd:
      return fail_ends(q, false, true);
    case FaultKind::kBothEnds:
      return fail_ends(q, true, true);
    case FaultKind::kSilence:
      if (run_.sender.lane(q) == kNoLane) return false;
      network.lane(run_.sender.lane(q)).silent_until_ns = until_ns;
      return true;
    case FaultKind::kDeviceLoss:
      if (run_.receiver.lane(q) == kNoLane) return false;
      network.lane(run_.receiver.lane(q)).loses_reports = true;
      may_fail_ = true;
      return fail_ends(q, false, true);
    case FaultKind::kBadRequest:
      return refuse_request(q);
    case FaultKind::kEveryQueuePair:
      for (uint32_t any = 0; any < run_.shape.queue_pairs; ++any) {
        const uint32_t ends = run_.random.between(1, 3);
        fail_ends(any, (ends & 1) != 0, (ends & 2) != 0);
      }
      return true;
    case FaultKind::kRailDown:
      network.take_down(rail, until_ns);
      return true;
    case FaultKind::kRailDead:
      return kill_rail(rail);
    case FaultKind::kAllRailsDown:
      for (uint32_t r = 0; r < run_.shape.rails; ++r) network.take_down(r, until_ns);
      return true;
    case FaultKind::kAllRailsDead:
      for (uint32_t r = 0; r < run_.shape.rails; ++r) network.take_down(r, INT64_MAX);
      return may_fail_ = true;
    case FaultKind::kOfferFails:
      return run_.sender.fails_offer = true;
    case FaultKind::kConnectFails:
      return run_.sender.fails_connect = true;
    case FaultKind::kRefusal:
      return run_.receiver.refuses = true;
    case FaultKind::kSenderSleeps:
      sender_sleeps_until_ns_ = until_ns;
      return true;
    case FaultKind::kReceiverSleeps:
      receiver_sleeps_until_ns_ = until_ns;
      return true;
    case FaultKind::kChannelSleeps:
      channels_sleep_until_ns_ = until_ns;
      return true;
    case FaultKind::kChannelCloses: {
      const bool is_reset = run_.random.happens(50);
      run_.to_sender.close(is_reset);
      run_.to_receiver.close(is_reset);
      return may_fail_ = true;
    }
    case FaultKind::kSenderLeaves:
      run_.sender.die();
      return may_fail_ = has_sender_left_ = true;
    case FaultKind::kReceiverLeaves:
      run_.receiver.die();
      return may_fail_ = has_receiver_left_ = true;
  }
  return false;
}

}  // namespace verbena::protocol::simulation
