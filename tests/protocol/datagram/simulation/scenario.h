// One run of the simulation: a network, its temper, who sends what to whom, what dies when; and what came of
// it. A scenario is also a line of text, "name=incast senders=64 loses=10000", for verbena-fabric-sim.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/datagram/simulation/world.h"

namespace verbena::protocol::datagram::sim {

struct Scenario {
  std::string name = "flow";  // flow, incast, permutation, alltoall, ring, tree, mixed
  FabricShape shape;
  FabricTemper temper;
  HostTemper host;
  EngineOptions engine;
  uint64_t seed = 1;
  uint32_t senders = 64;  // incast
  uint32_t hosts = 0;     // that take part; 0: all
  uint64_t message_bytes = 1 << 20;
  uint32_t depth = 8;           // messages open on a flow
  int64_t warm_ns = 1'000'000;  // before the measurement
  int64_t run_ns = 4'000'000;   // of it
  uint64_t steps = 8;           // ring, tree: of each host
  // At fault_ns something dies: a spine, a plane's link to host 0, or a link gets slow.
  int64_t fault_ns = 0;
  // spine, rail, slow, links (a share of all leaf links, dead for a while), hosts (stop for good)
  std::string fault;
  int64_t reroute_ns = 0;      // until switches choose around it; 0: never
  uint32_t failing_links = 0;  // links: how many in all
  uint32_t stopped_hosts = 1;  // hosts: the first ones that send
  int64_t bin_ns = 20'000;     // of the goodput over time

  // The problem with a word of the text; empty if there is none.
  std::string read(const std::string& text);
  Scenario() { engine.packet_ns = 0; }  // fits the network unless a setting says otherwise
};

struct Report {
  double goodput = 0;                    // of the measured receivers, as a share of the line rate's payload
  double least = 0, most = 0, jain = 0;  // of flows, each as a share of their mean
  double p50_us = 0, p99_us = 0, max_us = 0;
  uint32_t last_hop_queue = 0, core_queue = 0;
  uint64_t dropped = 0, swallowed = 0, lost = 0;
  uint64_t peak_pages = 0;
  EngineStatistics engine;
  Totals totals;
  uint64_t events = 0;
  int64_t end_ns = 0;
  double recovery_us = -1;   // from a fault to 98 % of what is left
  std::vector<double> bins;  // goodput over time
  std::string leftovers;

  std::string describe(const Scenario& scenario) const;
};

struct Pairing {
  uint32_t source, target;
};
// Who sends to whom.
std::vector<Pairing> pair_up(const Scenario& scenario, Random& random);

Report run(const Scenario& scenario);

// A small world with all faults at once, drawn from a seed, until everything is delivered: empty if all is
// well, else what is not.
std::string run_small(uint64_t seed);

}  // namespace verbena::protocol::datagram::sim
