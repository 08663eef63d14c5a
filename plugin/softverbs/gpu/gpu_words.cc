#include "softverbs/gpu/gpu_words.h"

#include <algorithm>
#include <new>
#include <string>

#include "softverbs/engine/process.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs {

GpuWords::GpuWords(Process& process) {
  constexpr uint64_t kBytes = 4096;  // whole pages can be pinned
  static_assert(kGpuRequests * sizeof(uint64_t) <= kBytes);
  const uint64_t offset = process.arena().allocate(kBytes);
  if (offset == 0) throw std::bad_alloc();
  cells_ = process.segment().at<uint64_t>(offset);
  std::string why;  // on failure the memory stays pageable, which is slower but correct
  process.copier.pin(copier::kOwnSegment, offset, kBytes, why);
}

GpuWord& GpuWords::enter(uint64_t address, const AreaAddress& place, GpuLane& lane) {
  const auto is_it = [&](const GpuWord& word) { return word.users != 0 && word.address == address; };
  auto found = std::find_if(words_.begin(), words_.end(), is_it);
  if (found != words_.end()) {
    ++found->users;
    return *found;
  }
  found = std::find_if(words_.begin(), words_.end(), [](const GpuWord& word) { return word.users == 0; });
  if (found == words_.end()) {
    const auto cell = static_cast<uint32_t>(words_.size());
    words_.emplace_back().cell = cell;
    found = words_.end() - 1;
  }
  found->address = address;
  found->place = place;
  found->lane = &lane;
  found->users = 1;
  load(*found);
  return *found;
}

void GpuWords::leave(GpuWord& word) {
  --word.users;
}

void GpuWords::load(GpuWord& word) {
  uint64_t& cell = cells_[word.cell];
  static_cast<volatile uint64_t&>(cell) = kNotLoaded;
  word.is_known = false;
  word.load_began_ns = read_clock_ns();
  word.looks = 0;
  word.first = word.lane->ticket();
  const AreaAddress to = address_segment(&cell);
  word.lane->copy({to, word.place, sizeof(cell), to.offset});
  word.last = word.lane->ticket();
  word.lane->start();
}

LaneState GpuWords::look(GpuWord& word) {
  if (word.is_known) return LaneState::kDone;
  const volatile uint64_t& cell = cells_[word.cell];
  LaneState state = LaneState::kBusy;
  if (cell != kNotLoaded) {
    state = LaneState::kDone;
  } else if (++word.looks % kLooksPerQuery == 0) {
    state = word.lane->look(word.first, word.last);
  }
  word.is_known = state == LaneState::kDone;
  if (word.is_known) word.value = cell;
  return state;
}

}  // namespace verbena::softverbs
