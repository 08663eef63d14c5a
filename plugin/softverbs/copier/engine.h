// A GPU of the copier: its context, its thread, and the lanes that the thread serves.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softverbs/copier/area.h"
#include "softverbs/copier/copy_stream.h"
#include "softverbs/copier/ways.h"

namespace verbena::softverbs::copier {

// One lane of the application: its ring, the copier's stream, and pinned memory for copies through the host.
struct Lane {
  Lane(const Driver& driver, SharedLane& its_shared) : shared(its_shared), stream(driver) {}

  // A point in the lane's work. When the point is reached, all earlier work is done.
  struct Fence {
    CUevent event;     // null: the stream stores `slots` into shared.done
    uint64_t slots;    // slots before this one are done
    uint64_t bounced;  // and the bounce memory before this offset is free
    uint64_t since_ns;
    uint32_t looks = 0;
  };

  SharedLane& shared;
  CopyStream stream;
  CUdeviceptr done_there = 0;  // shared.done, for the GPU
  bool is_told = false;
  uint64_t taken = 0;        // slots passed to the driver
  uint64_t taken_bytes = 0;  // bytes of the next slot that were already passed; slots are copied in pieces
  uint64_t fenced = 0, fenced_bounce = 0;
  std::deque<Fence> fences;  // oldest first
  std::vector<CUevent> free_events;
  uint8_t* bounce = nullptr;
  uint64_t bounce_taken = 0, bounce_free = 0;  // counters of bytes
  uint8_t* word = nullptr;  // a word to be stored, in the bounce memory, while it is being copied to the host
  uint64_t word_bounced = 0;
  uint64_t done = 0;
  bool is_broken = false;
};

// A GPU: its context, and the thread that serves its lanes.
class Engine {
 public:
  // Returns nullptr, with the reason in `why`, on failure.
  static std::unique_ptr<Engine> open(const Driver& driver, const AreaTable& areas, uint32_t index,
                                      CUdevice device, SharedEngine& shared, uint64_t spin_ns,
                                      std::string& why);
  CUcontext context() const { return context_; }
  CUdevice device() const { return device_; }
  const CUuuid& uuid() const { return uuid_; }

  // Called by the command thread, with the context current.
  bool add_lane(SharedLane& shared, std::string& why);
  // Waits until all earlier copies are done. Returns false after ten seconds.
  bool quiesce();

 private:
  // Copies of one group that are passed to the driver in one call.
  struct Batch {
    std::vector<CUdeviceptr> to, from;
    std::vector<size_t> bytes;
    std::vector<LaneSlot*> slots;
    uint32_t group = 0;
  };
  struct Until {
    Lane* lane;
    uint64_t slots, bounced;
  };
  class InCall;

  Engine(const Driver& driver, const AreaTable& areas, uint32_t index, CUdevice device, SharedEngine& shared,
         uint64_t spin_ns);
  void work();
  static void nap();
  bool serve(Lane& lane);
  bool take(Lane& lane);
  bool execute(Lane& lane, LaneSlot& slot);
  bool execute_copy(Lane& lane, LaneSlot& slot);
  void execute_store(Lane& lane, LaneSlot& slot);
  bool bounce_word(Lane& lane, LaneSlot& slot, CUdeviceptr to, CUdeviceptr from);
  bool bounce(Lane& lane, LaneSlot& slot, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  uint8_t* take_bounce(Lane& lane, uint64_t bytes);
  void flush(Lane& lane);
  bool flush_as_batch(Lane& lane);
  CUresult issue(Lane& lane, Form form, CUdeviceptr to, CUdeviceptr from, uint64_t bytes);
  void record(Lane& lane);
  CUevent take_event(Lane& lane);
  void pass(Lane& lane);
  bool has_passed(Lane& lane, Lane::Fence& fence);
  void fail(Lane& lane);
  void tell_oldest();
  bool has_new_work();
  void answer_quiesce();
  void sleep(uint32_t seen);
  // Returns 0 if the copy is invalid.
  CUdeviceptr resolve(uint32_t area, uint64_t offset, uint64_t bytes, const Area*& found) const;
  static Path find_path(const Area& to, const Area& from);

  const Driver& driver_;
  const AreaTable& areas_;
  const uint32_t index_;
  const CUdevice device_;
  SharedEngine& shared_;
  const uint64_t spin_ns_;
  CUcontext context_ = nullptr;
  CUuuid uuid_{};
  Ways ways_;
  Batch batch_;
  bool uses_batches_ = true;

  std::mutex mutex_;  // guards the lanes that are added
  std::vector<std::unique_ptr<Lane>> added_;
  std::atomic<bool> has_added_{false};
  std::vector<std::unique_ptr<Lane>> lanes_;  // used only by the engine's thread

  std::atomic<uint64_t> quiesce_asked_{0}, quiesce_answered_{0};
  uint64_t quiesce_began_ = 0;
  uint64_t told_oldest_ns_ = 0;
  std::vector<Until> quiesce_until_;
};

}  // namespace verbena::softverbs::copier
