// The null device's objects. Everything is in this process: a queue pair knows its peer's by pointer.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::bench::null {

// Pushed by the posting call, taken by poll or by the next message. One thread; an overrun ends the process.
template <typename T>
class Ring {
 public:
  explicit Ring(uint32_t depth)
      : entries_(std::bit_ceil(depth)), mask_(static_cast<uint32_t>(entries_.size()) - 1) {}

  bool is_empty() const { return head_ == tail_; }
  bool is_full() const { return tail_ - head_ == entries_.size(); }
  T& push() { return entries_[tail_++ & mask_]; }
  const T& pop() { return entries_[head_++ & mask_]; }

 private:
  std::vector<T> entries_;
  uint32_t mask_, head_ = 0, tail_ = 0;
};

struct Context {
  verbs_context verbs{};
  int event_pipe[2] = {-1, -1};
  unsigned index = 0;
};

struct CompletionQueue : ibv_cq {
  explicit CompletionQueue(uint32_t depth) : ibv_cq{}, entries(depth) {}
  Ring<ibv_wc> entries;
};

struct Receive {
  uint64_t cookie;
  std::byte* address;
  uint32_t length_bytes;
  std::byte* rest;  // the second piece, of datagrams; null: there is none
  uint32_t rest_bytes;
};

struct ReceiveQueue : ibv_srq {
  explicit ReceiveQueue(uint32_t depth) : ibv_srq{}, entries(depth) {}
  Ring<Receive> entries;
};

struct Pair : ibv_qp {
  Pair() : ibv_qp{} {}
  std::atomic<int> holders = 1;  // its owner, and each event that names it
  Pair* peer = nullptr;          // of a connected one; of datagrams each request names one
  CompletionQueue* sent = nullptr;
  CompletionQueue* received = nullptr;
  ReceiveQueue* receives = nullptr;
};

inline Context& to_context(ibv_context* context) {
  return *reinterpret_cast<Context*>(reinterpret_cast<char*>(context) - offsetof(verbs_context, context));
}

// The queue pair for datagrams with this number, or null.
Pair* find_datagram_pair(uint32_t number);

// ibv_context::ops
int poll_queue(ibv_cq* queue, int count, ibv_wc* entries);
int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** rejected);
int post_receive(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** rejected);

}  // namespace verbena::bench::null
