#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/cuda_driver.h"

namespace verbena::softverbs {

enum class LaneState { kBusy, kDone, kBroken };

// `origin` names the registrations at both ends: what continues a copy of another origin may lie in another
// allocation, and no call copies across that border. `may_overtake`: nobody looks at its bytes before a
// completion says that they are there, as with what a receive takes.
struct GpuCopy {
  uint64_t to, from, bytes;
  uint64_t origin;
  bool may_overtake = false;
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
  // Stores an aligned word as the stream's next work, and takes a ticket; sooner there than a copy. False
  // when CUDA has no such call, or refuses.
  bool store_word(uint64_t to, uint64_t value);
  uint64_t ticket() const { return issued_; }  // of the latest copy
  // Gives CUDA what waited for something to continue it; that much of it goes at once.
  void start();
  // Whether the copies (first, last] are done; broken when CUDA refused one of them, but not before all have
  // ended.
  LaneState look(uint64_t first, uint64_t last);
  // Whether all copies up to this ticket have ended, as far as what was started tells: starts nothing.
  bool has_ended(uint64_t ticket);

 private:
  struct Fence {
    cuda::CUevent event;
    uint64_t ticket;
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
  void issue_pending();
  bool record();
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
