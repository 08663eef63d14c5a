// Memory of other processes that the copier has mapped. Copies refer to this memory by the numbers of areas.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "softverbs/copier/driver.h"
#include "softverbs/copier/protocol.h"

namespace verbena::softverbs::copier {

inline constexpr uint32_t kHostDevice = UINT32_MAX;

// Mapped memory of another process: host memory, or an allocation of a GPU for the context of one of the
// copier's devices.
struct Area {
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint32_t device = kHostDevice;  // the device whose context may use it; host memory is for every device
  CUuuid home{};                  // the GPU that has the memory
  bool is_ipc = false;
  std::vector<std::pair<uint64_t, uint64_t>> parts;  // mapped by descriptors: offset and bytes
  std::vector<uint64_t> pins;                        // addresses in host memory that were pinned for CUDA

  bool is_host() const { return device == kHostDevice; }
};

// All areas, by number. The command thread adds and removes areas; engines look up areas without a lock.
class AreaTable {
 public:
  // Returns the area's number; 0 if all numbers are taken.
  uint32_t add(std::unique_ptr<Area> area);
  void put(uint32_t number, std::unique_ptr<Area> area);
  // Removes an area from the table. Engines that found the area earlier may still use it.
  std::unique_ptr<Area> remove(uint32_t number);
  Area* get(uint32_t number) const {
    return number < kAreaCount ? areas_[number].load(std::memory_order_acquire) : nullptr;
  }

 private:
  std::array<std::atomic<Area*>, kAreaCount> areas_{};
  uint32_t latest_ = 0;
};

// The following functions map and unmap memory. The context of the area's device must be current. The
// functions return false, with the reason in `why`, on failure.
bool map_host(int descriptor, uint64_t bytes, Area& area, std::string& why);
bool map_ipc(const Driver& driver, const CUipcMemHandle& handle, uint64_t bytes, Area& area,
             std::string& why);
bool reserve(const Driver& driver, uint64_t bytes, Area& area, std::string& why);
bool map_part(const Driver& driver, CUdevice device, int descriptor, uint64_t offset, uint64_t bytes,
              Area& area, std::string& why);
void unmap(const Driver& driver, Area& area);

}  // namespace verbena::softverbs::copier
