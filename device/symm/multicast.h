// NVLink multicast between the ranks whose memory is mapped. The code uses a single multicast object of the
// driver, which is as long as a slot of the heap. An access to an address of the object accesses the same
// offset of all slots. Windows bind their memory to the object. Multicast is used only if the user enables it
// and all drivers support it. Otherwise this code makes no driver calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/movable.h"
#include "base/virtual_memory.h"
#include "bootstrap/bootstrap.h"
#include "device/symm/reach.h"

namespace verbena::symm {

// Agrees on whether all ranks use multicast. Collective. Returns a unit in bytes; the sizes of slots and
// windows must be multiples of this unit. Returns 0 if multicast is not used; in this case a log line has the
// reason.
base::Result<uint64_t> agree_on_multicast(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                          base::MemoryOwner owner);

// The binding of this rank's GPU memory to an offset of the object. Destroy it before the object and before
// the memory.
class MulticastBinding {
 public:
  MulticastBinding() = default;
  MulticastBinding(MulticastBinding&&) noexcept = default;
  MulticastBinding& operator=(MulticastBinding&&) noexcept = default;
  ~MulticastBinding();

 private:
  friend class Multicast;

  base::Movable<unsigned long long> object_;  // CUDA's handle, owned by the Multicast
  base::Movable<int> gpu_ = base::kNoGpu;
  base::Movable<uint64_t> offset_, length_bytes_;
};

class Multicast {
 public:
  // Creates the object, after agree_on_multicast() has returned `unit_bytes`. Collective. Afterwards, either
  // all ranks can bind memory, or no rank can, and a log line has the reason. Returns an error only if the
  // bootstrap fails.
  static base::Result<Multicast> make(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                      base::MemoryOwner owner, uint64_t slot_bytes, uint64_t unit_bytes);
  Multicast() = default;
  Multicast(Multicast&&) noexcept = default;
  Multicast& operator=(Multicast&&) noexcept = default;
  ~Multicast();

  bool is_there() const { return begin_ != 0; }
  // Returns the difference between a multicast address and the corresponding address in this rank's slot,
  // which begins at `slot`. Returns 0 without multicast.
  uint64_t delta_from(const std::byte* slot) const;
  // Binds this rank's memory. Kernels may use the multicast address once all ranks have bound their memory.
  base::Result<MulticastBinding> bind(uint64_t offset, const base::MemoryPiece& own) const;

 private:
  explicit Multicast(int gpu, uint64_t length_bytes) : gpu_(gpu), length_bytes_(length_bytes) {}
  // The steps of make(). Each step returns why this rank cannot continue, or an empty text if it can.
  std::string create(uint32_t count_gpus, base::FileDescriptor& shared);
  std::string join(const base::FileDescriptor* given);
  std::string map(uint64_t unit_bytes);
  std::string try_binding(uint64_t unit_bytes) const;

  base::Movable<unsigned long long> object_;  // CUDA's handle
  base::Movable<int> gpu_ = base::kNoGpu;
  base::Movable<uint64_t> length_bytes_;
  base::Movable<unsigned long long> begin_;  // the first multicast address
  base::Movable<bool> is_mapped_;
};

}  // namespace verbena::symm
