// The rails' addresses on the network.
#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <string>
#include <vector>

namespace verbena::softverbs::wire {

// Returns the address of each rail, as an IPv4-mapped or IPv6 GID; an empty list if the network is off.
// `devices` is the number of rails; 0 means one rail for each address.
std::vector<ibv_gid> find_rail_addresses(const std::string& netdevs, uint32_t devices);

// The rail addresses of this process, found once. The size is the number of rails.
const std::vector<ibv_gid>& get_rail_addresses();
inline bool is_enabled() {
  return !get_rail_addresses().empty();
}

// Returns true if other hosts may reach the address, that is, unless the address is a loopback address.
bool is_open_to_others(const ibv_gid& address);

// The GUID of a rail with an IPv4 address encodes this address, so that the link-local GID derived from the
// GUID also leads to the rail. In host byte order; 0 for an IPv6 address.
uint64_t make_guid(const ibv_gid& address, uint32_t device);

// Finds the address of a GID of either kind. Returns false if the GID has no address.
bool find_address(const ibv_gid& gid, ibv_gid& address);

// Returns whether a GID can belong to another host. A GID cannot belong to another host if it has no address,
// or has an address that hosts without a network use.
bool leads_away(const ibv_gid& gid);

bool is_same(const ibv_gid& a, const ibv_gid& b);
socklen_t fill_socket_address(const ibv_gid& address, uint16_t port, sockaddr_storage& to);
ibv_gid read_socket_address(const sockaddr_storage& from);
std::string write_address(const ibv_gid& address);  // 10.0.0.7, or an IPv6 address

}  // namespace verbena::softverbs::wire
