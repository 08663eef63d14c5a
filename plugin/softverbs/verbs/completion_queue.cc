#include "softverbs/verbs/completion_queue.h"

#include <bit>
#include <cerrno>
#include <utility>

#include "softverbs/engine/events.h"
#include "softverbs/engine/objects.h"
#include "softverbs/shared/completion_ring.h"
#include "softverbs/shared/profile.h"

namespace verbena::softverbs {
namespace {

// Creates a ring in the shared table. Returns false, with errno, on failure.
bool open_ring(uint32_t entries, uint32_t& index) {
  Process* process = Process::get();
  const int64_t free_index = process->cqs.allocate();
  if (free_index < 0) {
    errno = ENOMEM;
    return false;
  }
  index = static_cast<uint32_t>(free_index);
  SharedCq& shared = process->segment().cq(index);
  const uint32_t capacity = std::bit_ceil(entries);
  int error = process->segment().commit(shared);
  const uint64_t ring = error == 0 ? process->arena().allocate(capacity * sizeof(CompletionSlot)) : 0;
  if (ring == 0) {
    error = error != 0 ? error : errno;
    process->cqs.free(index);
    errno = error;
    return false;
  }
  shared.capacity.set(capacity);
  shared.ring.set(ring);
  shared.overrun.store(0);
  reset_completion_ring(process->segment(), shared);
  return true;
}

void close_ring(uint32_t index) {
  Process* process = Process::get();
  const SharedCq& shared = process->segment().cq(index);
  process->arena().free(shared.ring.get());
  process->cqs.free(index);
}

Cq* make_cq(Context& context, uint32_t entries) {
  uint32_t index = 0;
  if (!open_ring(entries, index)) return nullptr;
  auto* cq = new Cq;
  cq->index = index;
  SharedCq& shared = Process::get()->segment().cq(index);
  shared.context.set(context.index);
  shared.stamp.set(kNoStamp);
  shared.channel.inode.set(0);
  shared.token.set(get_event_table().add(cq));
  shared.armed.store(kDisarmed);
  cq->base.cqe = static_cast<int>(shared.capacity.get());
  return cq;
}

uint64_t count_completions(const SharedCq& shared) {
  const uint64_t tail = shared.tail.load(), head = shared.head.load();
  return is_ahead(tail, head) ? tail - head : 0;
}

// Redirects all later completions to the ring at `index`.
void move_to_ring(Cq& cq, uint32_t index) {
  Process* process = Process::get();
  Segment& segment = process->segment();
  const uint32_t former = cq.index.load();
  SharedCq& from = segment.cq(former);
  SharedCq& to = segment.cq(index);
  to.context.set(from.context.get());
  to.stamp.set(from.stamp.get());
  to.channel.fd.set(from.channel.fd.get());
  to.channel.inode.set(from.channel.inode.get());
  to.token.set(from.token.get());
  to.armed.store(from.armed.load());
  cq.formers_stepped_over[cq.former_count.load()] = std::exchange(cq.stepped_over, {});
  cq.formers[cq.former_count.load()] = former;
  cq.former_count.fetch_add(1, std::memory_order_release);
  cq.index.store(index);
  const uint32_t end = process->qps.get_high_water();
  for (uint32_t qp = kFirstQpIndex; qp < end; ++qp) {
    if (segment.qp(qp).receive_cq.get() == former) segment.qp(qp).receive_cq.set(index);
  }
}

}  // namespace

Cq* create_completion_queue(ibv_context* context, const CompletionQueueRequest& request) try {
  const auto [entries, cq_context, channel, vector] = request;
  if (entries < 1 || entries > static_cast<int>(get_profile().max_cq_entries)) return fail_with<Cq>(EINVAL);
  if (vector < 0 || vector >= context->num_comp_vectors) return fail_with<Cq>(EINVAL);
  if (get_context(context).is_dead.load()) return fail_with<Cq>(EIO);
  Cq* cq = make_cq(get_context(context), static_cast<uint32_t>(entries));
  if (cq == nullptr) return nullptr;
  ibv_cq& base = cq->base;
  base.context = context;
  base.channel = channel;
  base.cq_context = cq_context;
  base.handle = cq->index;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  if (channel != nullptr) {
    const SharedPipe& pipe = reinterpret_cast<Channel*>(channel)->pipe;
    SharedCq& shared = Process::get()->segment().cq(cq->index);
    shared.channel.fd.set(pipe.fd.get());
    shared.channel.inode.set(pipe.inode.get());
    pthread_mutex_lock(&context->mutex);
    ++channel->refcnt;
    pthread_mutex_unlock(&context->mutex);
  }
  return cq;
}
SOFTVERBS_CATCH

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                                    ibv_comp_channel* channel, int vector) {
  Cq* cq = create_completion_queue(context, {entries, cq_context, channel, vector});
  return cq == nullptr ? nullptr : &cq->base;
}

// A queue never shrinks, because a queue may always be larger than requested.
SOFTVERBS_API int ibv_resize_cq(ibv_cq* base, int entries) try {
  Cq& cq = get_cq(base);
  Segment& segment = Process::get()->segment();
  if (entries < 1 || entries > static_cast<int>(get_profile().max_cq_entries)) return EINVAL;
  const auto wanted = static_cast<uint32_t>(entries);
  std::lock_guard lock(cq.poll_mutex);
  uint64_t unpolled = count_completions(segment.cq(cq.index.load()));
  for (uint32_t i = 0; i < cq.former_count.load(); ++i)
    unpolled += count_completions(segment.cq(cq.formers[i]));
  if (wanted < unpolled) return EINVAL;
  if (wanted > segment.cq(cq.index.load()).capacity.get()) {
    uint32_t index = 0;
    if (!open_ring(wanted, index)) return errno;
    move_to_ring(cq, index);
  }
  base->cqe = static_cast<int>(segment.cq(cq.index.load()).capacity.get());
  return 0;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_destroy_cq(ibv_cq* base) {
  Cq& cq = get_cq(base);
  if (cq.users.load() != 0) return EBUSY;
  SharedCq& shared = Process::get()->segment().cq(cq.index);
  const auto delivered = get_event_table().remove(shared.token.get());
  pthread_mutex_lock(&base->mutex);
  while (base->comp_events_completed != delivered.completion ||
         base->async_events_completed != delivered.async) {
    pthread_cond_wait(&base->cond, &base->mutex);
  }
  pthread_mutex_unlock(&base->mutex);
  if (base->channel != nullptr) {
    pthread_mutex_lock(&base->context->mutex);
    --base->channel->refcnt;
    pthread_mutex_unlock(&base->context->mutex);
  }
  for (uint32_t i = 0; i < cq.former_count.load(); ++i) close_ring(cq.formers[i]);
  close_ring(cq.index.load());
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete &cq;
  return 0;
}
