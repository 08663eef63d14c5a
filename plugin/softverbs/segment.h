#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// A mapped segment file, of this process or of a peer.
class Segment {
 public:
  static std::unique_ptr<Segment> create(const std::string& path);  // nullptr and errno on failure
  static std::unique_ptr<Segment> open(const std::string& path);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  template <typename T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  SegmentHeader& header() const { return *at<SegmentHeader>(0); }
  SharedMr& mr(uint32_t index) const { return at<SharedMr>(kMrTable)[index]; }
  SharedQp& qp(uint32_t index) const { return at<SharedQp>(kQpTable)[index]; }
  SharedCq& cq(uint32_t index) const { return at<SharedCq>(kCqTable)[index]; }
  SharedReceiveQueue& receive_queue(uint32_t index) const {
    return at<SharedReceiveQueue>(kReceiveQueueTable)[index];
  }
  GpuServiceTable& gpu_service() const { return *at<GpuServiceTable>(kGpuService); }
  SharedGpu& gpu(uint32_t index) const { return at<SharedGpu>(kGpuTable)[index]; }

  // Owner only: makes sure that the file has memory there, so that no later access can fault. 0 or an errno.
  int commit(uint64_t offset, uint64_t bytes);
  template <typename T>
  int commit(T& object) {
    return commit(reinterpret_cast<uint8_t*>(&object) - base_, sizeof(T));
  }

 private:
  Segment(int fd, uint8_t* base) : fd_(fd), base_(base) {}
  static std::unique_ptr<Segment> map(int fd);

  int fd_;
  uint8_t* base_;
  std::mutex mutex_;
  std::vector<bool> committed_;  // by block
};

// Ring memory at the end of an own segment.
class Arena {
 public:
  explicit Arena(Segment& segment) : segment_(segment) {}
  uint64_t allocate(uint64_t bytes);  // zeroed; 0 and errno on failure
  void free(uint64_t offset, uint64_t bytes);

 private:
  struct Hole {
    uint64_t offset;
    uint64_t bytes;
  };
  uint64_t take(uint64_t bytes, uint64_t grain);
  void add_hole(Hole added);

  Segment& segment_;
  std::mutex mutex_;
  uint64_t end_ = kArena;
  std::vector<Hole> holes_;  // sorted by offset, never adjacent
};

// Hands out table indices, the least recently freed late, so that stale numbers stay invalid for long.
class IndexPool {
 public:
  IndexPool(uint32_t first, uint32_t count);
  int64_t allocate();  // -1 when all are taken
  void free(uint32_t index);
  uint32_t get_high_water();  // all indices handed out so far are below

 private:
  const uint32_t first_;
  const uint32_t count_;
  std::mutex mutex_;
  std::vector<bool> used_;  // grows while more than half is in use: the table's memory follows the need
  uint32_t next_;
  uint32_t in_use_ = 0;
  uint32_t high_water_ = 0;
};

}  // namespace verbena::softverbs
