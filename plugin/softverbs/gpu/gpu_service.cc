#include "softverbs/gpu/gpu_service.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "softverbs/gpu/gpu_lane.h"
#include "softverbs/gpu/gpu_words.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/own_thread.h"

namespace verbena::softverbs {
namespace {

// free --claim (CAS)--> claimed --> ready --> (owner) done or failed --> free
enum class RequestState : uint32_t { kFree, kClaimed, kReady, kDone, kFailed };

// A known value saves a load, as long as peers add without a pause. The limit ensures that other writes of
// the word, such as a peer's ordinary write, are seen after this time.
constexpr uint64_t kKnownNs = 50'000;
constexpr uint64_t kOrphanCheckNs = 10'000'000;

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
  explicit GpuService(Process& process)
      : process_(process), table_(process.segment().gpu_service()), words_(process) {}
  void work();

 private:
  struct Active {
    GpuRequest* request;
    GpuLane* lane;
    uint64_t first, last;     // tickets
    GpuWord* word = nullptr;  // that is to be changed; null once it is
    WordChange change{};
    uint32_t life = 0;  // of the word's allocation
    uint64_t began_ns = 0, next_check_ns = 0;
  };
  // The request of a peer, copied because the peer may change it.
  struct CopyJob {
    explicit CopyJob(const GpuRequest& request);
    uint64_t address, bytes, stage, stage_block, stage_block_bytes;
    uint32_t gpu;
    bool is_write;

    bool is_staged() const;
  };
  void start(GpuRequest& request, uint64_t word);
  uint32_t get_life(uint32_t gpu) const {
    return process_.segment().gpu(gpu - 1).life.load(std::memory_order_acquire);
  }
  GpuLane* find_lane(uint64_t address, uint64_t bytes, uint32_t gpu, AreaAddress& place);
  bool start_copy(GpuRequest& request, uint32_t claimer);
  bool start_change(GpuRequest& request);
  bool start_ready();
  void finish_active();
  bool is_over(Active& active);
  bool is_orphan(Active& active, uint32_t gate);
  bool is_reloaded(const Active& active);
  bool change_word(Active& active);
  void free_orphans();
  void answer(GpuRequest& request, bool is_done);

  Process& process_;
  GpuServiceTable& table_;
  std::vector<Active> active_;
  GpuWords words_;
};

void GpuService::work() {
  constexpr uint64_t kLeastSpinNs = 50'000, kSweepNs = 1'000'000'000;
  // Spins twice as long as a worker, because a worker has its next request after a message has gone there and
  // back.
  const uint64_t spin_ns = std::max(kLeastSpinNs, 2 * get_config().worker_spin_ns);
  pthread_setname_np(pthread_self(), "softverbs-gpu");
  uint64_t last_work_ns = 0, next_sweep_ns = 0;
  for (;;) {
    const uint32_t seen = table_.doorbell.load(std::memory_order_acquire);
    const bool has_started = start_ready();
    finish_active();
    const uint64_t now_ns = read_clock_ns();
    if (has_started || !active_.empty()) last_work_ns = now_ns;
    const bool is_idle = now_ns - last_work_ns >= spin_ns;
    if (is_idle || now_ns >= next_sweep_ns) {
      free_orphans();
      next_sweep_ns = now_ns + kSweepNs;
    }
    if (!is_idle) {
      pause_briefly();
      continue;
    }
    // A thread that counts a request after this store wakes this thread. A thread that counted one before has
    // changed the doorbell.
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
  const uint32_t kind = static_cast<const volatile uint32_t&>(request.kind);
  const bool is_change = kind == kGpuAdd || kind == kGpuSwap;
  if (!(is_change ? start_change(request) : start_copy(request, get_claimer(word)))) answer(request, false);
}

// Returns whether the stage lies within the peer's segment and within the block that is pinned for it. Also
// rejects sums that overflow.
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
  is_write = asked.kind == kGpuWrite;
}

// Returns nullptr unless the whole range is registered.
GpuLane* GpuService::find_lane(uint64_t address, uint64_t bytes, uint32_t gpu, AreaAddress& place) {
  if (gpu == 0 || gpu > kGpuCount) return nullptr;
  if (get_life(gpu) % 2 == 0) return nullptr;  // not in use
  const GpuAllocation& allocation = process_.gpu_memory.get(gpu);
  const bool is_inside = address >= allocation.base && bytes <= allocation.bytes &&
                         address - allocation.base <= allocation.bytes - bytes;
  place = {allocation.area, address - allocation.base};
  return is_inside ? process_.service_lanes.find(allocation.device) : nullptr;
}

bool GpuService::start_copy(GpuRequest& request, uint32_t claimer) {
  PeerProcess* const peer = process_.find_peer(make_qp_number(claimer >> 12, 0));
  const CopyJob job(request);
  AreaAddress place, stage{0, job.stage};
  GpuLane* lane = job.is_staged() ? find_lane(job.address, job.bytes, job.gpu, place) : nullptr;
  if (peer == nullptr || lane == nullptr) return false;
  if (!process_.imports.find_segment(process_.copier, *peer, job.stage_block, job.stage_block_bytes,
                                     stage.area))
    return false;
  const uint64_t first = lane->ticket();
  if (job.is_write) {
    lane->copy({place, stage, job.bytes, job.stage});
  } else {
    lane->copy({stage, place, job.bytes, job.stage});
  }
  active_.push_back({&request, lane, first, lane->ticket()});
  return true;
}

bool GpuService::start_change(GpuRequest& request) {
  const volatile GpuRequest& asked = request;
  const WordChange change{asked.address, asked.gpu, asked.kind == kGpuSwap, asked.operand, asked.swap};
  if (change.address % sizeof(uint64_t) != 0) return false;
  const uint32_t life = get_life(change.gpu);
  AreaAddress place;
  GpuLane* lane = find_lane(change.address, sizeof(uint64_t), change.gpu, place);
  if (lane == nullptr) return false;
  const uint64_t now_ns = read_clock_ns();
  active_.push_back({&request, lane, 0, 0, &words_.enter(change.address, place, *lane), change, life, now_ns,
                     now_ns + kOrphanCheckNs});
  return true;
}

void GpuService::finish_active() {
  std::erase_if(active_, [this](Active& active) { return is_over(active); });
}

bool GpuService::is_over(Active& active) {
  if (active.word != nullptr) {
    const LaneState state = words_.look(*active.word);
    if (state == LaneState::kBusy) return false;
    const uint32_t gate = active.request->gate.load(std::memory_order_acquire);
    if (state == LaneState::kBroken || gate == kGateWithdrawn || is_orphan(active, gate)) {
      words_.leave(*active.word);
      answer(*active.request, false);
      return true;
    }
    if (gate == kGateClosed || is_reloaded(active)) return false;
    const bool is_changed = change_word(active);
    words_.leave(*std::exchange(active.word, nullptr));
    if (!is_changed) {
      answer(*active.request, false);
      return true;
    }
  }
  const LaneState state = active.lane->look(active.first, active.last);
  if (state != LaneState::kBusy) answer(*active.request, state == LaneState::kDone);
  return state != LaneState::kBusy;
}

// Returns whether the peer has died before it opened the gate.
bool GpuService::is_orphan(Active& active, uint32_t gate) {
  const uint64_t now_ns = gate == kGateClosed ? read_clock_ns() : 0;
  if (now_ns < active.next_check_ns) return false;
  active.next_check_ns = now_ns + kOrphanCheckNs;
  return process_.is_claimer_dead(get_claimer(active.request->word.load()));
}

// Returns whether the value is too old, so that a load has begun.
bool GpuService::is_reloaded(const Active& active) {
  GpuWord& word = *active.word;
  const bool is_old = word.load_began_ns < active.began_ns &&
                      (active.change.is_swap || read_clock_ns() - word.load_began_ns > kKnownNs);
  if (is_old) words_.load(word);
  return is_old;
}

// Returns false, and stores nothing, if the word or the carried words must not be stored.
bool GpuService::change_word(Active& active) {
  // Ending a registration does not wait for a peer, so the memory may belong to another allocation by now.
  if (get_life(active.change.gpu) != active.life) return false;
  const volatile GpuRequest& asked = *active.request;
  const uint64_t address = asked.carried_address;
  const uint32_t count = asked.carried_words, gpu = asked.carried_gpu;
  AreaAddress place;
  const bool may_carry = count <= kCarriedWords && address % sizeof(uint64_t) == 0 &&
                         find_lane(address, count * sizeof(uint64_t), gpu, place) == active.lane;
  if (count != 0 && !may_carry) return false;
  std::array<WordStore, 1 + kCarriedWords> stores{};
  static_assert(stores.size() <= GpuLane::kMostStores);
  size_t stored = 0;
  for (; stored < count; ++stored)
    stores[stored] = {place + stored * sizeof(uint64_t), asked.carried[stored]};
  GpuWord& word = *active.word;
  const uint64_t before = std::exchange(word.value, active.change.apply_to(word.value));
  if (word.value != before) stores[stored++] = {word.place, word.value};
  active.first = active.lane->ticket();
  if (stored != 0) active.lane->store_words(std::span(stores).first(stored));
  active.last = active.lane->ticket();
  active.request->before = before;
  return true;
}

void GpuService::answer(GpuRequest& request, bool is_done) {
  const uint32_t claimer = get_claimer(request.word.load());
  const RequestState state = is_done ? RequestState::kDone : RequestState::kFailed;
  request.word.store(make_request_word(state, claimer), std::memory_order_release);
}

// Frees the requests of dead peers. A request that is ready is answered first.
void GpuService::free_orphans() {
  for (GpuRequest& request : table_.requests) {
    uint64_t word = request.word.load();
    const RequestState state = get_request_state(word);
    if (state == RequestState::kFree || state == RequestState::kReady) continue;
    if (!process_.is_claimer_dead(get_claimer(word))) continue;
    request.word.compare_exchange_strong(word, make_request_word(RequestState::kFree, 0));
  }
}

}  // namespace

bool start_gpu_service(uint32_t device) {
  Process& process = *Process::get();
  if (process.segment().commit(process.segment().gpu_service()) != 0) return false;
  if (!process.service_lanes.prepare(process.copier, device)) return false;
  const std::lock_guard lock(process.gpu_service_mutex);
  if (process.has_gpu_service) return true;
  auto service = std::make_shared<GpuService>(process);
  const int error = start_own_thread([service] { service->work(); });
  if (error != 0)
    warn("cannot start the thread that copies GPU memory for peers: %s (ulimit -u)", strerror(error));
  process.has_gpu_service = error == 0;
  return process.has_gpu_service;
}

namespace {

// Claims one of the requests [request, end). Returns nullptr while all are in use.
GpuRequest* claim(PeerProcess& owner, uint32_t& request, uint32_t end) {
  GpuServiceTable& table = owner.segment->gpu_service();
  const uint64_t claimed = make_request_word(RequestState::kClaimed, Process::get()->claimer());
  for (; request < end; ++request) {
    uint64_t free_word = make_request_word(RequestState::kFree, 0);
    if (table.requests[request].word.compare_exchange_strong(free_word, claimed))
      return &table.requests[request];
  }
  return nullptr;
}

void hand_over(PeerProcess& owner, GpuRequest& slot) {
  GpuServiceTable& table = owner.segment->gpu_service();
  slot.word.store(make_request_word(RequestState::kReady, Process::get()->claimer()),
                  std::memory_order_release);
  table.doorbell.fetch_add(1);
  if (table.is_asleep.load() != 0)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&table.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
            0);
}

}  // namespace

bool submit(PeerProcess& owner, const StagedCopy& copy, uint32_t& request) {
  request = 0;
  GpuRequest* const slot = claim(owner, request, kGpuCopies);
  if (slot == nullptr) return false;
  slot->kind = copy.is_write ? kGpuWrite : kGpuRead;
  slot->gpu = copy.gpu;
  slot->address = copy.address;
  slot->bytes = copy.bytes;
  slot->stage = copy.stage;
  slot->stage_block = copy.stage_block;
  slot->stage_block_bytes = copy.stage_block_bytes;
  hand_over(owner, *slot);
  return true;
}

bool submit(PeerProcess& owner, const WordChange& change, uint32_t& request) {
  request = kGpuCopies;
  GpuRequest* const slot = claim(owner, request, kGpuRequests);
  if (slot == nullptr) return false;
  slot->gate.store(kGateClosed, std::memory_order_relaxed);
  slot->kind = change.is_swap ? kGpuSwap : kGpuAdd;
  slot->gpu = change.gpu;
  slot->address = change.address;
  slot->operand = change.operand;
  slot->swap = change.swap;
  hand_over(owner, *slot);
  return true;
}

void open_gate(PeerProcess& owner, uint32_t request, const CarriedWords& carried) {
  GpuRequest& slot = owner.segment->gpu_service().requests[request];
  slot.carried_address = carried.address;
  slot.carried_gpu = carried.gpu;
  slot.carried_words = carried.count;
  std::copy_n(carried.words, carried.count, slot.carried);
  slot.gate.store(kGateOpen, std::memory_order_release);
}

void withdraw(PeerProcess& owner, uint32_t request) {
  owner.segment->gpu_service().requests[request].gate.store(kGateWithdrawn, std::memory_order_release);
}

ServiceState look_at_request(PeerProcess& owner, uint32_t request, uint64_t* before) {
  if (owner.dead.load(std::memory_order_acquire)) return ServiceState::kFailed;
  GpuRequest& slot = owner.segment->gpu_service().requests[request];
  const RequestState state = get_request_state(slot.word.load(std::memory_order_acquire));
  if (state != RequestState::kDone && state != RequestState::kFailed) return ServiceState::kBusy;
  if (before != nullptr) *before = slot.before;
  slot.word.store(make_request_word(RequestState::kFree, 0), std::memory_order_release);
  return state == RequestState::kDone ? ServiceState::kDone : ServiceState::kFailed;
}

}  // namespace verbena::softverbs
