#include "softverbs/gpu_lane.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "softverbs/config.h"

namespace verbena::softverbs {
namespace {
constexpr size_t kMaxBatch = 64;
// A batch of one was measured to take 3 us longer than a copy, which takes about 3.
constexpr size_t kLeastBatch = 3;
// Is given to CUDA without waiting for more, so that what is done of a long row of copies can be told and
// followed by new ones while the rest is under way.
constexpr uint64_t kManyBytes = 1 << 20;
constexpr int kEventsAhead = 16;  // made at the start, where making them may block
}  // namespace

std::unique_ptr<GpuLane> GpuLane::open(const cuda::Driver& driver, cuda::CUcontext context) {
  cuda::Use::refuse_at_exit();
  const cuda::Scope scope(driver, context);
  std::unique_ptr<GpuLane> lane(new GpuLane(driver, context));
  cuda::CUdevice device = 0;
  int least = 0, greatest = 0;
  const bool is_known = driver.cuCtxGetDevice(&device) == cuda::CUDA_SUCCESS &&
                        driver.cuDeviceGetUuid(&lane->device_, device) == cuda::CUDA_SUCCESS;
  lane->uses_batches_ = get_config().gpu_batches && driver.cuMemcpyBatchAsync != nullptr;
  driver.cuCtxGetStreamPriorityRange(&least, &greatest);
  if (!is_known || driver.cuStreamCreateWithPriority(&lane->stream_, cuda::CU_STREAM_NON_BLOCKING,
                                                     greatest) != cuda::CUDA_SUCCESS) {
    return nullptr;
  }
  for (int i = 0; i < kEventsAhead; ++i) {
    cuda::CUevent event = nullptr;
    if (driver.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING) != cuda::CUDA_SUCCESS) return nullptr;
    lane->free_events_.push_back(event);
  }
  return lane;
}

void GpuLane::copy(const GpuCopy& copy) {
  const uint64_t ticket = issued_++;
  join(copy, ticket);
  pending_bytes_ += copy.bytes;
  if (pending_bytes_ >= kManyBytes) start();
}

void GpuLane::join(const GpuCopy& copy, uint64_t ticket) {
  if (!pending_.empty()) {
    Pending& latest = pending_.back();
    const bool continues = latest.copy.origin == copy.origin &&
                           latest.copy.to + latest.copy.bytes == copy.to &&
                           latest.copy.from + latest.copy.bytes == copy.from;
    // What may not overtake stays out of a batch of others.
    const bool keeps_order = copy.may_overtake || pending_.size() == 1;
    if (continues && keeps_order && !disturbs_pending(copy)) {
      latest.copy.bytes += copy.bytes;
      latest.last = issued_;
      return;
    }
  }
  const bool joins_batch =
      uses_batches_ && copy.may_overtake && pending_.size() < kMaxBatch && !disturbs_pending(copy);
  if (!joins_batch) issue_pending();
  pending_.push_back({copy, ticket, issued_});
}

// Copies of one batch happen in any order. A write that peers poll for is the first of its batch: all before
// it are done by then.
bool GpuLane::disturbs_pending(const GpuCopy& copy) const {
  const auto overlap = [](uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
  };
  return std::any_of(pending_.begin(), pending_.end(), [&](const Pending& pending) {
    const GpuCopy& other = pending.copy;
    return overlap(copy.to, copy.bytes, other.to, other.bytes) ||
           overlap(copy.to, copy.bytes, other.from, other.bytes) ||
           overlap(copy.from, copy.bytes, other.to, other.bytes);
  });
}

// One call for many copies, with a hint that the copy engines do them: kernels of other contexts keep a
// copy that a kernel does waiting for a time slice.
bool GpuLane::issue_as_batch() {
  to_.clear(), from_.clear(), bytes_.clear();
  for (const Pending& pending : pending_) {
    to_.push_back(pending.copy.to);
    from_.push_back(pending.copy.from);
    bytes_.push_back(pending.copy.bytes);
  }
  cuda::CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = cuda::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  attributes.flags = cuda::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
  size_t first_index = 0, failed_index = 0;
  return driver_.cuMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), bytes_.size(), &attributes,
                                    &first_index, 1, &failed_index, stream_) == cuda::CUDA_SUCCESS;
}

bool GpuLane::is_worth_a_batch() const {
  return uses_batches_ && pending_.size() >= kLeastBatch;
}

void GpuLane::issue_pending() {
  const cuda::Use use;
  if (pending_.empty() || !use) return;
  cuda::enter(driver_, context_);
  const bool is_batch = is_worth_a_batch();
  if (!is_batch || !issue_as_batch()) {
    if (is_batch) uses_batches_ = false;  // a driver that refuses one is not asked again
    for (const Pending& pending : pending_) {
      const GpuCopy& copy = pending.copy;
      if (driver_.cuMemcpyAsync(copy.to, copy.from, copy.bytes, stream_) != cuda::CUDA_SUCCESS)
        refused_.push_back(pending);
    }
  }
  pending_.clear();
  pending_bytes_ = 0;
}

bool GpuLane::store_words(std::span<const WordStore> words) {
  issue_pending();
  const cuda::Use use;
  if (driver_.cuStreamBatchMemOp_v2 == nullptr || !use || words.size() > kMostStores) return false;
  cuda::enter(driver_, context_);
  std::array<cuda::CUstreamBatchMemOpParams, kMostStores + 1> stores{};
  unsigned count = 0;
  for (const WordStore& word : words)
    stores[count++] = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, word.to, word.value, 0, 0, 0};
  if (told_ != nullptr)
    stores[count++] = {cuda::CU_STREAM_MEM_OP_WRITE_VALUE_64, told_there_, issued_ + 1, 0, 0, 0};
  if (driver_.cuStreamBatchMemOp_v2(stream_, count, stores.data(), 0) != cuda::CUDA_SUCCESS) return false;
  ++issued_;
  if (told_ == nullptr) return true;
  fences_.push_back({nullptr, issued_});
  recorded_ = issued_;
  return true;
}

void GpuLane::tell_stores_at(const uint64_t* here, uint64_t there) {
  told_ = here;
  told_there_ = there;
}

// Its event at once too: whoever looks later finds it over.
void GpuLane::start() {
  const cuda::Use use;
  if (!use) return;
  cuda::enter(driver_, context_);
  record();
}

cuda::CUevent GpuLane::take_event() {
  cuda::CUevent event = nullptr;
  if (free_events_.empty()) {
    driver_.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING);
  } else {
    event = free_events_.back();
    free_events_.pop_back();
  }
  return event;
}

cuda::CUevent GpuLane::record_event() {
  const cuda::CUevent event = take_event();
  if (event != nullptr && driver_.cuEventRecord(event, stream_) == cuda::CUDA_SUCCESS) return event;
  is_broken_ = true;
  return nullptr;
}

bool GpuLane::record() {
  if (recorded_ == issued_) return true;
  issue_pending();
  const cuda::CUevent event = record_event();
  if (event == nullptr) return false;
  fences_.push_back({event, issued_});
  recorded_ = issued_;
  return true;
}

LaneState GpuLane::look(uint64_t first, uint64_t last) {
  const cuda::Use use;
  if (!use) return LaneState::kBroken;
  cuda::enter(driver_, context_);
  if (is_broken_ || (last > recorded_ && !record())) return LaneState::kBroken;
  pass_fences(last);
  if (is_broken_) return LaneState::kBroken;
  if (done_ < last) return LaneState::kBusy;
  return !refused_.empty() && has_refused(first, last) ? LaneState::kBroken : LaneState::kDone;
}

// A stream that has failed tells nothing any more, an event does.
bool GpuLane::has_passed(Fence& fence) {
  constexpr uint32_t kMostLooks = 4096;
  if (fence.event == nullptr) {
    if (*told_ >= fence.ticket) return true;
    if (++fence.looks >= kMostLooks) fence.event = record_event();
    if (fence.event == nullptr) return false;
  }
  const cuda::CUresult result = driver_.cuEventQuery(fence.event);
  is_broken_ = is_broken_ || (result != cuda::CUDA_SUCCESS && result != cuda::CUDA_ERROR_NOT_READY);
  return result == cuda::CUDA_SUCCESS;
}

// What is done, until the ticket is, or something is not.
void GpuLane::pass_fences(uint64_t ticket) {
  while (done_ < ticket && !fences_.empty()) {
    if (!has_passed(fences_.front())) return;
    done_ = fences_.front().ticket;
    if (fences_.front().event != nullptr) free_events_.push_back(fences_.front().event);
    fences_.pop_front();
  }
}

bool GpuLane::has_refused(uint64_t first, uint64_t last) {
  return std::any_of(refused_.begin(), refused_.end(),
                     [&](const Pending& refused) { return refused.first < last && first < refused.last; });
}

bool GpuLanes::prepare(const cuda::Driver& driver, cuda::CUcontext context) {
  if (find(context) != nullptr) return true;
  auto lane = GpuLane::open(driver, context);
  if (!lane) return false;
  std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
  return true;
}

GpuLane* GpuLanes::find(cuda::CUcontext context) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->context() == context) return lane.get();
  }
  return nullptr;
}

GpuLane* GpuLanes::find_near(const uint8_t* device_uuid) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (memcmp(lane->device().bytes, device_uuid, sizeof(lane->device().bytes)) == 0) return lane.get();
  }
  return lanes_.empty() ? nullptr : lanes_.front().get();
}

}  // namespace verbena::softverbs
