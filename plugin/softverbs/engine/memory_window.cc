#include "softverbs/engine/memory_window.h"

#include <cerrno>
#include <memory>

#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/queue_pair.h"

namespace verbena::softverbs {
namespace {

struct Window {
  ibv_mw base{};
  uint32_t index = 0;
};

constexpr uint32_t kTagMask = (1u << kKeyTagBits) - 1;

SharedMr& get_entry(uint32_t key) {
  return Process::get()->segment().mr(get_key_index(key));
}

// A window of type 2 belongs to one queue pair; only that queue pair and its peer may invalidate its key.
bool is_key_of(Segment& segment, uint32_t key, uint32_t qp_number) {
  SharedMr& window = segment.mr(get_key_index(key));
  return key != 0 && window.key.load(std::memory_order_acquire) == key && window.window_of.get() != 0 &&
         window.window_qp.get() == qp_number;
}

bool is_bindable(const SendRequest& request, uint32_t pd) {
  const BindRequest& bind = request.bind;
  Segment& segment = Process::get()->segment();
  if (get_entry(bind.region).window_of.get() != 0) return false;
  const bool needs_write = (bind.access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) != 0;
  const uint32_t access = IBV_ACCESS_MW_BIND | (needs_write ? IBV_ACCESS_LOCAL_WRITE : 0);
  return translate(segment, {bind.address, bind.length, bind.region, pd, access}).address != 0;
}

StepOutcome execute_bind(Operation& op) {
  constexpr StepOutcome kRefused{Step::kFail, IBV_WC_MW_BIND_ERR};
  const SendRequest& request = *op.request;
  const BindRequest& bind = request.bind;
  const bool has_qp = bind.type == IBV_MW_TYPE_2;
  SharedMr& window = get_entry(bind.window);
  const uint32_t pd = op.qp->shared->pd.get();
  if (window.pd.get() != pd || ((bind.window ^ request.rkey) & ~kTagMask) != 0) return kRefused;
  if (has_qp && (bind.length == 0 || window.key.load() != 0)) return kRefused;
  if (bind.length != 0 && !is_bindable(request, pd)) return kRefused;
  if (window.key.exchange(0) != 0) wait_for_peers();
  if (bind.length == 0) return {};
  window.access.set(bind.access);
  window.window_of.set(bind.region);
  window.window_qp.set(has_qp ? op.qp->base.qp_num : kAnyQueuePair);
  window.address.set(bind.address);
  window.iova.set((bind.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : bind.address);
  window.length.set(bind.length);
  window.key.store(request.rkey, std::memory_order_release);
  return {};
}

StepOutcome execute_invalidate(Operation& op) {
  const uint32_t key = op.request->immediate;
  if (!is_key_of(Process::get()->segment(), key, op.qp->base.qp_num))
    return {Step::kFail, IBV_WC_LOC_QP_OP_ERR};
  get_entry(key).key.store(0);
  wait_for_peers();
  return {};
}

}  // namespace

ibv_mw* allocate_window(ibv_pd* pd, ibv_mw_type type) try {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) return fail_with<ibv_mw>(EINVAL);
  Process* process = Process::get();
  const int64_t index = process->mrs.allocate();
  if (index < 0) return fail_with<ibv_mw>(ENOMEM);
  auto window = std::make_unique<Window>();
  window->index = static_cast<uint32_t>(index);
  SharedMr& shared = process->segment().mr(window->index);
  if (const int error = process->segment().commit(shared); error != 0) {
    process->mrs.free(window->index);
    return fail_with<ibv_mw>(error);
  }
  shared.pd.set(get_pd(pd).id);
  shared.gpu.set(0);
  get_pd(pd).users.fetch_add(1);
  window->base.context = pd->context;
  window->base.pd = pd;
  window->base.rkey = renew_key(shared, window->index);
  window->base.handle = window->index;
  window->base.type = type;
  return &window.release()->base;
}
SOFTVERBS_CATCH

int deallocate_window(ibv_mw* base) {
  auto* window = reinterpret_cast<Window*>(base);
  Process* process = Process::get();
  SharedMr& shared = process->segment().mr(window->index);
  shared.key.store(0);
  wait_for_peers();
  shared.window_of.set(0);
  process->mrs.free(window->index);
  get_pd(base->pd).users.fetch_sub(1);
  delete window;
  return 0;
}

// A window of type 1 gets its key from the library.
int bind_window(ibv_qp* qp, ibv_mw* base, ibv_mw_bind* bind) {
  const ibv_mw_bind_info& info = bind->bind_info;
  if (info.mr == nullptr && info.length != 0) return EINVAL;
  const uint32_t key = (base->rkey & ~kTagMask) | ((base->rkey + 1) & kTagMask);
  ibv_send_wr request{};
  ibv_send_wr* bad = nullptr;
  request.wr_id = bind->wr_id;
  request.opcode = IBV_WR_BIND_MW;
  request.send_flags = bind->send_flags;
  request.bind_mw = {base, key, info};
  return post_send(qp, &request, &bad);
}

bool is_local(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_BIND_MW || opcode == IBV_WR_LOCAL_INV;
}

StepOutcome execute_local(Operation& op) {
  return op.request->opcode == IBV_WR_BIND_MW ? execute_bind(op) : execute_invalidate(op);
}

bool can_invalidate(const Operation& op) {
  return is_key_of(*op.peer->segment, op.request->immediate,
                   op.target->number.load(std::memory_order_relaxed));
}

void invalidate_remote(const Operation& op) {
  uint32_t key = op.request->immediate;
  op.peer->segment->mr(get_key_index(key)).key.compare_exchange_strong(key, 0);
}

}  // namespace verbena::softverbs
