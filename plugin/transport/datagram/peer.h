// What an engine knows of another: who it is, where it is reached, and by which ways.
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
#include "verbs/datagram_queues.h"

namespace verbena::transport::datagram {

// The address handles of a peer. Making them asks the kernel: not in a data call.
struct Ways {
  std::vector<verbs::AddressHandle> handles;
  std::array<uint8_t, protocol::datagram::kPaths> of_path{};
  // A bit for each that leads there by a handle of its own: the others take one of these handles.
  uint32_t paths = 0;
  // ... and for each of those others.
  uint32_t reachable = 0;

  ibv_ah* find(uint32_t path) const { return handles[of_path[path]].get(); }
};

// Path p takes the rail p modulo this end's rails, and there the peer's rail p modulo the peer's.
// `has_many`: one handle, and one path, for each pair of rails has to do. False: a port's
// address does not answer yet. An error if no path leads there.
base::Result<bool> make_ways(std::span<const std::unique_ptr<Rail>> rails,
                             const protocol::datagram::EngineName& name,
                             std::span<const protocol::datagram::EngineRail> peer, bool has_many, Ways* ways);

// Which of a peer's queue pairs for granted packets those of a path go to. Beyond the first few hundred,
// peers have few paths each: their numbers spread them.
inline uint32_t choose_granted_pair(uint32_t peer, uint32_t path, uint32_t own_rails,
                                    const protocol::datagram::EngineName& name) {
  return (path / own_rails + peer) % name.granted_pairs();
}

// A way to one port, for greetings.
struct GreetingWay {
  verbs::AddressHandle way;
  uint32_t rail = 0;  // from which it leaves
};
// From one of our rails that reach the port, another one for each `turn`, as any of them may be dead. False:
// the port's address does not answer yet.
base::Result<bool> find_greeting_way(std::span<const std::unique_ptr<Rail>> rails,
                                     const protocol::RailRecord& port, uint32_t turn, GreetingWay* found);

struct Peer {
  protocol::datagram::EngineName name{};
  protocol::datagram::ProcessName process{};
  std::vector<protocol::datagram::EngineRail> rail;
  uint16_t slot = protocol::datagram::kStrangerSlot;  // by which it knows us
  bool is_met = false;                                // its rails, ways and keys are known
  bool has_left = false;                              // its engine, which said so
  bool is_dead = false;                               // its process has ended, says this host's kernel
  bool is_ending = false;                             // an entry of Engine::ended_ is for it
  protocol::datagram::TagKeys send_keys, receive_keys;
  Ways ways;
  std::string text;       // for people
  base::Outcome failure;  // it is given up
  // ... because it says that it gave us up, so that who connects calls it again.
  bool has_given_us_up = false;
  // The same engine before it was given up, if it had been met: its ends stay failed.
  uint32_t former = protocol::datagram::kNoObject;
  int64_t reset_ns = 0;  // when it was last told so
  // Since when it owes an answer because another one said that its process has ended; 0: it does not.
  int64_t doubted_ns = 0;
  uint32_t looks = 0;   // since then
  std::string witness;  // who said so, for people
  uint32_t open_receives = 0, connectors = 0;
  uint16_t next_channel = 0;

  bool is_gone() const { return has_left || is_dead; }  // it says nothing any more
};

std::string describe_engine(const protocol::datagram::EngineName& name, const protocol::RailRecord& port);

}  // namespace verbena::transport::datagram
