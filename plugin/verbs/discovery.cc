#include <algorithm>
#include <tuple>

#include "base/log.h"
#include "base/parameters.h"
#include "verbs/device_list.h"
#include "verbs/device_opener.h"

namespace verbena::verbs {
namespace {

using base::Status;
using Devices = std::vector<std::unique_ptr<Device>>;

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

base::Error fail_without_device(const Library& library, const std::string& hca,
                                const std::vector<std::string>& seen) {
  if (seen.empty() && library.is_softverbs()) {
    return base::fail(Status::kSystem,
                      "devices: softverbs (%s) has no usable device. The lines above name the cause",
                      library.path().c_str());
  }
  if (seen.empty()) {
    return base::fail(
        Status::kSystem,
        "devices: %s has no usable RDMA device. Set VERBENA_IBVERBS_LIB=softverbs to use a software device",
        library.path().c_str());
  }
  if (hca.empty()) {
    return base::fail(Status::kSystem, "devices: no port is both active and usable. Ports found: %s",
                      join(seen).c_str());
  }
  return base::fail(Status::kInvalidUsage,
                    "devices: VERBENA_HCA %s selects no port that is both active and usable. Ports found: %s",
                    hca.c_str(), join(seen).c_str());
}

void warn_of_strangers(const DeviceList& list, const std::string& hca) {
  std::vector<std::string> names;
  for (ibv_device* const device : list.devices()) names.emplace_back(list.library()->get_device_name(device));
  for (const std::string& stranger : list.filter().list_strangers(names)) {
    base::log_warn(
        "devices: VERBENA_HCA %s: '%s' does not match any of this host's devices (%s). Write the names "
        "without blanks, and write ^ or = only before the first name",
        hca.c_str(), stranger.c_str(), join(names).c_str());
  }
}

// Sorts the devices so that every rank of a host has the same order, and devices that are close on the bus
// are adjacent.
void sort_by_place(Devices* devices) {
  std::sort(devices->begin(), devices->end(), [](const auto& left, const auto& right) {
    return std::tuple(left->sysfs_path(), left->name(), left->port_number()) <
           std::tuple(right->sysfs_path(), right->name(), right->port_number());
  });
}

void log_device(const Device& device) {
  base::log_info(
      "device %s:%d: %s, gid %s index %d, lid %u, %u Mb/s, at %s, GPU memory by %s%s%s",
      device.name().c_str(), device.port_number(),
      device.address().link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
      format_gid(device.address().gid).c_str(), device.gid_index(), device.address().lid, device.speed_mbps(),
      device.sysfs_path().empty() ? "no bus" : device.sysfs_path().c_str(),
      device.supports_dmabuf() ? "dma-buf " : "", device.supports_gpu_pointers() ? "pointer" : "",
      device.supports_dmabuf() || device.supports_gpu_pointers() ? "" : "neither dma-buf nor pointer");
  if (device.bonded_ports() > 1) {
    base::log_info("device %s:%d is a bond of %u ports", device.name().c_str(), device.port_number(),
                   device.bonded_ports());
  }
  if (!device.data_direct_path().empty()) {
    base::log_info("device %s:%d reaches GPU memory by Data Direct, at %s", device.name().c_str(),
                   device.port_number(), device.data_direct_path().c_str());
  }
}

GidFamily convert_family(base::AddressFamily family) {
  switch (family) {
    case base::AddressFamily::kInet:
      return GidFamily::kIpv4;
    case base::AddressFamily::kInet6:
      return GidFamily::kIpv6;
    case base::AddressFamily::kAuto:
      break;
  }
  return GidFamily::kAny;
}

}  // namespace

base::Result<Devices> discover_devices(const DiscoverySettings& settings) {
  const auto list = DeviceList::read(settings);
  if (!list) return list.error();
  Devices devices;
  std::vector<std::string> seen;
  const DeviceOpener opener(list->library(), settings);
  for (ibv_device* const device : list->devices()) {
    opener.open_ports(device, list->filter(), &devices, &seen);
  }
  if (devices.empty()) return fail_without_device(*list->library(), settings.hca, seen);
  warn_of_strangers(*list, settings.hca);
  sort_by_place(&devices);
  for (const auto& device : devices) log_device(*device);
  return devices;
}

base::Result<Devices> discover_devices() {
  return discover_selected_devices(base::parameters().hca);
}

base::Result<DiscoverySettings> read_discovery_settings(const std::string& hca) {
  const base::Parameters& parameters = base::parameters();
  DiscoverySettings settings;
  settings.library_choice = parameters.ibverbs_lib;
  settings.hca = hca;
  settings.data_direct = parameters.data_direct;
  settings.out_of_order = parameters.out_of_order;
  settings.address.gid_index = static_cast<int>(parameters.gid_index);
  settings.address.partition_key_index = static_cast<int>(parameters.pkey_index);
  settings.address.partition_key = static_cast<uint16_t>(parameters.pkey);
  GidPreference& preference = settings.address.gid_preference;
  preference.family = convert_family(parameters.address_family);
  preference.roce_version = static_cast<int>(parameters.roce_version);
  if (!parse_address_range(parameters.address_range, &preference.range)) {
    return base::fail(
        Status::kInvalidUsage,
        "devices: VERBENA_ADDRESS_RANGE %s is not an address range such as 10.0.0.0/8 or fd00::/16",
        parameters.address_range.c_str());
  }
  return settings;
}

base::Result<Devices> discover_selected_devices(const std::string& hca) {
  const auto settings = read_discovery_settings(hca);
  if (!settings) return settings.error();
  return discover_devices(*settings);
}

}  // namespace verbena::verbs
