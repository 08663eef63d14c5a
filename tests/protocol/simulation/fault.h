// What may go wrong in a run, and what the connection is doing at that moment.
#pragma once

#include <array>
#include <cstdint>

namespace verbena::protocol::simulation {

enum class FaultKind : uint8_t {
  kSenderEnd,  // of one queue pair
  kReceiverEnd,
  kBothEnds,
  kSilence,         // nothing passes on it for a while; both ends' devices find out by themselves, or not
  kDeviceLoss,      // the receiver's end fails and forgets what it has acknowledged
  kBadRequest,      // an end's device refuses a request, which no other would carry
  kEveryQueuePair,  // ends of all of them, whichever
  kRailDown,        // for a while, and both ends know
  kRailDead,        // one rail never comes back; not the last
  kAllRailsDown,    // for a while
  kAllRailsDead,
  kOfferFails,  // the sender cannot make its next queue pair
  kConnectFails,
  kRefusal,       // the receiver cannot make its next one
  kSenderSleeps,  // not called for a while
  kReceiverSleeps,
  kChannelSleeps,  // records are late
  kChannelCloses,
  kSenderLeaves,  // its process dies
  kReceiverLeaves,
};
inline constexpr uint32_t kFaultKinds = 20;

// Of the queue pair that is hit.
enum class State : uint8_t {
  kIdle,          // lives, nothing is under way
  kPosted,        // a chunk has not left
  kFlying,        // or not arrived
  kPlaced,        // or not been acknowledged
  kAcknowledged,  // or its completion not been polled
  kArrived,       // or its receive completion not
  kGrantUnderWay,
  kCreditsUnderWay,
  kReplaying,         // it carries what another has lost
  kRevived,           // it is not the first of its name
  kLast,              // no other lives
  kOneEndDead,        // one end has failed, the other does not know
  kSenderStopping,    // the sender waits for what has arrived
  kReceiverStopping,  // the receiver waits for the sender's stop, or for its device
  kDown,
  kOffered,
  kTrial,
  kReplaysPending,  // the sender has not sent again yet what this or another lost
};
inline constexpr uint32_t kStates = 18;

inline constexpr uint8_t kAnyQueuePair = 0xFF;

struct Fault {
  FaultKind kind{};
  State state{};
  uint16_t delay_steps = 0;  // after the fault before it; then as soon as some queue pair is in the state
  uint16_t duration_steps = 0;
};

const char* name_of(FaultKind kind);
const char* name_of(State state);
// True if the fault can hit a queue pair in that state: one that does not exist cannot fail.
bool is_possible(FaultKind kind, State state);

// How often each kind met each state.
using FaultCounts = std::array<std::array<uint64_t, kStates>, kFaultKinds>;

}  // namespace verbena::protocol::simulation
