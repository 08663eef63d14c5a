// This process's interface to the copier: starts softverbs-copier, sends it commands over a socket, and
// detects its death.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "softverbs/copier/protocol.h"

namespace verbena::softverbs {

// Memory that the copier can access: an area that it has mapped, and an offset in it.
struct AreaAddress {
  uint32_t area = 0;
  uint64_t offset = 0;

  AreaAddress operator+(uint64_t bytes) const { return {area, offset + bytes}; }
  bool operator==(const AreaAddress&) const = default;
};
// The area of memory of this process that the copier cannot map; `offset` is then the address. A lane copies
// such data through the lane's own memory.
inline constexpr uint32_t kThisProcess = UINT32_MAX;

// The copier of this process: a separate process that copies GPU memory. Because it is separate, no copy
// waits for a lock of CUDA's driver that a thread of the application holds, or for the application's kernels.
// The copier is started when the first GPU memory is registered. Calls may take milliseconds; opening the
// first device may take a second. Any thread may call the functions.
class Copier {
 public:
  Copier() = default;
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // These calls return false, with the reason in `why`, if the copier or CUDA fails. open_device() opens a
  // GPU unless it is open already; `device` is its index among the copier's GPUs.
  bool open_device(const cuda::CUuuid& uuid, uint32_t& device, std::string& why);
  // Returns whether the GPU is open.
  bool find_device(const uint8_t* uuid, uint32_t& device);
  // Makes the copier serve a lane at this offset of this process's segment.
  bool open_lane(uint32_t device, uint64_t offset, std::string& why);
  bool pin(uint32_t area, uint64_t offset, uint64_t bytes, std::string& why);
  bool map_segment(int fd, uint64_t bytes, uint32_t& area, std::string& why);
  // map_ipc() and map_parts() map memory of the GPU `home`, for the context of a device.
  bool map_ipc(uint32_t device, const cuda::CUuuid& home, const cuda::CUipcMemHandle& handle, uint64_t bytes,
               uint32_t& area, std::string& why);
  struct Part {
    int fd;
    uint64_t bytes;
  };
  bool map_parts(uint32_t device, const cuda::CUuuid& home, const std::vector<Part>& parts, uint32_t& area,
                 std::string& why);
  // After the call returns, no copy reads or writes the area.
  void release(uint32_t area);

  // Describes the copier: its process, its counters, the times that it has measured. Returns an empty text if
  // there is no copier.
  std::string describe() const;
  // Names calls that have not returned and copies that have not finished after `least_ns`, and says if the
  // copier has exited. Returns an empty text otherwise.
  std::string explain_wait(uint64_t least_ns) const;
  // Counts copies that lanes have passed as a group, whose order does not matter.
  void count_group(size_t copies) {
    (copies > 1 ? groups_ : singles_).fetch_add(1, std::memory_order_relaxed);
  }

  // Notifies the copier that a lane has new slots for this device.
  void wake(uint32_t device);
  // Returns whether the copier's process has ended. The copier's outstanding copies will then never finish.
  bool is_dead() const { return is_dead_.load(std::memory_order_acquire); }
  uint32_t count_devices() const { return device_count_.load(std::memory_order_acquire); }
  const copier::SharedEngine& engine(uint32_t device) const { return *engines_[device]; }
  int pid() const { return pid_; }

 private:
  bool start(std::string& why);  // needs the mutex, like the functions below
  bool launch(std::string& why);
  bool greet(std::string& why);
  bool start_watch(std::string& why);
  bool ask(const copier::Command& command, int fd, uint32_t& value, std::string& why);
  void watch();

  std::mutex mutex_;
  int socket_ = -1;
  int pid_ = 0;
  bool is_started_ = false;
  std::string problem_;  // the reason why it could not be started; the start is not retried
  std::atomic<bool> is_dead_{false};
  std::mutex devices_mutex_;
  std::map<std::array<uint8_t, 16>, uint32_t> devices_;  // by UUID
  copier::SharedEngine* engines_[copier::kDeviceCount] = {};
  std::atomic<uint32_t> device_count_{0};
  std::atomic<uint64_t> singles_{0}, groups_{0};
};

}  // namespace verbena::softverbs
