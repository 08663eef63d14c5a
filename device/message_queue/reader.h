// A reader's end of a queue, over shared memory or over TCP. Only one thread at a time may use it, except
// that any thread may call cancel().
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/wake_event.h"
#include "bootstrap/frame_link.h"
#include "device/message_queue/life_line.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/queue_messages.h"
#include "device/message_queue/spin_plan.h"

namespace verbena::message_queue {

// A received message. Its bytes stay valid until release(ticket).
struct Message {
  std::span<const std::byte> bytes;
  uint64_t ticket = 0;
};

class Reader {
 public:
  // Begins to connect to the queue's writer as its reader `number`. `spin_us` is how long each wait spins
  // before it sleeps, or kForever or kAdaptive.
  static base::Result<std::unique_ptr<Reader>> attach(const Handle& handle, uint32_t number, int64_t spin_us);
  ~Reader();

  // Waits until all readers are connected.
  base::Outcome wait_until_ready(int64_t timeout_ms);
  bool is_local() const { return local_.has_value(); }

  // Returns the next message, joined from its parts. Returns kTimeout, without a log line, if no message
  // arrived in time or if a signal handler ran. Returns kRemote if the writer has shut the queue down or is
  // dead, and all its earlier messages have been delivered.
  base::Result<Message> dequeue(int64_t timeout_ms);
  // Gives a message back. Returns kInvalidUsage if the reader does not hold such a message.
  base::Outcome release(uint64_t ticket);
  size_t count_held() const { return whole_.size() + count_held_parts_; }
  // Makes the call in progress, or else the next call, fail with kInvalidUsage. With `is_for_good`, all later
  // calls except release() fail. Any thread may call it.
  void cancel(bool is_for_good = false);
  // Leaves the queue, as destruction does, once the last message is released. No call may be in progress.
  void end();
  // Pins the ring's memory for the GPU. Call it after wait_until_ready().
  base::Outcome pin();

 private:
  struct Local {
    SharedRing ring;
    RingReader<RingMemory> reader;
  };
  struct Part {
    std::span<const std::byte> bytes;
    uint64_t message_bytes = 0;
    uint32_t flags = 0;
  };
  enum Interrupt : uint32_t { kCancelled = 1, kPeerNews = 2, kShut = 4 };

  Reader(const Handle& handle, uint32_t number, int64_t spin_us, bootstrap::FrameLink link,
         base::WakeEvent wake)
      : number_(number), plan_(spin_us), handle_(handle), link_(std::move(link)), wake_(std::move(wake)) {}

  base::Outcome introduce(base::Deadline deadline);
  base::Outcome map_ring(base::Deadline deadline);
  base::Result<bootstrap::Record> await_frame(uint8_t kind, base::Deadline deadline, const char* what);
  base::Outcome wait_for_setup(base::Deadline deadline, const char* what);
  base::Outcome take_ring();
  base::Error fail_setup(const char* what) const;
  void leave();
  void notify();
  std::string name_writer() const;

  // Waits for the next part. Returns nothing if no part arrived in time.
  base::Result<std::optional<Part>> await_local(int64_t deadline_ns);
  base::Result<std::optional<Part>> await_remote(int64_t deadline_ns);
  void record(uint32_t flags, bool was_awaited);
  base::Outcome check_cancelled();
  base::Error fail_end(bool is_orderly);
  std::optional<Part> take_frame();
  uint64_t hold_part(const Part& part);
  void give_back(uint64_t number);

  uint32_t number_;
  SpinPlan plan_;
  Handle handle_;
  std::optional<bootstrap::FrameLink> link_;
  ProcessName writer_process_;
  std::optional<bootstrap::UnixPost> post_;  // until the ring's descriptor has arrived
  base::FileDescriptor ring_file_;           // after that, until the ring is mapped
  Admission admission_;
  bool is_introduced_ = false, may_go_ = false, is_ready_ = false, has_ended_ = false;
  bool is_leaving_ = false;
  std::atomic<uint32_t> interrupt_{0};
  base::WakeEvent wake_;  // wakes waits on descriptors; waits on the ring use its futex
  std::optional<Local> local_;
  // True if local_ is set, so that other threads may wake a thread that sleeps on the ring.
  std::atomic<bool> has_ring_{false};
  PeerWatch watch_;
  LifeLine life_;

  // The parts of the ring or link that the caller has received, starting with part first_held_. An entry is
  // true if the caller has released the part.
  uint64_t first_held_ = 0;
  std::deque<bool> given_back_;
  size_t count_held_parts_ = 0;
  uint32_t count_slots_ = 0;
  std::deque<bootstrap::Record> records_;  // over TCP: the held parts, parallel to given_back_
  std::vector<std::byte> partial_;
  bool is_partial_ = false;
  std::map<uint64_t, std::vector<std::byte>> whole_;  // messages joined from several parts, by ticket
  uint64_t next_whole_ = 0;
};

}  // namespace verbena::message_queue
