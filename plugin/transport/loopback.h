// A queue pair a rail, connected to itself: how a connection asks its NIC for local work. Two uses: a
// one-byte READ that pushes earlier writes into GPU memory ahead of itself (flush), and copies that the CPU
// cannot make because one end is GPU memory. Both may be done twice, so when a queue pair fails it is built
// anew and does again what it had not completed. One thread at a time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/link.h"

namespace verbena::transport {

class Loopback {
 public:
  // `own_addresses`: of the rails, as the connection uses them.
  static base::Result<Loopback> create(std::span<verbs::Device* const> rails,
                                       std::span<const verbs::LocalAddress> own_addresses, int traffic_class);

  bool has_room(uint32_t rail) const { return rails_[rail].count() < kDepth; }
  // Copies leave half of the queue to flushes.
  bool has_room_to_copy(uint32_t rail) const { return rails_[rail].count() < kDepth / 2; }
  // Both complete into *outstanding, which is counted up here and down in poll(). has_room() holds.
  void flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding);
  void copy(uint32_t rail, const void* source, uint32_t local_key, void* target, uint32_t remote_key,
            uint32_t length_bytes, uint32_t* outstanding);
  // False, with the cause in `failure`, if an operation failed for good: on its own account, or as its rail
  // has not worked for VERBENA_FAILOVER_TIMEOUT_MS. Then the connection must not go on.
  bool poll(std::string* failure);

 private:
  static constexpr uint32_t kDepth = 32;  // outstanding operations a rail

  struct Rail {
    uint32_t posted = 0;   // operations without a completion
    uint32_t waiting = 0;  // that failed with the queue pair, or came since
    int64_t failed_since_ns = 0, retry_at_ns = 0;
    std::string cause;  // why the queue pair failed; empty: it works

    uint32_t count() const { return posted + waiting; }
    bool works() const { return cause.empty(); }
  };

  void post(uint32_t rail, const verbs::WorkRequest& request, uint32_t* outstanding);
  void post_ticket(uint32_t slot);
  void finish(const verbs::Completion& completion, uint32_t rail, std::string* failure);
  void give_up(uint32_t rail, const std::string& cause);
  bool repair(std::string* failure);
  bool renew(uint32_t rail);

  struct alignas(64) Scratch {
    uint8_t bytes[64];
  };
  struct Ticket {
    uint32_t* outstanding;  // null: free
    uint32_t rail;
    bool is_waiting;
    verbs::WorkRequest request;
  };

  std::unique_ptr<Scratch> scratch_;
  std::vector<verbs::MemoryRegion> scratch_regions_;
  Link link_;
  std::vector<Ticket> tickets_;  // ring over all rails; a slot's index is the cookie's value
  uint32_t next_ticket_ = 0;
  std::vector<Rail> rails_;
  uint32_t outstanding_ = 0;  // operations; without one, poll() looks at no queue
  uint32_t broken_rails_ = 0;
};

}  // namespace verbena::transport
