// How connections ask their NIC for local work, over a queue pair a rail that is connected to itself. Two
// uses: a one-byte READ that pushes earlier writes into GPU memory ahead of itself (flush), and copies that
// the CPU cannot make because one end is GPU memory. Both may be done twice, so when a queue pair fails it is
// built anew and does again what it had not completed.
//
// The receiving connections of one GPU on one NIC share a Loopback, whose queue pairs are made with the first
// operation on their rail: most connections never have one. Each has a LoopbackUser, which one thread at a
// time uses, as the connection. Users of different threads meet in the Loopback's mutex, for which none of
// them waits in flush, copy and poll: whoever has it takes in everybody's completions.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/link/link.h"
#include "transport/link/nic.h"

namespace verbena::transport {

class LoopbackUser;

class Loopback {
 public:
  // The one of this GPU (or of none) and NIC, which outlives it. Makes nothing on the device.
  static std::shared_ptr<Loopback> acquire(int gpu, const Nic& nic);

 private:
  friend class LoopbackUser;
  static constexpr uint32_t kDepth = 64;  // operations a rail has posted at most

  // A posted operation.
  struct Slot {
    LoopbackUser* user = nullptr;  // null: free, or its user has left
    uint32_t ticket = 0;
    bool is_posted = false;
  };
  struct alignas(64) Scratch {
    uint8_t bytes[64];
  };
  struct Rail {
    verbs::Device* device = nullptr;
    verbs::MemoryRegion scratch_region;
    Link link;                // of one queue pair
    std::vector<Slot> slots;  // a slot's index is the cookie's value; empty: nothing is made yet
    uint32_t next_slot = 0;
    std::string cause;  // why the queue pair failed, or was not made; empty: it works, if there is one
    int64_t retry_at_ns = 0;
    bool is_reported = false;  // a line was logged, and nothing has worked since
  };

  explicit Loopback(const Nic& nic);
  // The rest with the mutex.
  bool is_working(Rail& rail);
  base::Outcome make(Rail& rail);
  bool post(LoopbackUser& user, uint32_t ticket);
  static void finish(Rail& rail, const verbs::Completion& completion);
  static void give_up(Rail& rail, const std::string& cause);
  static bool rebuild(Rail& rail);
  void withdraw(LoopbackUser& user);

  std::mutex mutex_;  // guards all below
  const std::unique_ptr<Scratch> scratch_ = std::make_unique<Scratch>();
  std::vector<Rail> rails_;
};

// One thread at a time.
class LoopbackUser {
 public:
  explicit LoopbackUser(std::shared_ptr<Loopback> shared) : shared_(std::move(shared)) {}
  // Nothing of it is under way any more. May wait for another thread's turn with the device.
  ~LoopbackUser();
  LoopbackUser(const LoopbackUser&) = delete;
  LoopbackUser& operator=(const LoopbackUser&) = delete;

  bool has_room(uint32_t rail) const { return counts_[rail] < kDepth; }
  // Copies leave half of the queue to flushes.
  bool has_room_to_copy(uint32_t rail) const { return counts_[rail] < kDepth / 2; }
  // Both complete into *outstanding, which is counted up here and down in poll(). has_room() holds.
  void flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding);
  void copy(uint32_t rail, const void* source, uint32_t local_key, void* target, uint32_t remote_key,
            uint32_t length_bytes, uint32_t* outstanding);
  // False, with the cause in `failure`, if an operation failed for good: on its own account, or as its rail
  // has not worked for VERBENA_FAILOVER_TIMEOUT_MS. Then the connection must not go on.
  bool poll(std::string* failure) { return outstanding_ == 0 || look(failure); }
  // After that: the operation that was wrong, by its `outstanding`; null: a rail has failed.
  const uint32_t* failed() const { return failed_; }

 private:
  friend class Loopback;
  static constexpr uint32_t kDepth = 32;  // outstanding operations a rail

  // Waiting -> posted by the user's own thread with the mutex; posted -> done, or waiting again, by any that
  // has it; all else by the user's own thread.
  enum class State : uint8_t { kFree, kWaiting, kPosted, kDone };
  struct Ticket {
    std::atomic<State> state{State::kFree};
    uint32_t rail = 0;
    int64_t waiting_since_ns = 0;  // for a queue pair that works; 0: it has not
    uint32_t* outstanding = nullptr;
    verbs::WorkRequest request;  // of a flush the local half is the Loopback's, which may not be made yet
    bool is_flush = false;
  };

  void add(uint32_t rail, const verbs::WorkRequest& request, bool is_flush, uint32_t* outstanding);
  bool look(std::string* failure);
  bool post_waiting(std::string* failure);
  static bool is_overdue(Ticket& ticket);

  std::shared_ptr<Loopback> shared_;
  std::unique_ptr<Ticket[]> tickets_;  // kDepth of each rail in turn; made with the first operation
  uint32_t ticket_count_ = 0, next_ticket_ = 0;
  uint32_t outstanding_ = 0;                         // operations; without one, poll() looks at nothing
  std::array<uint32_t, verbs::kMaxRails> counts_{};  // of them on each rail
  std::string failure_;                              // of a request that was wrong; with the mutex
  const uint32_t* failed_ = nullptr;                 // and its counter
};

}  // namespace verbena::transport
