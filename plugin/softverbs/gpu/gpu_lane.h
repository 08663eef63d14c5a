// The application's side of a lane: a ring of copies that the copier executes in order (copier/protocol.h
// defines the ring).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "softverbs/gpu/copier.h"

namespace verbena::softverbs {

enum class LaneState { kBusy, kDone, kBroken };

// The value of a word of host memory before a copy fills it. If the word has changed, the data has
// arrived; the lane reports the copy as complete some microseconds later. If the data itself has this value,
// only the lane's report counts.
inline constexpr uint64_t kNotLoaded = 0xb5ad4eceda1ce2a9;
inline constexpr uint32_t kLooksPerQuery = 16;

// `origin` identifies the registrations on both sides. Copies with different origins are never joined,
// because they may be in different allocations, and one call cannot copy across allocations. `may_overtake`
// is true if nothing reads the bytes before the completion, as for a receive.
struct GpuCopy {
  AreaAddress to, from;
  uint64_t bytes;
  uint64_t origin;
  bool may_overtake = false;
};

struct WordStore {
  AreaAddress to;
  uint64_t value;
};

// Returns the area address of memory in this process's segment.
AreaAddress address_segment(const void* memory);

// A ring to the copier, through which one thread issues copies in order. Each copy gets the next ticket. When
// a lane has reached a ticket, all copies up to this ticket are complete. Consecutive copies are joined. For
// memory of this process (kThisProcess) a lane copies through a stage that the copier maps: data for the GPU
// is read when the copy is issued or polled, and data for this process is written when a poll finds the copy
// complete.
class GpuLane {
 public:
  // Opens a lane. Returns nullptr, with the reason in `why`, if the copier fails. May block.
  static std::unique_ptr<GpuLane> open(Copier& copier, uint32_t device, std::string& why);

  uint32_t device() const { return device_; }

  // Only the lane's thread may call the functions below.
  void copy(const GpuCopy& copy);
  // Stores at most kMostStores aligned words in this order, as the lane's next work; ticket() then returns
  // its ticket. Stores are faster than a copy.
  void store_words(std::span<const WordStore> words);
  static constexpr size_t kMostStores = copier::kMaxWords;
  uint64_t ticket() const { return issued_; }  // of the latest copy
  // Passes those copies to the copier that were held back to be joined with later copies.
  void start();
  // Returns whether the copies (first, last] are complete. Returns kBroken if the copier has exited, or if a
  // copy was rejected and all these copies have ended.
  LaneState look(uint64_t first, uint64_t last);

 private:
  // Copies of which not all bytes were passed to the copier, or words to store.
  struct Work {
    GpuCopy copy;
    uint64_t first, last;  // tickets (first, last]
    uint32_t group = 0;
    uint64_t handed_bytes = 0;
    std::vector<WordStore> words;
  };
  // A slot of the ring that was passed to the copier.
  struct Handed {
    uint64_t first, last;
    bool is_whole;          // contains the last bytes of its tickets
    uint64_t staged_bytes;  // of the stage
    const uint8_t* stage;   // bytes that are copied to `out` when the copy is done; null if there are none
    AreaAddress out;
    uint64_t out_bytes;
  };
  GpuLane(Copier& copier, uint32_t device, copier::SharedLane& shared)
      : copier_(copier), device_(device), shared_(shared) {}
  void join(const GpuCopy& copy, uint64_t ticket);
  bool disturbs_pending(const GpuCopy& copy) const;
  void queue_pending();
  void feed();
  bool hand(Work& work);
  uint8_t* take_stage(uint64_t bytes, uint64_t& taken);
  void reap();
  bool has_refused(uint64_t first, uint64_t last) const;

  Copier& copier_;
  const uint32_t device_;
  copier::SharedLane& shared_;
  std::vector<Work> pending_;  // may still be joined with later copies
  uint64_t pending_bytes_ = 0;
  std::deque<Work> queue_;
  std::deque<Handed> handed_;  // slots [reaped_, tail_)
  uint64_t tail_ = 0, reaped_ = 0;
  uint64_t stage_taken_ = 0, stage_free_ = 0;           // counters of bytes
  std::vector<std::pair<uint64_t, uint64_t>> refused_;  // tickets (first, last]
  uint64_t issued_ = 0, done_ = 0;
  uint32_t group_ = 0;
};

// The lanes of one thread, by device. Other threads may add lanes.
class GpuLanes {
 public:
  // Opens the lane of a device unless it is open. Returns false if the copier fails.
  bool prepare(Copier& copier, uint32_t device);
  GpuLane* find(uint32_t device);
  // Returns any lane; nullptr if there is none.
  GpuLane* find_any();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuLane>> lanes_;
};

}  // namespace verbena::softverbs
