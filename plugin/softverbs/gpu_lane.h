#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/cuda_driver.h"

namespace verbena::softverbs {

enum class LaneState { kBusy, kDone, kBroken };

// A private stream on which one thread issues copies in order. Work is known by tickets: each copy takes the
// next one, and a lane that has come to a ticket is done with all before. Copies that continue each other
// become one, and all that were issued between two looks share one event.
class GpuLane {
 public:
  // nullptr when CUDA refuses. Called where blocking is allowed.
  static std::unique_ptr<GpuLane> open(const cuda::Driver& driver, cuda::Context context);

  cuda::Context context() const { return context_; }
  const cuda::Uuid& device() const { return device_; }

  // All below: by the lane's thread only.
  bool copy(uint64_t to, uint64_t from, uint64_t bytes);  // false: CUDA refused
  uint64_t ticket() const { return issued_; }             // of the latest copy
  LaneState look(uint64_t ticket);

 private:
  struct Fence {
    cuda::Event event;
    uint64_t ticket;
  };
  GpuLane(const cuda::Driver& driver, cuda::Context context) : driver_(driver), context_(context) {}
  bool issue_pending();
  bool record();
  cuda::Event take_event();

  const cuda::Driver& driver_;
  const cuda::Context context_;
  cuda::Uuid device_{};
  cuda::Stream stream_ = nullptr;
  std::vector<cuda::Event> free_events_;
  std::deque<Fence> fences_;  // oldest first
  uint64_t issued_ = 0, recorded_ = 0, done_ = 0;
  bool is_broken_ = false;
  // A copy that waits for one that continues it.
  uint64_t pending_to_ = 0, pending_from_ = 0, pending_bytes_ = 0;
};

// The lanes of one thread, by context. Others may add to them.
class GpuLanes {
 public:
  // Opens the lane of a context unless it is open. False when CUDA refuses.
  bool prepare(const cuda::Driver& driver, cuda::Context context);
  GpuLane* find(cuda::Context context);
  // A lane on that device, else any; nullptr when there is none.
  GpuLane* find_near(const uint8_t* device_uuid);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<GpuLane>> lanes_;
};

}  // namespace verbena::softverbs
