// A queue pair a rail, connected to itself: how a connection asks its NIC for local work. Two uses: a
// one-byte READ that pushes earlier writes into GPU memory ahead of itself (flush), and copies that the CPU
// cannot make because one end is GPU memory. One thread at a time.
#pragma once

#include <span>
#include <vector>

#include "base/status.h"
#include "transport/link.h"

namespace verbena::transport {

class Loopback {
 public:
  // `own_addresses`: of the rails, as the connection uses them.
  static base::Result<Loopback> create(std::span<verbs::Device* const> rails,
                                       std::span<const verbs::LocalAddress> own_addresses, int traffic_class);

  bool has_room(uint32_t rail) { return link_.pair(rail).free_slots() != 0; }
  // Copies leave half of the queue to flushes.
  bool has_room_to_copy(uint32_t rail) { return link_.pair(rail).free_slots() > kDepth / 2; }
  // Both complete into *outstanding, which is counted up here and down in poll(). has_room() holds.
  base::Outcome flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding);
  base::Outcome copy(uint32_t rail, const void* source, uint32_t local_key, void* target, uint32_t remote_key,
                     uint32_t length_bytes, uint32_t* outstanding);
  // False, with the cause in `failure`, if an operation failed; then the connection must not go on.
  bool poll(std::string* failure);

 private:
  static constexpr uint32_t kDepth = 32;  // outstanding operations a rail

  base::Outcome post(uint32_t rail, verbs::WorkRequest request, uint32_t* outstanding);

  struct alignas(64) Scratch {
    uint8_t bytes[64];
  };
  struct Ticket {
    uint32_t* outstanding;
  };

  std::unique_ptr<Scratch> scratch_;
  std::vector<verbs::MemoryRegion> scratch_regions_;
  Link link_;
  std::vector<Ticket> tickets_;  // ring over all rails; a slot's index is the cookie's value
  uint32_t next_ticket_ = 0;
  uint32_t outstanding_ = 0;  // operations; without one, poll() looks at no queue
};

}  // namespace verbena::transport
