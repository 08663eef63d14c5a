// What a seed decides: the connection, its messages, and how the network behaves. A new kind of fault is a
// field here, drawn in shape.cc and acted on in network.cc.
#pragma once

#include <cstdint>
#include <vector>

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
  uint64_t threshold_bytes = 0;
  uint64_t min_stripe_bytes = 256;
  uint32_t first_sequence = 0;
  uint32_t posts_ahead = 1;  // receives that the application keeps open
  std::vector<MessageShape> messages;

  // Chances in percent.
  uint32_t network_percent = 50;    // of a step: something arrives, rather than an end doing something
  uint32_t freeze_percent = 0;      // of an arrival: a queue pair stands still for a while instead
  uint32_t retransmit_percent = 0;  // of an arrival: a first attempt places part of it before
  uint32_t freeze_steps = 1;

  uint32_t count_pages() const { return window * queue_pairs; }
};

Shape draw_shape(uint64_t seed);

}  // namespace verbena::protocol::simulation
