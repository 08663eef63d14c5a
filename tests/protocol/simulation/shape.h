// What a seed decides: the connection, its messages, how the network behaves, and what goes wrong. A new kind
// of fault is one of fault.h, acted on in injector.cc.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "protocol/rail_share.h"
#include "protocol/receive_core.h"
#include "protocol/send_core.h"
#include "protocol/simulation/fault.h"
#include "protocol/wire.h"

namespace verbena::protocol::simulation {

struct MessageShape {
  uint32_t length_bytes;
  uint32_t room_bytes;  // of its receive; at least the length
  bool may_stage;       // what the sender believes
  bool has_slot;        // what the receiver knows: the kernel advances its head
  bool is_unpacked;     // has_slot, and the kernel places the pages
  bool is_gpu;          // its receive: the CPU cannot write there, and NCCL flushes
  uint8_t tag = 0;      // where nothing is staged: sends of different tags are posted in any order
  uint8_t count = 1;    // receives of the request that its receive is the first of; 0: of an earlier one's

  ReceiveClass receive_class() const {
    return is_unpacked ? ReceiveClass::kUnpacked : has_slot ? ReceiveClass::kSlotOnly : ReceiveClass::kNoSlot;
  }
};

struct Shape {
  uint32_t queue_pairs = 1;
  uint32_t rails = 1;  // receive queues; queue pair q fills rail q mod rails
  uint32_t page_bytes = 64;
  uint32_t window = 8;  // receive entries for each queue pair
  uint32_t send_depth = kSendDepth;
  uint32_t local_depth = 32;   // copies and flushes that a device takes at a time
  bool has_gpu_pages = false;  // what lands in a page has to be pushed before a kernel sees it
  bool is_observed = false;
  bool stages = true;     // or every message needs a grant, and credits ride on it
  bool has_queue = true;  // a kernel unpacks from it; false: no message has a slot
  uint64_t threshold_bytes = 0;
  uint64_t min_stripe_bytes = 256;
  RailShare::Speeds speed_mbps{};
  uint32_t first_sequence = 0;
  uint32_t posts_ahead = 1;   // receives that the application keeps open
  bool is_in_order = false;   // what was posted first is tested and consumed first
  bool leaves_early = false;  // an end that is done does not wait for the other
  uint32_t tags = 1;
  uint32_t adaptive = 0;  // a bit for each rail whose network routes adaptively
  uint64_t adaptive_above_bytes = 0;
  bool splits_over_all = false;
  bool out_of_order = false;  // what a queue pair carries to the sender is placed in any order
  std::vector<MessageShape> messages;

  static constexpr uint32_t kMaxFaults = 8;
  std::array<Fault, kMaxFaults> faults{};  // one after the other
  uint32_t fault_count = 0;

  // Chances in percent.
  uint32_t network_percent = 50;    // of a step: something arrives, rather than an end doing something
  uint32_t busy_percent = 0;        // of a first request: the service thread has the connection
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
