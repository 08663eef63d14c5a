// One life of a queue pair: what each end has posted to it, and how far that has come. Each direction keeps
// its order, as a reliable connection does. An end that has failed flushes what it has posted; what had left
// before still takes effect for as long as the other end lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "protocol/wire.h"

namespace verbena::protocol::simulation {

// A work request of the sender: into the next page of the receive queue, or to a place.
struct Packet {
  uint32_t imm = 0;
  uint64_t cookie = 0;
  uint32_t length_bytes = 0;
  const uint8_t* source = nullptr;  // read when it arrives: the application must not touch it before
  uint8_t* target = nullptr;        // null: a page
  bool has_imm = true;              // a write without one takes no page and is not reported
  bool is_signaled = false;         // its success is reported
  bool is_trial = false;            // no bytes, no immediate: it tries a new queue pair
  bool is_replay = false;
};

// A work request of the receiver.
struct ControlWrite {
  uint8_t line[64];
  uint32_t offset_bytes;
  bool is_signaled;
  // Where the queue pair is out of order, perhaps before those before it.
  bool is_placed = false;
  int64_t lost_until_ns = 0;

  bool is_grant() const { return offset_bytes < offsetof(ControlBlock, credits); }
  uint64_t stamp() const {
    Grant grant;
    std::memcpy(&grant, line, sizeof(grant));
    return grant.stamp;
  }
};

// Work requests of one direction: acknowledged <= placed <= flying <= size. All before `placed` are placed.
// Those below `flushed` failed.
template <typename Request>
struct Stream {
  std::vector<Request> requests;
  uint32_t flying = 0, placed = 0, acknowledged = 0, flushed = 0;

  uint32_t size() const { return static_cast<uint32_t>(requests.size()); }
  // What has failed and was not reported yet is reported in order, behind what went well.
  void note_failed() { flushed = acknowledged; }
};

struct Lane {
  struct End {
    bool is_ready = false;  // connected
    bool has_failed = false;
    bool refuses = false;  // the first request that it flushes is at fault itself

    bool is_alive() const { return is_ready && !has_failed; }
  };

  uint32_t queue_pair = 0;
  uint32_t rail = 0;
  End sender, receiver;
  Stream<Packet> packets;
  // What has been placed of a write without an immediate is on several ways: this is not here yet, and comes
  // before the next immediate is told at the latest. Indices of `packets`.
  std::vector<uint32_t> late;
  uint32_t reported = 0;       // of the packets that were placed: the receiver's completions
  uint32_t answered = 0;       // and how many of them it had answered for when its end failed
  uint32_t draining = 0;       // packets that the receiver's device had begun to place when its end failed
  bool loses_reports = false;  // the receiver's device forgets what it has placed
  Stream<ControlWrite> controls;
  int64_t silent_until_ns = 0;                    // nothing passes, either way
  int64_t frozen_until_ns = 0;                    // nothing moves at all
  uint32_t unseen_sent = 0, unseen_received = 0;  // successful completions that were not polled yet

  bool is_drained() const { return receiver.has_failed && draining == 0 && reported == packets.placed; }
  bool has_replays() const {
    for (uint32_t i = packets.acknowledged; i < packets.size(); ++i)
      if (packets.requests[i].is_replay) return true;
    return false;
  }
  bool has_controls(bool is_grant) const {
    for (uint32_t i = controls.placed; i < controls.size(); ++i)
      if (controls.requests[i].is_grant() == is_grant) return true;
    return false;
  }
};

}  // namespace verbena::protocol::simulation
