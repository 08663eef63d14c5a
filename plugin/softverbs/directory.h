#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// The file that names every process of one user and job: slot -> owner. A slot whose owner is dead is free.
// It lies in SOFTVERBS_DIR, else in /dev/shm, or, when another user has taken its name there, in the user's
// /run/user.
class Directory {
 public:
  struct Claim {
    uint32_t slot;
    uint32_t generation;
  };
  // Opens the file and claims a slot for this process that `accept` takes. nullptr and errno on failure;
  // never closed.
  using Accept = std::function<bool(uint32_t slot)>;
  static Directory* open(uint64_t owner, const Accept& accept, Claim& claim);
  // Gives the slot back. The last process to leave takes the folder away.
  void release(uint32_t slot);

  uint64_t get_owner(uint32_t slot) const { return slots_[slot].owner.load(std::memory_order_acquire); }
  uint32_t get_generation(uint32_t slot) const {
    return slots_[slot].generation.load(std::memory_order_acquire);
  }
  // Tells the others where this process's segment is; they ask for it as a process and its descriptor, or -1.
  void set_segment(uint32_t slot, int descriptor) {
    slots_[slot].segment.store(static_cast<uint32_t>(descriptor) + 1, std::memory_order_release);
  }
  int get_segment(uint32_t slot) const {
    return static_cast<int>(slots_[slot].segment.load(std::memory_order_acquire)) - 1;
  }

 private:
  // Opens and locks the table in the first place that can be trusted; errno of the last one if there is none.
  void find_place(const std::string& name, const std::function<void(const std::string&)>& sweep_in);
  bool map();
  Claim claim(uint64_t owner, const Accept& accept);

  std::string folder_;
  int fd_ = -1;  // locked while a process comes or goes; one byte of it, shared, while it is there
  DirectorySlot* slots_ = nullptr;
};

// Pid and start time of a process in one word; 0 when there is no such process or it is a zombie.
uint64_t read_owner(int pid);
inline int get_pid(uint64_t owner) {
  return static_cast<int>(owner & 0x3fffff);
}
inline bool is_alive(uint64_t owner) {
  return owner != 0 && read_owner(get_pid(owner)) == owner;
}

}  // namespace verbena::softverbs
