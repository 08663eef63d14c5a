// The file that names every process of one user and job: slot -> owner. It is in the job's folder
// (job_folder.h). A process that is killed leaves its slot behind: the slot is free for the next
// process that finds its owner dead, because a claim is made under a lock of the file, which the kernel
// releases with its holder.
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
  // Opens the file and claims a slot for which `accept` returns true. nullptr with errno on failure; never
  // closed.
  using Accept = std::function<bool(uint32_t slot)>;
  static Directory* open(uint64_t owner, const Accept& accept, Claim& claim);
  // Releases the slot. The last process to leave removes the folder.
  void release(uint32_t slot);

  uint64_t get_owner(uint32_t slot) const { return slots_[slot].owner.load(std::memory_order_acquire); }
  uint32_t get_generation(uint32_t slot) const {
    return slots_[slot].generation.load(std::memory_order_acquire);
  }
  // Publishes where this process's segment is: peers open it by the process id and this descriptor. -1: there
  // is none.
  void set_segment(uint32_t slot, int descriptor) {
    slots_[slot].segment.store(static_cast<uint32_t>(descriptor) + 1, std::memory_order_release);
  }
  int get_segment(uint32_t slot) const {
    return static_cast<int>(slots_[slot].segment.load(std::memory_order_acquire)) - 1;
  }

 private:
  // Opens and locks the table in the first folder that can be trusted. If there is none, errno is that of the
  // last one.
  void find_place();
  bool map();
  Claim claim(uint64_t owner, const Accept& accept);

  std::string folder_;
  int fd_ =
      -1;  // locked while a process enters or leaves; one byte of it, shared, while the process is there
  DirectorySlot* slots_ = nullptr;
};

}  // namespace verbena::softverbs
