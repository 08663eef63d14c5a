#include "transport/datagram/peer.h"

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <numeric>

#include "base/log.h"
#include "transport/link/rail_pairing.h"
#include "verbs/route.h"

namespace verbena::transport::datagram {
namespace {

using protocol::datagram::EngineName;
using protocol::datagram::EngineRail;
using protocol::datagram::kPaths;
using Purpose = verbs::AddressHandles::Purpose;

// Computes a flow label of 20 bits that is not zero, because some devices replace zero. The low byte counts
// the paths, so that fault plans can name a path. The rest differs between engines and between the ports that
// they call. Peers with the same port have the same labels, because they share address handles.
uint32_t make_flow_label(const EngineName& own, const verbs::PortAddress& port, uint32_t path) {
  uint64_t mixed = own.id ^ port.lid;
  for (const uint8_t byte : port.gid) mixed = (mixed ^ byte) * 0x9E3779B97F4A7C15;
  return (static_cast<uint32_t>(mixed >> 52) << 8) | (path + 1);
}

bool reaches(const verbs::PortAddress& ours, const verbs::PortAddress& theirs,
             const PairingOptions& options) {
  const verbs::Reach reach = verbs::judge_reach(ours, theirs, options.ipv4_prefix_bits);
  return options.rule == PairingRule::kSameSubnet ? reach == verbs::Reach::kSameSubnet
                                                  : reach != verbs::Reach::kNever;
}

}  // namespace

base::Result<bool> make_ways(std::span<const std::unique_ptr<Rail>> rails, const EngineName& own_name,
                             const EngineName& name, std::span<const EngineRail> peer, bool has_many,
                             Ways* ways) {
  const PairingOptions options = read_pairing_options();
  *ways = {};
  // If the two ends have different numbers of rails, the pairs of rails repeat. A path then equals the path
  // one period earlier.
  struct Pair {
    int handle = -1;
    bool may_have_more = true;
  };
  std::array<Pair, size_t{kPaths} * kPaths> pairs;
  std::vector<verbs::PortAddress> ours, theirs;
  for (const auto& rail : rails) ours.push_back(rail->device().address());
  for (const EngineRail& rail : peer) theirs.push_back(std::bit_cast<verbs::PortAddress>(rail.port));
  const auto own_rails = static_cast<uint32_t>(rails.size()),
             other_rails = static_cast<uint32_t>(peer.size()), period = std::lcm(own_rails, other_rails);
  // Peers that have one path each to the same port take different paths, if there are handles for them.
  const uint32_t first = has_many ? static_cast<uint32_t>(name.id % kPaths) : 0;
  base::Error failure{};
  uint32_t failed = 0;  // the path
  for (uint32_t i = 0; i < kPaths; ++i) {
    const uint32_t path = (first + i) % kPaths, own = path % own_rails, other = path % other_rails;
    verbs::Device& device = rails[own]->device();
    if (device.has_failed() || !reaches(ours[own], theirs[other], options)) continue;
    Pair& pair = pairs[own * kPaths + other];
    if (pair.may_have_more) {
      const auto take_handle = [&](uint32_t label_path, Purpose purpose) {
        return device.address_handles().take(device.local_address(), theirs[other], -1,
                                             make_flow_label(own_name, theirs[other], label_path), purpose);
      };
      auto made = take_handle(path, Purpose::kFurtherPath);
      if (made && !*made && pair.handle < 0) made = take_handle(path % period, Purpose::kPeer);
      if (!made && made.error().errno_value == ETIMEDOUT) return false;
      pair.may_have_more = made && *made && !has_many;
      if (!made && !device.has_failed()) {
        failure = made.error();
        failed = path;
      } else if (made && *made) {
        pair.handle = static_cast<int>(ways->handles.size());
        ways->handles.push_back(std::move(*made));
        ways->paths |= 1U << path;
      }
    }
    if (pair.handle < 0) continue;
    ways->of_path[path] = static_cast<uint8_t>(pair.handle);
    ways->reachable |= 1U << path;
  }
  if (ways->paths != 0) return true;
  if (failure.errno_value != 0)
    return rails[failed % own_rails]->device().address_handles().explain(failure,
                                                                         theirs[failed % other_rails]);
  return base::fail(base::Status::kRemote, "datagrams: no rail reaches %s: %s",
                    describe_engine(name, peer[0].port).c_str(),
                    explain_no_path(ours, theirs, options).c_str());
}

base::Result<bool> find_greeting_way(std::span<const std::unique_ptr<Rail>> rails, const EngineName& own,
                                     const protocol::RailRecord& port, uint32_t turn, Purpose purpose,
                                     GreetingWay* found) {
  const auto theirs = std::bit_cast<verbs::PortAddress>(port);
  base::Error failure{};
  for (size_t i = 0; i < rails.size(); ++i) {
    const auto rail = static_cast<uint32_t>((turn + i) % rails.size());
    verbs::Device& device = rails[rail]->device();
    const verbs::LocalAddress local = device.local_address();
    if (!device.is_healthy() || verbs::judge_reach(local.port, theirs, 0) == verbs::Reach::kNever) continue;
    const auto take_handle = [&](uint32_t path, Purpose why) {
      return device.address_handles().take(local, theirs, -1, make_flow_label(own, theirs, path), why);
    };
    auto made = take_handle(turn % kPaths, Purpose::kFurtherPath);
    if (made && !*made) made = take_handle(rail, purpose);
    if (made) {
      *found = {std::move(*made), rail};
      return true;
    }
    if (made.error().errno_value == ETIMEDOUT || device.has_failed()) continue;
    failure = made.error();
    found->rail = rail;
  }
  if (failure.errno_value != 0) return failure;
  return false;
}

std::string describe_engine(const EngineName& name, const protocol::RailRecord& port) {
  char id[32];
  std::snprintf(id, sizeof(id), "engine %016" PRIx64, name.id);
  return std::string(id) + " at " + verbs::describe_port_address(std::bit_cast<verbs::PortAddress>(port));
}

}  // namespace verbena::transport::datagram
