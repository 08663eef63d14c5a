// The data that an engine has about another engine: its identity, its addresses, and the ways to it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "protocol/datagram/greeting.h"
#include "protocol/datagram/packet.h"
#include "transport/datagram/rail.h"
#include "verbs/address_handles.h"

namespace verbena::transport::datagram {

// The address handles of a peer, each shared with other peers that have the same port. Creating them calls
// the kernel, so they must not be created in a data call.
struct Ways {
  std::vector<verbs::AddressHandle> handles;
  std::array<uint8_t, protocol::datagram::kPaths> of_path{};
  // A bit for each path that has its own handle. The other paths share one of these handles.
  uint32_t paths = 0;
  // A bit for each path that can be used: with its own or a shared handle.
  uint32_t reachable = 0;

  ibv_ah* find(uint32_t path) const { return handles[of_path[path]].get(); }
};

// Creates the ways from the engine `own` to a peer. Path p uses the local rail p modulo the number of local
// rails, and the peer's rail p modulo the number of the peer's rails. If `has_many`, or if a device has few
// address handles left, each pair of rails has only one handle and one path. Returns false while the address
// of a port does not answer. Returns an error if no path leads to the peer.
base::Result<bool> make_ways(std::span<const std::unique_ptr<Rail>> rails,
                             const protocol::datagram::EngineName& own,
                             const protocol::datagram::EngineName& name,
                             std::span<const protocol::datagram::EngineRail> peer, bool has_many, Ways* ways);

// Chooses the queue pair of the peer for the granted packets of a path. Beyond a few hundred peers, each has
// few paths, so the peer's number distributes them.
inline uint32_t choose_granted_pair(uint32_t peer, uint32_t path, uint32_t own_rails,
                                    const protocol::datagram::EngineName& name) {
  return (path / own_rails + peer) % name.granted_pairs();
}

// A way to one port, for greetings.
struct GreetingWay {
  verbs::AddressHandle way;
  uint32_t rail = 0;  // the local rail
};
// Finds a way from one of the local rails that reach the port. Each `turn` uses another rail, because a rail
// may be dead. Returns false while the address of the port does not answer. An error is not logged; `found`
// then names the rail.
base::Result<bool> find_greeting_way(std::span<const std::unique_ptr<Rail>> rails,
                                     const protocol::datagram::EngineName& own,
                                     const protocol::RailRecord& port, uint32_t turn,
                                     verbs::AddressHandles::Purpose purpose, GreetingWay* found);

struct Peer {
  protocol::datagram::EngineName name{};
  protocol::datagram::ProcessName process{};
  std::vector<protocol::datagram::EngineRail> rail;
  uint16_t slot = protocol::datagram::kStrangerSlot;  // the slot by which the peer knows this engine
  bool is_met = false;                                // its rails, ways and keys are known
  bool has_left = false;                              // its engine has ended and said so
  bool is_dead = false;    // its process has ended, as the kernel of this host reports
  bool is_ending = false;  // Engine::ended_ has an entry for it
  protocol::datagram::TagKeys send_keys, receive_keys;
  Ways ways;
  std::string text;       // for log lines
  base::Outcome failure;  // why it was given up
  // The peer was given up because it had given up this engine. A connection attempt therefore calls it again.
  bool has_given_us_up = false;
  // The same engine's peer before it was given up, if it had been connected: its ends stay failed.
  uint32_t former = protocol::datagram::kNoObject;
  int64_t reset_ns = 0;  // when it was last notified
  // Since when the peer must answer because another engine reported that its process has ended; 0: no report.
  int64_t doubted_ns = 0;
  uint32_t looks = 0;   // number of checks since then
  std::string witness;  // the engine that reported it, for log lines
  uint32_t open_receives = 0, connectors = 0;
  uint16_t next_channel = 0;

  bool is_gone() const { return has_left || is_dead; }  // it sends nothing any more
};

std::string describe_engine(const protocol::datagram::EngineName& name, const protocol::RailRecord& port);

}  // namespace verbena::transport::datagram
