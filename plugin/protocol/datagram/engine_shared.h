// The data that both sides of an engine's core share: the peers, their timers, the working paths, the time.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "protocol/datagram/engine_state.h"
#include "protocol/sequence.h"

namespace verbena::protocol::datagram {

// The time of a pass.
struct Moment {
  int64_t ns;
  Stamp stamp;
};

template <typename Port>
struct EngineShared {
  EngineShared(Port& its_port, const EngineOptions& its_options) : port(its_port), options(its_options) {
    for (uint32_t path = 0; path < kPaths; ++path) paths_of_rail[options.rail_of(path)] |= 1U << path;
  }

  auto timers() {
    return [this](uint32_t id) -> TimerLink& { return peers[id].timer; };
  }
  Stamp now() { return make_stamp(port.now_ns()); }
  Moment moment() { return {port.now_ns(), now()}; }
  static uint32_t count_packets(const Peer& peer, uint64_t bytes) {
    const uint64_t packets = (bytes + peer.data_bytes - 1) / peer.data_bytes;
    return packets == 0 ? 1 : static_cast<uint32_t>(packets);
  }
  static void enter(std::vector<uint32_t>& channels, uint16_t wire, uint32_t id) {
    if (channels.size() <= wire) channels.resize(size_t{wire} + 1, kNoObject);
    channels[wire] = id;
  }
  uint32_t paths_of(uint32_t rails) const {
    if (options.rails == 1) return rails != 0 ? ~0U : 0;
    uint32_t paths = 0;
    for (; rails != 0; rails &= rails - 1)
      paths |= paths_of_rail[static_cast<uint32_t>(std::countr_zero(rails))];
    return paths;
  }
  void note_heard(Peer& peer) {
    peer.heard_ns = port.now_ns();
    peer.owed_since_ns = kNeverNs;
  }
  // Returns a path for a packet without data, another one each time, because the previous one may be dead.
  // The order is random: in a fixed order, a question and its answer might always use one live path and one
  // dead path.
  uint32_t pick_control_path(const Peer& peer) {
    const uint32_t live = paths_of(port.live_rails()) & peer.paths.all();
    const uint32_t good = live & ~peer.paths.resting(), any = good != 0   ? good
                                                              : live != 0 ? live
                                                                          : peer.paths.all();
    control_draw = control_draw * 1664525 + 1013904223;
    const uint32_t turn = control_draw >> 27;
    static_assert(kPaths == 1U << (32 - 27));
    return (turn + static_cast<uint32_t>(std::countr_zero(std::rotr(any, static_cast<int>(turn))))) % kPaths;
  }

  Port& port;
  const EngineOptions options;
  EngineStatistics statistics;
  Slabs<Peer, 4> peers;
  TimerWheel wheel;
  std::array<uint32_t, kMaxEngineRails> paths_of_rail{};
  uint32_t control_draw = 0;  // state of a linear congruential generator, of which the upper bits are used
};

}  // namespace verbena::protocol::datagram
