// A rail's pinned memory, for copies of GPU memory that cannot be mapped.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "softverbs/gpu/copier.h"

namespace verbena::softverbs {

inline constexpr uint64_t kStageBytes = 512 << 10;
inline constexpr uint32_t kStages = 4;
inline constexpr uint64_t kWordsBytes = 4096;  // behind the stages
inline constexpr uint64_t kStagingBytes = kStages * kStageBytes + kWordsBytes;

// The staging block of one rail. The block is in this process's segment, so that owners of GPU memory can
// also access it. The first thread that needs the block calls open(); the other functions need an earlier
// open().
class StagingBlock {
 public:
  // Allocates the block at the first call. Returns false if there is no memory.
  bool open();
  // Pins the block for CUDA, so that copies are asynchronous.
  void pin(Copier& copier);

  uint64_t offset() const { return offset_; }  // in the segment
  uint64_t stage_offset(uint32_t stage) const { return offset_ + stage * kStageBytes; }
  uint8_t* stage(uint32_t index) const;
  // Allocates memory for kCarriedWords words, for the rail's worker. Returns nullptr while none is left.
  uint64_t* take_words();
  void give_back(uint64_t* words) { free_words_.push_back(words); }

 private:
  bool allocate();  // needs the mutex

  std::mutex mutex_;
  uint64_t offset_ = 0;  // does not change once set
  std::vector<uint64_t*> free_words_;
  bool has_words_ = false;
  bool is_pinned_ = false;
};

// Pinned memory of one rail for datagrams from a GPU to host memory of another process. Each send queue takes
// a part of it.
class DatagramStages {
 public:
  static constexpr uint64_t kPartBytes = 512 << 10;

  // Allocates and pins the memory at the first call. May block, so call it when memory is registered.
  void pin(Copier& copier);
  // Returns nullptr if no memory is left.
  uint8_t* take();
  void give_back(uint8_t* part);

 private:
  static constexpr size_t kParts = 16;

  std::mutex mutex_;
  std::vector<uint8_t*> free_;
  bool is_pinned_ = false;
};

}  // namespace verbena::softverbs
