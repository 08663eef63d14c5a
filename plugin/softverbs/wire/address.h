#pragma once

#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <string>
#include <vector>

// Which addresses the rails have on the network.
namespace verbena::softverbs::wire {

// By rail, as IPv4-mapped or IPv6 GIDs; empty when there is no wire. `devices` 0: a rail for each.
std::vector<ibv_gid> find_rail_addresses(const std::string& netdevs, uint32_t devices);

// Of this process, found once. Its size is the number of rails.
const std::vector<ibv_gid>& get_rail_addresses();
inline bool is_enabled() {
  return !get_rail_addresses().empty();
}

// Whether strangers may reach it: it is not of the loopback.
bool is_open_to_others(const ibv_gid& address);

// The GUID of a rail with an IPv4 address says that address, so that the link-local GID made of it leads
// somewhere too. In host byte order; 0 for an IPv6 address.
uint64_t make_guid(const ibv_gid& address, uint32_t device);

// The address behind a GID of either kind. False when it has none.
bool find_address(const ibv_gid& gid, ibv_gid& address);

// Whether another host can be behind a GID: not when it has no address, or one that hosts without a wire use.
bool leads_away(const ibv_gid& gid);

bool is_same(const ibv_gid& a, const ibv_gid& b);
socklen_t fill_socket_address(const ibv_gid& address, uint16_t port, sockaddr_storage& to);
ibv_gid read_socket_address(const sockaddr_storage& from);

}  // namespace verbena::softverbs::wire
