// Executes the application's commands, one after the other.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "softverbs/copier/area.h"
#include "softverbs/copier/driver.h"
#include "softverbs/copier/engine.h"
#include "softverbs/copier/protocol.h"

namespace verbena::softverbs::copier {

// Executes the application's commands, one after the other, until the application ends.
class Server {
 public:
  Server(const Driver& driver, uint64_t spin_ns) : driver_(driver), spin_ns_(spin_ns) {}
  // Maps the application's segment as area 0. Returns false, with the reason in `why`, on failure.
  bool open(std::string& why);
  void serve();

 private:
  Reply answer(const Command& command, int descriptor);
  bool open_device(const Command& command, uint32_t& device, std::string& why);
  bool open_lane(const Command& command, std::string& why);
  bool map_segment(const Command& command, int descriptor, uint32_t& number, std::string& why);
  bool pin(const Command& command, std::string& why);
  bool map_gpu(const Command& command, uint32_t& number, std::string& why);
  bool map_next_part(const Command& command, int descriptor, std::string& why);
  bool release(const Command& command, std::string& why);
  Engine* enter(uint32_t device, std::string& why);
  template <typename T>
  T* find_shared(uint64_t offset) const;

  const Driver& driver_;
  const uint64_t spin_ns_;
  AreaTable areas_;
  std::array<std::unique_ptr<Engine>, kDeviceCount> engines_;
  uint32_t engine_count_ = 0;
};

}  // namespace verbena::softverbs::copier
