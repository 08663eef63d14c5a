#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "softverbs/cuda_driver.h"

namespace verbena::softverbs {

enum class LaneState { kBusy, kDone, kBroken };

// What a word of host memory is until a copy has filled it: CUDA tells that a copy is done 3 us after its
// bytes are there. They may have this value too; then CUDA's word counts.
inline constexpr uint64_t kNotLoaded = 0xb5ad4eceda1ce2a9;
inline constexpr uint32_t kLooksPerQuery = 16;

// `origin` names the registrations at both ends: what continues a copy of another origin may lie in another
// allocation, and no call copies across that border. `may_overtake`: nobody looks at its bytes before a
// completion says that they are there, as with what a receive takes.
struct GpuCopy {
  uint64_t to, from, bytes;
  uint64_t origin;
  bool may_overtake = false;
};

struct WordStore {
  uint64_t to, value;
};

// A private stream on which one thread issues copies in order. Work is known by tickets: each copy takes the
// next one, and a lane that has come to a ticket is done with all before. Copies that continue each other
// become one, and all that were issued between two looks share one event.
class GpuLane {
 public:
  // nullptr when CUDA refuses. Called where blocking is allowed.
  static std::unique_ptr<GpuLane> open(const cuda::Driver& driver, cuda::CUcontext context);

  cuda::CUcontext context() const { return context_; }
  const cuda::CUuuid& device() const { return device_; }

  // All below: by the lane's thread only.
  void copy(const GpuCopy& copy);
  // Stores aligned words in this order as the stream's next work, and takes a ticket; sooner there than
  // copies. At most kMostStores. False when CUDA has no such call, or refuses.
  bool store_words(std::span<const WordStore> words);
  static constexpr size_t kMostStores = 7;
  // A word of host memory that the stream writes behind such words, to tell that they are done: it is seen
  // sooner than an event, and without a call that other threads of the context wait for. `here` and `there`:
  // its address for this process and for CUDA.
  void tell_stores_at(const uint64_t* here, uint64_t there);
  bool tells_stores() const { return told_ != nullptr; }
  uint64_t ticket() const { return issued_; }  // of the latest copy
  // Gives CUDA what waited for something to continue it; that much of it goes at once.
  void start();
  // The same, for who looks elsewhere first whether it is done.
  void issue_pending();
  // Whether the copies (first, last] are done; broken when CUDA refused one of them, but not before all have
  // ended.
  LaneState look(uint64_t first, uint64_t last);

 private:
  struct Fence {
    cuda::CUevent event;  // null: the stream tells it
    uint64_t ticket;
    uint32_t looks = 0;
  };
  struct Pending {
    GpuCopy copy;
    uint64_t first, last;  // tickets (first, last]
  };
  GpuLane(const cuda::Driver& driver, cuda::CUcontext context) : driver_(driver), context_(context) {}
  void join(const GpuCopy& copy, uint64_t ticket);
  bool disturbs_pending(const GpuCopy& copy) const;
  bool is_worth_a_batch() const;
  bool issue_as_batch();
  bool record();
  cuda::CUevent record_event();
  bool has_passed(Fence& fence);
  void pass_fences(uint64_t ticket);
  cuda::CUevent take_event();
  bool has_refused(uint64_t first, uint64_t last);

  const cuda::Driver& driver_;
  const cuda::CUcontext context_;
  cuda::CUuuid device_{};
  cuda::CUstream stream_ = nullptr;
  std::vector<cuda::CUevent> free_events_;
  std::deque<Fence> fences_;      // oldest first
  std::vector<Pending> pending_;  // not yet given to CUDA
  uint64_t pending_bytes_ = 0;
  std::vector<Pending> refused_;
  // Of a batch; they keep their capacity.
  std::vector<cuda::CUdeviceptr> to_, from_;
  std::vector<size_t> bytes_;
  const volatile uint64_t* told_ = nullptr;
  uint64_t told_there_ = 0;
  uint64_t issued_ = 0, recorded_ = 0, done_ = 0;
  bool uses_batches_ = false;
  bool is_broken_ = false;  // the context itself
};

// The lanes of one thread, by context. Others may add to them.
class GpuLanes {
 public:
  // Opens the lane of a context unless it is open. False when CUDA refuses.
  bool prepare(const cuda::Driver& driver, cuda::CUcontext context);
  GpuLane* find(cuda::CUcontext context);
  // A lane on that device, else any; nullptr when there is none.
  GpuLane* find_near(const uint8_t* device_uuid);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuLane>> lanes_;
};

}  // namespace verbena::softverbs
