#include "transport/datagram/peer.h"

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include "base/log.h"
#include "transport/link/rail_pairing.h"
#include "verbs/route.h"

namespace verbena::transport::datagram {
namespace {

using protocol::datagram::EngineName;
using protocol::datagram::EngineRail;
using protocol::datagram::kPaths;

// Computes a flow label of 20 bits that is not zero, because some devices replace zero. The low byte counts
// the paths, so that fault plans can name a path; the rest differs between peers.
uint32_t make_flow_label(uint64_t peer, uint32_t path) {
  const uint64_t mixed = peer * 0x9E3779B97F4A7C15;
  return (static_cast<uint32_t>(mixed >> 52) << 8) | (path + 1);
}

bool reaches(const verbs::PortAddress& ours, const verbs::PortAddress& theirs,
             const PairingOptions& options) {
  const verbs::Reach reach = verbs::judge_reach(ours, theirs, options.ipv4_prefix_bits);
  return options.rule == PairingRule::kSameSubnet ? reach == verbs::Reach::kSameSubnet
                                                  : reach != verbs::Reach::kNever;
}

}  // namespace

base::Result<bool> make_ways(std::span<const std::unique_ptr<Rail>> rails, const EngineName& name,
                             std::span<const EngineRail> peer, bool has_many, Ways* ways) {
  const PairingOptions options = read_pairing_options();
  *ways = {};
  // If the two ends have different numbers of rails, the pairs of rails repeat. A path then equals the path
  // one period earlier.
  std::array<int, size_t{kPaths} * kPaths> known;
  known.fill(-1);
  std::vector<verbs::PortAddress> ours, theirs;
  for (const auto& rail : rails) ours.push_back(rail->device().address());
  for (const EngineRail& rail : peer) theirs.push_back(std::bit_cast<verbs::PortAddress>(rail.port));
  for (uint32_t path = 0; path < kPaths; ++path) {
    const uint32_t own = path % static_cast<uint32_t>(rails.size()),
                   other = path % static_cast<uint32_t>(peer.size());
    verbs::Device& device = rails[own]->device();
    if (device.has_failed() || !reaches(ours[own], theirs[other], options)) continue;
    int& handle = known[own * kPaths + other];
    if (handle < 0 || !has_many) {
      auto made = verbs::AddressHandle::create(device, device.local_address(), theirs[other], -1,
                                               make_flow_label(name.id, path));
      if (!made && made.error().errno_value == ETIMEDOUT) return false;
      if (!made && device.has_failed()) continue;
      if (!made) return made.error();
      handle = static_cast<int>(ways->handles.size());
      ways->handles.push_back(std::move(*made));
      ways->paths |= 1U << path;
    }
    ways->of_path[path] = static_cast<uint8_t>(handle);
    ways->reachable |= 1U << path;
  }
  if (ways->paths != 0) return true;
  return base::fail(base::Status::kRemote, "datagrams: no rail reaches %s: %s",
                    describe_engine(name, peer[0].port).c_str(),
                    explain_no_path(ours, theirs, options).c_str());
}

base::Result<bool> find_greeting_way(std::span<const std::unique_ptr<Rail>> rails,
                                     const protocol::RailRecord& port, uint32_t turn, GreetingWay* found) {
  const auto theirs = std::bit_cast<verbs::PortAddress>(port);
  for (size_t i = 0; i < rails.size(); ++i) {
    const auto rail = static_cast<uint32_t>((turn + i) % rails.size());
    verbs::Device& device = rails[rail]->device();
    const verbs::LocalAddress local = device.local_address();
    if (!device.is_healthy() || verbs::judge_reach(local.port, theirs, 0) == verbs::Reach::kNever) continue;
    auto made = verbs::AddressHandle::create(device, local, theirs, -1, 1 + turn % kPaths);
    if (!made && (made.error().errno_value == ETIMEDOUT || device.has_failed())) continue;
    if (!made) return made.error();
    *found = {std::move(*made), rail};
    return true;
  }
  return false;
}

std::string describe_engine(const EngineName& name, const protocol::RailRecord& port) {
  char id[32];
  std::snprintf(id, sizeof(id), "engine %016" PRIx64, name.id);
  return std::string(id) + " at " + verbs::describe_port_address(std::bit_cast<verbs::PortAddress>(port));
}

}  // namespace verbena::transport::datagram
