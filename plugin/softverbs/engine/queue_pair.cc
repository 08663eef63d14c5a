#include "softverbs/engine/queue_pair.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include "softverbs/engine/events.h"
#include "softverbs/engine/queue_pair_state.h"
#include "softverbs/engine/rail_worker.h"
#include "softverbs/engine/shuffled_writes.h"
#include "softverbs/faults/injector.h"
#include "softverbs/faults/request_count.h"
#include "softverbs/shared/profile.h"
#include "softverbs/wire/end.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

int check_init(const ibv_qp_init_attr& init) {
  if (init.qp_type != IBV_QPT_RC && init.qp_type != IBV_QPT_UC && init.qp_type != IBV_QPT_UD)
    return EOPNOTSUPP;
  if (init.send_cq == nullptr || init.recv_cq == nullptr) return EINVAL;
  const ibv_qp_cap& cap = init.cap;
  const Profile& profile = get_profile();
  if (cap.max_send_wr > profile.max_entries || cap.max_send_sge > profile.max_sges) return EINVAL;
  if (cap.max_inline_data > profile.max_inline_bytes) return EINVAL;
  if (init.srq == nullptr && (cap.max_recv_wr > profile.max_entries || cap.max_recv_sge > profile.max_sges))
    return EINVAL;
  return 0;
}

int open_receive_side(Qp& qp, const ibv_qp_init_attr& init, uint32_t pd) {
  if (init.srq != nullptr) {
    qp.shared->receive_queue.set(get_srq(init.srq).queue.index);
    return 0;
  }
  qp.receive_queue.index = qp.index;
  qp.receive_queue.min_sge = static_cast<int>(get_profile().min_own_pieces);
  qp.shared->receive_queue.set(qp.index);
  return open_receive_queue(qp.receive_queue, init.cap.max_recv_wr, std::max(init.cap.max_recv_sge, 1u), pd);
}

// Stores the number last. Until then peers treat the entry as unused.
void publish(Qp& qp, const ibv_qp_init_attr& init, const Pd& pd) {
  Process* process = Process::get();
  SharedQp& shared = *qp.shared;
  shared.state.store(IBV_QPS_RESET);
  shared.peer_number.set(0);
  shared.type.set(init.qp_type);
  shared.pd.set(pd.id);
  shared.access.set(0);
  shared.receive_cq.set(get_cq(init.recv_cq).index);
  shared.context.set(get_context(pd.base.context).index);
  shared.device.set(qp.device);
  shared.token.set(get_event_table().add(&qp));
  shared.life.set(shared.life.get() + 1);
  shared.started.store(0);
  shared.finished.store(0);
  shared.receives_opened.store(0);
  shared.receives_closed.store(0);
  shared.packets.set(0);
  shared.receive_polled.set(0);
  shared.send_retired.store(0);
  shared.number.store(make_qp_number(process->slot(), qp.index), std::memory_order_release);
}

void fill_base(Qp& qp, ibv_pd* pd, const ibv_qp_init_attr& init) {
  qp.base.context = pd->context;
  qp.base.qp_context = init.qp_context;
  qp.base.pd = pd;
  qp.base.send_cq = init.send_cq;
  qp.base.recv_cq = init.recv_cq;
  qp.base.srq = init.srq;
  qp.base.handle = qp.index;
  qp.base.qp_num = qp.shared->number.load();
  qp.base.state = IBV_QPS_RESET;
  qp.base.qp_type = init.qp_type;
  pthread_mutex_init(&qp.base.mutex, nullptr);
  pthread_cond_init(&qp.base.cond, nullptr);
}

void count_users(const ibv_qp& qp, int change) {
  const auto add = [change](std::atomic<uint32_t>& users) { users.fetch_add(static_cast<uint32_t>(change)); };
  add(get_pd(qp.pd).users);
  add(get_cq(qp.send_cq).users);
  add(get_cq(qp.recv_cq).users);
  if (qp.srq != nullptr) add(get_srq(qp.srq).users);
}

// Starts the threads that serve queue pairs, so that no request waits for them. Returns 0 or an errno.
int start_threads(Process& process, uint32_t device) {
  int error = process.workers[device].start();
  if (error == 0 && process.wire != nullptr) error = process.wire->start();
  if (error == 0) return 0;
  warn(
      "cannot create a queue pair, because the threads of the queue pair cannot be started: %s. Check the "
      "limits of processes (ulimit -u, the cgroup's pids.max), memory (ulimit -v) and open files (ulimit -n)",
      strerror(error));
  return error;
}

}  // namespace

Qp::Qp() : newer_headers{} {}
Qp::~Qp() = default;

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) try {
  if (const int error = check_init(*init); error != 0) return fail_with<ibv_qp>(error);
  if (get_context(pd->context).is_dead.load()) return fail_with<ibv_qp>(EIO);
  Process* process = Process::get();
  if (const int error = start_threads(*process, get_context(pd->context).device->index); error != 0)
    return fail_with<ibv_qp>(error);
  auto qp = std::make_unique<Qp>();
  const int64_t index = process->qps.allocate();
  if (index < 0) return fail_with<ibv_qp>(ENOMEM);
  qp->index = static_cast<uint32_t>(index);
  qp->device = get_context(pd->context).device->index;
  qp->shared = &process->segment().qp(qp->index);
  int error = process->segment().commit(*qp->shared);
  if (error == 0) error = open_receive_side(*qp, *init, get_pd(pd).id);
  if (error != 0) {
    process->qps.free(qp->index);
    return fail_with<ibv_qp>(error);
  }
  init->cap.max_send_sge = std::max(init->cap.max_send_sge, 1u);
  init->cap.max_send_wr = std::max(init->cap.max_send_wr, 1u);
  if (init->srq == nullptr) {
    init->cap.max_recv_sge = qp->receive_queue.max_sge;
  } else {
    init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
  }
  qp->capacity = init->cap;
  qp->signal_all = init->sq_sig_all != 0;
  qp->send_queue.open(init->cap.max_send_wr, init->cap.max_send_sge, init->cap.max_inline_data);
  publish(*qp, *init, get_pd(pd));
  fill_base(*qp, pd, *init);
  count_users(qp->base, 1);
  process->count_queue_pair(1);
  if (process->injector != nullptr) process->injector->add(*qp);
  if (process->wire != nullptr) {
    qp->wire = std::make_unique<wire::End>();
    wire::forget_requests(*qp);  // begins its first session
    process->wire->add_qp(*qp);
  }
  const Profile& profile = get_profile();
  qp->takes_empty_writes = profile.takes_empty_writes;
  qp->spoils_inline_writes = profile.spoils_inline_writes;
  qp->max_message_bytes = profile.max_message_bytes;
  if (profile.shuffles_writes && init->qp_type == IBV_QPT_RC) {
    qp->shuffle = std::make_unique<Shuffle>();
    qp->shuffle->key = faults::mix(profile.seed, qp->index);
  }
  choose_runner(*qp);
  return &qp.release()->base;
}
SOFTVERBS_CATCH

void stop_queue_pair(Qp& qp) {
  qp.shared->state.store(IBV_QPS_RESET);
  forget_sends(qp);
  wait_until_quiet(qp);
  if (qp.wire != nullptr) wire::forget_inbound(qp, true);
  qp.shared->state.store(IBV_QPS_RESET);  // meanwhile an outstanding request may have failed
  qp.shared->receives_closed.store(qp.shared->receives_opened.load());
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  return create_qp(pd, init);
}

SOFTVERBS_API int ibv_destroy_qp(ibv_qp* base) try {
  Qp& qp = get_qp(base);
  Process* process = Process::get();
  if (qp.faults != nullptr) process->injector->remove(qp);
  stop_queue_pair(qp);
  const auto delivered = get_event_table().remove(qp.shared->token.get());
  pthread_mutex_lock(&base->mutex);
  while (base->events_completed != delivered.async) pthread_cond_wait(&base->cond, &base->mutex);
  pthread_mutex_unlock(&base->mutex);
  if (process->wire != nullptr) process->wire->remove_qp(qp);
  qp.shared->number.store(0);
  if (base->srq == nullptr) close_receive_queue(qp.receive_queue);
  process->connected[qp.index].store(nullptr);
  process->qps.free(qp.index);
  count_users(*base, -1);
  process->count_queue_pair(-1);
  pthread_cond_destroy(&base->cond);
  pthread_mutex_destroy(&base->mutex);
  delete &qp;
  return 0;
}
SOFTVERBS_CATCH

SOFTVERBS_API ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* base) {
  return get_qp(base).has_extended_posts ? &get_qp(base).extended : nullptr;
}
