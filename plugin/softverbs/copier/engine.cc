#include "softverbs/copier/engine.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "softverbs/shared/clock.h"
#include "softverbs/shared/own_thread.h"

namespace verbena::softverbs::copier {
namespace {

constexpr uint64_t kBounceBytes = 1 << 20, kBouncePiece = 256 << 10;
// A batch of one copy takes 3 us longer than a separate copy, which takes about 3 us (measured).
constexpr size_t kLeastBatch = 3;
constexpr int kEventsAhead = 16;  // created at the start, where creating them delays no copy

}  // namespace

// Shows the application in which driver call the thread is.
class Engine::InCall {
 public:
  InCall(SharedEngine& shared, Call call) : shared_(shared) {
    shared_.call.store(call, std::memory_order_relaxed);
    shared_.call_since_ns.store(read_clock_ns(), std::memory_order_release);
  }
  ~InCall() { shared_.call_since_ns.store(0, std::memory_order_release); }
  InCall(const InCall&) = delete;
  InCall& operator=(const InCall&) = delete;

 private:
  SharedEngine& shared_;
};

Engine::Engine(const Driver& driver, const AreaTable& areas, uint32_t index, CUdevice device,
               SharedEngine& shared, uint64_t spin_ns)
    : driver_(driver), areas_(areas), index_(index), device_(device), shared_(shared), spin_ns_(spin_ns) {}

std::unique_ptr<Engine> Engine::open(const Driver& driver, const AreaTable& areas, uint32_t index,
                                     CUdevice device, SharedEngine& shared, uint64_t spin_ns,
                                     std::string& why) {
  std::unique_ptr<Engine> engine(new Engine(driver, areas, index, device, shared, spin_ns));
  const uint64_t begin_ns = read_clock_ns();
  const CUresult result = driver.cuDevicePrimaryCtxRetain(&engine->context_, device);
  if (result != CUDA_SUCCESS) {
    why = driver.explain("cuDevicePrimaryCtxRetain", result);
    return nullptr;
  }
  driver.cuCtxSetCurrent(engine->context_);
  driver.cuDeviceGetUuid(&engine->uuid_, device);
  const uint64_t opened_ns = read_clock_ns();
  std::string report;
  engine->ways_ = measure_ways(driver, engine->context_, device, report);
  engine->uses_batches_ = driver.cuMemcpyBatchAsync != nullptr;
  report += "context: " + std::to_string((opened_ns - begin_ns) / 1'000'000) + " ms\n";
  snprintf(shared.report, sizeof(shared.report), "%s", report.c_str());
  const int error = start_own_thread([copier = engine.get()] { copier->work(); });
  if (error == 0) return engine;
  why = std::string("the copier cannot start a thread for the GPU: ") + strerror(error) + " (ulimit -u)";
  return nullptr;
}

bool Engine::add_lane(SharedLane& shared, std::string& why) {
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  auto lane = std::make_unique<Lane>(driver_, shared);
  if (!lane->stream.open(why)) return false;
  CUdeviceptr there = 0;
  void* bounce = nullptr;
  const char* call = "cuMemHostRegister";
  CUresult result = driver_.cuMemHostRegister_v2(&shared, sizeof(shared), kFlags);
  if (result == CUDA_SUCCESS) {
    call = "cuMemHostGetDevicePointer";
    result = driver_.cuMemHostGetDevicePointer_v2(&there, &shared, 0);
  }
  if (result == CUDA_SUCCESS) {
    call = "cuMemHostAlloc";
    result = driver_.cuMemHostAlloc(&bounce, kBounceBytes, CU_MEMHOSTALLOC_PORTABLE);
  }
  for (int i = 0; i < kEventsAhead && result == CUDA_SUCCESS; ++i) {
    CUevent event = nullptr;
    call = "cuEventCreate";
    result = driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
    lane->free_events.push_back(event);
  }
  if (result != CUDA_SUCCESS) {
    why = driver_.explain(call, result);
    return false;
  }
  lane->done_there = there + offsetof(SharedLane, done);
  lane->is_told = ways_.tells_by_stream;
  lane->bounce = static_cast<uint8_t*>(bounce);
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(lane));
  has_added_.store(true, std::memory_order_release);
  return true;
}

void Engine::work() {
  pthread_setname_np(pthread_self(), ("copier-gpu" + std::to_string(device_)).c_str());
  driver_.cuCtxSetCurrent(context_);
  constexpr unsigned long kTimerSlackNs = 1000;
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  uint64_t last_work_ns = read_clock_ns();
  for (;;) {
    const uint32_t seen = shared_.doorbell.load(std::memory_order_acquire);
    if (has_added_.exchange(false, std::memory_order_acquire)) {
      const std::lock_guard lock(mutex_);
      std::move(added_.begin(), added_.end(), std::back_inserter(lanes_));
      added_.clear();
    }
    bool has_worked = false;
    for (const auto& lane : lanes_) has_worked |= serve(*lane);
    tell_oldest();
    answer_quiesce();
    const uint64_t now_ns = read_clock_ns();
    if (has_worked) last_work_ns = now_ns;
    if (now_ns - last_work_ns < spin_ns_) {
      pause_briefly();
    } else if (has_worked) {
      nap();
    } else {
      sleep(seen);
    }
  }
}

// Sleeps briefly while copies are outstanding. On a machine with few CPUs, a polling thread keeps the
// application from running.
void Engine::nap() {
  constexpr timespec kNap{0, 20'000};
  nanosleep(&kNap, nullptr);
}

bool Engine::serve(Lane& lane) {
  if (lane.is_broken) return false;
  const bool has_taken = take(lane);
  pass(lane);
  return has_taken || !lane.fences.empty();
}

void Engine::tell_oldest() {
  uint64_t oldest_ns = UINT64_MAX;
  for (const auto& lane : lanes_)
    if (!lane->fences.empty()) oldest_ns = std::min(oldest_ns, lane->fences.front().since_ns);
  if (oldest_ns == UINT64_MAX) oldest_ns = 0;
  if (oldest_ns == told_oldest_ns_) return;
  told_oldest_ns_ = oldest_ns;
  shared_.copy_since_ns.store(oldest_ns, std::memory_order_relaxed);
}

// The application first stores the tail of a ring, then checks whether this thread sleeps. This thread first
// sets that it sleeps, then checks the tails. So one of the two always sees the other.
void Engine::sleep(uint32_t seen) {
  shared_.is_asleep.store(1);
  if (!has_new_work()) {
    const timespec timeout{1, 0};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&shared_.doorbell), FUTEX_WAIT, seen, &timeout, nullptr,
            0);
  }
  shared_.is_asleep.store(0);
}

bool Engine::has_new_work() {
  if (has_added_.load() || quiesce_asked_.load() != quiesce_answered_.load()) return true;
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) {
    return !lane->is_broken && (lane->shared.tail.load() != lane->taken || !lane->fences.empty());
  });
}

// The rings are in memory that other processes can write, so every value is checked before it is used as an
// address.
bool Engine::take(Lane& lane) {
  const uint64_t tail = lane.shared.tail.load(std::memory_order_acquire), before = lane.taken;
  if (tail == lane.taken) return false;
  if (tail - lane.taken > kLaneSlots) {
    fail(lane);
    return false;
  }
  while (lane.taken != tail) {
    LaneSlot& slot = lane.shared.slots[lane.taken % kLaneSlots];
    const uint32_t group = static_cast<const volatile uint32_t&>(slot.group);
    if (!batch_.slots.empty() && batch_.group != group) flush(lane);
    batch_.group = group;
    if (!execute(lane, slot)) break;
    ++lane.taken;
    lane.taken_bytes = 0;
  }
  flush(lane);
  const bool has_issued = lane.taken != lane.fenced || lane.bounce_taken != lane.fenced_bounce;
  if (has_issued) record(lane);
  return lane.taken != before || has_issued;
}

// Returns false if there is not enough space; the rest is executed later.
bool Engine::execute(Lane& lane, LaneSlot& slot) {
  if (static_cast<const volatile uint32_t&>(slot.kind) == kCopyBytes) return execute_copy(lane, slot);
  execute_store(lane, slot);
  return true;
}

CUdeviceptr Engine::resolve(uint32_t number, uint64_t offset, uint64_t bytes, const Area*& found) const {
  const Area* const area = areas_.get(number);
  if (area == nullptr || (!area->is_host() && area->device != index_)) return 0;
  if (offset > area->bytes || bytes > area->bytes - offset) return 0;
  found = area;
  return area->base + offset;
}

Path Engine::find_path(const Area& to, const Area& from) {
  if (to.is_host()) return Path::kToHost;
  if (from.is_host()) return Path::kToGpu;
  return memcmp(&to.home, &from.home, sizeof(to.home)) == 0 ? Path::kWithin : Path::kPeer;
}

bool Engine::execute_copy(Lane& lane, LaneSlot& slot) {
  const volatile LaneSlot& asked = slot;
  const uint64_t bytes = asked.bytes;
  const Area *to_area = nullptr, *from_area = nullptr;
  const CUdeviceptr to = resolve(asked.to_area, asked.to, bytes, to_area);
  const CUdeviceptr from = resolve(asked.from_area, asked.from, bytes, from_area);
  const bool is_copy = to != 0 && from != 0 && bytes != 0 && !(to_area->is_host() && from_area->is_host());
  if (!is_copy) {
    slot.status.store(kRefused, std::memory_order_release);
    return true;
  }
  const Path path = find_path(*to_area, *from_area);
  const bool is_words = path == Path::kToGpu && ways_.stores_words && bytes <= kMaxWordsBytes &&
                        bytes % kWord == 0 && to % kWord == 0;
  const bool is_word = path == Path::kToGpu && bytes == kWord && to % kWord == 0 && lane.stream.has_stores();
  if (is_words || is_word) {
    if (issue(lane, Form::kWords, to, from, bytes) == CUDA_SUCCESS) return true;
    ways_.stores_words = ways_.stores_words && lane.stream.has_stores();
  }
  const Form form = ways_.choose(path, bytes);
  if (form == Form::kThroughHost) return bounce(lane, slot, to, from, bytes);
  if (form != Form::kPlain) {
    if (issue(lane, form, to, from, bytes) != CUDA_SUCCESS)
      slot.status.store(kRefused, std::memory_order_release);
    return true;
  }
  batch_.to.push_back(to);
  batch_.from.push_back(from);
  batch_.bytes.push_back(bytes);
  batch_.slots.push_back(&slot);
  return true;
}

uint8_t* Engine::take_bounce(Lane& lane, uint64_t bytes) {
  const uint64_t at = lane.bounce_taken % kBounceBytes;
  const uint64_t skipped = at + bytes > kBounceBytes ? kBounceBytes - at : 0;
  if (lane.bounce_taken + skipped + bytes - lane.bounce_free > kBounceBytes) return nullptr;
  lane.bounce_taken += skipped;
  uint8_t* const memory = lane.bounce + lane.bounce_taken % kBounceBytes;
  constexpr uint64_t kLine = 64;
  lane.bounce_taken += (bytes + kLine - 1) / kLine * kLine;
  return memory;
}

// A single word cannot be copied as rows. Its value is first copied to the host, then stored; the lane waits
// meanwhile.
bool Engine::bounce_word(Lane& lane, LaneSlot& slot, CUdeviceptr to, CUdeviceptr from) {
  const auto refuse_unless = [&](CUresult result) {
    if (result != CUDA_SUCCESS) slot.status.store(kRefused, std::memory_order_release);
    return true;
  };
  if (lane.word == nullptr) {
    lane.word = take_bounce(lane, kWord);
    if (lane.word == nullptr) return false;
    lane.word_bounced = lane.bounce_taken;
    const CUresult result = issue(lane, Form::kPlain, reinterpret_cast<CUdeviceptr>(lane.word), from, kWord);
    if (result == CUDA_SUCCESS) return false;
    lane.word = nullptr;
    return refuse_unless(result);
  }
  if (lane.bounce_free < lane.word_bounced) return false;
  const auto word = reinterpret_cast<CUdeviceptr>(std::exchange(lane.word, nullptr));
  const CUresult result = issue(lane, Form::kWords, to, word, kWord);
  if (result != CUDA_SUCCESS && !lane.stream.has_stores()) return bounce(lane, slot, to, from, kWord);
  return refuse_unless(result);
}

bool Engine::bounce(Lane& lane, LaneSlot& slot, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  if (bytes == kWord && to % kWord == 0 && lane.stream.has_stores()) return bounce_word(lane, slot, to, from);
  while (lane.taken_bytes < bytes) {
    const uint64_t take = std::min(bytes - lane.taken_bytes, kBouncePiece);
    uint8_t* const memory = take_bounce(lane, take);
    if (memory == nullptr) return false;
    const auto middle = reinterpret_cast<CUdeviceptr>(memory);
    CUresult result = issue(lane, ways_.choose(Path::kToHost, take), middle, from + lane.taken_bytes, take);
    if (result == CUDA_SUCCESS)
      result = issue(lane, ways_.choose(Path::kToGpu, take), to + lane.taken_bytes, middle, take);
    if (result != CUDA_SUCCESS) {
      slot.status.store(kRefused, std::memory_order_release);
      return true;
    }
    lane.taken_bytes += take;
  }
  return true;
}

void Engine::execute_store(Lane& lane, LaneSlot& slot) {
  const volatile LaneSlot& asked = slot;
  const uint32_t count = asked.word_count;
  std::array<WordAt, kMaxWords> words;
  std::array<const SlotWord*, kMaxWords> values;
  bool is_known = count <= kMaxWords;
  for (uint32_t i = 0; is_known && i < count; ++i) {
    const volatile SlotWord& word = asked.words[i];
    const Area* area = nullptr;
    words[i] = {resolve(word.area, word.offset, kWord, area), word.value};
    values[i] = &slot.words[i];
    is_known = words[i].address != 0 && words[i].address % kWord == 0 && !area->is_host();
  }
  bool are_stored = false;
  if (is_known && lane.stream.has_stores()) {
    const InCall call(shared_, kCallStore);
    are_stored = lane.stream.store(std::span(words).first(count)) == CUDA_SUCCESS;
  }
  if (!are_stored) {
    // The copies read the words from the slot itself.
    for (uint32_t i = 0; is_known && i < count; ++i)
      is_known = issue(lane, ways_.choose(Path::kToGpu, kWord), words[i].address,
                       reinterpret_cast<CUdeviceptr>(&values[i]->value), kWord) == CUDA_SUCCESS;
  }
  if (!is_known) slot.status.store(kRefused, std::memory_order_release);
}

CUresult Engine::issue(Lane& lane, Form form, CUdeviceptr to, CUdeviceptr from, uint64_t bytes) {
  const InCall call(shared_, form == Form::kRows ? kCallRows : form == Form::kWords ? kCallStore : kCallCopy);
  return lane.stream.copy(form, to, from, bytes);
}

bool Engine::flush_as_batch(Lane& lane) {
  const InCall call(shared_, kCallBatch);
  return lane.stream.copy_batch(batch_.to, batch_.from, batch_.bytes) == CUDA_SUCCESS;
}

void Engine::flush(Lane& lane) {
  const size_t count = batch_.slots.size();
  const bool is_batch = uses_batches_ && count >= kLeastBatch;
  if (!is_batch || !flush_as_batch(lane)) {
    if (is_batch) uses_batches_ = false;  // not tried again if the driver rejects it
    for (size_t i = 0; i < count; ++i) {
      if (issue(lane, Form::kPlain, batch_.to[i], batch_.from[i], batch_.bytes[i]) != CUDA_SUCCESS)
        batch_.slots[i]->status.store(kRefused, std::memory_order_release);
    }
  }
  batch_.to.clear(), batch_.from.clear(), batch_.bytes.clear(), batch_.slots.clear();
}

CUevent Engine::take_event(Lane& lane) {
  CUevent event = nullptr;
  if (lane.free_events.empty()) {
    driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  } else {
    event = lane.free_events.back();
    lane.free_events.pop_back();
  }
  return event;
}

// Slots of a lane are reported in one way only, so that its count never decreases.
void Engine::record(Lane& lane) {
  const InCall call(shared_, kCallFence);
  Lane::Fence fence{nullptr, lane.taken, lane.bounce_taken, read_clock_ns()};
  bool is_recorded = false;
  if (lane.is_told && lane.taken != lane.fenced) {
    const WordAt word{lane.done_there, lane.taken};
    is_recorded = lane.stream.store({&word, 1}) == CUDA_SUCCESS;
  } else {
    fence.event = take_event(lane);
    is_recorded = fence.event != nullptr && lane.stream.record(fence.event) == CUDA_SUCCESS;
  }
  if (!is_recorded) return fail(lane);
  lane.fences.push_back(fence);
  lane.fenced = lane.taken;
  lane.fenced_bounce = lane.bounce_taken;
}

// A stream that has failed no longer reports anything, so the driver is queried from time to time.
bool Engine::has_passed(Lane& lane, Lane::Fence& fence) {
  constexpr uint32_t kLooksPerQuery = 4096;
  if (fence.event == nullptr) {
    if (lane.shared.done.load(std::memory_order_acquire) >= fence.slots) return true;
    if (++fence.looks % kLooksPerQuery != 0) return false;
  }
  const InCall call(shared_, kCallQuery);
  const CUresult result = fence.event == nullptr ? lane.stream.query() : driver_.cuEventQuery(fence.event);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) fail(lane);
  return fence.event != nullptr && result == CUDA_SUCCESS;
}

void Engine::pass(Lane& lane) {
  while (!lane.fences.empty() && !lane.is_broken) {
    Lane::Fence& fence = lane.fences.front();
    if (!has_passed(lane, fence)) return;
    lane.done = fence.slots;
    lane.bounce_free = fence.bounced;
    if (fence.event != nullptr) lane.free_events.push_back(fence.event);
    if (!lane.is_told) lane.shared.done.store(fence.slots, std::memory_order_release);
    lane.fences.pop_front();
  }
}

void Engine::fail(Lane& lane) {
  lane.is_broken = true;
  lane.fences.clear();
  lane.shared.is_broken.store(1, std::memory_order_release);
}

bool Engine::quiesce() {
  constexpr uint64_t kPatienceNs = 10'000'000'000;
  const uint64_t asked = quiesce_asked_.fetch_add(1) + 1, deadline_ns = read_clock_ns() + kPatienceNs;
  shared_.doorbell.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&shared_.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
          0);
  while (quiesce_answered_.load(std::memory_order_acquire) < asked) {
    if (read_clock_ns() > deadline_ns) return false;
    usleep(10);
  }
  return true;
}

// All slots that were taken before the request, and all pieces of a slot, are complete when the fences after
// them have passed.
void Engine::answer_quiesce() {
  const uint64_t asked = quiesce_asked_.load(std::memory_order_acquire);
  if (asked == quiesce_answered_.load(std::memory_order_relaxed)) return;
  if (quiesce_began_ != asked) {
    quiesce_began_ = asked;
    quiesce_until_.clear();
    for (const auto& lane : lanes_) quiesce_until_.push_back({lane.get(), lane->taken, lane->bounce_taken});
  }
  const bool is_over = std::all_of(quiesce_until_.begin(), quiesce_until_.end(), [](const Until& until) {
    return until.lane->is_broken ||
           (until.lane->done >= until.slots && until.lane->bounce_free >= until.bounced);
  });
  if (is_over) quiesce_answered_.store(asked, std::memory_order_release);
}

}  // namespace verbena::softverbs::copier
