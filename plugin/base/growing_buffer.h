// Host memory that reserves its whole address range at once and grows within it, so that no address changes.
// With a GPU it is pinned and mapped for the GPU. Movable.
#pragma once

#include <cstddef>
#include <vector>

#include "base/cuda_driver.h"
#include "base/movable.h"
#include "base/status.h"

namespace verbena::base {

class GrowingBuffer {
 public:
  // Reserves addresses for the current GPU. If the driver can pin only memory that it allocates itself, the
  // whole length is allocated at once.
  static Result<GrowingBuffer> reserve(size_t max_bytes);
  GrowingBuffer() = default;
  GrowingBuffer(GrowingBuffer&&) noexcept = default;
  GrowingBuffer& operator=(GrowingBuffer&&) noexcept = default;
  ~GrowingBuffer();

  // Makes at least the first `length_bytes` usable, zero-filled and backed by memory. `length_bytes` is a
  // multiple of the page size and at most max_bytes(). The GPU of reserve() must be current.
  Outcome grow(size_t length_bytes);

  size_t usable_bytes() const { return usable_bytes_; }
  size_t max_bytes() const { return max_bytes_; }
  void* host() const { return host_; }
  // The address for the GPU.
  void* device() const { return device_; }

 private:
  Outcome pin(size_t offset_bytes, size_t length_bytes);

  Buffer whole_;  // used instead of a range if the memory cannot grow
  Movable<void*> host_, device_;
  Movable<size_t> max_bytes_, usable_bytes_;
  Movable<bool> is_pinned_;                   // true: each part was pinned separately
  Movable<std::vector<void*>> pinned_parts_;  // their starts
};

}  // namespace verbena::base
