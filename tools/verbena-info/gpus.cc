#include "verbena-info/gpus.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "common/cuda_driver.h"
#include "common/error.h"
#include "topology/pci_path.h"
#include "topology/topology.h"

namespace verbena::tools::info {
namespace {

constexpr int kGpuDirectSupported = 116;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED
constexpr int kDmabufSupported = 124;     // CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED

// 0 where this driver does not know the attribute.
int read_attribute(const CudaDriver& driver, CudaDevice device, int number) {
  int value = 0;
  return driver.get_attribute(&value, number, device) == kCudaSuccess ? value : 0;
}

// Lower case, with the domain's four digits, as sysfs has it.
std::string find_pci_address(const CudaDriver& driver, CudaDevice device) {
  std::array<char, 32> text{};
  driver.check(driver.get_pci_bus_id(text.data(), static_cast<int>(text.size()), device),
               "cuDeviceGetPCIBusId");
  std::string address = text.data();
  std::transform(address.begin(), address.end(), address.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  const size_t domain_digits = address.find(':');
  return domain_digits == 8 ? address.substr(4) : address;
}

Json describe_gpu(const CudaDriver& driver, int index) {
  CudaDevice device = 0;
  driver.check(driver.get_device(&device, index), "cuDeviceGet");
  std::array<char, 256> name{};
  driver.check(driver.get_device_name(name.data(), static_cast<int>(name.size()) - 1, device),
               "cuDeviceGetName");
  const std::string address = find_pci_address(driver, device);
  const int node = topology::Topology::system().find_numa_node(address);
  return {{"index", index},
          {"name", name.data()},
          {"pci_address", address},
          {"numa_node", node == topology::kNoNode ? Json() : Json(node)},
          {"switches", topology::list_switches(topology::find_pci_path("/sys/bus/pci/devices/" + address))},
          {"compute_capability", std::to_string(read_attribute(driver, device, kCudaComputeMajor)) + "." +
                                     std::to_string(read_attribute(driver, device, kCudaComputeMinor))},
          {"gpudirect", read_attribute(driver, device, kGpuDirectSupported) != 0},
          {"dmabuf", read_attribute(driver, device, kDmabufSupported) != 0}};
}

}  // namespace

Json collect_gpus() {
  Json gpus{{"driver", nullptr}, {"problem", nullptr}, {"devices", Json::array()}};
  std::string problem, why;
  const int count = count_cuda_devices(problem);
  if (const CudaDriver* driver = load_cuda_driver(why)) {
    int version = 0;
    if (driver->get_driver_version(&version) == kCudaSuccess)
      gpus["driver"] = std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  }
  if (count == 0) {
    gpus["problem"] = problem.empty() ? "the driver shows none: CUDA_VISIBLE_DEVICES?"
                                      : "no usable CUDA driver: " + problem;
    return gpus;
  }
  try {
    for (int index = 0; index < count; ++index)
      gpus["devices"].push_back(describe_gpu(*load_cuda_driver(why), index));
  } catch (const ToolError& error) {
    gpus["problem"] = error.what();
  }
  return gpus;
}

}  // namespace verbena::tools::info
