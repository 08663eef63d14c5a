#include "softverbs/gpu/gpu_lane.h"

#include <algorithm>
#include <new>

#include "softverbs/engine/process.h"
#include "softverbs/shared/config.h"
#include "softverbs/shared/copy.h"

namespace verbena::softverbs {
namespace {

constexpr size_t kMaxBatch = 64;
// Above this length, copies are passed to the copier without waiting for more. A long sequence of copies can
// then be reported in parts, and followed by new copies.
constexpr uint64_t kManyBytes = 1 << 20;
constexpr uint64_t kStagePiece = copier::kStageBytes / 4;

}  // namespace

AreaAddress address_segment(const void* memory) {
  const auto* const begin = Process::get()->segment().at<uint8_t>(0);
  return {copier::kOwnSegment, static_cast<uint64_t>(static_cast<const uint8_t*>(memory) - begin)};
}

std::unique_ptr<GpuLane> GpuLane::open(Copier& copier, uint32_t device, std::string& why) {
  Process& process = *Process::get();
  const uint64_t offset = process.arena().allocate(sizeof(copier::SharedLane));
  if (offset == 0) {
    why = "no shared memory is left";
    return nullptr;
  }
  auto& shared = *new (process.segment().at<uint8_t>(offset)) copier::SharedLane;  // zeroed by the arena
  if (!copier.open_lane(device, offset, why)) {
    process.arena().free(offset);
    return nullptr;
  }
  return std::unique_ptr<GpuLane>(new GpuLane(copier, device, shared));
}

void GpuLane::copy(const GpuCopy& copy) {
  const uint64_t ticket = issued_++;
  join(copy, ticket);
  pending_bytes_ += copy.bytes;
  if (pending_bytes_ >= kManyBytes) start();
}

void GpuLane::join(const GpuCopy& copy, uint64_t ticket) {
  if (!pending_.empty()) {
    Work& latest = pending_.back();
    const bool continues = latest.copy.origin == copy.origin &&
                           latest.copy.to + latest.copy.bytes == copy.to &&
                           latest.copy.from + latest.copy.bytes == copy.from;
    // A copy that must keep its order does not join a batch.
    const bool keeps_order = copy.may_overtake || pending_.size() == 1;
    if (continues && keeps_order && !disturbs_pending(copy)) {
      latest.copy.bytes += copy.bytes;
      latest.last = issued_;
      return;
    }
  }
  const bool joins_batch =
      get_config().gpu_batches && copy.may_overtake && pending_.size() < kMaxBatch && !disturbs_pending(copy);
  if (!joins_batch) queue_pending();
  pending_.push_back({copy, ticket, issued_, group_, 0, {}});
}

// The copies of one batch may happen in any order. A write that peers poll is therefore the first of its
// batch: by then all earlier copies are complete.
bool GpuLane::disturbs_pending(const GpuCopy& copy) const {
  const auto overlap = [](const AreaAddress& a, uint64_t a_bytes, const AreaAddress& b, uint64_t b_bytes) {
    return a.area == b.area && a.offset < b.offset + b_bytes && b.offset < a.offset + a_bytes;
  };
  return std::any_of(pending_.begin(), pending_.end(), [&](const Work& pending) {
    const GpuCopy& other = pending.copy;
    return overlap(copy.to, copy.bytes, other.to, other.bytes) ||
           overlap(copy.to, copy.bytes, other.from, other.bytes) ||
           overlap(copy.from, copy.bytes, other.to, other.bytes);
  });
}

void GpuLane::queue_pending() {
  if (!pending_.empty()) copier_.count_group(pending_.size());
  std::move(pending_.begin(), pending_.end(), std::back_inserter(queue_));
  pending_.clear();
  pending_bytes_ = 0;
  ++group_;
}

void GpuLane::store_words(std::span<const WordStore> words) {
  queue_pending();
  const uint64_t ticket = issued_++;
  queue_.push_back({{}, ticket, issued_, group_++, 0, {words.begin(), words.end()}});
  feed();
}

void GpuLane::start() {
  queue_pending();
  feed();
}

// Passes on the copies for which there is space, in order.
void GpuLane::feed() {
  const uint64_t before = tail_;
  while (!queue_.empty() && tail_ - reaped_ < copier::kLaneSlots) {
    Work& work = queue_.front();
    if (!hand(work)) break;
    if (handed_.back().is_whole) queue_.pop_front();
  }
  if (tail_ == before) return;
  shared_.tail.store(tail_);  // sequentially consistent with the copier's going to sleep
  copier_.wake(device_);
}

uint8_t* GpuLane::take_stage(uint64_t bytes, uint64_t& taken) {
  constexpr uint64_t kLine = 64;
  const uint64_t rounded = (bytes + kLine - 1) / kLine * kLine;
  const uint64_t at = stage_taken_ % copier::kStageBytes;
  const uint64_t skipped = at + rounded > copier::kStageBytes ? copier::kStageBytes - at : 0;
  if (stage_taken_ + skipped + rounded - stage_free_ > copier::kStageBytes) return nullptr;
  taken = skipped + rounded;
  uint8_t* const stage = shared_.stage + (stage_taken_ + skipped) % copier::kStageBytes;
  stage_taken_ += taken;
  return stage;
}

// Writes the next bytes of a copy, or words, into a slot. Returns false if the stage has no space.
bool GpuLane::hand(Work& work) {
  const bool is_in = work.copy.from.area == kThisProcess, is_out = work.copy.to.area == kThisProcess;
  AreaAddress to = work.copy.to + work.handed_bytes, from = work.copy.from + work.handed_bytes;
  uint64_t take = work.copy.bytes - work.handed_bytes;
  Handed handed{work.first, work.last, true, 0, nullptr, {}, 0};
  if (is_in || is_out) {
    take = std::min(take, kStagePiece);
    uint8_t* const stage = take_stage(take, handed.staged_bytes);
    if (stage == nullptr) return false;
    if (is_in) {
      copy_inorder(stage, reinterpret_cast<const void*>(from.offset), take);
      from = address_segment(stage);
    }
    if (is_out) {
      handed.stage = stage;
      handed.out = to;
      handed.out_bytes = take;
      to = address_segment(stage);
    }
  }
  work.handed_bytes += take;
  handed.is_whole = work.handed_bytes == work.copy.bytes;
  copier::LaneSlot& slot = shared_.slots[tail_ % copier::kLaneSlots];
  slot.kind = work.words.empty() ? copier::kCopyBytes : copier::kStoreWords;
  slot.group = work.group;
  slot.to_area = to.area;
  slot.to = to.offset;
  slot.from_area = from.area;
  slot.from = from.offset;
  slot.bytes = take;
  slot.word_count = static_cast<uint32_t>(work.words.size());
  for (size_t i = 0; i < work.words.size(); ++i)
    slot.words[i] = {work.words[i].to.offset, work.words[i].value, work.words[i].to.area, 0};
  slot.status.store(copier::kCopied, std::memory_order_relaxed);
  handed_.push_back(handed);
  ++tail_;
  return true;
}

// Takes back the slots that the copier has completed.
void GpuLane::reap() {
  const uint64_t done = shared_.done.load(std::memory_order_acquire);
  while (reaped_ < done && !handed_.empty()) {
    const Handed& handed = handed_.front();
    const copier::LaneSlot& slot = shared_.slots[reaped_ % copier::kLaneSlots];
    if (slot.status.load(std::memory_order_acquire) != copier::kCopied) {
      refused_.emplace_back(handed.first, handed.last);
    } else if (handed.stage != nullptr) {
      copy_inorder(reinterpret_cast<void*>(handed.out.offset), handed.stage, handed.out_bytes);
    }
    stage_free_ += handed.staged_bytes;
    if (handed.is_whole) done_ = handed.last;
    handed_.pop_front();
    ++reaped_;
  }
}

LaneState GpuLane::look(uint64_t first, uint64_t last) {
  reap();
  if (done_ < last) {
    // These copies will never complete.
    if (copier_.is_dead() || shared_.is_broken.load(std::memory_order_acquire) != 0)
      return LaneState::kBroken;
    if (!pending_.empty() && last > pending_.front().first) queue_pending();
    feed();
    return LaneState::kBusy;
  }
  return !refused_.empty() && has_refused(first, last) ? LaneState::kBroken : LaneState::kDone;
}

bool GpuLane::has_refused(uint64_t first, uint64_t last) const {
  return std::any_of(refused_.begin(), refused_.end(),
                     [&](const auto& refused) { return refused.first < last && first < refused.second; });
}

bool GpuLanes::prepare(Copier& copier, uint32_t device) {
  if (find(device) != nullptr) return true;
  std::string why;
  auto lane = GpuLane::open(copier, device, why);
  if (!lane) {
    warn("the copier process cannot serve a queue pair: %s", why.c_str());
    return false;
  }
  std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
  return true;
}

GpuLane* GpuLanes::find(uint32_t device) {
  std::lock_guard lock(mutex_);
  for (const auto& lane : lanes_) {
    if (lane->device() == device) return lane.get();
  }
  return nullptr;
}

GpuLane* GpuLanes::find_any() {
  std::lock_guard lock(mutex_);
  return lanes_.empty() ? nullptr : lanes_.front().get();
}

}  // namespace verbena::softverbs
