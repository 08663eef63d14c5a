#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "softverbs/shared_layout.h"

namespace verbena::softverbs {

// The file that names every process of one user and job: slot -> owner. A slot whose owner is dead is free.
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
  void release(uint32_t slot, uint64_t owner);

  uint64_t get_owner(uint32_t slot) const { return slots_[slot].owner.load(std::memory_order_acquire); }
  uint32_t get_generation(uint32_t slot) const {
    return slots_[slot].generation.load(std::memory_order_acquire);
  }
  std::string get_segment_path(uint32_t slot, uint64_t owner) const;

 private:
  bool map();
  Claim claim(uint64_t owner, const Accept& accept);
  bool remove_if_empty();
  static void sweep(const std::string& parent, const std::string& prefix);

  std::string folder_;
  int fd_ = -1;  // locked while a process comes or goes
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
