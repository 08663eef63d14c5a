// The CUDA driver, loaded at run time: the plugin links no CUDA library, so that one binary serves machines
// with and without a GPU. All calls tolerate stream capture in other threads (relaxed capture mode) and use
// neither the legacy stream nor a device-wide synchronisation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/movable.h"
#include "base/status.h"

namespace verbena::base {

inline constexpr int kNoGpu = -1;

// Returns the device ordinal of the calling thread's current context; kNoGpu if there is no driver, no GPU or
// no context.
int find_current_gpu();
// Returns the ordinal of the GPU that owns this address; kNoGpu for host memory (pinned memory included).
int find_owning_gpu(const void* address);
// Returns the driver's id of the allocation that contains an address. The driver never reuses an id. Returns
// 0 if the address is in no allocation, or without a driver.
uint64_t find_gpu_allocation(const void* address);
// Returns a text such as 0000:3b:00.0; empty if there is no such GPU.
std::string find_gpu_pci_address(int gpu);
// The GPUs whose kernels see a NIC's writes to this GPU's memory in order.
enum class NicWriteOrder : int { kNobody = 0, kThisGpu = 100, kAllGpus = 200 };  // the driver's numbers
NicWriteOrder find_nic_write_order(int gpu);

// Returns whether CUDA shows a GPU to this process; false before the application initialises CUDA.
bool has_gpu();
// Returns whether there is a GPU whose kernels may see a NIC's writes out of order, so that a flush is needed
// whatever the GPU's generation. False if the driver does not report it.
bool has_unordered_gpu();

enum class Place : uint8_t {
  // Page-aligned host memory, pinned and mapped for the current GPU if there is one; CPU, GPU and NIC can
  // access it.
  kHost,
  kDevice,  // memory of the current GPU; without a GPU, the same as kHost
};

// Zero-filled memory, page aligned. Movable. Freed on destruction, from any thread.
class Buffer {
 public:
  static Result<Buffer> allocate(Place place, size_t length_bytes);
  Buffer() = default;
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;
  ~Buffer();

  size_t length_bytes() const { return length_bytes_; }
  // The address for the CPU and, in kHost, for the NIC. Null for memory of a GPU.
  void* host() const { return host_; }
  // The address for the GPU. It equals host() under unified addressing and without a GPU.
  void* device() const { return device_; }
  bool is_gpu_memory() const { return host_ == nullptr && device_ != nullptr; }

 private:
  Movable<void*> host_, device_;
  Movable<size_t> length_bytes_;
  Movable<int> gpu_ = kNoGpu;
  // The address to free; the driver does not align to pages, so device_ may lie inside the allocation.
  Movable<void*> allocation_;
};

// Writes a few bytes into a Buffer in host or GPU memory. When it returns, kernels that start later see them.
Outcome write_buffer(const Buffer& target, size_t offset_bytes, const void* source, size_t length_bytes);

}  // namespace verbena::base
