#include "verbs/port_survey.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/device_list.h"
#include "verbs/device_opener.h"
#include "verbs/port_state.h"
#include "verbs/sysfs.h"

namespace verbena::verbs {
namespace {

int to_bytes(ibv_mtu mtu) {
  constexpr int kBytesBelowFirst = 128;  // the code 1 is 256 bytes
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? kBytesBelowFirst << mtu : 0;
}

GidExplanation explain_infiniband(int gid_index, const AddressSettings& settings) {
  if (gid_index == kNoGid)
    return {GidReason::kLidSuffices, "InfiniBand: the LID is enough within one subnet"};
  if (settings.gid_index >= 0) return {GidReason::kSetting, "VERBENA_GID_INDEX selects this GID"};
  return {GidReason::kFabric, "InfiniBand: this fabric needs a GID"};
}

SurveyedPort survey_port(const Library& library, ibv_context* context, const SurveyedPort& device,
                         int port_number, const DiscoverySettings& settings) {
  SurveyedPort result = device;
  result.port_number = port_number;
  ibv_port_attr port{};
  uint32_t speed_code = 0;
  const int error = library.read_port(context, static_cast<uint8_t>(port_number), &port, &speed_code);
  if (error != 0) {
    result.fault = PortFault::kNotQueried;
    result.problem = "the port cannot be queried (errno " + std::to_string(error) + ")";
    return result;
  }
  result.state = describe_port_state(port.state);
  result.mtu_bytes = to_bytes(port.active_mtu);
  result.max_mtu_bytes = to_bytes(port.max_mtu);
  result.interface = find_interface(settings.address.sysfs_root, device.device, port_number);
  const Bond bond = read_bond(settings.address.sysfs_root, result.interface, device.device);
  result.speed_mbps = read_speed_mbps(library, context, port_number, port, speed_code, bond);
  const AddressReader reader(library, context, device.device, port_number, settings.address);
  result.gids = reader.read_table(port);
  if (const auto address = reader.read(port, &result.problem)) {
    result.address = *address;
  } else {
    result.fault = PortFault::kNoAddress;
  }
  if (result.address.port.link_layer == kEthernet) {
    result.gid_reason = explain_gid(result.gids, settings.address, result.address.gid_index);
  } else if (result.address.port.link_layer == kInfiniBand) {
    result.gid_reason = explain_infiniband(result.address.gid_index, settings.address);
  }
  result.address.port.link_layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? kEthernet : kInfiniBand;
  if (port.state != IBV_PORT_ACTIVE) {
    result.fault = PortFault::kNotActive;
    result.problem = "the port is " + result.state;
  }
  return result;
}

void survey_device(const DeviceList& list, ibv_device* device, const DiscoverySettings& settings,
                   std::vector<SurveyedPort>* ports) {
  const Library& library = *list.library();
  SurveyedPort common;
  common.device = library.get_device_name(device);
  common.sysfs_path = find_pci_path(settings.address.sysfs_root, common.device);
  if (device->transport_type == IBV_TRANSPORT_IWARP) {
    common.fault = PortFault::kIwarp;
    common.problem = kNoIwarp;
    ports->push_back(common);
    return;
  }
  ibv_context* const context = library.open_device(device);
  if (context == nullptr) {
    common.fault = PortFault::kNotOpened;
    const int error = errno;
    common.problem =
        std::string("cannot be opened: ") + std::strerror(error) + "; " + library.advise_on_open(error);
    ports->push_back(common);
    return;
  }
  ibv_device_attr limits{};
  if (const int error = library.query_device(context, &limits); error != 0) {
    common.fault = PortFault::kNotQueried;
    common.problem = "cannot be queried (errno " + std::to_string(error) + ")";
    ports->push_back(common);
  }
  common.firmware.assign(limits.fw_ver, strnlen(limits.fw_ver, sizeof(limits.fw_ver)));
  common.vendor_id = limits.vendor_id;
  common.part_id = limits.vendor_part_id;
  for (int port_number = 1; port_number <= limits.phys_port_cnt; ++port_number) {
    ports->push_back(survey_port(library, context, common, port_number, settings));
    ports->back().is_selected = list.filter().selects(common.device, port_number);
  }
  library.close_device(context);
}

}  // namespace

GidExplanation explain_gid(const std::vector<GidEntry>& table, const AddressSettings& settings, int chosen) {
  if (settings.gid_index >= 0) return {GidReason::kSetting, "VERBENA_GID_INDEX selects this GID"};
  const auto entry =
      std::find_if(table.begin(), table.end(), [&](const GidEntry& e) { return e.index == chosen; });
  if (entry == table.end()) return {};
  const GidPreference& preference = settings.gid_preference;
  const std::string wanted = "RoCE v" + std::to_string(preference.roce_version);
  const std::string kind = describe_gid_kind(entry->gid);
  std::string reason;
  if (preference.range.length_bits > 0) reason += "in VERBENA_ADDRESS_RANGE, ";
  if (preference.family != GidFamily::kAny) {
    const bool is_wanted = is_ipv4_gid(entry->gid) == (preference.family == GidFamily::kIpv4);
    reason += is_wanted ? "of VERBENA_ADDRESS_FAMILY, " : "no entry is of VERBENA_ADDRESS_FAMILY, ";
  }
  const bool has_foreign =
      std::any_of(table.begin(), table.end(), [](const GidEntry& e) { return !e.is_own; });
  if (entry->is_own && has_foreign) reason += "of an interface in this network namespace, ";
  reason += has_roce_version(entry->type, preference.roce_version) ? wanted + " and " + kind
                                                                   : kind + "; no entry is " + wanted;
  const auto alike = std::count_if(table.begin(), table.end(), [&](const GidEntry& e) {
    return e.type == entry->type && e.is_own == entry->is_own && kind == describe_gid_kind(e.gid) &&
           preference.range.contains(e.gid);
  });
  const GidReason code = is_link_local_gid(entry->gid) ? GidReason::kLinkLocal : GidReason::kBest;
  if (table.size() == 1) return {code, reason + ": the only entry"};
  return {code, reason + (alike > 1 ? ": the first such entry among " : ": the best of ") +
                    std::to_string(table.size()) + " entries"};
}

base::Result<Survey> survey_ports(const DiscoverySettings& settings) {
  const auto list = DeviceList::read(settings);
  if (!list) return list.error();
  Survey survey{list->library()->path(), {}};
  for (ibv_device* const device : list->devices()) survey_device(*list, device, settings, &survey.ports);
  return survey;
}

}  // namespace verbena::verbs
