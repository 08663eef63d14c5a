// The sending and the receiving end of a channel, which NCCL holds. Each has as many requests as a channel
// has messages at a time. One thread at a time uses an end; other threads may use other ends of the same
// engine.
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

// The request's owner is its end. A request is free, then open, then done. If the caller will consume it, it
// is then reported, until it is consumed. An open request belongs to the engine, and any other to its end.
struct ChannelRequest : Request {
  enum class State : uint8_t { kFree, kOpen, kDone, kReported };
  std::atomic<State> state{State::kFree};
  // For the observation of the channel. They belong to the engine while the request is open.
  uint8_t rails = 0;    // a bit for each rail that has carried a part of the message
  uint16_t resent = 0;  // number of retransmitted packets, saturating
  uint32_t number = 0;  // number of the message
  uint64_t length_bytes = 0;
  const Registration* memory = nullptr;
};

struct SendRequest : ChannelRequest {
  const std::byte* data = nullptr;
  uint32_t posted = 0;  // posted datagrams that read the message and have not been sent
  bool is_acked = false;
};

struct ReceiveRequest : ChannelRequest {
  std::byte* data = nullptr;
  bool has_slot = false;
  uint32_t slot = 0;
  uint32_t message = 0;  // the engine's number of the message, while the request is open or pages are on loan
  uint32_t descriptors = 0;  // number of descriptors in its slot, from completion until it is consumed
};

// NCCL's unpack queue of an end whose receives a kernel unpacks, and the memory of the queue.
class LendingQueue {
 public:
  // Limits for one message: number of pages, number of pieces of each page, and minimum length of a piece in
  // bytes.
  struct Limits {
    uint32_t pages = 0, pieces = 0, piece_bytes = 0;
  };
  // Creates the queue for the calling thread's GPU.
  static base::Result<std::unique_ptr<LendingQueue>> create(std::shared_ptr<PageSpace> space,
                                                            const Limits& limits);
  ~LendingQueue() { memories_.give_back(std::move(memory_)); }
  LendingQueue(const LendingQueue&) = delete;
  LendingQueue& operator=(const LendingQueue&) = delete;

  // Returns 0 if that GPU cannot access the pages.
  uint32_t most_pages() const { return limits_.pages; }
  uint32_t least_piece_bytes() const { return limits_.piece_bytes; }
  // Returns the address of the handle for the GPU.
  void* device_handle() const { return memory_->device_handle(); }

 private:
  LendingQueue(std::shared_ptr<PageSpace> space, UnpackMemories& memories,
               std::unique_ptr<UnpackMemory> memory, const Limits& limits)
      : space_(std::move(space)), memories_(memories), memory_(std::move(memory)), limits_(limits) {}

  const std::shared_ptr<PageSpace> space_;  // owns `memories_`
  UnpackMemories& memories_;
  std::unique_ptr<UnpackMemory> memory_;
  const Limits limits_;  // at most as many as it has descriptors for

 public:
  protocol::UnpackQueue slots{memory_->host_meta(), memory_->descriptors()};
};

// The request of a flush, which NCCL makes before a GPU reads received data.
struct ChannelFlush : ChannelRequest {
  const void* data = nullptr;
  uint32_t rails = 0;        // rails on which no read was posted yet
  uint32_t outstanding = 0;  // outstanding reads
};

// The parts that both ends share.
class ChannelEnd {
 public:
  uint32_t peer() const { return peer_; }
  uint32_t channel() const { return channel_; }
  uint16_t wire() const { return wire_; }
  // Returns null if the end is not observed.
  observe::Connection* observed() const { return observed_.get(); }
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }
  // Needs the engine's token. Only the first failure is kept, because other threads read it.
  void fail(base::Outcome failure);
  void note_peer_closed(int64_t now_ns) {
    if (closed_ns_ == 0) closed_ns_ = now_ns;
  }
  bool has_peer_closed() const { return closed_ns_ != 0; }

 protected:
  ChannelEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
             observe::Direction direction);
  ~ChannelEnd();
  // Returns the failure to the end's thread, and counts it once.
  base::Outcome tell_failure();
  // Needs the engine's token. Call it for an end that has not failed. Returns an error if a message that
  // needs the peer is still open when the grace time after the peer's close is over.
  base::Outcome check_peer(const char* direction, const char* open);

  const std::shared_ptr<Engine> engine_;
  const uint32_t peer_, channel_;
  const uint16_t wire_;
  const observe::Direction direction_;
  std::shared_ptr<observe::Connection> observed_;  // null if no output is enabled
  bool is_failure_told_ = false;
  bool has_ended_ = false;  // the engine no longer knows the end
  std::atomic<bool> has_failed_{false};
  base::Outcome failure_;  // valid once the end has failed
  int64_t closed_ns_ = 0;  // when the peer reported that it closed its end; 0: it has not
  protocol::Statistics statistics_;
};

// The functions that both ends share, each with its own type of requests. `End` is SendEnd or ReceiveEnd.
template <typename End, typename Requested>
class ChannelEndOf : public ChannelEnd {
 protected:
  // Ends the channel if one of its open requests uses the memory.
  void release_memory(const Registration* memory);
  ChannelEndOf(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
               observe::Direction direction)
      : ChannelEnd(std::move(engine), peer, channel, wire, direction) {}
  // Sets the owner of the requests. Call it once `End` is fully constructed.
  void own_requests(RequestKind kind);
  // After the call returns, the engine no longer knows the end.
  void leave();
  // Needs the engine's token.
  void end_messages();
  void begin_request(Requested& request, uint32_t number, const Registration* memory);
  void note_done(const Requested& request);
  // Returns whether the request is done. Unless it is done or has failed, the request stays open. The caller
  // frees it.
  template <typename Looked>
  base::Outcome look(const Looked& request, const char* direction, const char* open, bool* is_done);

  std::array<Requested, protocol::datagram::kRing> requests_;
};

class SendEnd final : public ChannelEndOf<SendEnd, SendRequest>, public SendingEnd {
 public:
  SendEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire)
      : ChannelEndOf(std::move(engine), peer, channel, wire, observe::Direction::kSend), SendingEnd(false) {
    own_requests(RequestKind::kSend);
  }
  ~SendEnd() { leave(); }

  // Returns no request if the message cannot be sent now. The memory is read until the request is done.
  Posted post(const void* data, uint64_t length_bytes, const Registration* memory, bool may_stage,
              int32_t tag) override;
  using SendingEnd::post;
  base::Outcome test(Request& request, int* done, int* lengths_bytes) override;
  void release(const Registration* memory) override { release_memory(memory); }
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  // Needs the engine's token and an open request. Returns whether the request may wait for the peer, and not
  // only for this device.
  bool awaits_peer(const SendRequest&) const { return true; }
  bool is_read() const;  // by datagrams that have not been sent
  bool uses(const Registration* memory) const;
};

class ReceiveEnd final : public ChannelEndOf<ReceiveEnd, ReceiveRequest>, public ReceivingEnd {
 public:
  // `lending` is null if no kernel unpacks the receives.
  ReceiveEnd(std::shared_ptr<Engine> engine, uint32_t peer, uint32_t channel, uint16_t wire,
             std::unique_ptr<LendingQueue> lending);
  ~ReceiveEnd() { leave(); }

  // Called by the engine. After the call returns, no data is written for this end.
  void end_for(const base::Outcome& failure) {
    fail(failure);
    end_messages();
  }
  int64_t refused_ns = 0;  // when the peer was last notified that a message is too long
  void* device_handle() const { return lending_ == nullptr ? nullptr : lending_->device_handle(); }
  // Returns no request if no receive can be posted now.
  Posted post(void* data, uint64_t room_bytes, const Registration* memory, ReceiveClass receive_class,
              int32_t tag) override;
  using ReceivingEnd::post;
  base::Outcome post_group(std::span<const ReceiveBuffer> buffers, Request** request) override;
  base::Outcome test(Request& request, int* done, int* lengths_bytes) override;
  base::Outcome consume(Request& request) override;
  void release(const Registration* memory) override { release_memory(memory); }
  Statistics close() override;
  observe::Connection* observer() const override { return observed(); }
  // Needs the engine's token. Adds the pages of a received message, in the order of its list.
  void describe_page(ReceiveRequest& request, uint32_t offset, uint64_t target, uint32_t length_bytes);
  void publish(const ReceiveRequest& request) { lending_->slots.publish(request.slot); }
  // Makes the data that was received into `memory` visible to its GPU. Sets `*request` to null if it is
  // visible already.
  base::Outcome flush(const void* data, const Registration* memory, Request** request) override;
  // As in SendEnd.
  bool awaits_peer(const ReceiveRequest& request) const;
  bool awaits_peer(const ChannelFlush&) const { return false; }
  bool uses(const Registration* memory) const;

 private:
  base::Outcome test_flush(ChannelFlush& request, int* done);

  // Null until the first flush, because few NICs need flushes.
  std::unique_ptr<std::array<ChannelFlush, protocol::datagram::kRing>> flushes_;
  const std::unique_ptr<LendingQueue> lending_;
};

}  // namespace verbena::transport::datagram
