// The file with all processes of one user and job. The file has a table of slots; each slot names its owner,
// a process. The file is in the job's folder (job_folder.h). If a process is killed, its slot stays claimed
// until another process finds the owner dead and claims the slot.
//
// A process that is stopped while it enters or leaves does not delay other processes. A process claims a slot
// by one compare-and-swap. A process that enters holds a shared lock of the file, so that no other process
// removes the file. Only remove_unused() takes an exclusive lock, once no process uses the file. The kernel
// releases the locks of a process that ends.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "softverbs/shared/shared_layout.h"

namespace verbena::softverbs {

class Directory {
 public:
  struct Claim {
    uint32_t slot;
    uint32_t generation;
  };
  // Opens the file and claims a slot for which `accept` returns true. Returns nullptr, with errno, on
  // failure. The Directory is never closed.
  using Accept = std::function<bool(uint32_t slot)>;
  static Directory* open(uint64_t owner, const Accept& accept, Claim& claim);
  // Releases the slot. The last process to leave removes the folder.
  void release(uint32_t slot);

  uint64_t get_owner(uint32_t slot) const { return slots_[slot].owner.load(std::memory_order_acquire); }
  uint32_t get_generation(uint32_t slot) const {
    return slots_[slot].generation.load(std::memory_order_acquire);
  }
  // Publishes the descriptor of this process's segment: peers open the segment with the process id and this
  // descriptor. -1 means that there is none.
  void set_segment(uint32_t slot, int descriptor) {
    slots_[slot].segment.store(static_cast<uint32_t>(descriptor) + 1, std::memory_order_release);
  }
  int get_segment(uint32_t slot) const {
    return static_cast<int>(slots_[slot].segment.load(std::memory_order_acquire)) - 1;
  }

 private:
  // Opens and locks the table in the first folder that can be trusted. If there is none, errno is the error
  // of the last folder.
  void find_place();
  bool map();
  Claim claim(uint64_t owner, const Accept& accept);

  std::string folder_;
  int fd_ = -1;
  DirectorySlot* slots_ = nullptr;
};

}  // namespace verbena::softverbs
