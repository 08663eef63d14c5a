// A queue's writer, which creates the queue, admits its readers and writes messages. Only one thread at a
// time may use it, except that any thread may call cancel().
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
#include "bootstrap/frame_link.h"
#include "device/message_queue/life_line.h"
#include "device/message_queue/peer_watch.h"
#include "device/message_queue/queue_messages.h"
#include "device/message_queue/remote_feed.h"
#include "device/message_queue/spin_plan.h"

namespace verbena::message_queue {

struct WriterOptions {
  RingShape shape;
  int64_t spin_us = 0;  // how long a wait spins before it sleeps; or kForever, or kAdaptive for a short time
  // The address to which readers connect. If empty, the address of the interface VERBENA_SOCKET_IFNAME is
  // used.
  base::SocketAddress bind{};
  // Ranks of the readers, for errors. An entry is kAnyReader if that reader has no rank. Empty if no reader
  // has a rank.
  std::vector<uint32_t> reader_ranks{};
};

class Writer {
 public:
  static base::Result<std::unique_ptr<Writer>> create(const WriterOptions& options);
  // Ends the queue. Readers still receive the messages written before.
  ~Writer();

  const Handle& handle() const { return handle_; }
  // Waits until all readers are connected.
  base::Outcome wait_until_ready(int64_t timeout_ms);

  // Writes one message, which consists of `parts` and takes as many slots as it needs. Returns kTimeout if no
  // slot became free in time: the error names the reader that holds the slot, and readers never see the
  // partial message. Returns kRemote if a reader is dead: every call fails, and names this reader, until
  // drop_reader().
  base::Outcome enqueue(std::span<const std::span<const std::byte>> parts, int64_t timeout_ms);
  // Returns the next chunk, to be filled in place. commit() turns its first bytes into a message. Without a
  // commit, the next reserve() returns the same chunk.
  base::Result<std::span<std::byte>> reserve(int64_t timeout_ms);
  base::Outcome commit(size_t length_bytes);
  // Removes a reader, so that the queue continues without it.
  base::Outcome drop_reader(uint32_t reader);
  // Makes the call in progress, or else the next call, fail with kInvalidUsage. With `is_for_good`, all later
  // calls fail. Any thread may call it.
  void cancel(bool is_for_good = false);
  // Does everything that the destructor does, but keeps the memory as long as a chunk is reserved. No call
  // may be in progress.
  void end();
  base::Outcome pin() { return ring_.pin(); }
  uint32_t count_local() const;

 private:
  enum class Step : uint8_t { kAbsent, kAdmitted, kReady, kGone, kDead, kDropped };
  struct Peer {
    Step step = Step::kAbsent;
    bool is_local = false, is_told_to_go = false, is_looked_after = false;
    ProcessName process;
    std::optional<bootstrap::FrameLink> link;  // link to a local reader; a remote reader's link is in `feed`
    PeerWatch watch;
    std::unique_ptr<RemoteFeed> feed;
    std::atomic<bool> feed_ended{false};
  };
  struct Newcomer {  // a connected reader that is not admitted yet
    bootstrap::FrameLink link;
    uint32_t reader;
    base::Deadline deadline;                     // for its Attachment
    std::optional<bootstrap::PostAddress> post;  // where to send the memory's descriptor
  };
  enum Interrupt : uint32_t { kCancelled = 1, kPeerNews = 2, kShut = 4 };

  // The caller has already created everything whose creation can fail, so the constructor cannot fail.
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
  std::vector<int64_t> published_ns_;  // time of the last publish, by slot
  std::atomic<uint32_t> interrupt_{0};
  base::WakeEvent wake_;  // wakes waits for readers
  bool is_ready_ = false, is_reserved_ = false, has_ended_ = false;
};

}  // namespace verbena::message_queue
