#include "softverbs/completion_queue.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "softverbs/completion_ring.h"
#include "softverbs/events.h"
#include "softverbs/objects.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

constexpr int kHeldLooks = 200;  // at a completion being written, before its producer is suspected to be dead

thread_local uint32_t empty_polls = 0;

// Completions of queue pairs that were destroyed or reset are dropped, and so is the second report of a
// receive whose sender was killed while reporting.
bool is_current(SharedQp& qp, const Completion& completion) {
  if (qp.number.load(std::memory_order_acquire) != completion.qp_number) return false;
  if (qp.life.get() != completion.life) return false;
  if (completion.receive == 0) {
    qp.send_retired.store(completion.send_retired, std::memory_order_release);
    return true;
  }
  if (completion.receive == kFlushedReceive) return true;
  if (qp.receive_polled.get() == completion.receive) return false;
  qp.receive_polled.set(completion.receive);
  return true;
}

void fill_work_completion(const Completion& completion, ibv_wc& wc) {
  wc.wr_id = completion.wr_id;
  wc.status = static_cast<ibv_wc_status>(completion.status);
  wc.opcode = static_cast<ibv_wc_opcode>(completion.opcode);
  wc.vendor_err = 0;
  wc.byte_len = completion.byte_length;
  wc.imm_data = completion.immediate;
  wc.qp_num = completion.qp_number;
  wc.src_qp = completion.source_qp;
  wc.wc_flags = completion.flags;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

Cq* make_cq(Context& context, uint32_t entries) {
  Process* process = Process::get();
  const int64_t index = process->cqs.allocate();
  if (index < 0) return fail_with<Cq>(ENOMEM);
  auto* cq = new Cq;
  cq->index = static_cast<uint32_t>(index);
  SharedCq& shared = process->segment().cq(cq->index);
  const uint32_t capacity = std::bit_ceil(entries);
  cq->ring_bytes = capacity * sizeof(CompletionSlot);
  int error = process->segment().commit(shared);
  const uint64_t ring = error == 0 ? process->arena().allocate(cq->ring_bytes) : 0;
  if (ring == 0) {
    error = error != 0 ? error : errno;
    process->cqs.free(cq->index);
    delete cq;
    return fail_with<Cq>(error);
  }
  shared.capacity.set(capacity);
  shared.context.set(context.index);
  shared.stamp.set(kNoStamp);
  shared.ring.set(ring);
  shared.channel.inode.set(0);
  shared.token.set(get_event_table().add(cq));
  shared.armed.store(kDisarmed);
  shared.overrun.store(0);
  reset_completion_ring(process->segment(), shared);
  cq->base.cqe = static_cast<int>(capacity);
  return cq;
}

}  // namespace

void yield_if_idle(bool has_polled) {
  empty_polls = has_polled ? 0 : empty_polls + 1;
  if (empty_polls < get_config().spin_polls) return;
  empty_polls = get_config().spin_polls;
  sched_yield();
}

bool take_completion(Cq& cq, Completion& completion) {
  Process* process = Process::get();
  Segment& segment = process->segment();
  SharedCq& shared = segment.cq(cq.index);
  uint32_t holder = 0;
  for (;;) {
    Polled result = pop_completion(segment, shared, completion, holder);
    for (int looks = 0; result == Polled::kHeld && looks < kHeldLooks; ++looks) {
      result = pop_completion(segment, shared, completion, holder);
    }
    if (result == Polled::kHeld && process->is_claimer_dead(holder)) {
      skip_completion(segment, shared);
      continue;
    }
    if (result != Polled::kTaken) return false;
    if (is_current(segment.qp(get_qp_index(completion.qp_number)), completion)) return true;
  }
}

namespace {
int poll_ring(Cq& cq, int count, ibv_wc* completions) {
  std::lock_guard lock(cq.poll_mutex);
  Completion completion;
  int polled = 0;
  while (polled < count && take_completion(cq, completion)) {
    fill_work_completion(completion, completions[polled++]);
  }
  return polled;
}
}  // namespace

int poll_cq(ibv_cq* base, int count, ibv_wc* completions) {
  Cq& cq = get_cq(base);
  int polled = poll_ring(cq, count, completions);
  wire::Wire* wire = Process::get()->wire;
  if (polled == 0 && wire != nullptr) {
    wire->poll(get_context(base->context).device->index);
    polled = poll_ring(cq, count, completions);
  }
  yield_if_idle(polled != 0);
  return polled;
}

int request_notification(ibv_cq* base, int solicited_only) {
  SharedCq& shared = Process::get()->segment().cq(get_cq(base).index);
  const uint32_t wanted = solicited_only != 0 ? kArmedSolicited : kArmedAny;
  uint32_t present = shared.armed.load();
  while (!shared.armed.compare_exchange_weak(present, std::max(present, wanted))) {
  }
  return 0;
}

Cq* create_completion_queue(ibv_context* context, const CompletionQueueRequest& request) {
  const auto [entries, cq_context, channel, vector] = request;
  if (entries < 1 || entries > static_cast<int>(kMaxCqEntries)) return fail_with<Cq>(EINVAL);
  if (vector < 0 || vector >= context->num_comp_vectors) return fail_with<Cq>(EINVAL);
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

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* cq_context,
                                    ibv_comp_channel* channel, int vector) {
  Cq* cq = create_completion_queue(context, {entries, cq_context, channel, vector});
  return cq == nullptr ? nullptr : &cq->base;
}

SOFTVERBS_API int ibv_resize_cq(ibv_cq*, int) {
  return EOPNOTSUPP;
}

SOFTVERBS_API int ibv_destroy_cq(ibv_cq* base) {
  Cq& cq = get_cq(base);
  if (cq.users.load() != 0) return EBUSY;
  Process* process = Process::get();
  SharedCq& shared = process->segment().cq(cq.index);
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
  process->arena().free(shared.ring.get(), cq.ring_bytes);
  process->cqs.free(cq.index);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete &cq;
  return 0;
}
