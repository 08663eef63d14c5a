#include <sched.h>

#include <bit>
#include <cerrno>
#include <memory>

#include "softverbs/engine/events.h"
#include "softverbs/engine/objects.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/profile.h"
#include "softverbs/shared/receive_ring.h"

namespace verbena::softverbs {
namespace {

// Returns the slot for the next receive, or nullptr if the queue is full or a live peer still holds the slot.
ReceiveSlot* find_free_slot(ReceiveQueue& queue, uint64_t ticket) {
  constexpr uint64_t kPatienceNs = 5'000'000'000;
  Segment& segment = Process::get()->segment();
  if (count_receives(*queue.shared) >= queue.max_requests) return nullptr;
  ReceiveSlot& slot = get_receive_slot(segment, *queue.shared, ticket, queue.max_sge);
  for (uint64_t since_ns = 0;;) {
    const uint64_t word = slot.word.load(std::memory_order_acquire);
    if (word == make_word(ticket, SlotState::kEmpty)) return &slot;
    // A peer is still reading the slot's previous receive. If the peer was killed, this thread finishes in
    // its place.
    if (get_slot_state(word) != SlotState::kHeld) return nullptr;
    const uint32_t holder = get_holder(word);
    if (holder >= kQpCount) return nullptr;  // no such queue pair: a peer wrote a wrong value
    const PeerProcess* reader = Process::get()->connected[holder].load();
    if (reader == nullptr || reader->dead.load(std::memory_order_acquire)) {
      recover_receives(segment, *queue.shared, holder);
    } else if (since_ns == 0) {
      since_ns = read_clock_ns();
    } else if (read_clock_ns() - since_ns > kPatienceNs) {
      return nullptr;
    } else {
      sched_yield();
    }
  }
}

int post_one(ReceiveQueue& queue, const ibv_recv_wr& request) {
  if (request.num_sge < queue.min_sge || request.num_sge > static_cast<int>(queue.max_sge)) return EINVAL;
  const uint64_t ticket = queue.shared->tail.load(std::memory_order_relaxed);
  ReceiveSlot* slot = find_free_slot(queue, ticket);
  if (slot == nullptr) return ENOMEM;
  write_slot(*slot, request);
  slot->word.store(make_word(ticket, SlotState::kReady), std::memory_order_release);
  queue.shared->tail.store(ticket + 1, std::memory_order_release);
  return 0;
}

}  // namespace

int open_receive_queue(ReceiveQueue& queue, uint32_t max_requests, uint32_t max_sge, uint32_t pd) {
  Process* process = Process::get();
  Segment& segment = process->segment();
  const uint32_t capacity = std::bit_ceil(std::max(max_requests, 1u));
  queue.shared = &segment.receive_queue(queue.index);
  queue.max_requests = max_requests;
  queue.max_sge = max_sge;
  if (const int error = segment.commit(*queue.shared); error != 0) return error;
  queue.ring = process->arena().allocate(capacity * get_receive_slot_bytes(max_sge));
  if (queue.ring == 0) return errno;
  queue.shared->capacity.set(capacity);
  queue.shared->max_sge.set(max_sge);
  queue.shared->ring.set(queue.ring);
  queue.shared->pd.set(pd);
  queue.shared->is_shared.set(0);
  queue.shared->limit.store(0);
  reset_receive_ring(segment, *queue.shared);
  return 0;
}

void close_receive_queue(ReceiveQueue& queue) {
  Process::get()->arena().free(queue.ring);
}

int post_receives(ReceiveQueue& queue, ibv_recv_wr* request, ibv_recv_wr** bad) {
  std::lock_guard lock(queue.post_mutex);
  for (; request != nullptr; request = request->next) {
    const int error = post_one(queue, *request);
    if (error == 0) continue;
    *bad = request;
    return error;
  }
  return 0;
}

int post_shared_receive(ibv_srq* srq, ibv_recv_wr* request, ibv_recv_wr** bad) {
  return post_receives(get_srq(srq).queue, request, bad);
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) try {
  const Profile& profile = get_profile();
  if (get_context(pd->context).is_dead.load()) return fail_with<ibv_srq>(EIO);
  if (init->attr.max_wr < 1 || init->attr.max_wr > profile.max_shared_entries ||
      init->attr.max_sge > profile.max_sges)
    return fail_with<ibv_srq>(EINVAL);
  if (!profile.makes_shared_queues) return fail_with<ibv_srq>(EOPNOTSUPP);
  Process* process = Process::get();
  const int64_t index = process->srqs.allocate();
  if (index < 0) return fail_with<ibv_srq>(ENOMEM);
  auto srq = std::make_unique<Srq>();
  srq->srq_index = static_cast<uint32_t>(index);
  srq->queue.index = kQpCount + srq->srq_index;
  srq->queue.min_sge = static_cast<int>(profile.min_shared_pieces);
  const uint32_t max_sge = std::max(init->attr.max_sge, 1u);
  const int error = open_receive_queue(srq->queue, init->attr.max_wr, max_sge, get_pd(pd).id);
  if (error != 0) {
    process->srqs.free(srq->srq_index);
    return fail_with<ibv_srq>(error);
  }
  init->attr.max_sge = max_sge;
  SharedReceiveQueue& shared = *srq->queue.shared;
  shared.is_shared.set(1);
  shared.context.set(get_context(pd->context).index);
  shared.token.set(get_event_table().add(srq.get()));
  get_pd(pd).users.fetch_add(1);
  srq->base.context = pd->context;
  srq->base.srq_context = init->srq_context;
  srq->base.pd = pd;
  srq->base.handle = srq->srq_index;
  pthread_mutex_init(&srq->base.mutex, nullptr);
  pthread_cond_init(&srq->base.cond, nullptr);
  return &srq.release()->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_modify_srq(ibv_srq* base, ibv_srq_attr* attributes, int mask) {
  ReceiveQueue& queue = get_srq(base).queue;
  if ((mask & ~IBV_SRQ_LIMIT) != 0) return EOPNOTSUPP;  // resizing
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attributes->srq_limit > queue.max_requests) return EINVAL;
  queue.shared->limit.store(attributes->srq_limit);
  return 0;
}

SOFTVERBS_API int ibv_query_srq(ibv_srq* base, ibv_srq_attr* attributes) {
  const ReceiveQueue& queue = get_srq(base).queue;
  attributes->max_wr = queue.max_requests;
  attributes->max_sge = queue.max_sge;
  attributes->srq_limit = queue.shared->limit.load();
  return 0;
}

SOFTVERBS_API int ibv_destroy_srq(ibv_srq* base) {
  Srq& srq = get_srq(base);
  if (srq.users.load() != 0) return EBUSY;
  const auto delivered = get_event_table().remove(srq.queue.shared->token.get());
  pthread_mutex_lock(&base->mutex);
  while (base->events_completed != delivered.async) pthread_cond_wait(&base->cond, &base->mutex);
  pthread_mutex_unlock(&base->mutex);
  close_receive_queue(srq.queue);
  Process::get()->srqs.free(srq.srq_index);
  get_pd(base->pd).users.fetch_sub(1);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete &srq;
  return 0;
}
