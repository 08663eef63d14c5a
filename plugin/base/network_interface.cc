#include "base/network_interface.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <memory>

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

bool is_container_bridge(std::string_view name) {
  return name.starts_with("docker") || name.starts_with("veth") || name.starts_with("virbr");
}

// A lower rank is better.
int rank_address(const SocketAddress& address) {
  return (is_link_local(address) ? 2 : 0) + (address.family == IpFamily::kV4 ? 0 : 1);
}

template <typename Predicate>
std::optional<InterfaceAddress> find_best(std::span<const InterfaceAddress> candidates, Predicate accepts) {
  const InterfaceAddress* best = nullptr;
  for (const InterfaceAddress& candidate : candidates) {
    if (!accepts(candidate)) continue;
    if (best == nullptr) best = &candidate;
    if (candidate.name != best->name) continue;
    if (rank_address(candidate.address) < rank_address(best->address)) best = &candidate;
  }
  if (best == nullptr) return std::nullopt;
  return *best;
}

}  // namespace

Result<std::vector<InterfaceAddress>> list_interface_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return fail_errno(Status::kSystem, errno, "socket: cannot list the interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::optional<SocketAddress> address = from_system(entry->ifa_addr);
    if (!address || !(entry->ifa_flags & IFF_UP)) continue;
    result.push_back({entry->ifa_name, *address, (entry->ifa_flags & IFF_LOOPBACK) != 0});
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
  using Candidate = InterfaceAddress;
  // Only a filter that names interfaces may choose loopback; an exclusion may not.
  const bool names_what_it_wants = !filter.empty() && !filter.starts_with('^');
  if (names_what_it_wants) {
    return find_best(candidates, [&](const Candidate& c) { return matches_filter(filter, c.name); });
  }
  const auto passes = [&](const Candidate& c) { return filter.empty() || matches_filter(filter, c.name); };
  auto outside = find_best(candidates, [&](const Candidate& c) {
    return passes(c) && !c.is_loopback && !is_container_bridge(c.name);
  });
  if (outside) return outside;
  return find_best(candidates, [&](const Candidate& c) { return passes(c) && c.is_loopback; });
}

}  // namespace verbena::base
