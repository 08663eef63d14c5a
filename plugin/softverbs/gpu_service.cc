#include "softverbs/gpu_service.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <set>
#include <thread>
#include <vector>

#include "softverbs/clock.h"
#include "softverbs/config.h"
#include "softverbs/gpu_lane.h"

namespace verbena::softverbs {
namespace {

// free --claim (CAS)--> claimed --> ready --> (owner) done or failed --> free
enum class RequestState : uint32_t { kFree, kClaimed, kReady, kDone, kFailed };

uint64_t make_request_word(RequestState state, uint32_t claimer) {
  return uint64_t{claimer} << 8 | static_cast<uint64_t>(state);
}
RequestState get_request_state(uint64_t word) {
  return static_cast<RequestState>(word & 0xff);
}
uint32_t get_claimer(uint64_t word) {
  return static_cast<uint32_t>(word >> 8);
}

void wait_for_doorbell(std::atomic<uint32_t>& doorbell, uint32_t seen, uint64_t timeout_ns) {
  const timespec timeout{static_cast<time_t>(timeout_ns / 1'000'000'000),
                         static_cast<long>(timeout_ns % 1'000'000'000)};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&doorbell), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

// The owner's thread.
class GpuService {
 public:
  explicit GpuService(Process& process) : process_(process), table_(process.segment().gpu_service()) {}
  void work();

 private:
  struct Active {
    GpuRequest* request;
    GpuLane* lane;
    uint64_t first, last;  // tickets
  };
  // What a peer asks for, read once: it may write on.
  struct CopyJob {
    explicit CopyJob(const GpuRequest& request);
    uint64_t address, bytes, stage, stage_block, stage_block_bytes;
    uint32_t gpu;
    bool is_write;

    bool is_staged() const;
  };
  void start(GpuRequest& request, uint64_t word);
  bool start_copy(GpuRequest& request, Peer& peer);
  void pin(const CopyJob& job, Peer& peer);
  bool start_ready();
  void finish_active();
  void free_orphans();
  void answer(GpuRequest& request, bool is_done);

  Process& process_;
  GpuServiceTable& table_;
  std::vector<Active> active_;
  std::set<std::pair<Peer*, uint64_t>> pinned_;  // staging blocks that CUDA knows
};

void GpuService::work() {
  constexpr uint64_t kLeastSpinNs = 50'000, kSweepNs = 1'000'000'000;
  // Twice as long as a worker, which has another request for it when a message has gone to and fro.
  const uint64_t spin_ns = std::max(kLeastSpinNs, 2 * get_config().worker_spin_ns);
  pthread_setname_np(pthread_self(), "softverbs-gpu");
  uint64_t last_work_ns = 0;
  for (;;) {
    const uint32_t seen = table_.doorbell.load(std::memory_order_acquire);
    const bool has_started = start_ready();
    finish_active();
    const uint64_t now_ns = read_clock_ns();
    if (has_started || !active_.empty()) last_work_ns = now_ns;
    if (now_ns - last_work_ns < spin_ns) continue;
    free_orphans();
    // Whoever counts a request after this wakes us; who counted one before has changed the doorbell.
    table_.is_asleep.store(1);
    wait_for_doorbell(table_.doorbell, seen, kSweepNs);
    table_.is_asleep.store(0);
  }
}

bool GpuService::start_ready() {
  bool has_started = false;
  for (GpuRequest& request : table_.requests) {
    const uint64_t word = request.word.load(std::memory_order_acquire);
    if (get_request_state(word) != RequestState::kReady) continue;
    const auto is_same = [&](const Active& active) { return active.request == &request; };
    if (std::any_of(active_.begin(), active_.end(), is_same)) continue;
    start(request, word);
    has_started = true;
  }
  return has_started;
}

void GpuService::start(GpuRequest& request, uint64_t word) {
  Peer* peer = process_.find_peer(make_qp_number(get_claimer(word) >> 12, 0));
  if (peer == nullptr || !start_copy(request, *peer)) answer(request, false);
}

// In the peer's segment, as is the block that is pinned for it: sums that overflow do not pass.
bool GpuService::CopyJob::is_staged() const {
  const auto is_within = [](uint64_t offset, uint64_t length) {
    return offset >= kArena && offset <= kSegmentBytes && length <= kSegmentBytes - offset;
  };
  return is_within(stage, bytes) && is_within(stage_block, stage_block_bytes);
}

GpuService::CopyJob::CopyJob(const GpuRequest& request) {
  const volatile GpuRequest& asked = request;
  address = asked.address;
  bytes = asked.bytes;
  stage = asked.stage;
  stage_block = asked.stage_block;
  stage_block_bytes = asked.stage_block_bytes;
  gpu = asked.gpu;
  is_write = asked.is_write != 0;
}

bool GpuService::start_copy(GpuRequest& request, Peer& peer) {
  const CopyJob job(request);
  if (job.gpu == 0 || job.gpu > kGpuCount) return false;
  const GpuAllocation& allocation = process_.gpu_memory.get(job.gpu);
  const bool is_inside = job.address >= allocation.base && job.bytes <= allocation.bytes &&
                         job.address - allocation.base <= allocation.bytes - job.bytes && job.is_staged();
  const cuda::Driver& driver = *cuda::find_driver();
  GpuLane* lane = process_.service_lanes.find(allocation.context);
  const cuda::Use use;
  if (!is_inside || lane == nullptr || !use) return false;
  cuda::enter(driver, allocation.context);
  pin(job, peer);
  const uint64_t stage = reinterpret_cast<uint64_t>(peer.segment->at<uint8_t>(job.stage));
  const uint64_t first = lane->ticket();
  const bool is_word =
      job.bytes == sizeof(uint64_t) && job.address % sizeof(uint64_t) == 0 && stage % sizeof(uint64_t) == 0;
  if (job.is_write && is_word &&
      lane->store_word(job.address, *reinterpret_cast<const volatile uint64_t*>(stage))) {
    // It is under way.
  } else if (job.is_write) {
    lane->copy({job.address, stage, job.bytes, job.stage});
  } else {
    lane->copy({stage, job.address, job.bytes, job.stage});
  }
  active_.push_back({&request, lane, first, lane->ticket()});
  return true;
}

// Copies from memory that CUDA does not know are correct too, but slow: a refusal is no failure.
void GpuService::pin(const CopyJob& job, Peer& peer) {
  if (peer.is_self || !pinned_.insert({&peer, job.stage_block}).second) return;
  cuda::find_driver()->cuMemHostRegister_v2(peer.segment->at<uint8_t>(job.stage_block), job.stage_block_bytes,
                                            cuda::CU_MEMHOSTREGISTER_PORTABLE);
}

void GpuService::finish_active() {
  std::erase_if(active_, [this](const Active& active) {
    const LaneState state = active.lane->look(active.first, active.last);
    if (state != LaneState::kBusy) answer(*active.request, state == LaneState::kDone);
    return state != LaneState::kBusy;
  });
}

void GpuService::answer(GpuRequest& request, bool is_done) {
  const uint32_t claimer = get_claimer(request.word.load());
  const RequestState state = is_done ? RequestState::kDone : RequestState::kFailed;
  request.word.store(make_request_word(state, claimer), std::memory_order_release);
}

void GpuService::free_orphans() {
  for (GpuRequest& request : table_.requests) {
    uint64_t word = request.word.load();
    if (get_request_state(word) == RequestState::kFree || !process_.is_claimer_dead(get_claimer(word)))
      continue;
    request.word.compare_exchange_strong(word, make_request_word(RequestState::kFree, 0));
  }
}

}  // namespace

bool start_gpu_service(cuda::CUcontext context) {
  Process& process = *Process::get();
  if (!process.service_lanes.prepare(*cuda::find_driver(), context)) return false;
  std::call_once(process.gpu_service_once, [&process] {
    if (process.segment().commit(process.segment().gpu_service()) != 0) return;
    auto* service = new GpuService(process);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([service] { service->work(); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  });
  return true;
}

bool submit(Peer& owner, const StagedCopy& copy, uint32_t& request) {
  GpuServiceTable& table = owner.segment->gpu_service();
  const uint32_t claimer = Process::get()->claimer();
  for (request = 0; request < kGpuRequests; ++request) {
    GpuRequest& slot = table.requests[request];
    uint64_t free_word = make_request_word(RequestState::kFree, 0);
    if (!slot.word.compare_exchange_strong(free_word, make_request_word(RequestState::kClaimed, claimer)))
      continue;
    slot.address = copy.address;
    slot.bytes = copy.bytes;
    slot.gpu = copy.gpu;
    slot.is_write = copy.is_write ? 1 : 0;
    slot.stage = copy.stage;
    slot.stage_block = copy.stage_block;
    slot.stage_block_bytes = copy.stage_block_bytes;
    slot.word.store(make_request_word(RequestState::kReady, claimer), std::memory_order_release);
    table.doorbell.fetch_add(1);
    if (table.is_asleep.load() != 0) {
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&table.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
              0);
    }
    return true;
  }
  return false;
}

ServiceState look_at_request(Peer& owner, uint32_t request) {
  if (owner.dead.load(std::memory_order_acquire)) return ServiceState::kFailed;
  GpuRequest& slot = owner.segment->gpu_service().requests[request];
  const RequestState state = get_request_state(slot.word.load(std::memory_order_acquire));
  if (state != RequestState::kDone && state != RequestState::kFailed) return ServiceState::kBusy;
  slot.word.store(make_request_word(RequestState::kFree, 0), std::memory_order_release);
  return state == RequestState::kDone ? ServiceState::kDone : ServiceState::kFailed;
}

}  // namespace verbena::softverbs
