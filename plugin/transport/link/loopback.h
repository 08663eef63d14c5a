// Local operations of a NIC, which connections request. Each rail has a queue pair that is connected to
// itself. There are two kinds of operations: a one-byte READ that flushes earlier writes to GPU memory, and
// copies that the CPU cannot make because one side is GPU memory. Both may be executed twice, so when a queue
// pair fails, it is created again and repeats the operations that have not completed.
//
// The receiving connections of one GPU on one NIC share a Loopback. A rail's queue pair is created with the
// first operation on the rail, because most connections need none. Each connection has a LoopbackUser, which
// one thread at a time uses. The Loopback's mutex serialises users of different threads. flush(), copy() and
// poll() never wait for the mutex: the thread that holds it processes the completions of all users.
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
  // Returns the Loopback of this GPU (or of no GPU) and this NIC. The NIC must outlive it. Creates nothing on
  // the device.
  static std::shared_ptr<Loopback> acquire(int gpu, const Nic& nic);

 private:
  friend class LoopbackUser;
  static constexpr uint32_t kDepth = 64;  // maximum number of posted operations of a rail

  // A posted operation.
  struct Slot {
    LoopbackUser* user = nullptr;  // null: the slot is free, or its user is gone
    uint32_t ticket = 0;
    bool is_posted = false;
  };
  struct alignas(64) Scratch {
    uint8_t bytes[64];
  };
  struct Rail {
    verbs::Device* device = nullptr;
    verbs::MemoryRegion scratch_region;
    Link link;                // has one queue pair
    std::vector<Slot> slots;  // the cookie selects the slot; empty until the queue pair is created
    uint32_t next_slot = 0;
    std::string cause;  // why the queue pair failed or could not be created; empty otherwise
    int64_t retry_at_ns = 0;
    bool is_reported = false;  // a line was logged, and no operation has succeeded since
  };

  explicit Loopback(const Nic& nic);
  // The functions below need the mutex.
  bool is_working(Rail& rail);
  base::Outcome make(Rail& rail);
  bool post(LoopbackUser& user, uint32_t ticket);
  static void finish(Rail& rail, const verbs::Completion& completion);
  static void give_up(Rail& rail, const std::string& cause);
  static bool rebuild(Rail& rail);
  void withdraw(LoopbackUser& user);

  std::mutex mutex_;  // guards the members below
  const std::unique_ptr<Scratch> scratch_ = std::make_unique<Scratch>();
  std::vector<Rail> rails_;
};

// One thread at a time uses it.
class LoopbackUser {
 public:
  explicit LoopbackUser(std::shared_ptr<Loopback> shared) : shared_(std::move(shared)) {}
  // Afterwards no operation of this user is outstanding. May wait while another thread uses the device.
  ~LoopbackUser();
  LoopbackUser(const LoopbackUser&) = delete;
  LoopbackUser& operator=(const LoopbackUser&) = delete;

  bool has_room(uint32_t rail) const { return counts_[rail] < kDepth; }
  // Copies may use only half of the queue; the other half is for flushes.
  bool has_room_to_copy(uint32_t rail) const { return counts_[rail] < kDepth / 2; }
  // Both functions increment *outstanding, and poll() decrements it when the operation completes. Call them
  // only if has_room() is true.
  void flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding);
  void copy(uint32_t rail, const void* source, uint32_t local_key, void* target, uint32_t remote_key,
            uint32_t length_bytes, uint32_t* outstanding);
  // Returns false, with the cause in `failure`, if an operation failed permanently: because of an error of
  // its own, or because its rail has not worked for VERBENA_FAILOVER_TIMEOUT_MS. The connection must then not
  // continue.
  bool poll(std::string* failure) { return outstanding_ == 0 || look(failure); }
  // After such a failure: the failed operation, identified by its `outstanding`; null if a rail failed.
  const uint32_t* failed() const { return failed_; }

 private:
  friend class Loopback;
  static constexpr uint32_t kDepth = 32;  // maximum number of outstanding operations of a rail

  // The user's own thread changes waiting to posted, with the mutex. Any thread with the mutex changes posted
  // to done or back to waiting. The user's own thread makes all other changes.
  enum class State : uint8_t { kFree, kWaiting, kPosted, kDone };
  struct Ticket {
    std::atomic<State> state{State::kFree};
    uint32_t rail = 0;
    // Since when the operation waits for a working queue pair; 0: it does not wait.
    int64_t waiting_since_ns = 0;
    uint32_t* outstanding = nullptr;
    verbs::WorkRequest request;  // in a flush, the local buffer is the Loopback's, which may not exist yet
    bool is_flush = false;
  };

  void add(uint32_t rail, const verbs::WorkRequest& request, bool is_flush, uint32_t* outstanding);
  bool look(std::string* failure);
  bool post_waiting(std::string* failure);
  static bool is_overdue(Ticket& ticket);

  std::shared_ptr<Loopback> shared_;
  std::unique_ptr<Ticket[]> tickets_;  // kDepth for each rail in turn; created with the first operation
  uint32_t ticket_count_ = 0, next_ticket_ = 0;
  uint32_t outstanding_ = 0;  // number of operations; if it is 0, poll() returns at once
  std::array<uint32_t, verbs::kMaxRails> counts_{};  // operations of each rail
  std::string failure_;                              // of an operation with an error; guarded by the mutex
  const uint32_t* failed_ = nullptr;                 // the counter of that operation
};

}  // namespace verbena::transport
