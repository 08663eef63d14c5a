#include "transport/one_sided/device_choice.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/parameters.h"
#include "topology/topology.h"

namespace verbena::transport {

namespace {

using Devices = std::vector<std::unique_ptr<verbs::Device>>;

topology::Distance measure(const verbs::Device& device, const std::string& gpu) {
  if (gpu.empty() || device.sysfs_path().empty()) return topology::Distance::kUnknown;
  return topology::Topology::system().measure_distance(device.sysfs_path(), gpu);
}

}  // namespace

base::Result<Devices> choose_devices(const std::string& filter, int gpu, uint32_t most) {
  static std::mutex discovery;  // device discovery is not thread safe
  const std::lock_guard lock(discovery);
  auto found = verbs::discover_selected_devices(filter.empty() ? base::parameters().hca : filter);
  if (!found) return found.error();
  Devices& devices = *found;
  std::erase_if(devices, [](const auto& device) { return !device->is_healthy(); });
  if (devices.empty()) {
    return base::fail(base::Status::kSystem,
                      "endpoint: the ports of all devices are down. Check cables and switch; ibv_devinfo "
                      "shows each port's state");
  }
  const std::string gpu_path = gpu == base::kNoGpu ? std::string() : base::find_gpu_pci_address(gpu);
  auto nearest = topology::Distance::kUnknown;
  for (const auto& device : devices) nearest = std::min(nearest, measure(*device, gpu_path));
  std::erase_if(devices, [&](const auto& device) { return measure(*device, gpu_path) != nearest; });
  const size_t turn = gpu == base::kNoGpu ? 0 : static_cast<size_t>(gpu) % devices.size();
  std::rotate(devices.begin(), devices.begin() + static_cast<ptrdiff_t>(turn), devices.end());
  if (devices.size() > most) devices.resize(most);
  return std::move(devices);
}

}  // namespace verbena::transport
