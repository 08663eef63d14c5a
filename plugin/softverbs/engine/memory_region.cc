#include "softverbs/engine/memory_region.h"

#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/engine/objects.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/gpu/gpu_service.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/random.h"
#include "softverbs/wire/wire.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace verbena::softverbs {
namespace {

bool can_read(uint64_t address) {
  char byte;
  iovec local{&byte, 1};
  iovec remote{reinterpret_cast<void*>(address), 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1 || errno == EPERM || errno == ENOSYS;
}

// Prepares everything that copies of GPU memory need. Done here, because this call may wait.
int attach_gpu(const Context& context, uint64_t address, uint64_t length, uint32_t& gpu) {
  Process& process = *Process::get();
  if (const int error = process.gpu_memory.attach(address, length, gpu); error != 0) return error;
  const uint32_t device = process.gpu_memory.get(gpu).device;
  const uint32_t rail = context.device->index;
  const bool is_ready = process.lanes[rail].prepare(process.copier, device) && start_gpu_service(device) &&
                        (process.wire == nullptr || process.wire->prepare_gpu(rail, device));
  if (!is_ready) {
    process.gpu_memory.detach(gpu);
    return ENOMEM;
  }
  process.staging[rail].pin(process.copier);
  process.datagram_stages[rail].pin(process.copier);
  return 0;
}

}  // namespace

int check_access(int access) {
  constexpr uint32_t kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr uint32_t kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED |
                              IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE;
  const uint32_t bits = static_cast<uint32_t>(access);
  if ((bits & ~kKnown) != 0) return EINVAL;
  return (bits & kRemoteWrites) != 0 && (bits & IBV_ACCESS_LOCAL_WRITE) == 0 ? EINVAL : 0;
}

int attach_memory(const MemoryRange& range, uint32_t& gpu) {
  gpu = 0;
  const auto [pd, address, length, access] = range;
  if (address + length < address) return EINVAL;
  const bool is_whole_space = (access & IBV_ACCESS_ON_DEMAND) != 0 && address == 0 && length == SIZE_MAX;
  if (length == 0 || is_whole_space) return 0;
  if (GpuMemory::owns(address)) return attach_gpu(get_context(pd->context), address, length, gpu);
  return can_read(address) && can_read(address + length - 1) ? 0 : EFAULT;
}

void detach_memory(uint32_t gpu) {
  if (gpu != 0) Process::get()->gpu_memory.detach(gpu);
}

// A peer learns the key only after this call, and the key is stored last, so a peer never sees half an entry.
ibv_mr* register_memory(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) try {
  if (const int error = check_access(access); error != 0) return fail_with<ibv_mr>(error);
  const uint64_t start = reinterpret_cast<uint64_t>(address);
  if (iova + length < iova) return fail_with<ibv_mr>(EINVAL);
  if (get_context(pd->context).is_dead.load()) return fail_with<ibv_mr>(EIO);

  Process* process = Process::get();
  auto mr = std::make_unique<Mr>();
  const int64_t index = process->mrs.allocate();
  if (index < 0) return fail_with<ibv_mr>(ENOMEM);
  mr->index = static_cast<uint32_t>(index);
  SharedMr& shared = process->segment().mr(mr->index);
  int error = process->segment().commit(shared);
  if (error == 0) error = attach_memory({pd, start, length, access}, mr->gpu);
  if (error != 0) {
    process->mrs.free(mr->index);
    return fail_with<ibv_mr>(error);
  }
  shared.pd.set(get_pd(pd).id);
  shared.access.set(static_cast<uint32_t>(access));
  shared.gpu.set(mr->gpu);
  shared.address.set(start);
  shared.iova.set((access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova);
  shared.length.set(length);
  shared.window_of.set(0);
  const uint32_t key = renew_key(shared, mr->index);
  shared.key.store(key, std::memory_order_release);

  mr->pd = &get_pd(pd);
  mr->pd->users.fetch_add(1);
  mr->base.context = pd->context;
  mr->base.pd = pd;
  mr->base.addr = address;
  mr->base.length = length;
  mr->base.handle = mr->index;
  mr->base.lkey = mr->base.rkey = key;
  return &mr.release()->base;
}
SOFTVERBS_CATCH

namespace {

// A queue pair, and its `started` count when we looked.
struct Mark {
  uint32_t index;
  uint32_t started;

  bool is_finished(const SharedQp& qp) const {
    return static_cast<int32_t>(qp.finished.load(std::memory_order_acquire) - started) >= 0;
  }
};

// Returns the marks of all queue pairs for which a peer is copying now. Groups without such queue pairs are
// skipped, at almost no cost. This matters when an application closes everything, because it then deregisters
// once for each queue pair.
std::vector<Mark> list_open_marks() {
  // Otherwise one thread could see a group cleared by another thread that has not read its marks yet.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Segment& segment = Process::get()->segment();
  const uint32_t end = Process::get()->qps.get_high_water();
  std::vector<Mark> open;
  for (uint32_t first = 0; first < end; first += kQpsPerGroup) {
    std::atomic<uint32_t>& group = segment.header().busy_groups[first / kQpsPerGroup];
    if (group.load() == 0) continue;
    group.store(0);
    const size_t before = open.size();
    for (uint32_t index = std::max(first, kFirstQpIndex); index < std::min(first + kQpsPerGroup, end);
         ++index) {
      const Mark mark{index, segment.qp(index).started.fetch_add(0)};
      if (!mark.is_finished(segment.qp(index))) open.push_back(mark);
    }
    if (open.size() != before) group.store(1);
  }
  return open;
}

}  // namespace

// Waits for copies that began before a key was cleared. Copies that begin later see that the key is cleared.
void wait_for_peers() {
  Process* process = Process::get();
  if (process->wire != nullptr) process->wire->quiesce();
  const uint64_t begin_ns = read_clock_ns();
  for (const Mark& mark : list_open_marks()) {
    SharedQp& qp = process->segment().qp(mark.index);
    const bool takes_datagrams = qp.type.get() == IBV_QPT_UD;  // from any sender
    const uint64_t deadline_ns = begin_ns + get_patience_ns(qp.type.get());
    while (!mark.is_finished(qp)) {
      const PeerProcess* peer = process->connected[mark.index].load();
      const bool is_gone = peer == nullptr || peer->dead.load(std::memory_order_acquire);
      if ((is_gone && !takes_datagrams) || read_clock_ns() > deadline_ns) break;
      sched_yield();
    }
    // The sender was killed. Later calls need not wait for it.
    const auto lost = static_cast<int32_t>(mark.started - qp.finished.load());
    if (takes_datagrams && lost > 0) qp.finished.fetch_add(static_cast<uint32_t>(lost));
  }
}

uint32_t renew_key(SharedMr& shared, uint32_t index) {
  // The first life is random, so that a key cannot be guessed. Later lives count up, so that a key is
  // repeated as late as possible.
  const uint32_t former = shared.life.get();
  const uint32_t life = former == 0 ? 1 + draw_below(kKeyLives - 1) : (former + 1) % kKeyLives;
  shared.life.set(life);
  return make_key(index, life);
}

Place translate(Segment& segment, const MemoryRequest& request) {
  SharedMr& mr = segment.mr(get_key_index(request.key));
  if (request.key == 0 || mr.key.load() != request.key)
    return {};  // sequentially consistent with marks and groups
  const uint64_t offset = request.address - mr.iova.get();
  const uint64_t length = mr.length.get();
  const bool is_inside =
      request.address >= mr.iova.get() && offset <= length && request.length <= length - offset;
  const bool is_allowed = mr.pd.get() == request.pd && (mr.access.get() & request.access) == request.access;
  if (!is_inside || !is_allowed) return {};
  if (const uint32_t region = mr.window_of.get(); region != 0) {
    const uint32_t owner = mr.window_qp.get();
    const bool is_open = request.qp != 0 && (owner == kAnyQueuePair || owner == request.qp);
    if (!is_open || segment.mr(get_key_index(region)).window_of.get() != 0) return {};
    return translate(segment, {mr.address.get() + offset, request.length, region, request.pd, 0});
  }
  return {mr.address.get() + offset, mr.gpu.get(), (mr.access.get() & IBV_ACCESS_RELAXED_ORDERING) != 0};
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

SOFTVERBS_API ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_memory(pd, address, length, reinterpret_cast<uint64_t>(address), access);
}

SOFTVERBS_API ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return register_memory(pd, address, length, iova, access);
}

SOFTVERBS_API ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                       unsigned int access) {
  return register_memory(pd, address, length, iova, static_cast<int>(access));
}

// Callers pass the GPU address as iova, which is sufficient: the descriptor is ignored. NCCL probes with
// descriptor -1, and treats every error except "not supported" as support.
SOFTVERBS_API ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t, size_t length, uint64_t iova, int fd,
                                        int access) {
  if (fd < 0) return fail_with<ibv_mr>(EBADF);
  if (!GpuMemory::owns(iova)) return fail_with<ibv_mr>(EOPNOTSUPP);
  return register_memory(pd, reinterpret_cast<void*>(iova), length, iova, access);
}

SOFTVERBS_API int ibv_dereg_mr(ibv_mr* base) try {
  auto* mr = reinterpret_cast<Mr*>(base);
  if (mr->is_imported) return EINVAL;  // ibv_unimport_mr
  Process* process = Process::get();
  process->segment().mr(mr->index).key.store(0);
  if (process->wire != nullptr) process->wire->forget_memory(mr->base.lkey);
  wait_for_peers();
  detach_memory(mr->gpu);
  process->mrs.free(mr->index);
  mr->pd->users.fetch_sub(1);
  if (mr->memory_users != nullptr) mr->memory_users->fetch_sub(1);
  delete mr;
  return 0;
}
SOFTVERBS_CATCH
