#include "verbs/address_vector.h"

#include <algorithm>
#include <cstring>

#include "base/parameters.h"
#include "verbs/gid_choice.h"
#include "verbs/route.h"

namespace verbena::verbs {
namespace {

constexpr uint8_t kHopLimit = 255;
constexpr size_t kSubnetPrefixBytes = 8;

uint8_t choose_traffic_class(int of_communicator) {
  const int64_t of_user = base::parameters().traffic_class;
  return static_cast<uint8_t>(of_communicator >= 0 ? of_communicator : std::max<int64_t>(of_user, 0));
}

// On Ethernet the GRH contains the addresses. On InfiniBand it is needed for routers (another subnet), for
// ports without a LID, and if the user has chosen a GID.
bool needs_global_route(const PortAddress& local, int local_gid_index, const PortAddress& remote) {
  if (local.link_layer == IBV_LINK_LAYER_ETHERNET || local_gid_index >= 0 || remote.lid == 0) return true;
  return !is_empty_gid(remote.gid) && std::memcmp(local.gid, remote.gid, kSubnetPrefixBytes) != 0;
}

}  // namespace

AddressVector make_address_vector(const Device& device, const LocalAddress& local, const PortAddress& remote,
                                  int traffic_class, uint32_t flow_label) {
  AddressVector vector;
  ibv_ah_attr& route = vector.attributes;
  route.port_num = static_cast<uint8_t>(device.port_number());
  route.sl = static_cast<uint8_t>(std::max<int64_t>(base::parameters().service_level, 0));
  route.dlid = remote.lid;
  if (!needs_global_route(local.port, local.gid_index, remote)) return vector;
  const GidMatch match = match_gids(local.port, remote);
  const int gid_index = match.by_our_other ? local.other_gid_index : local.gid_index;
  const uint8_t* remote_gid = match.by_their_other ? remote.other_gid : remote.gid;
  route.is_global = 1;
  std::memcpy(route.grh.dgid.raw, remote_gid, kGidBytes);
  route.grh.sgid_index = static_cast<uint8_t>(std::max(gid_index, 0));
  route.grh.hop_limit = kHopLimit;
  route.grh.traffic_class = choose_traffic_class(traffic_class);
  route.grh.flow_label = flow_label;
  vector.source_gid = match.by_our_other ? local.port.other_gid : local.port.gid;
  return vector;
}

}  // namespace verbena::verbs
