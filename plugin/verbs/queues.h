// RAII for completion queues, shared receive queues, memory regions and queue pairs. Objects are movable, not
// copyable. A constructor that fails leaks nothing. Each object must be destroyed before the Device on which
// it was created.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "verbs/device.h"
#include "verbs/types.h"

struct ibv_ah;
struct ibv_cq;
struct ibv_mr;
struct ibv_qp;
struct ibv_send_wr;
struct ibv_srq;
struct ibv_wc;

namespace verbena::verbs {

// Destroys a verbs object through the library that created it.
struct Destroyer {
  const Library* library = nullptr;
  void operator()(ibv_cq* queue) const;
  void operator()(ibv_mr* region) const;
  void operator()(ibv_qp* pair) const;
  void operator()(ibv_srq* queue) const;
};
template <typename T>
using Owned = std::unique_ptr<T, Destroyer>;

// Read and write say what the remote side may do. Relaxed ordering is for payload only, never for memory that
// is polled.
struct Access {
  bool remote_read = false;
  bool remote_write = false;
  bool relaxed_ordering = false;
  bool remote_atomic = false;
  bool data_direct = false;  // for a dma-buf: through Device::data_direct_path()

  bool operator==(const Access&) const = default;
};

class MemoryRegion {
 public:
  static base::Result<MemoryRegion> register_memory(Device& device, void* address, size_t length_bytes,
                                                    Access access);
  // `address` is the GPU's virtual address. offset_bytes counts from the start of the dma-buf. The caller
  // keeps the fd.
  static base::Result<MemoryRegion> register_dmabuf(Device& device, void* address, size_t length_bytes,
                                                    uint64_t offset_bytes, int fd, Access access);
  MemoryRegion() = default;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }

 private:
  Owned<ibv_mr> region_;
  uint32_t local_key_ = 0, remote_key_ = 0;
};

// A flag. It is set when the device has reported that a completion queue failed or, for a queue pair in the
// error state, that it takes no more entries of its shared receive queue. It exists as long as the queue.
class EventMark {
 public:
  EventMark(Device& device, const void* queue);
  ~EventMark();
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  bool is_set() const { return is_set_.load(std::memory_order_acquire); }

 private:
  Device& device_;
  const void* const queue_;
  std::atomic<bool> is_set_{false};
};

class CompletionQueue {
 public:
  static base::Result<CompletionQueue> create(Device& device, uint32_t depth_entries);
  CompletionQueue() = default;

  static constexpr int kMaxPollEntries = 16;
  // Polls at most out.size() (<= kMaxPollEntries) completions. Returns their number, or -1 if the queue
  // itself has failed, which is logged once.
  int poll(std::span<Completion> out) {
    const int wanted = static_cast<int>(std::min<size_t>(out.size(), kMaxPollEntries));
    const int count = poll_(queue_.get(), wanted, reinterpret_cast<ibv_wc*>(out.data()));
    if (count >= 0) [[likely]]
      return count;
    note_failure(count);
    return -1;
  }
  // Returns whether the device has reported a failure of the queue. After a failure, the completion queue of
  // most devices just stays empty.
  bool has_failed() const { return failed_->is_set(); }
  ibv_cq* get() const { return queue_.get(); }

 private:
  [[gnu::cold]] void note_failure(int result);

  Owned<ibv_cq> queue_;
  // The driver's function, which ibv_poll_cq() calls. It must be final when the device has been opened.
  int (*poll_)(ibv_cq*, int, ibv_wc*) = nullptr;
  std::unique_ptr<EventMark> failed_;  // destroyed before the queue
  bool is_failure_logged_ = false;
};

struct ReceiveBuffer {
  void* address;
  uint32_t length;
  uint32_t local_key;
  uint64_t cookie;
};

// A chain of equal receives, which is built once, so that a post of them builds no requests. Copies share the
// chain. Thread safe.
class EqualReceives {
 public:
  explicit EqualReceives(const ReceiveBuffer& buffer);

 private:
  friend class SharedReceiveQueue;
  struct Chain;
  std::shared_ptr<Chain> chain_;
};

// Posting is thread safe (the provider locks); everything else is not.
class SharedReceiveQueue {
 public:
  // `pieces` is the maximum number of buffers of a receive.
  static base::Result<SharedReceiveQueue> create(Device& device, uint32_t depth_entries, uint32_t pieces = 1);
  SharedReceiveQueue() = default;

  base::Outcome post(std::span<const ReceiveBuffer> buffers);
  base::Outcome post(const EqualReceives& receives, size_t count);
  ibv_srq* get() const { return queue_.get(); }

 private:
  Owned<ibv_srq> queue_;
};

struct QueuePairOptions {
  uint32_t send_depth = 128;
  uint32_t inline_bytes = kInlineBytes;  // maximum; a device may grant less: QueuePair::inline_bytes()
  Operations operations = {};
  SharedReceiveQueue* receive_queue = nullptr;  // null: the queue pair has its own
  // Length of the queue pair's own receive queue in entries; 0 if this side receives nothing (only writes
  // without an immediate).
  uint32_t receive_depth = 0;
  // The packets of this queue pair may be placed, and may take receives, in any order, in both directions.
  // Completions keep the order of posting. Both ends must have the same value. Without a shared receive
  // queue, the queue pair may have at most Device::max_out_of_order_receives() receives.
  bool out_of_order = false;
  // Its receives have pages in GPU memory, to which the CPU cannot copy the bytes of a short message.
  bool receives_to_gpu = false;
  uint32_t outstanding_reads = 1;       // maximum in either direction, 1 to 255; all devices support 1
  int traffic_class = -1;               // of the communicator; -1: VERBENA_TC
  uint32_t bond_turn = 0;               // queue pairs with consecutive numbers use different ports of a bond
  const LocalAddress* local = nullptr;  // the address that the peer was told; null: the device's last address
};

// A queue pair of a reliable connection. One thread at a time uses it. Its size is a power of two, because a
// link computes its address for every request.
class alignas(64) QueuePair {
 public:
  static base::Result<QueuePair> create(Device& device, CompletionQueue& completions,
                                        const QueuePairOptions& options);
  QueuePair() = default;

  QueuePairAddress address() const { return {number_, first_psn_, ece_, outstanding_reads_}; }
  uint32_t number() const { return number_; }
  // Maximum length of a request with `send_inline`.
  uint32_t inline_bytes() const { return inline_bytes_; }

  // Connects to the peer: INIT -> RTR -> RTS. The path MTU is the smaller one of both ports; only ECE options
  // that both ends have are used. Errors contain the values of both ends. `has_other_rail` means that another
  // queue pair can take over if this one fails.
  base::Outcome connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                        bool has_other_rail = false);
  // Like connect(), but returns false without a log line if the peer's address does not answer yet. Call it
  // again.
  base::Result<bool> try_connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                                 bool has_other_rail);
  // Posts to the queue pair's own receive queue, after connect() or abandon().
  base::Outcome post_receives(std::span<const ReceiveBuffer> buffers);
  // Moves the queue pair to ERROR: all outstanding work is flushed, and no new DMA starts.
  void stop();
  // Moves a queue pair that was never connected to ERROR: all posted requests fail as flushed.
  void abandon();
  // Call it after stop(). Returns true once the device takes no more entries of the shared receive queue for
  // this queue pair. The completions of the entries that it took are then in the completion queue. Wait with
  // a deadline, because some devices never report this (Soft-RoCE before Linux 6.4).
  bool is_drained() const { return drained_ == nullptr || !may_receive_ || drained_->is_set(); }

  // Returns the number of packets of a request of `bytes` bytes. Valid after connect().
  uint32_t count_packets(uint64_t bytes) const {
    return bytes <= mtu_bytes_ ? 1 : static_cast<uint32_t>((bytes + mtu_bytes_ - 1) / mtu_bytes_);
  }
  // Returns how many packets of the peer's requests this end has executed since connect(), modulo 2^24. The
  // number is final once the queue pair is stopped. Returns an empty value if the device does not report it.
  // tells_carried_out() tests whether the number is correct.
  std::optional<uint32_t> read_carried_out() const;

  // Returns true while the GID from which this end sends is missing in the port's table. Then neither its
  // packets nor their acknowledgements arrive. For slow paths: queries the device if the device has reported
  // a change. Only the data thread may call it.
  bool has_lost_address();
  const uint8_t* source_gid() const { return source_gid_; }

  // Returns how many more work requests fit. A slot is free again once a completion at or after it was passed
  // to retire().
  uint32_t free_slots() const { return send_depth_ - (posted_ - retired_); }
  // Posts a chain in order. The chain must fit into free_slots(), and at least one of every send_depth/4
  // requests must be signaled.
  base::Outcome post(std::span<const WorkRequest> requests);
  base::Outcome post(const WorkRequest& request) {
    return free_slots() != 0 ? post_unchecked(request) : fail_full(1);
  }
  // For a caller that has checked free_slots(); only builds without NDEBUG check it again. Inlined, because
  // most messages are a chain of one request.
  base::Outcome post_unchecked(const WorkRequest& request) {
#ifndef NDEBUG
    if (free_slots() == 0) return fail_full(1);
#endif
    SendEntry entry;
    SendSegment segment;
    encode(request, &segment, &entry, nullptr);
    if (const int error = hand_over(&entry, nullptr); error != 0) [[unlikely]]
      return fail_post(error, 0, 1);
    note_posted(request.signaled);
    return {};
  }
  base::Outcome post(std::span<const OneSidedRequest> requests);
  // Call this for each successful kSend completion of this queue pair, in order.
  void retire() {
    if (signaled_head_ == signaled_tail_) return;  // the completion does not belong to a signaled request
    retired_ = signaled_positions_[signaled_head_++ & signaled_mask_];
  }

 private:
  // Returns 0 or an errno value.
  int enter_init();
  int enter_ready_to_receive(const PortAddress& remote_port, const QueuePairAddress& remote);
  int enter_ready_to_send(const QueuePairAddress& remote, bool has_other_rail);
  // Returns 0, or an errno value with the state that could not be entered.
  int enter_all(const PortAddress& remote_port, const QueuePairAddress& remote, bool has_other_rail,
                const char** state);
  void reset();
  base::Error fail_connect(const char* state, int errno_value, const PortAddress& remote_port,
                           const QueuePairAddress& remote) const;
  void note_posted(bool signaled) {
    ++posted_;
    if (signaled) signaled_positions_[signaled_tail_++ & signaled_mask_] = posted_;
  }
  // Sets only the fields that these opcodes use. The rest of *entry stays uninitialised to save time.
  static void encode(const WorkRequest& request, SendSegment* segment, SendEntry* entry, SendEntry* next) {
    *segment = {reinterpret_cast<uintptr_t>(request.local), request.length, request.local_key};
    entry->cookie = request.cookie;
    entry->next = next;
    entry->segments = segment;
    entry->segment_count = request.length != 0 ? 1 : 0;
    entry->opcode = static_cast<uint32_t>(request.opcode);
    entry->flags = (request.signaled ? SendEntry::kSignaled : 0) |
                   (request.send_inline && request.length != 0 ? SendEntry::kInline : 0);
    entry->network_imm = htobe32(request.imm);
    entry->remote = request.remote;
    entry->remote_key = request.remote_key;
  }
  static void encode(const OneSidedRequest& request, SendSegment* segment, SendEntry* entry, SendEntry* next);
  // Passes a chain to the device. Returns 0 or an errno value.
  // @param rejected  receives the entry that the device rejected; may be NULL
  int hand_over(SendEntry* chain, SendEntry** rejected) {
    ibv_send_wr* at = nullptr;
    const int error = post_send_(pair_.get(), reinterpret_cast<ibv_send_wr*>(chain), &at);
    if (rejected != nullptr) *rejected = reinterpret_cast<SendEntry*>(at);
    return error;
  }
  template <typename Request>
  base::Outcome post_chain(std::span<const Request> requests);
  [[gnu::cold]] base::Error fail_full(size_t asked_requests) const;
  [[gnu::cold]] base::Error fail_post(int errno_value, size_t accepted, size_t asked_requests) const;
  void query_ece();
  void request_ece(const EceOptions& remote);

  std::unique_ptr<EventMark> drained_;  // declared before the queue pair; null without a shared receive queue
  Owned<ibv_qp> pair_;
  // The driver's function, which ibv_post_send() calls. It must be final when the device has been opened.
  int (*post_send_)(ibv_qp*, ibv_send_wr*, ibv_send_wr**) = nullptr;
  Device* device_ = nullptr;
  LocalAddress local_;
  EceOptions ece_{};
  bool serves_reads_ : 1 = true, serves_adds_ : 1 = false;
  uint8_t bonded_port_ = 0;   // from 1; 0 if the device is not a bond
  bool may_receive_ = false;  // it has been in the state RTR
  bool has_lost_address_ = false;
  int source_gid_index_ = -1;  // -1 if the route has no GRH
  uint8_t source_gid_[sizeof(PortAddress::gid)] = {};
  uint32_t port_events_seen_ = 0;
  uint32_t number_ = 0, first_psn_ = 0, send_depth_ = 0;
  uint32_t remote_first_psn_ = 0, mtu_bytes_ = 256;
  int16_t traffic_class_ = -1;
  uint8_t outstanding_reads_ = 1;
  uint8_t inline_bytes_ = 0;
  uint32_t posted_ = 0, retired_ = 0;  // counters of work requests, wrapping
  // Ring: value of `posted_` after each outstanding signaled request.
  std::vector<uint32_t> signaled_positions_;
  uint32_t signaled_mask_ = 0;  // size of the ring - 1
  uint32_t signaled_head_ = 0, signaled_tail_ = 0;
};

// Returns whether a stopped queue pair of this device reports how many packets of its peer's requests it has
// executed. Tests it with a queue pair that is connected to itself, within a second.
bool tells_carried_out(Device& device);

// Returns whether the request itself was invalid, so that it would fail on any other queue pair too.
// Otherwise the path to the peer has failed.
bool is_request_at_fault(int error);
// Returns whether the request was never started, because its queue pair had already failed.
bool is_flush_error(int error);

// Returns the text of an ibv_wc_status and its usual meaning for the user.
const char* describe_completion_error(int error);

}  // namespace verbena::verbs
