#include "softverbs/wire/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "softverbs/shared/config.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint64_t kGuidPrefix = 0x0253560000000000ull;
constexpr uint64_t kGuidPrefixMask = 0xffffff0000000000ull;
constexpr uint8_t kMappedPrefix[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr uint8_t kLinkLocalPrefix[] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0};

bool is_mapped(const ibv_gid& gid) {
  return memcmp(gid.raw, kMappedPrefix, sizeof(kMappedPrefix)) == 0;
}

bool is_loopback(const ibv_gid& address) {
  constexpr uint8_t kLoopback = 127;
  return is_mapped(address) && address.raw[12] == kLoopback;
}

struct Interface {
  std::string name;
  unsigned flags;
  ibv_gid address;
};

// All addresses of this host that a peer could use: IPv4, then global IPv6.
std::vector<Interface> list_interfaces() {
  std::vector<Interface> list;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return list;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family) continue;
      sockaddr_storage address{};
      memcpy(&address, at->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      const ibv_gid gid = read_socket_address(address);
      if (gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) continue;  // link-local: ambiguous
      list.push_back({at->ifa_name, at->ifa_flags, gid});
    }
  }
  freeifaddrs(first);
  return list;
}

// Returns false for addresses that no peer can use: the host's own addresses, and those of networks inside
// the host.
bool is_for_peers(const Interface& interface) {
  if ((interface.flags & IFF_UP) == 0 || (interface.flags & IFF_LOOPBACK) != 0) return false;
  constexpr const char* kInner[] = {"docker", "virbr", "br-", "veth", "cni", "flannel", "lxc"};
  return std::none_of(std::begin(kInner), std::end(kInner),
                      [&](const char* prefix) { return interface.name.rfind(prefix, 0) == 0; });
}

std::vector<ibv_gid> choose_automatically(const std::vector<Interface>& interfaces) {
  std::vector<ibv_gid> chosen;
  std::vector<std::string> names;
  for (const Interface& interface : interfaces) {
    if (!is_for_peers(interface)) continue;
    if (std::find(names.begin(), names.end(), interface.name) != names.end()) continue;
    names.push_back(interface.name);
    chosen.push_back(interface.address);
  }
  return chosen;
}

// Finds an interface by its name or by its address.
std::optional<ibv_gid> find_named(const std::vector<Interface>& interfaces, const std::string& name) {
  for (const Interface& interface : interfaces) {
    if (interface.name == name) return interface.address;
  }
  sockaddr_storage address{};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, name.c_str(), &ipv4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, name.c_str(), &ipv6.sin6_addr) == 1) {
    address.ss_family = AF_INET6;
  } else {
    return std::nullopt;
  }
  return read_socket_address(address);
}

std::vector<ibv_gid> choose_named(const std::vector<Interface>& interfaces, const std::string& netdevs) {
  std::vector<ibv_gid> chosen;
  for (size_t begin = 0; begin <= netdevs.size();) {
    const size_t end = std::min(netdevs.find(',', begin), netdevs.size());
    const std::string name = netdevs.substr(begin, end - begin);
    begin = end + 1;
    if (const auto address = find_named(interfaces, name)) {
      chosen.push_back(*address);
    } else {
      warn(
          "SOFTVERBS_NETDEVS: '%s' is not an address of this host, and not the name of an interface that has "
          "an address",
          name.c_str());
    }
  }
  return chosen;
}

}  // namespace

std::vector<ibv_gid> find_rail_addresses(const std::string& netdevs, uint32_t devices) {
  if (netdevs.empty() || netdevs == "none") return {};
  const auto interfaces = list_interfaces();
  const bool is_automatic = netdevs == "auto";
  std::vector<ibv_gid> rails =
      is_automatic ? choose_automatically(interfaces) : choose_named(interfaces, netdevs);
  if (rails.empty()) return rails;
  const size_t found = rails.size();
  if (devices == 0) devices = is_automatic ? 1 : static_cast<uint32_t>(found);
  rails.resize(std::min(devices, kMaxDevices));
  for (size_t i = found; i < rails.size(); ++i) rails[i] = rails[i % found];  // rails may share an interface
  return rails;
}

const std::vector<ibv_gid>& get_rail_addresses() {
  static const auto* rails = new std::vector<ibv_gid>(find_rail_addresses(
      get_config().netdevs, static_cast<uint32_t>(get_config().has_device_count ? get_config().devices : 0)));
  return *rails;
}

uint64_t make_guid(const ibv_gid& address, uint32_t device) {
  if (!is_mapped(address)) return 0;
  uint64_t guid = kGuidPrefix | (device + 1);
  for (int i = 0; i < 4; ++i) guid |= uint64_t{address.raw[12 + i]} << (8 * (4 - i));
  return guid;
}

bool find_address(const ibv_gid& gid, ibv_gid& address) {
  if (memcmp(gid.raw, kLinkLocalPrefix, sizeof(kLinkLocalPrefix)) != 0) {
    address = gid;
    return true;
  }
  const uint64_t guid = __builtin_bswap64(gid.global.interface_id);
  if ((guid & kGuidPrefixMask) != kGuidPrefix) return false;
  memcpy(address.raw, kMappedPrefix, sizeof(kMappedPrefix));
  for (int i = 0; i < 4; ++i) address.raw[12 + i] = static_cast<uint8_t>(guid >> (8 * (4 - i)));
  return true;
}

bool is_open_to_others(const ibv_gid& address) {
  return !is_loopback(address) && !IN6_IS_ADDR_LOOPBACK(reinterpret_cast<const in6_addr*>(address.raw));
}

bool leads_away(const ibv_gid& gid) {
  ibv_gid address;
  if (!find_address(gid, address)) return false;
  const auto& own = get_rail_addresses();  // these may be loopback addresses themselves
  return !is_loopback(address) || std::any_of(own.begin(), own.end(), is_loopback);
}

bool is_same(const ibv_gid& a, const ibv_gid& b) {
  return memcmp(a.raw, b.raw, sizeof(a.raw)) == 0;
}

socklen_t fill_socket_address(const ibv_gid& address, uint16_t port, sockaddr_storage& to) {
  to = {};
  if (is_mapped(address)) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(to);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = htons(port);
    memcpy(&ipv4.sin_addr, address.raw + sizeof(kMappedPrefix), sizeof(ipv4.sin_addr));
    return sizeof(ipv4);
  }
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(to);
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  memcpy(&ipv6.sin6_addr, address.raw, sizeof(ipv6.sin6_addr));
  return sizeof(ipv6);
}

ibv_gid read_socket_address(const sockaddr_storage& from) {
  ibv_gid gid{};
  if (from.ss_family == AF_INET) {
    memcpy(gid.raw, kMappedPrefix, sizeof(kMappedPrefix));
    memcpy(gid.raw + sizeof(kMappedPrefix), &reinterpret_cast<const sockaddr_in&>(from).sin_addr, 4);
  } else {
    memcpy(gid.raw, &reinterpret_cast<const sockaddr_in6&>(from).sin6_addr, 16);
  }
  return gid;
}

std::string write_address(const ibv_gid& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const int family = is_mapped(address) ? AF_INET : AF_INET6;
  const uint8_t* const raw = family == AF_INET ? address.raw + sizeof(kMappedPrefix) : address.raw;
  inet_ntop(family, raw, text, sizeof(text));
  return text;
}

}  // namespace verbena::softverbs::wire
