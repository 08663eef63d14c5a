
#include <cerrno>

#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/objects.h"
#include "softverbs/verbs/extended_verbs.h"

// Changes of registered regions, and regions without the application's memory.
namespace verbena::softverbs {
namespace {

// Only checks the arguments, because the advice could only make the library touch the pages.
int check_advice(ibv_pd* pd, const ibv_sge& piece) {
  const MemoryRequest request{piece.addr, piece.length, piece.lkey, get_pd(pd).id, 0};
  return translate(Process::get()->segment(), request).address == 0 ? EFAULT : 0;
}

// The region's key is invalid during the change. It has the same value afterwards.
void change(Mr& mr, const MemoryRange& range, uint32_t gpu) {
  SharedMr& shared = Process::get()->segment().mr(mr.index);
  const uint32_t key = shared.key.exchange(0);
  wait_for_peers();
  shared.pd.set(get_pd(range.pd).id);
  shared.access.set(static_cast<uint32_t>(range.access));
  if (range.address != shared.address.get() || range.length != shared.length.get()) {
    shared.address.set(range.address);
    shared.iova.set((range.access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : range.address);
    shared.length.set(range.length);
  }
  shared.gpu.set(gpu);
  shared.key.store(key, std::memory_order_release);
}

}  // namespace

int advise_memory(ibv_pd* pd, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* pieces, uint32_t count) {
  if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return EOPNOTSUPP;
  if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0 || count == 0) return EINVAL;
  for (uint32_t i = 0; i < count; ++i) {
    if (const int error = check_advice(pd, pieces[i]); error != 0) return error;
  }
  return 0;
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API int ibv_rereg_mr(ibv_mr* base, int flags, ibv_pd* pd, void* address, size_t length,
                               int access) try {
  constexpr int kKnown =
      IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
  const auto refuse = [](int error, ibv_rereg_mr_err_code code) {
    errno = error;
    return static_cast<int>(code);
  };
  auto& mr = *reinterpret_cast<Mr*>(base);
  const SharedMr& present = Process::get()->segment().mr(mr.index);
  if (flags == 0 || (flags & ~kKnown) != 0 || mr.is_imported) return refuse(EINVAL, IBV_REREG_MR_ERR_INPUT);
  const bool has_pd = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  const bool has_access = (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0;
  const bool has_memory = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  const bool is_immovable = mr.memory_users != nullptr;
  if ((has_pd && pd == nullptr) || (has_memory && (is_immovable || address == nullptr || length == 0)))
    return refuse(EINVAL, IBV_REREG_MR_ERR_INPUT);
  MemoryRange range{mr.base.pd, present.address.get(), present.length.get(),
                    static_cast<int>(present.access.get())};
  if (has_pd) range.pd = pd;
  if (has_access) range.access = access;
  if (const int error = check_access(range.access); error != 0) return refuse(error, IBV_REREG_MR_ERR_INPUT);
  uint32_t gpu = mr.gpu;
  if (has_memory) {
    range.address = reinterpret_cast<uint64_t>(address);
    range.length = length;
    if (const int error = attach_memory(range, gpu); error != 0) return refuse(error, IBV_REREG_MR_ERR_CMD);
  }
  change(mr, range, gpu);
  if (has_memory) {
    detach_memory(mr.gpu);
    mr.gpu = gpu;
    mr.base.addr = address;
    mr.base.length = length;
  }
  if (has_pd) {
    mr.pd->users.fetch_sub(1);
    mr.pd = &get_pd(pd);
    mr.pd->users.fetch_add(1);
    mr.base.pd = pd;
    mr.base.context = pd->context;
  }
  return 0;
}
SOFTVERBS_CATCH

// Works only within the process, like every import in this library.
SOFTVERBS_API ibv_mr* ibv_import_mr(ibv_pd* pd, uint32_t handle) try {
  Segment& segment = Process::get()->segment();
  if (handle == 0 || handle >= Process::get()->mrs.get_high_water()) return fail_with<ibv_mr>(ENOENT);
  SharedMr& shared = segment.mr(handle);
  const uint32_t key = shared.key.load(std::memory_order_acquire);
  if (key == 0 || shared.pd.get() != get_pd(pd).id || shared.window_of.get() != 0)
    return fail_with<ibv_mr>(ENOENT);
  auto* mr = new Mr;
  mr->index = handle;
  mr->is_imported = true;
  mr->pd = &get_pd(pd);
  mr->pd->users.fetch_add(1);
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.length = shared.length.get();
  mr->base.handle = handle;
  mr->base.lkey = mr->base.rkey = key;
  return &mr->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API void ibv_unimport_mr(ibv_mr* base) {
  auto* mr = reinterpret_cast<Mr*>(base);
  mr->pd->users.fetch_sub(1);
  delete mr;
}
