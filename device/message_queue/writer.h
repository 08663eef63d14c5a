// A queue's writer: makes it, admits its readers, writes. Used by one thread at a time, but for cancel().
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/socket.h"
#include "base/wake_event.h"
#include "bootstrap/callers.h"
#include "bootstrap/link.h"
#include "device/message_queue/life_line.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/queue_messages.h"
#include "device/message_queue/remote_feed.h"

namespace verbena::message_queue {

struct WriterOptions {
  RingShape shape;
  int64_t spin_us = 0;         // before each sleep; kForever
  base::SocketAddress bind{};  // where readers connect to; none: the interface of VERBENA_SOCKET_IFNAME
  std::vector<uint32_t> reader_ranks{};  // by which errors name readers; kAnyReader, or empty: they have none
};

class Writer {
 public:
  static base::Result<std::unique_ptr<Writer>> create(const WriterOptions& options);
  // Readers find the end of the queue behind what was written.
  ~Writer();

  const Handle& handle() const { return handle_; }
  // Returns once all readers have come.
  base::Outcome wait_until_ready(int64_t timeout_ms);

  // The parts make one message, which is spread over as many chunks as it takes. kTimeout: the error names
  // who holds the slot and since when; readers then never see what was written of it. kRemote: a reader is
  // dead, and is named; each call says so until it is dropped.
  base::Outcome enqueue(std::span<const std::span<const std::byte>> parts, int64_t timeout_ms);
  // The next chunk itself, to be filled in place; commit() makes a message of its first bytes. What is
  // reserved again without a commit is the same.
  base::Result<std::span<std::byte>> reserve(int64_t timeout_ms);
  base::Outcome commit(size_t length_bytes);
  // The queue goes on without that reader.
  base::Outcome drop_reader(uint32_t reader);
  // From any thread: the call under way, or the next one, ends with kInvalidUsage; for good: so do all.
  void cancel(bool is_for_good = false);
  // Once no call is under way: all that destruction does, but to the memory while a chunk is reserved.
  void end();
  base::Outcome pin() { return ring_.pin(); }
  uint32_t count_local() const;

 private:
  enum class Step : uint8_t { kAbsent, kAdmitted, kReady, kGone, kDead, kDropped };
  struct Peer {
    Step step = Step::kAbsent;
    bool is_local = false, is_told_to_go = false, is_looked_after = false;
    ProcessName process;
    std::optional<bootstrap::Link> link;  // of one that shares memory; a feed has its own
    PeerWatch watch;
    std::unique_ptr<RemoteFeed> feed;
    std::atomic<bool> feed_ended{false};
  };
  struct Newcomer {  // of this queue, but not admitted yet
    bootstrap::Link link;
    uint32_t reader;
    base::Deadline deadline;                     // for saying where it is
    std::optional<bootstrap::PostAddress> post;  // awaits our descriptor
  };
  enum Interrupt : uint32_t { kCancelled = 1, kPeerNews = 2, kShut = 4 };

  // All parts that can fail have been made before, so there is no half-made writer.
  Writer(const WriterOptions& options, const Handle& handle, base::Listener listener, bootstrap::Proof proof,
         const bootstrap::HostKey& host, SharedRing ring, base::WakeEvent wake);

  base::Outcome admit(base::Deadline deadline);
  bootstrap::Callers::Verdict judge(const bootstrap::Hello& hello) const;
  bool advance(Newcomer& newcomer);
  bool is_free(uint32_t reader) const;
  bool hear(Newcomer& newcomer, const bootstrap::Record& record);
  base::Outcome hear_peers();
  base::Outcome hold_life();
  base::Outcome start_peer(uint32_t reader, base::Deadline deadline);
  base::Error fail_absent() const;

  base::Outcome await_slot(int64_t deadline_ns);
  base::Outcome check_cancelled();
  base::Outcome look_after_peers();
  base::Error fail_slow(int64_t waited_ns) const;
  std::string describe(uint32_t reader) const;
  void publish(size_t length_bytes, uint64_t message_bytes, uint32_t flags);
  void notify();

  WriterOptions options_;
  Handle handle_;
  bootstrap::Callers callers_;
  bootstrap::HostKey host_;
  SharedRing ring_;
  RingWriter<RingMemory> writer_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::vector<Newcomer> newcomers_;
  LifeLine life_;
  std::vector<int64_t> published_ns_;  // of each slot
  std::atomic<uint32_t> interrupt_{0};
  base::WakeEvent wake_;  // ends the waits for readers
  bool is_ready_ = false, is_reserved_ = false, has_ended_ = false;
};

}  // namespace verbena::message_queue
