// What NCCL holds of a channel: its sending or its receiving end, each with as many requests as a channel has
// messages at a time. One thread at a time for each end, beside any others of the engine.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/status.h"
#include "observe/connection.h"
#include "protocol/datagram/engine_state.h"
#include "protocol/statistics.h"
#include "protocol/unpack_queue.h"
#include "transport/datagram/page_pool.h"
#include "transport/ends.h"
#include "transport/memory/registration.h"

namespace verbena::transport::datagram {

class Engine;

// Its owner is the end. Free, then open, then done, then reported if the caller will say that it is consumed:
// an open one is the engine's, any other the end's.
struct ChannelRequest : Request {
  enum class State : uint8_t { kFree, kOpen, kDone, kReported };
  std::atomic<State> state{State::kFree};
  // For who observes it; the engine's while it is open.
  uint8_t rails = 0;    // that have carried some of it: a bit each
  uint16_t resent = 0;  // packets; no more than it can say
  uint32_t number = 0;  // of the message
  uint64_t length_bytes = 0;
  const Registration* memory = nullptr;
};

struct SendRequest : ChannelRequest {
  const std::byte* data = nullptr;
  uint32_t posted = 0;  // datagrams that read it and have not left
  bool is_acked = false;
};

struct ReceiveRequest : ChannelRequest {
  std::byte* data = nullptr;
  bool has_slot = false;
  uint32_t slot = 0;
  uint32_t message = 0;      // the engine's, while it is open or has pages that were lent
  uint32_t descriptors = 0;  // of lent pages, in its slot, once it is done; until it is consumed
};

// Of an end whose receives a kernel unpacks: NCCL's queue, and the memory behind it.
class LendingQueue {
 public:
  // Of a message: so many pages, each in up to so many pieces, of at least so many bytes.
  struct Limits {
    uint32_t pages = 0, pieces = 0, piece_bytes = 0;
  };
  // For the calling thread's GPU.
  static base::Result<std::unique_ptr<LendingQueue>> create(std::shared_ptr<PageSpace> space,
                                                            const Limits& limits);
  ~LendingQueue() { memories_.give_back(std::move(memory_)); }
  LendingQueue(const LendingQueue&) = delete;
  LendingQueue& operator=(const LendingQueue&) = delete;

  // 0: that GPU does not reach them.
  uint32_t most_pages() const { return limits_.pages; }
  uint32_t least_piece_bytes() const { return limits_.piece_bytes; }
  // For the GPU.
  void* device_handle() const { return memory_->device_handle(); }

 private:
  LendingQueue(std::shared_ptr<PageSpace> space, UnpackMemories& memories,
               std::unique_ptr<UnpackMemory> memory, const Limits& limits)
      : space_(std::move(space)), memories_(memories), memory_(std::move(memory)), limits_(limits) {}

  const std::shared_ptr<PageSpace> space_;  // which has `memories_`
  UnpackMemories& memories_;
  std::unique_ptr<UnpackMemory> memory_;
  const Limits limits_;  // no more than it has descriptors for

 public:
  protocol::UnpackQueue slots{memory_->host_meta(), memory_->descriptors()};
};

// What NCCL asks for before a GPU reads what was received.
struct ChannelFlush : ChannelRequest {
  const void* data = nullptr;
  uint32_t rails = 0;        // that are still to be asked
  uint32_t outstanding = 0;  // reads
};

// What both ends have.
class ChannelEnd {
 public:
  uint32_t peer() const { return peer_; }
  uint32_t channel() const { return channel_; }
  uint16_t wire() const { return wire_; }
  // Null: it is not observed.
  observe::Connection* observed() const { return observed_.get(); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // With the engine's token. The first one counts: others read it.
  void fail(base::Outcome failure);
  void note_peer_closed(int64_t now_ns) {
    if (closed_ns_ == 0) closed_ns_ = now_ns;
  }
  bool has_peer_closed() const { return closed_ns_ != 0; }

 protected:
  ChannelEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
             observe::Direction direction);
  ~ChannelEnd();
  // What the end's thread is told, once it has failed.
  base::Outcome tell_failure();
  // With the engine's token, of an end that has not failed: an error once a message that needs the peer has
  // been open for the grace time after it closed.
  base::Outcome check_peer(const char* direction, const char* open);

  const std::shared_ptr<Engine> engine_;
  const uint32_t peer_, channel_;
  const uint16_t wire_;
  const observe::Direction direction_;
  std::shared_ptr<observe::Connection> observed_;  // null: nobody wants to know
  bool is_failure_told_ = false;
  bool has_ended_ = false;  // the engine does not know it any more
  std::atomic<bool> has_failed_{false};
  base::Outcome failure_;  // once it has failed
  int64_t closed_ns_ = 0;  // when the peer said that its end is closed; 0: it has not
  protocol::Statistics statistics_;
};

// What they do alike, each with requests of its own. `End` is SendEnd or ReceiveEnd.
template <typename End, typename Requested>
class ChannelEndOf : public ChannelEnd {
 protected:
  // Ends the channel if one of its requests uses the memory.
  void release_memory(const Registration* memory);
  ChannelEndOf(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
               observe::Direction direction)
      : ChannelEnd(std::move(engine), peer, channel, wire, direction) {}
  // Once `End` is complete: requests name it as their owner.
  void own_requests(RequestKind kind);
  // The engine no longer knows the end once this returns.
  void leave();
  // With the engine's token.
  void end_messages();
  void begin_request(Requested& request, uint32_t number, const Registration* memory);
  void note_done(const Requested& request);
  // Whether it is done; until then, or an error, it stays open. The caller frees it.
  template <typename Looked>
  base::Outcome look(const Looked& request, const char* direction, const char* open, bool* done);

  std::array<Requested, protocol::datagram::kRing> requests_;
};

class SendEnd final : public ChannelEndOf<SendEnd, SendRequest>, public SendingEnd {
 public:
  SendEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire)
      : ChannelEndOf(std::move(engine), peer, channel, wire, observe::Direction::kSend), SendingEnd(false) {
    own_requests(RequestKind::kSend);
  }
  ~SendEnd() { leave(); }

  // Null in `*request`: not now. The memory is read until the request is done.
  base::Outcome post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
                     Request** request, int32_t tag) override;
  base::Outcome test(Request& request, bool* done, int* lengths_bytes) override;
  void release(const Registration* memory) override { release_memory(memory); }
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  // With the engine's token, of an open one: whether it may need the peer, or only our device.
  bool awaits_peer(const SendRequest&) const { return true; }
  bool is_read() const;  // by datagrams that have not left
  bool uses(const Registration* memory) const;
};

class ReceiveEnd final : public ChannelEndOf<ReceiveEnd, ReceiveRequest>, public ReceivingEnd {
 public:
  // `lending`: null if no kernel unpacks here.
  ReceiveEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
             std::unique_ptr<LendingQueue> lending);
  ~ReceiveEnd() { leave(); }

  // By the engine: nothing is written for it any more once this returns.
  void end_for(const base::Outcome& failure) {
    fail(failure);
    end_messages();
  }
  int64_t refused_ns = 0;  // when the peer was last told that a message is too long
  void* device_handle() const { return lending_ == nullptr ? nullptr : lending_->device_handle(); }
  // Null in `*request`: not now.
  base::Outcome post(void* data, uint64_t room_bytes, const Registration* memory, ReceiveClass receive_class,
                     Request** request, int32_t tag) override;
  base::Outcome post_group(std::span<const ReceiveBuffer> buffers, Request** request) override;
  base::Outcome test(Request& request, bool* done, int* lengths_bytes) override;
  base::Outcome consume(Request& request) override;
  void release(const Registration* memory) override { release_memory(memory); }
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  // With the engine's token: the pages of a message that is here, in the order of its list.
  void describe_page(ReceiveRequest& request, uint32_t offset, uint64_t target, uint32_t length_bytes);
  void publish(const ReceiveRequest& request) { lending_->slots.publish(request.slot); }
  // Makes what was received into `memory` visible to its GPU. Null in `*request`: it is.
  base::Outcome flush(const void* data, const Registration* memory, Request** request) override;
  // As SendEnd's.
  bool awaits_peer(const ReceiveRequest& request) const;
  bool awaits_peer(const ChannelFlush&) const { return false; }
  bool uses(const Registration* memory) const;

 private:
  base::Outcome test_flush(ChannelFlush& request, bool* done);

  // Null until the first: few NICs need any.
  std::unique_ptr<std::array<ChannelFlush, protocol::datagram::kRing>> flushes_;
  const std::unique_ptr<LendingQueue> lending_;
};

}  // namespace verbena::transport::datagram
