// A reader's end of a queue, over shared memory or over TCP. Used by one thread at a time, but for cancel().
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
#include "bootstrap/link.h"
#include "device/message_queue/life_line.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/queue_messages.h"

namespace verbena::message_queue {

// Stays as it is until it is released by its ticket.
struct Message {
  std::span<const std::byte> bytes;
  uint64_t ticket = 0;
};

class Reader {
 public:
  // Begins to connect to the queue's writer, as its reader of this number. `spin_us`: before each sleep;
  // kForever.
  static base::Result<std::unique_ptr<Reader>> attach(const Handle& handle, uint32_t number, int64_t spin_us);
  ~Reader();

  // Returns once all readers are there.
  base::Outcome wait_until_ready(int64_t timeout_ms);
  bool is_local() const { return local_.has_value(); }

  // The next message; whole, however it travelled. kTimeout without a line in the log: none came in time, or
  // a signal's handler ran. kRemote: the writer has shut the queue down, or is dead; what it sent before came
  // first.
  base::Result<Message> dequeue(int64_t timeout_ms);
  // kInvalidUsage: that message is not held.
  base::Outcome release(uint64_t ticket);
  size_t count_held() const { return whole_.size() + count_held_parts_; }
  // From any thread: the call under way, or the next one, ends with kInvalidUsage; for good: so do all, but
  // release().
  void cancel(bool is_for_good = false);
  // Once no call is under way: leaves the queue, as destruction does, when the last message is released.
  void end();
  // Pins the ring, once ready.
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

  Reader(const Handle& handle, uint32_t number, int64_t spin_us, bootstrap::Link link, base::WakeEvent wake)
      : number_(number), spin_us_(spin_us), handle_(handle), link_(std::move(link)), wake_(std::move(wake)) {}

  base::Outcome introduce(base::Deadline deadline);
  base::Outcome map_ring(base::Deadline deadline);
  base::Result<bootstrap::Record> await_frame(uint8_t kind, base::Deadline deadline, const char* what);
  base::Outcome wait_for_setup(base::Deadline deadline, const char* what);
  base::Outcome take_ring();
  base::Error fail_setup(const char* what) const;
  void leave();
  void notify();
  std::string name_writer() const;

  // Waits for the next part; empty: not in time.
  base::Result<std::optional<Part>> await_local(int64_t deadline_ns);
  base::Result<std::optional<Part>> await_remote(int64_t deadline_ns);
  base::Outcome check_cancelled();
  base::Error fail_end(bool is_orderly);
  std::optional<Part> take_frame();
  uint64_t hold_part(const Part& part);
  void give_back(uint64_t number);

  uint32_t number_;
  int64_t spin_us_;
  Handle handle_;
  std::optional<bootstrap::Link> link_;
  ProcessName writer_process_;
  std::optional<bootstrap::UnixPost> post_;  // until the ring has come
  base::FileDescriptor ring_file_;           // from then until it is mapped
  Admission admission_;
  bool is_introduced_ = false, may_go_ = false, is_ready_ = false, has_ended_ = false;
  bool is_leaving_ = false;
  std::atomic<uint32_t> interrupt_{0};
  base::WakeEvent wake_;  // ends the waits that are not for the ring
  std::optional<Local> local_;
  std::atomic<bool> has_ring_{false};  // in local_, so that other threads may wake who sleeps on it
  PeerWatch watch_;
  LifeLine life_;

  // Parts of the ring, or of the link, that are held: from first_held_ on, true: given back meanwhile.
  uint64_t first_held_ = 0;
  std::deque<bool> given_back_;
  size_t count_held_parts_ = 0;
  uint32_t count_slots_ = 0;
  std::deque<bootstrap::Record> records_;  // remote: those held, parallel to given_back_
  std::vector<std::byte> partial_;
  bool is_partial_ = false;
  std::map<uint64_t, std::vector<std::byte>> whole_;  // those that were put together, by ticket
  uint64_t next_whole_ = 0;
};

}  // namespace verbena::message_queue
