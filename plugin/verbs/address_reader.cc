#include "verbs/address_reader.h"

#include <endian.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>

#include "verbs/sysfs.h"

namespace verbena::verbs {
namespace {

using InterfaceAddress = std::array<uint8_t, kGidBytes>;

// Returns the addresses as GIDs, IPv4 as IPv4-mapped IPv6.
std::set<InterfaceAddress> list_interface_addresses() {
  std::set<InterfaceAddress> addresses;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return addresses;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    InterfaceAddress address{};
    if (one->ifa_addr->sa_family == AF_INET) {
      address[10] = address[11] = 0xff;
      std::memcpy(&address[12], &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, 4);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(address.data(), &reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr,
                  kGidBytes);
    } else {
      continue;
    }
    addresses.insert(address);
  }
  freeifaddrs(all);
  return addresses;
}

uint8_t encode_version(GidType type) {
  return type == GidType::kRoceV2 ? 2 : type == GidType::kInfiniBandOrRoceV1 ? 1 : 0;
}

}  // namespace

AddressReader::AddressReader(const Library& library, ibv_context* context, std::string device_name,
                             int port_number, AddressSettings settings)
    : library_(library),
      context_(context),
      device_name_(std::move(device_name)),
      port_number_(port_number),
      settings_(std::move(settings)) {}

std::optional<LocalAddress> AddressReader::read(const ibv_port_attr& port, std::string* problem) const {
  LocalAddress address;
  PortAddress& p = address.port;
  p.lid = port.lid;
  p.port_number = static_cast<uint8_t>(port_number_);
  p.mtu = static_cast<uint8_t>(port.active_mtu);
  p.link_layer = port.link_layer == IBV_LINK_LAYER_ETHERNET ? kEthernet : kInfiniBand;
  if (!choose_partition(port, &address, problem)) return std::nullopt;
  if (p.link_layer == kEthernet) {
    if (!choose_gids(port, &address, problem)) return std::nullopt;
    return address;
  }
  const bool requires_grh = (port.flags & IBV_QPF_GRH_REQUIRED) != 0;
  address.gid_index = settings_.gid_index >= 0 ? settings_.gid_index : requires_grh ? 0 : kNoGid;
  // Even without a GRH, the first GID tells the peer this port's subnet.
  const GidEntry entry = read_gid(std::max(address.gid_index, 0));
  std::memcpy(p.gid, entry.gid, sizeof(p.gid));
  return address;
}

bool AddressReader::choose_gids(const ibv_port_attr& port, LocalAddress* address,
                                std::string* problem) const {
  const bool is_fixed = settings_.gid_index >= 0;
  const auto table = is_fixed ? std::vector{read_gid(settings_.gid_index)} : read_table(port);
  GidPreference preference = settings_.gid_preference;
  if (is_fixed) preference.range = {};
  const GidEntry* first = choose_gid(table, preference);
  if (first == nullptr) {
    *problem = is_fixed
                   ? "the port's GID table has no GID at the index that VERBENA_GID_INDEX gives (index " +
                         std::to_string(settings_.gid_index) + ")"
               : table.empty() ? "the port's GID table is empty (" + std::to_string(port.gid_tbl_len) +
                                     " entries); check that the port's network interface has an address"
                               : "none of the port's GIDs is in VERBENA_ADDRESS_RANGE; the first GID is " +
                                     format_gid(table[0].gid);
    return false;
  }
  address->gid_index = first->index;
  address->is_own = is_fixed || first->is_own;
  address->port.roce_version = encode_version(first->type);
  std::memcpy(address->port.gid, first->gid, kGidBytes);
  if (is_fixed || preference.family != GidFamily::kAny) return true;
  const GidEntry* other = choose_other_gid(table, preference, *first);
  if (other == nullptr) return true;
  address->other_gid_index = other->index;
  std::memcpy(address->port.other_gid, other->gid, kGidBytes);
  return true;
}

std::vector<GidEntry> AddressReader::read_table(const ibv_port_attr& port) const {
  std::vector<GidEntry> table;
  const std::set<InterfaceAddress> own = list_interface_addresses();
  for (int index = 0; index < port.gid_tbl_len; ++index) {
    GidEntry entry = read_gid(index);
    if (is_empty_gid(entry.gid)) continue;
    InterfaceAddress address;
    std::memcpy(address.data(), entry.gid, kGidBytes);
    entry.is_own = own.contains(address);
    table.push_back(entry);
  }
  return table;
}

GidEntry AddressReader::read_gid(int index) const {
  GidEntry result{index, {}, GidType::kUnknown};
  const auto port_number = static_cast<uint8_t>(port_number_);
  if (library_.query_gid_ex != nullptr) {
    ibv_gid_entry entry{};
    const int error =
        library_.query_gid_ex(context_, port_number, static_cast<uint32_t>(index), &entry, 0, sizeof(entry));
    if (error == ENODATA) return result;
    if (error == 0) {
      std::memcpy(result.gid, entry.gid.raw, sizeof(result.gid));
      result.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? GidType::kRoceV2 : GidType::kInfiniBandOrRoceV1;
      return result;
    }
  }
  ibv_gid gid{};
  if (library_.query_gid(context_, port_number, index, &gid) != 0) return result;
  std::memcpy(result.gid, gid.raw, sizeof(result.gid));
  if (!is_empty_gid(result.gid)) {
    result.type = read_gid_type(settings_.sysfs_root, device_name_, port_number_, index);
  }
  return result;
}

bool AddressReader::is_current(const LocalAddress& address) const {
  return holds(std::max(address.gid_index, 0), address.port.gid) &&
         (address.other_gid_index < 0 || holds(address.other_gid_index, address.port.other_gid));
}

bool AddressReader::holds(int index, const uint8_t* gid) const {
  return std::memcmp(read_gid(index).gid, gid, kGidBytes) == 0;
}

// Chooses the key itself, or the same partition with the other kind of membership.
bool AddressReader::choose_partition(const ibv_port_attr& port, LocalAddress* address,
                                     std::string* problem) const {
  address->partition_key_index = settings_.partition_key_index;
  address->port.partition_key = read_partition_key(settings_.partition_key_index);
  if (settings_.partition_key == 0) return true;
  constexpr uint16_t kPartitionBits = 0x7fff, kMembershipBit = 0x8000;
  for (const uint16_t wanted :
       {settings_.partition_key, static_cast<uint16_t>(settings_.partition_key ^ kMembershipBit)}) {
    for (int index = 0; index < port.pkey_tbl_len; ++index) {
      const uint16_t key = read_partition_key(index);
      if (key != wanted || (key & kPartitionBits) == 0) continue;
      address->partition_key_index = index;
      address->port.partition_key = key;
      return true;
    }
  }
  char key[8];
  std::snprintf(key, sizeof(key), "0x%04x", settings_.partition_key);
  *problem = "the port's partition key table (" + std::to_string(port.pkey_tbl_len) +
             " entries) does not contain " + std::string(key) + " (VERBENA_PKEY)";
  return false;
}

// For information only: 0, an unknown key, matches any key.
uint16_t AddressReader::read_partition_key(int index) const {
  if (library_.query_pkey == nullptr) return 0;
  __be16 key = 0;
  const int error = library_.query_pkey(context_, static_cast<uint8_t>(port_number_), index, &key);
  return error == 0 ? be16toh(key) : uint16_t{0};
}

}  // namespace verbena::verbs
