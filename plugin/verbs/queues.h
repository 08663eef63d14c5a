// RAII over completion queues, shared receive queues, memory regions and queue pairs. Movable, not copyable;
// a failing constructor leaks nothing. Each object must be destroyed before the Device it was made on.
#pragma once

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
struct ibv_srq;

namespace verbena::verbs {

// Destroys a verbs object through the library that made it.
struct Destroyer {
  const Library* library = nullptr;
  void operator()(ibv_ah* handle) const;
  void operator()(ibv_cq* queue) const;
  void operator()(ibv_mr* region) const;
  void operator()(ibv_qp* pair) const;
  void operator()(ibv_srq* queue) const;
};
template <typename T>
using Owned = std::unique_ptr<T, Destroyer>;

// Read, write: what the remote side may do. Relaxed ordering is for payload only, never for memory that is
// polled.
struct Access {
  bool remote_read = false;
  bool remote_write = false;
  bool relaxed_ordering = false;
  bool remote_atomic = false;
  bool data_direct = false;  // of a dma-buf, by Device::data_direct_path()

  bool operator==(const Access&) const = default;
};

class MemoryRegion {
 public:
  static base::Result<MemoryRegion> register_memory(Device& device, void* address, size_t length_bytes,
                                                    Access access);
  // `address` is the GPU virtual address; offset_bytes counts from the start of the dma-buf. The fd stays the
  // caller's.
  static base::Result<MemoryRegion> register_dmabuf(Device& device, void* address, size_t length_bytes,
                                                    uint64_t offset_bytes, int fd, Access access);
  MemoryRegion() = default;

  uint32_t local_key() const { return local_key_; }
  uint32_t remote_key() const { return remote_key_; }

 private:
  Owned<ibv_mr> region_;
  uint32_t local_key_ = 0, remote_key_ = 0;
};

// Set once the device has reported of a completion queue that it has failed, or of a queue pair in the error
// state that it takes no more entries of its shared receive queue. Lives as long as the queue.
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
  // Polls at most out.size() (<= kMaxPollEntries) completions. Returns how many, or -1 if the queue itself
  // has failed, which is logged once.
  int poll(std::span<Completion> out);
  // Whether the device has reported that it has failed: most devices then only leave it empty.
  bool has_failed() const { return failed_->is_set(); }
  ibv_cq* get() const { return queue_.get(); }

 private:
  int note_failure(int result);

  Owned<ibv_cq> queue_;
  std::unique_ptr<EventMark> failed_;  // goes before the queue
  bool is_failure_logged_ = false;
};

struct ReceiveBuffer {
  void* address;
  uint32_t length;
  uint32_t local_key;
  uint64_t cookie;
};

// Posting is thread safe (the provider locks); everything else is not.
class SharedReceiveQueue {
 public:
  // `pieces`: of a receive, at most.
  static base::Result<SharedReceiveQueue> create(Device& device, uint32_t depth_entries, uint32_t pieces = 1);
  SharedReceiveQueue() = default;

  base::Outcome post(std::span<const ReceiveBuffer> buffers);
  ibv_srq* get() const { return queue_.get(); }

 private:
  Owned<ibv_srq> queue_;
};

struct QueuePairOptions {
  uint32_t send_depth = 128;
  uint32_t inline_bytes = kInlineBytes;  // at most that; a device may grant less: QueuePair::inline_bytes()
  Operations operations = {};
  SharedReceiveQueue* receive_queue = nullptr;  // null: one of its own
  // Of the one of its own, in entries; 0: this side receives nothing (writes without immediate only).
  uint32_t receive_depth = 0;
  // What it carries is placed and takes its receives in any order, either way; completions keep the order of
  // posting. At both ends or at none; without a shared receive queue, of at most
  // Device::max_out_of_order_receives().
  bool out_of_order = false;
  // Its receives have pages in memory of a GPU, where the CPU cannot put the bytes of a short message.
  bool receives_to_gpu = false;
  uint32_t outstanding_reads = 1;  // at most, in either direction: 1, which all have, to 255
  int traffic_class = -1;          // of the communicator; -1: VERBENA_TC
  uint32_t bond_turn = 0;          // queue pairs with consecutive numbers send over different ports of a bond
  const LocalAddress* local = nullptr;  // what the peer is told; null: the device's own as it was last read
};

// A reliable connection. One thread at a time.
class QueuePair {
 public:
  static base::Result<QueuePair> create(Device& device, CompletionQueue& completions,
                                        const QueuePairOptions& options);
  QueuePair() = default;

  QueuePairAddress address() const { return {number_, first_psn_, ece_, outstanding_reads_}; }
  uint32_t number() const { return number_; }
  // Of a request that says `send_inline`, at most.
  uint32_t inline_bytes() const { return inline_bytes_; }

  // INIT -> RTR -> RTS towards the peer; path MTU is the smaller of both ports, ECE what both have. Errors
  // name both ends' values. `has_other_rail`: what this queue pair does not bring, another will.
  base::Outcome connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                        bool has_other_rail = false);
  // The same, but returns false without a log line if the peer's address does not answer yet: call it again.
  base::Result<bool> try_connect(const PortAddress& remote_port, const QueuePairAddress& remote,
                                 bool has_other_rail);
  // Into its own receive queue, of a pair that is connected or abandoned.
  base::Outcome post_receives(std::span<const ReceiveBuffer> buffers);
  // Moves the queue pair to ERROR: all outstanding work is flushed and no DMA starts any more.
  void stop();
  // The same before it was ever connected: whatever is posted fails as flushed.
  void abandon();
  // After stop(): true once the device takes no more entries of the shared receive queue for this pair, and
  // the completions of those that it took are in the completion queue. Devices that do not report this
  // (Soft-RoCE before Linux 6.4) never make it true: wait with a deadline.
  bool is_drained() const { return drained_ == nullptr || !may_receive_ || drained_->is_set(); }

  // In how many packets a request of so many bytes goes to the peer; after connect().
  uint32_t count_packets(uint64_t bytes) const {
    return bytes <= mtu_bytes_ ? 1 : static_cast<uint32_t>((bytes + mtu_bytes_ - 1) / mtu_bytes_);
  }
  // How many packets of the peer's requests this end has carried out since connect(), modulo 2^24: final once
  // it is stopped. Empty if the device does not say; whether it says the truth, tells_carried_out() found
  // out.
  std::optional<uint32_t> read_carried_out() const;

  // True while the GID that this end sends from is not in the port's table: then neither its packets nor
  // their answers arrive. For slow paths: asks the device if it has reported a change. Data thread only.
  bool has_lost_address();
  const uint8_t* source_gid() const { return source_gid_; }

  // How many more work requests fit. A slot is free again once a completion at or after it was handed to
  // retire().
  uint32_t free_slots() const { return send_depth_ - (posted_ - retired_); }
  // Posts a chain in order; the caller made sure that it fits free_slots() and that at least one in every
  // send_depth/4 requests is signaled.
  base::Outcome post(std::span<const WorkRequest> requests);
  base::Outcome post(const WorkRequest& request);
  base::Outcome post(std::span<const OneSidedRequest> requests);
  // To be called for each successful kSend completion of this queue pair, in order.
  void retire() {
    if (signaled_head_ == signaled_tail_) return;  // the completion of no signaled request
    retired_ = signaled_positions_[signaled_head_++ & signaled_mask_];
  }

 private:
  // 0 or an errno value.
  int enter_init();
  int enter_ready_to_receive(const PortAddress& remote_port, const QueuePairAddress& remote);
  int enter_ready_to_send(const QueuePairAddress& remote, bool has_other_rail);
  // 0 or an errno value, with the state that was not reached.
  int enter_all(const PortAddress& remote_port, const QueuePairAddress& remote, bool has_other_rail,
                const char** state);
  void reset();
  void choose_bonded_port() const;
  base::Error fail_connect(const char* state, int errno_value, const PortAddress& remote_port,
                           const QueuePairAddress& remote) const;
  void note_posted(bool signaled) {
    ++posted_;
    if (signaled) signaled_positions_[signaled_tail_++ & signaled_mask_] = posted_;
  }
  template <typename Request>
  base::Outcome post_chain(std::span<const Request> requests);
  base::Error fail_full(size_t asked_requests) const;
  base::Error fail_post(int errno_value, size_t accepted, size_t asked_requests) const;
  void query_ece();
  void request_ece(const EceOptions& remote);

  std::unique_ptr<EventMark> drained_;  // before the pair; null without a shared receive queue
  Owned<ibv_qp> pair_;
  Device* device_ = nullptr;
  LocalAddress local_;
  EceOptions ece_{};
  // Packed: a link finds its pairs by multiplying with their size.
  bool serves_reads_ : 1 = true, serves_adds_ : 1 = false;
  uint8_t bonded_port_ = 0;   // from 1 on; 0: the device is no bond
  bool may_receive_ = false;  // it was in the state RTR
  bool has_lost_address_ = false;
  int source_gid_index_ = -1;  // -1: the route has no GRH
  uint8_t source_gid_[sizeof(PortAddress::gid)] = {};
  uint32_t port_events_seen_ = 0;
  uint32_t number_ = 0, first_psn_ = 0, send_depth_ = 0;
  uint32_t remote_first_psn_ = 0, mtu_bytes_ = 256;
  int16_t traffic_class_ = -1;
  uint8_t outstanding_reads_ = 1;
  uint8_t inline_bytes_ = 0;
  uint32_t posted_ = 0, retired_ = 0;         // counts of work requests, wrapping
  std::vector<uint32_t> signaled_positions_;  // ring: `posted_` right after each outstanding signaled request
  uint32_t signaled_mask_ = 0;                // one less than its size
  uint32_t signaled_head_ = 0, signaled_tail_ = 0;
};

// Whether a queue pair of this device that was stopped says how many packets of its peer's requests it has
// carried out. Found by trying, with a queue pair connected to itself; at most a second.
bool tells_carried_out(Device& device);

// Whether the request itself was wrong, so that it would fail on any other queue pair too; else it is the
// way to the peer that failed.
bool is_request_at_fault(int error);
// It was not begun, as its queue pair had failed before.
bool is_flush_error(int error);

// The text of an ibv_wc_status, with what it usually means for the user.
const char* describe_completion_error(int error);

}  // namespace verbena::verbs
