// NVLink multicast among the ranks in reach of each other: one object of the driver's as long as a slot of
// the heap, mapped at addresses that mean that place of all their slots at once. Windows bind their memory to
// it. Only where the user asks for it and all drivers have it; nothing here calls the driver otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/virtual_memory.h"
#include "bootstrap/bootstrap.h"
#include "device/symm/reach.h"

namespace verbena::symm {

// Collective. Of how many bytes the heap's slots and windows are multiples so that they can be bound; 0:
// there is no multicast for any rank, and a line in the log has said why.
base::Result<uint64_t> agree_on_multicast(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                          base::MemoryOwner owner);

// Memory of this rank's GPU at its place of the object. Goes before the object, and before the memory.
class MulticastBinding {
 public:
  MulticastBinding() = default;
  MulticastBinding(MulticastBinding&& other) noexcept;
  MulticastBinding& operator=(MulticastBinding&& other) noexcept;
  ~MulticastBinding();

 private:
  friend class Multicast;

  unsigned long long object_ = 0;  // CUDA's handle; the Multicast's
  int gpu_ = base::kNoGpu;
  uint64_t offset_ = 0, length_bytes_ = 0;
};

class Multicast {
 public:
  // Collective, where all have agreed on `unit_bytes`: all ranks can bind memory behind it, or none, and a
  // line in the log has said why. An error is the bootstrap's.
  static base::Result<Multicast> make(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                      base::MemoryOwner owner, uint64_t slot_bytes, uint64_t unit_bytes);
  Multicast() = default;
  Multicast(Multicast&& other) noexcept;
  Multicast& operator=(Multicast&& other) noexcept;
  ~Multicast();

  bool is_there() const { return begin_ != 0; }
  // From an address of this rank's slot, which begins at `slot`, to that of all slots; 0: there is none.
  uint64_t delta_from(const std::byte* slot) const;
  // Each rank's own: loads and stores go there when all have bound theirs.
  base::Result<MulticastBinding> bind(uint64_t offset, const base::MemoryPiece& own) const;

 private:
  explicit Multicast(int gpu, uint64_t length_bytes) : gpu_(gpu), length_bytes_(length_bytes) {}
  // Steps of make(): why this rank cannot go on; empty: it can.
  std::string create(uint32_t count_gpus, base::FileDescriptor& shared);
  std::string join(const base::FileDescriptor* given);
  std::string map(uint64_t unit_bytes);
  std::string try_binding(uint64_t unit_bytes) const;

  unsigned long long object_ = 0;  // CUDA's handle
  int gpu_ = base::kNoGpu;
  uint64_t length_bytes_ = 0;
  unsigned long long begin_ = 0;  // of its addresses
  bool is_mapped_ = false;
};

}  // namespace verbena::symm
