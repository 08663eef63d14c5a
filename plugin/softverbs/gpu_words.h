#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "softverbs/gpu_lane.h"
#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// A word of our GPU memory that peers change. Its value is known from when it was loaded until nobody has a
// change of it under way: then the application may write it.
struct GpuWord {
  uint64_t address = 0;
  GpuLane* lane = nullptr;
  uint64_t value = 0;
  bool is_known = false;
  uint64_t load_began_ns = 0;
  uint64_t first = 0, last = 0;  // tickets of the load
  uint32_t looks = 0;            // since it began
  uint32_t users = 0;
  uint32_t cell = 0;
};

// The owner's thread only. All loads and stores of a word go through one lane, so that a load finds what was
// stored before it.
class GpuWords {
 public:
  // Pinned for all contexts by the first one's call, if CUDA does not refuse.
  GpuWords(const cuda::Driver& driver, cuda::CUcontext context);

  // At most kGpuRequests users at a time, each for one word. The first one of a word begins its load.
  GpuWord& enter(uint64_t address, GpuLane& lane);
  void leave(GpuWord& word);
  void load(GpuWord& word);
  // Whether the value is known: busy until then.
  LaneState look(GpuWord& word);
  static constexpr uint32_t kStoresOfAChange = 1 + kCarriedWords;
  static_assert(kStoresOfAChange <= GpuLane::kMostStores);
  // Stores words in this order as the lane's next work. `user` has nothing under way.
  void store(GpuLane& lane, std::span<const WordStore> words, uint32_t user);

 private:
  // What copies load to and store from.
  struct Cells {
    std::array<uint64_t, kGpuRequests> loaded;
    std::array<std::array<uint64_t, kStoresOfAChange>, kGpuRequests> stored;
    std::array<uint64_t, 32> told;  // by lane
  };
  void tell_stores(GpuLane& lane);

  Cells* cells_;
  cuda::CUdeviceptr cells_there_ = 0;  // for CUDA; 0 if it does not know them
  size_t count_told_ = 0;
  std::deque<GpuWord> words_;  // they keep their addresses; those without users are free
};

}  // namespace verbena::softverbs
