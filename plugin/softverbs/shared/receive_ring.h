// The half of a receive queue that processes share. The queue may belong to one queue pair or to several
// (SRQ). The owner adds receives (one thread at a time), and every connected peer takes receives.
//
// The ring stays usable if a consumer is killed at any instruction. A receive that a peer has taken is first
// recorded in its slot, which is held for the peer's queue pair, and then in SharedQp::open_receives. Only
// then is the slot released. If the peer is dead, the owner checks both records (recover_receives compares
// tickets, so that a receive with both records counts once). If the consumer did not move the head, the next
// consumer moves it. Datagrams take a receive by one compare-and-swap and hold no slot (Take::kAtOnce).
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "softverbs/shared/ring_word.h"
#include "softverbs/shared/segment.h"

namespace verbena::softverbs {

struct ReceiveRequest {
  uint64_t wr_id = 0;
  uint32_t receive = 0;         // for Completion::receive
  std::vector<SharedSge> sges;  // keeps its capacity between messages
};

// Read this value only once for each slot: the slot's offset and the number of its pieces must be consistent,
// even if a peer overwrites the value.
inline uint32_t count_max_sges(const SharedReceiveQueue& queue) {
  return std::min(queue.max_sge.get(), kMaxSges);
}
inline ReceiveSlot& get_receive_slot(Segment& segment, SharedReceiveQueue& queue, uint64_t ticket,
                                     uint32_t max_sges) {
  const uint64_t index = ticket & (queue.capacity.get() - 1);
  const uint64_t bytes = get_receive_slot_bytes(max_sges);
  return segment.inside<ReceiveSlot>(queue.ring.get() + index * bytes, bytes);
}
inline SharedSge* get_sges(ReceiveSlot& slot) {
  return reinterpret_cast<SharedSge*>(&slot + 1);
}

inline uint64_t count_receives(const SharedReceiveQueue& queue) {
  const uint64_t head =
      queue.head.load(std::memory_order_acquire);  // read before the tail, which is never behind it
  return queue.tail.load(std::memory_order_acquire) - head;
}

// Copies the content of a slot word by word, because a peer may read the slot while the owner writes the next
// entry.
inline void read_slot(ReceiveSlot& slot, uint32_t max_sges, ReceiveRequest& request) {
  const auto read = [](auto& field) { return std::atomic_ref(field).load(std::memory_order_relaxed); };
  request.wr_id = read(slot.wr_id);
  request.sges.resize(std::min(read(slot.sge_count), max_sges));
  for (size_t i = 0; i < request.sges.size(); ++i) {
    SharedSge& sge = get_sges(slot)[i];
    request.sges[i] = {read(sge.address), read(sge.length), read(sge.lkey)};
  }
}
inline void write_slot(ReceiveSlot& slot, const ibv_recv_wr& request) {
  const auto write = [](auto& field, auto value) {
    std::atomic_ref(field).store(value, std::memory_order_relaxed);
  };
  write(slot.wr_id, request.wr_id);
  write(slot.sge_count, static_cast<uint32_t>(request.num_sge));
  for (int i = 0; i < request.num_sge; ++i) {
    SharedSge& sge = get_sges(slot)[i];
    write(sge.address, request.sg_list[i].addr);
    write(sge.length, request.sg_list[i].length);
    write(sge.lkey, request.sg_list[i].lkey);
  }
}

// kRecorded: the queue pair, which is connected to one peer, records the receive until its completion has
// been pushed. If that peer dies, the owner completes the receive. kAtOnce: for flushed receives, and for
// datagrams, which any process may send. No process holds the slot, so a process that dies or does not run
// cannot block it.
enum class Take { kRecorded, kAtOnce };

inline void open_receive(SharedQp& qp, uint64_t wr_id, uint64_t ticket) {
  const uint32_t count = qp.receives_opened.load(std::memory_order_relaxed);
  qp.open_receives[count % kOpenReceives].wr_id.set(wr_id);
  qp.open_receives[count % kOpenReceives].ticket.set(ticket);
  qp.receives_opened.store(count + 1, std::memory_order_release);
}

// Takes the oldest receive for the queue pair at `qp_index` of the same segment. Returns false if the ring is
// empty.
inline bool pop_receive(Segment& segment, SharedReceiveQueue& queue, uint32_t qp_index,
                        ReceiveRequest& request, Take take) {
  const uint32_t max_sges = count_max_sges(queue);
  for (;;) {
    uint64_t head = queue.head.load(std::memory_order_acquire);
    const uint64_t ticket = head;
    ReceiveSlot& slot = get_receive_slot(segment, queue, ticket, max_sges);
    uint64_t word = slot.word.load(std::memory_order_acquire);
    const uint64_t taken = make_word(ticket + queue.capacity.get(), SlotState::kEmpty);
    if (word == make_word(ticket, SlotState::kReady)) {
      const bool is_recorded = take == Take::kRecorded;
      if (!is_recorded) read_slot(slot, max_sges, request);  // valid only if this thread gets the slot
      const uint64_t next = is_recorded ? make_word(ticket, SlotState::kHeld, qp_index) : taken;
      if (!slot.word.compare_exchange_strong(word, next, std::memory_order_acq_rel)) continue;
      queue.head.compare_exchange_strong(head, ticket + 1, std::memory_order_acq_rel);
      request.receive = kFlushedReceive;
      if (!is_recorded) return true;
      read_slot(slot, max_sges, request);
      SharedQp& qp = segment.qp(qp_index);
      request.receive = kReceive | (qp.receives_opened.load(std::memory_order_relaxed) & kReceiveCountMask);
      open_receive(qp, request.wr_id, ticket);
      slot.word.store(taken, std::memory_order_release);
      return true;
    }
    // The peer that took the receive has not moved the head yet, and never will if it was killed: move the
    // head here.
    const bool is_taken = has_ticket(word, ticket) ? get_slot_state(word) != SlotState::kEmpty
                                                   : has_ticket(word, ticket + queue.capacity.get());
    if (is_taken) {
      queue.head.compare_exchange_strong(head, ticket + 1, std::memory_order_acq_rel);
    } else if (has_ticket(word, ticket) || queue.head.load(std::memory_order_acquire) == ticket) {
      return false;  // no receive is posted here yet
    }
  }
}

// Returns the number of slots, limited to the possible values, because a peer may have overwritten it.
inline uint64_t count_slots(const SharedReceiveQueue& queue) {
  return std::min(queue.capacity.get(), kMaxReceiveSlots);
}

// The owner calls this function if the peer of a queue pair is dead. A slot that the peer holds becomes an
// open receive, unless it is an open receive already.
inline void recover_receives(Segment& segment, SharedReceiveQueue& queue, uint32_t qp_index) {
  SharedQp& qp = segment.qp(qp_index);
  const uint32_t max_sges = count_max_sges(queue);
  for (uint64_t index = 0; index < count_slots(queue); ++index) {
    ReceiveSlot& slot = get_receive_slot(segment, queue, index, max_sges);
    const uint64_t word = slot.word.load(std::memory_order_acquire);
    if (get_slot_state(word) != SlotState::kHeld || get_holder(word) != qp_index) continue;
    const uint64_t ticket = get_ticket(word);
    const uint32_t opened = qp.receives_opened.load();
    const bool is_open = opened != qp.receives_closed.load() &&
                         has_ticket(word, qp.open_receives[(opened - 1) % kOpenReceives].ticket.get());
    if (!is_open) open_receive(qp, slot.wr_id, ticket);
    uint64_t head = ticket;
    queue.head.compare_exchange_strong(head, ticket + 1);
    slot.word.store(make_word(ticket + queue.capacity.get(), SlotState::kEmpty), std::memory_order_release);
  }
}

inline void reset_receive_ring(Segment& segment, SharedReceiveQueue& queue) {
  const uint32_t max_sges = count_max_sges(queue);
  for (uint64_t ticket = 0; ticket < count_slots(queue); ++ticket) {
    get_receive_slot(segment, queue, ticket, max_sges).word.store(make_word(ticket, SlotState::kEmpty));
  }
  queue.tail.store(0);
  queue.head.store(0);
}

}  // namespace verbena::softverbs
