// Host memory that takes one range of addresses at once and becomes usable from its start on, as it is
// needed: what was handed out keeps its address. With a GPU it is pinned and mapped for that. Movable.
#pragma once

#include <cstddef>
#include <vector>

#include "base/cuda_driver.h"
#include "base/status.h"

namespace verbena::base {

class GrowingBuffer {
 public:
  // For the GPU that is current. All of it is usable at once where the driver pins only what it allocates.
  static Result<GrowingBuffer> reserve(size_t most_bytes);
  GrowingBuffer() = default;
  GrowingBuffer(GrowingBuffer&& other) noexcept;
  GrowingBuffer& operator=(GrowingBuffer&& other) noexcept;
  ~GrowingBuffer();

  // At least the first `length_bytes` are usable from now on, zero-filled and present. A multiple of the page
  // size, at most most_bytes(). The GPU that was current is so again.
  Outcome grow(size_t length_bytes);

  size_t usable_bytes() const { return usable_bytes_; }
  size_t most_bytes() const { return most_bytes_; }
  void* host() const { return host_; }
  // For the GPU.
  void* device() const { return device_; }

 private:
  Outcome pin(size_t offset_bytes, size_t length_bytes);

  Buffer whole_;  // where growing is not possible; then there is no range
  void* host_ = nullptr;
  void* device_ = nullptr;
  size_t most_bytes_ = 0, usable_bytes_ = 0;
  bool is_pinned_ = false;           // part by part
  std::vector<void*> pinned_parts_;  // their starts
};

}  // namespace verbena::base
