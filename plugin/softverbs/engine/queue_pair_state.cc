#include "softverbs/engine/queue_pair_state.h"

#include <arpa/inet.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/engine/rail_worker.h"
#include "softverbs/faults/gate.h"
#include "softverbs/wire/address.h"
#include "softverbs/wire/end.h"

namespace verbena::softverbs {
namespace {

// Copies field by field, because callers' structs may be shorter than ours.
void store_attributes(Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attributes;
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  if (has(IBV_QP_ACCESS_FLAGS)) to.qp_access_flags = from.qp_access_flags;
  if (has(IBV_QP_PKEY_INDEX)) to.pkey_index = from.pkey_index;
  if (has(IBV_QP_PORT)) to.port_num = from.port_num;
  if (has(IBV_QP_QKEY)) to.qkey = from.qkey;
  if (has(IBV_QP_AV)) to.ah_attr = from.ah_attr;
  if (has(IBV_QP_PATH_MTU)) to.path_mtu = from.path_mtu;
  if (has(IBV_QP_TIMEOUT)) to.timeout = from.timeout;
  if (has(IBV_QP_RETRY_CNT)) to.retry_cnt = from.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) to.rnr_retry = from.rnr_retry;
  if (has(IBV_QP_RQ_PSN)) to.rq_psn = from.rq_psn;
  if (has(IBV_QP_SQ_PSN)) to.sq_psn = from.sq_psn;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) to.max_rd_atomic = from.max_rd_atomic;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (has(IBV_QP_MIN_RNR_TIMER)) to.min_rnr_timer = from.min_rnr_timer;
  if (has(IBV_QP_DEST_QPN)) to.dest_qp_num = from.dest_qp_num;
  qp.shared->access.set(to.qp_access_flags);
  qp.shared->max_reads.set(to.max_dest_rd_atomic);
  qp.shared->path_mtu.set(to.path_mtu);
  qp.shared->min_rnr_timer.set(to.min_rnr_timer);
  qp.shared->qkey.set(to.qkey);
}

// An unreachable GID is an error, as in a network without a route.
int check_route(const Qp& qp, const ibv_gid& gid) {
  if (is_local_gid(gid) || (qp.wire != nullptr && wire::leads_away(gid))) return 0;
  char name[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid.raw, name, sizeof(name));
  warn(
      "queue pair %u: GID %s is not on this host, and softverbs cannot reach the GID over a network. Set "
      "SOFTVERBS_NETDEVS %s",
      qp.base.qp_num, name,
      qp.wire == nullptr ? "(such as eth0) on all hosts to reach other hosts" : "on the peer's host too");
  return ENETUNREACH;
}

int check_type(const Qp& qp) {
  if (!qp.is_wired || qp.base.qp_type != IBV_QPT_UC) return 0;
  warn(
      "queue pair %u: unreliable connected queue pairs (UC) do not work between hosts. Use reliable "
      "connected queue pairs (RC)",
      qp.base.qp_num);
  return EOPNOTSUPP;
}

// Returns whether the cause is in this process, independent of the peer.
bool is_local_cause(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN;
}
const char* advise(int error) {
  if (error == ENOMEM)
    return "check the limits of address space and memory: ulimit -v, the cgroup's memory.max";
  if (error == EAGAIN) return "check the limits of processes: ulimit -u, the cgroup's pids.max";
  return "check the limit of open files: ulimit -n";
}

void warn_of_unreachable(const Qp& qp, int cause) {
  const uint32_t number = qp.attributes.dest_qp_num;
  if (cause != ENOENT) {
    warn(
        "queue pair %u: cannot copy to and from the process of queue pair %u: %s. Both processes must run as "
        "the same user, and must be allowed to trace each other. Check kernel.yama.ptrace_scope, the "
        "container's seccomp profile and CAP_SYS_PTRACE",
        qp.base.qp_num, number, strerror(cause));
    return;
  }
  static std::atomic<bool> is_said{false};
  if (is_said.exchange(true)) return;
  warn(
      "queue pair %u: cannot find the process of queue pair %u. The process has exited, uses a different "
      "SOFTVERBS_JOB or SOFTVERBS_DIR, or is in another container. If it is in another container, let the "
      "containers share PIDs and /dev/shm (docker: --pid, --ipc), or set SOFTVERBS_NETDEVS (such as eth0) "
      "for both processes",
      qp.base.qp_num, number);
}

// Finds the process at the other end. If there is none, this is not an error, as on a real network: sends
// fail later.
int connect(Qp& qp) {
  qp.peer = nullptr;
  const uint32_t number = qp.attributes.dest_qp_num;
  const ibv_gid& gid = qp.attributes.ah_attr.grh.dgid;
  if (const int error = check_route(qp, gid); error != 0) return error;
  qp.is_wired = qp.wire != nullptr && (get_config().force_wire || !is_local_gid(gid));
  if (!qp.is_wired && is_local_gid(gid)) {
    qp.peer = Process::get()->find_peer(number);
    const int cause = qp.peer == nullptr ? errno : 0;
    if (is_local_cause(cause)) {
      warn("queue pair %u: cannot reach the process of queue pair %u: %s (%s)", qp.base.qp_num, number,
           strerror(cause), advise(cause));
      return cause;
    }
    // The peer is in another container, or must not be traced.
    qp.is_wired = cause != 0 && qp.wire != nullptr;
    if (cause != 0 && !qp.is_wired) {
      warn_of_unreachable(qp, cause);
      if (cause != ENOENT) return cause;
    }
    if (qp.peer != nullptr && qp.peer->segment->qp(get_qp_index(number)).number.load() != number)
      warn_of_unreachable(qp, ENOENT);  // the number belongs to a process of another container
    if (qp.peer != nullptr && !has_gid(qp.peer->segment->qp(get_qp_index(number)).device.get(), gid))
      qp.peer = nullptr;
  }
  choose_runner(qp);
  if (const int error = check_type(qp); error != 0) return error;
  Process::get()->connected[qp.index].store(qp.peer);
  qp.shared->peer_number.set(number);
  return 0;
}

void reset(Qp& qp) {
  stop_queue_pair(qp);
  std::lock_guard lock(qp.mutex);
  qp.wait = Wait::kNone;
  if (qp.faults != nullptr) faults::forget_requests(qp);
  qp.send_queue.posted = qp.send_queue.started = qp.send_queue.executed = 0;
  qp.peer = nullptr;
  qp.is_wired = false;
  choose_runner(qp);
  qp.shared->peer_number.set(0);
  qp.shared->life.set(qp.shared->life.get() + 1);
  qp.shared->send_retired.store(0);
  qp.shared->packets.set(0);
  if (qp.base.srq == nullptr) reset_receive_ring(Process::get()->segment(), *qp.receive_queue.shared);
}

}  // namespace

// Flushes everything except the requests of the worker, which the worker flushes soon.
void fail_queue_pair(Qp& qp) {
  enter_error(qp);
  get_worker(qp.device).hurry(qp);
  run_send_queue(qp, Runner::kPoster);
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API int ibv_modify_qp(ibv_qp* base, ibv_qp_attr* attributes, int mask) try {
  Qp& qp = get_qp(base);
  const ibv_qp_state from = get_state(*qp.shared);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes->qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes->cur_qp_state != from) return EINVAL;
  int error = check_transition(base->qp_type, from, to, mask);
  if (error == 0) error = check_attributes(*attributes, mask);
  if (error != 0) return error;
  if (to == IBV_QPS_RESET) {
    reset(qp);
  } else if (to == IBV_QPS_ERR) {
    fail_queue_pair(qp);
  } else if (get_context(base->context).is_dead.load()) {
    return EIO;
  } else {
    store_attributes(qp, *attributes, mask);
    if (to == IBV_QPS_RTR && base->qp_type != IBV_QPT_UD) error = connect(qp);
    if (error != 0) return error;
    uint32_t expected = from;  // a peer may have just moved it to the error state
    qp.shared->state.compare_exchange_strong(expected, to);
    if (from == IBV_QPS_SQD && to == IBV_QPS_RTS) run_send_queue(qp, Runner::kPoster);
  }
  base->state = to;
  return 0;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_query_qp(ibv_qp* base, ibv_qp_attr* to, int mask, ibv_qp_init_attr* init) {
  Qp& qp = get_qp(base);
  const ibv_qp_attr& from = qp.attributes;
  const ibv_qp_state state = get_state(*qp.shared);
  to->qp_state = to->cur_qp_state = state;
  to->path_mtu = from.path_mtu;
  to->path_mig_state = IBV_MIG_MIGRATED;
  to->qkey = from.qkey;
  constexpr uint32_t kPsnMask = 0xffffff;
  to->rq_psn =
      (from.rq_psn + qp.shared->packets.get()) & kPsnMask;  // of the next packet that would be executed
  to->sq_psn = from.sq_psn;
  to->dest_qp_num = from.dest_qp_num;
  to->qp_access_flags = from.qp_access_flags;
  to->cap = qp.capacity;
  to->ah_attr = from.ah_attr;
  to->pkey_index = from.pkey_index;
  to->sq_draining = 0;
  to->max_rd_atomic = from.max_rd_atomic;
  to->max_dest_rd_atomic = from.max_dest_rd_atomic;
  to->min_rnr_timer = from.min_rnr_timer;
  to->port_num = from.port_num;
  to->timeout = from.timeout;
  to->retry_cnt = from.retry_cnt;
  to->rnr_retry = from.rnr_retry;
  init->qp_context = base->qp_context;
  init->send_cq = base->send_cq;
  init->recv_cq = base->recv_cq;
  init->srq = base->srq;
  init->cap = qp.capacity;
  init->qp_type = base->qp_type;
  init->sq_sig_all = qp.signal_all ? 1 : 0;
  if ((mask & IBV_QP_STATE) != 0) base->state = state;
  return 0;
}
