// The application's end of a lane: a ring of copies that the copier carries out in order
// (copier/protocol.h has the ring).
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "softverbs/gpu/copier.h"

namespace verbena::softverbs {

enum class LaneState { kBusy, kDone, kBroken };

// The value of a word of host memory until a copy has filled it: a lane tells that a copy is done some
// microseconds after its bytes are there. They may have this value too; then the lane's word counts.
inline constexpr uint64_t kNotLoaded = 0xb5ad4eceda1ce2a9;
inline constexpr uint32_t kLooksPerQuery = 16;

// `origin` names the registrations at both ends: what continues a copy of another origin may lie in another
// allocation, and no call copies across that border. `may_overtake`: nobody looks at its bytes before a
// completion says that they are there, as with what a receive takes.
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

// Returns the area address of memory in our segment.
AreaAddress address_segment(const void* memory);

// A ring to the copier, by which one thread issues copies in order. Work is known by tickets: each copy takes
// the next one, and a lane that has come to a ticket is done with all before. Copies that continue each other
// become one. From and to memory of this process (kThisProcess) a lane copies through a stage that the copier
// maps: bytes that go to the GPU are taken when the copy is issued or looked at, and bytes for this process
// are there when a look finds the copy done.
class GpuLane {
 public:
  // nullptr, with `why`, when the copier refuses. Called where blocking is allowed.
  static std::unique_ptr<GpuLane> open(Copier& copier, uint32_t device, std::string& why);

  uint32_t device() const { return device_; }

  // All below: by the lane's thread only.
  void copy(const GpuCopy& copy);
  // Stores aligned words in this order as the lane's next work, and takes a ticket; sooner there than copies.
  // At most kMostStores.
  void store_words(std::span<const WordStore> words);
  static constexpr size_t kMostStores = copier::kMaxWords;
  uint64_t ticket() const { return issued_; }  // of the latest copy
  // Gives the copier what waited for something to continue it.
  void start();
  // Whether the copies (first, last] are done; broken when one of them was refused, but not before all have
  // ended, or when the copier has ended.
  LaneState look(uint64_t first, uint64_t last);

 private:
  // Copies that are not yet given to the copier, or not all of their bytes. Words to store instead, if there
  // are any.
  struct Work {
    GpuCopy copy;
    uint64_t first, last;  // tickets (first, last]
    uint32_t group = 0;
    uint64_t handed_bytes = 0;
    std::vector<WordStore> words;
  };
  // A slot of the ring that the copier has.
  struct Handed {
    uint64_t first, last;
    bool is_whole;          // the last of its tickets
    uint64_t staged_bytes;  // of the stage
    const uint8_t* stage;   // what is copied out when it is done; null: nothing is
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
  std::vector<Work> pending_;  // may still be continued
  uint64_t pending_bytes_ = 0;
  std::deque<Work> queue_;
  std::deque<Handed> handed_;  // slots [reaped_, tail_)
  uint64_t tail_ = 0, reaped_ = 0;
  uint64_t stage_taken_ = 0, stage_free_ = 0;           // they count bytes
  std::vector<std::pair<uint64_t, uint64_t>> refused_;  // tickets (first, last]
  uint64_t issued_ = 0, done_ = 0;
  uint32_t group_ = 0;
};

// The lanes of one thread, by device. Others may add to them.
class GpuLanes {
 public:
  // Opens the lane of a device unless it is open. False when the copier refuses.
  bool prepare(Copier& copier, uint32_t device);
  GpuLane* find(uint32_t device);
  // Any; nullptr when there is none.
  GpuLane* find_any();

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuLane>> lanes_;
};

}  // namespace verbena::softverbs
