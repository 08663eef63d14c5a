// Opens ports of RDMA devices, and determines all properties that Device reports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verbs/address_reader.h"
#include "verbs/device.h"
#include "verbs/library.h"
#include "verbs/port_filter.h"
#include "verbs/sysfs.h"

namespace verbena::verbs {

struct DiscoverySettings {
  std::string library_choice;  // VERBENA_IBVERBS_LIB
  std::string hca;             // VERBENA_HCA
  bool data_direct = true;     // VERBENA_DATA_DIRECT
  bool out_of_order = false;   // VERBENA_OOO_RQ
  AddressSettings address;
};

inline constexpr const char* kNoIwarp =
    "iWARP does not support RDMA writes with immediate data. Use RoCE (irdma: set the module option "
    "roce_ena=1)";

// Returns the speed of all ports of a bond and all planes together. `speed_code` is the code that
// Library::read_port() returned.
uint32_t read_speed_mbps(const Library& library, ibv_context* context, int port_number,
                         const ibv_port_attr& port, uint32_t speed_code, const Bond& bond);

class DeviceOpener {
 public:
  DeviceOpener(std::shared_ptr<const Library> library, const DiscoverySettings& settings)
      : library_(std::move(library)), settings_(settings) {}

  // Appends a Device to *opened for each active port that the filter selects, and a phrase about every port
  // to *seen. A port that cannot be opened is left out, and the reason is logged.
  void open_ports(ibv_device* device, const PortFilter& filter, std::vector<std::unique_ptr<Device>>* opened,
                  std::vector<std::string>* seen) const;

 private:
  std::unique_ptr<Device> open_context(ibv_device* device) const;
  bool open_port(Device* device, int port_number, const ibv_port_attr& port,
                 const ibv_device_attr& limits) const;
  bool read_address(Device* device, const ibv_port_attr& port) const;
  bool reaches_gpus(const Device& device) const;  // logs the reason once if not
  bool tries_dmabuf(const Device& device) const;

  std::shared_ptr<const Library> library_;
  const DiscoverySettings& settings_;
  mutable bool has_told_of_gpus_ = false;
};

// Reads the settings from the parameters, with `hca` instead of VERBENA_HCA.
base::Result<DiscoverySettings> read_discovery_settings(const std::string& hca);
// Like discover_devices(), with these settings instead of the parameters.
base::Result<std::vector<std::unique_ptr<Device>>> discover_devices(const DiscoverySettings& settings);

}  // namespace verbena::verbs
