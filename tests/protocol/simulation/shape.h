// What a seed decides: the connection, its messages, how the network behaves, and what goes wrong. A new kind
// of fault is one of fault.h, acted on in injector.cc.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocol/rail_share.h"
#include "protocol/simulation/fault.h"
#include "protocol/wire.h"

namespace verbena::protocol::simulation {

struct MessageShape {
  uint32_t length_bytes;
  uint32_t room_bytes;  // of its receive; at least the length
  bool may_stage;       // what the sender believes
  bool has_slot;        // what the receiver knows: the kernel advances its head
  bool is_unpacked;     // has_slot, and the kernel places the pages
};

struct Shape {
  uint32_t queue_pairs = 1;
  uint32_t rails = 1;  // receive queues; queue pair q fills rail q mod rails
  uint32_t page_bytes = 64;
  uint32_t window = 8;  // receive entries for each queue pair
  bool stages = true;   // or every message needs a grant, and credits ride on it
  uint64_t threshold_bytes = 0;
  uint64_t min_stripe_bytes = 256;
  RailShare::Speeds speed_mbps{};
  uint32_t first_sequence = 0;
  uint32_t posts_ahead = 1;   // receives that the application keeps open
  bool is_in_order = false;   // what was posted first is tested and consumed first
  bool leaves_early = false;  // an end that is done does not wait for the other
  std::vector<MessageShape> messages;

  static constexpr uint32_t kMaxFaults = 8;
  std::array<Fault, kMaxFaults> faults{};  // one after the other
  uint32_t fault_count = 0;

  // Chances in percent.
  uint32_t network_percent = 50;    // of a step: something arrives, rather than an end doing something
  uint32_t freeze_percent = 0;      // of an arrival: a queue pair stands still for a while instead
  uint32_t retransmit_percent = 0;  // of an arrival: a first attempt places part of it before
  uint32_t freeze_steps = 1;

  uint32_t count_pages() const { return window * queue_pairs; }
  // What one queue pair can take is enough for whatever the others may lose for good. Otherwise pages that
  // later messages hold may be what an older one waits for.
  bool is_window_wide() const;
};

// Nothing fails, much is sent.
Shape draw_shape(uint64_t seed);
// A few messages, up to four queue pairs, faults.
Shape draw_failing_shape(uint64_t seed);

}  // namespace verbena::protocol::simulation
