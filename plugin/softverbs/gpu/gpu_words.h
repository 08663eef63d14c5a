// The words of this process's GPU memory for which atomic changes by peers are outstanding.
#pragma once

#include <cstdint>
#include <deque>

#include "softverbs/gpu/gpu_lane.h"
#include "softverbs/shared/shared_layout.h"

namespace verbena::softverbs {

class Process;

// A word in GPU memory that peers change. The value of the word is cached from the load of the word until no
// change is outstanding. Afterwards the application may write the word.
struct GpuWord {
  uint64_t address = 0;
  AreaAddress place;
  GpuLane* lane = nullptr;
  uint64_t value = 0;
  bool is_known = false;
  uint64_t load_began_ns = 0;
  uint64_t first = 0, last = 0;  // tickets of the load
  uint32_t looks = 0;            // number of polls since it began
  uint32_t users = 0;
  uint32_t cell = 0;
};

// Only the owner's thread uses this class. All loads and stores of a word go through one lane, so that a load
// returns the latest store.
class GpuWords {
 public:
  // Copies load the values into this process's segment. Throws std::bad_alloc.
  explicit GpuWords(Process& process);

  // Adds a user of a word; at most kGpuRequests users at a time. The first user of a word begins its load.
  GpuWord& enter(uint64_t address, const AreaAddress& place, GpuLane& lane);
  void leave(GpuWord& word);
  void load(GpuWord& word);
  // Returns whether the value is known. Until then the word is busy.
  LaneState look(GpuWord& word);
  static constexpr uint32_t kStoresOfAChange = 1 + kCarriedWords;
  static_assert(kStoresOfAChange <= GpuLane::kMostStores);

 private:
  uint64_t* cells_;            // one for each word
  std::deque<GpuWord> words_;  // addresses do not change; words without users are free
};

}  // namespace verbena::softverbs
