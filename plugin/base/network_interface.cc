#include "base/network_interface.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <tuple>

#include "base/log.h"

namespace verbena::base {
namespace {

bool matches_any(std::string_view names, std::string_view name, bool exact) {
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    const std::string_view entry = names.substr(0, comma);
    if (!entry.empty() && (exact ? name == entry : name.starts_with(entry))) return true;
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  return false;
}

// Container runtimes and hypervisors give these names to their bridges. Such bridges have the same addresses
// on every host.
bool is_container_bridge(std::string_view name) {
  constexpr std::string_view kPrefixes[] = {"docker", "virbr", "veth", "cni",    "flannel",
                                            "lxc",    "lxd",   "cali", "podman", "vmnet"};
  if (std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); }))
    return true;
  // Docker names the bridge of a user-defined network br- and twelve hexadecimal digits. An administrator's
  // br-ex does not match.
  constexpr std::string_view kDocker = "br-", kDigits = "0123456789abcdef";
  return name.starts_with(kDocker) && name.size() == kDocker.size() + 12 &&
         name.substr(kDocker.size()).find_first_not_of(kDigits) == std::string_view::npos;
}

// Lower is better: other hosts are more likely to reach the address. Loopback and bridges count as ordinary
// interfaces if a filter names them.
int rank_reach(const InterfaceAddress& candidate, bool is_named) {
  if (!is_named && is_container_bridge(candidate.name)) return 4;
  if (!is_named && candidate.is_loopback) return 3;
  if (!candidate.is_running) return 2;
  return is_link_local(candidate.address) ? 1 : 0;
}

}  // namespace

Result<std::vector<InterfaceAddress>> list_interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0)
    return fail_errno(Status::kSystem, errno, "socket: cannot list the network interfaces of this host");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::optional<SocketAddress> address = from_system(entry->ifa_addr);
    if (!address || !(entry->ifa_flags & IFF_UP)) continue;
    result.push_back({entry->ifa_name, *address, (entry->ifa_flags & IFF_LOOPBACK) != 0,
                      (entry->ifa_flags & IFF_RUNNING) != 0});
  }
  return result;
}

bool matches_filter(std::string_view filter, std::string_view name) {
  const bool excludes = filter.starts_with('^');
  if (excludes) filter.remove_prefix(1);
  const bool exact = filter.starts_with('=');
  if (exact) filter.remove_prefix(1);
  return matches_any(filter, name, exact) != excludes;
}

std::optional<InterfaceAddress> select_interface(std::span<const InterfaceAddress> candidates,
                                                 std::string_view filter) {
  // Only a filter that names interfaces may select loopback; an exclusion may not.
  const bool is_named = !filter.empty() && !filter.starts_with('^');
  std::vector<std::string_view> names;  // in the system's order
  std::optional<std::tuple<int, ptrdiff_t, int>> best_rank;
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& candidate : candidates) {
    if (!filter.empty() && !matches_filter(filter, candidate.name)) continue;
    auto name = std::ranges::find(names, candidate.name);
    if (name == names.end()) name = names.insert(names.end(), candidate.name);
    const std::tuple rank(rank_reach(candidate, is_named), name - names.begin(),
                          candidate.address.family == IpFamily::kV4 ? 0 : 1);
    if (best_rank && *best_rank <= rank) continue;
    best_rank = rank;
    best = &candidate;
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace verbena::base
