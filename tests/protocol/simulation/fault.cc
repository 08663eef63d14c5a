#include "protocol/simulation/fault.h"

namespace verbena::protocol::simulation {

const char* name_of(FaultKind kind) {
  static constexpr const char* kNames[kFaultKinds] = {
      "sender's end",    "receiver's end", "both ends",      "silence",       "device loss",
      "bad request",     "every pair",     "rail down",      "rail dead",     "all rails down",
      "all rails dead",  "offer fails",    "connect fails",  "refusal",       "sender sleeps",
      "receiver sleeps", "channel sleeps", "channel closes", "sender leaves", "receiver leaves"};
  return kNames[static_cast<uint32_t>(kind)];
}

const char* name_of(State state) {
  static constexpr const char* kNames[kStates] = {
      "idle",    "posted", "flying", "placed", "acked",  "arrived", "grant",   "credits", "replaying",
      "revived", "last",   "1 dead", "s.stop", "r.stop", "down",    "offered", "trial",   "pending"};
  return kNames[static_cast<uint32_t>(state)];
}

bool is_possible(FaultKind kind, State state) {
  const bool has_no_pair = state == State::kDown;
  const bool has_no_receiver = has_no_pair || state == State::kOffered;
  switch (kind) {
    case FaultKind::kSenderEnd:
      return !has_no_pair && state != State::kSenderStopping;
    case FaultKind::kBothEnds:
    case FaultKind::kSilence:
      return !has_no_pair;
    case FaultKind::kReceiverEnd:
      return !has_no_receiver && state != State::kReceiverStopping;
    case FaultKind::kDeviceLoss:
    case FaultKind::kBadRequest:
      return !has_no_receiver;
    default:
      return true;
  }
}

}  // namespace verbena::protocol::simulation
