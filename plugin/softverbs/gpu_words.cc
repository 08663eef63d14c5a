#include "softverbs/gpu_words.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "softverbs/clock.h"

namespace verbena::softverbs {
namespace {

uint64_t to_address(uint64_t& cell) {
  return reinterpret_cast<uint64_t>(&cell);
}

}  // namespace

// As long as the process: CUDA may end before or behind us.
GpuWords::GpuWords(const cuda::Driver& driver, cuda::CUcontext context) {
  constexpr size_t kPage = 4096;
  constexpr size_t kBytes = (sizeof(Cells) + kPage - 1) / kPage * kPage;
  void* const memory = aligned_alloc(kPage, kBytes);
  if (memory == nullptr) throw std::bad_alloc();
  cells_ = new (memory) Cells{};
  const cuda::Scope scope(driver, context);
  const unsigned flags = cuda::CU_MEMHOSTREGISTER_PORTABLE | cuda::CU_MEMHOSTREGISTER_DEVICEMAP;
  const bool is_mapped = driver.cuMemHostRegister_v2(memory, kBytes, flags) == cuda::CUDA_SUCCESS &&
                         driver.cuMemHostGetDevicePointer_v2 != nullptr &&
                         driver.cuMemHostGetDevicePointer_v2(&cells_there_, memory, 0) == cuda::CUDA_SUCCESS;
  if (!is_mapped) cells_there_ = 0;
}

void GpuWords::tell_stores(GpuLane& lane) {
  if (lane.tells_stores() || cells_there_ == 0 || count_told_ == cells_->told.size()) return;
  const uint64_t& cell = cells_->told[count_told_++];
  const uint64_t offset = reinterpret_cast<uint64_t>(&cell) - reinterpret_cast<uint64_t>(cells_);
  lane.tell_stores_at(&cell, cells_there_ + offset);
}

GpuWord& GpuWords::enter(uint64_t address, GpuLane& lane) {
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
  tell_stores(lane);
  found->address = address;
  found->lane = &lane;
  found->users = 1;
  load(*found);
  return *found;
}

void GpuWords::leave(GpuWord& word) {
  --word.users;
}

void GpuWords::load(GpuWord& word) {
  uint64_t& cell = cells_->loaded[word.cell];
  static_cast<volatile uint64_t&>(cell) = kNotLoaded;
  word.is_known = false;
  word.load_began_ns = read_clock_ns();
  word.looks = 0;
  word.first = word.lane->ticket();
  word.lane->copy({to_address(cell), word.address, sizeof(cell), to_address(cell)});
  word.last = word.lane->ticket();
  word.lane->issue_pending();
}

LaneState GpuWords::look(GpuWord& word) {
  if (word.is_known) return LaneState::kDone;
  const volatile uint64_t& cell = cells_->loaded[word.cell];
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

void GpuWords::store(GpuLane& lane, std::span<const WordStore> words, uint32_t user) {
  if (words.empty() || lane.store_words(words)) return;
  for (size_t i = 0; i < words.size(); ++i) {
    uint64_t& cell = cells_->stored[user][i];
    cell = words[i].value;
    lane.copy({words[i].to, to_address(cell), sizeof(cell), to_address(cell)});
  }
}

}  // namespace verbena::softverbs
