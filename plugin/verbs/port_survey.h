// A description of every port of every RDMA device, for output to users, also of ports that the plugin does
// not use. For tools; the plugin itself opens its ports by device.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/device_opener.h"
#include "verbs/gid_choice.h"
#include "verbs/types.h"

namespace verbena::verbs {

// Why the plugin cannot use a port.
enum class PortFault : uint8_t { kNone, kIwarp, kNotOpened, kNotQueried, kNoAddress, kNotActive };

// Why this GID of the port is used, or why no GID is used.
enum class GidReason : uint8_t {
  kNone,         // the table is empty
  kSetting,      // VERBENA_GID_INDEX
  kBest,         // the best entry of the table
  kLinkLocal,    // the best entry, but other hosts may not reach a link-local address
  kLidSuffices,  // InfiniBand without a router needs no GID
  kFabric,       // this InfiniBand fabric needs a GID
};

struct GidExplanation {
  GidReason code = GidReason::kNone;
  std::string text;  // for output
};

struct SurveyedPort {
  std::string device;   // the verbs device's own name
  int port_number = 0;  // 0: the device could not be opened; see `problem`
  PortFault fault = PortFault::kNone;
  std::string problem;   // description of the fault
  std::string state;     // active, down, ...
  std::string firmware;  // empty: unknown
  std::string sysfs_path;
  std::string interface;  // network interface of an Ethernet port; empty: none, or unknown
  uint32_t vendor_id = 0, part_id = 0;
  uint32_t speed_mbps = 0;               // the link's current speed; 0: unknown
  int mtu_bytes = 0, max_mtu_bytes = 0;  // active and maximum
  bool is_selected = true;               // by VERBENA_HCA
  LocalAddress address;                  // all zero, except for the link layer, if there is no address
  std::vector<GidEntry> gids;            // entries that are not empty
  GidExplanation gid_reason;             // why this GID was chosen
};

struct Survey {
  std::string library_path;
  std::vector<SurveyedPort> ports;
};

// Opens and closes every device. Returns an error, which is logged, if there is no verbs library or it cannot
// list devices.
base::Result<Survey> survey_ports(const DiscoverySettings& settings);

// Explains why choose_gid takes the entry `chosen` (an index, or kNoGid). Pure.
GidExplanation explain_gid(const std::vector<GidEntry>& table, const AddressSettings& settings, int chosen);

}  // namespace verbena::verbs
