// Small worlds for safety: everything at once, as a seed draws it, until all messages are delivered.
#include "protocol/datagram/simulation/scenario.h"

namespace verbena::protocol::datagram::sim {
namespace {

struct Draw {
  FabricShape shape;
  FabricTemper temper;
  HostTemper host;
  EngineOptions engine;
};

Draw draw(Random& random) {
  const auto pick = [&random](std::initializer_list<uint32_t> values) {
    return values.begin()[random.between(0, static_cast<uint32_t>(values.size()) - 1)];
  };
  Draw drawn;
  drawn.shape.hosts_per_leaf = random.between(1, 4);
  drawn.shape.leaves_per_pod = random.between(2, 4);
  drawn.shape.spines = random.between(1, 4);
  drawn.shape.planes = pick({1, 1, 1, 2, 4});
  drawn.shape.buffer_packets = pick({20, 100, 1200});
  drawn.shape.mark_packets = pick({0, 0, 50});
  drawn.shape.gigabits = pick({10, 100, 400});
  drawn.temper.loses = pick({0, 0, 1'000, 10'000, 100'000, 300'000});
  drawn.temper.doubles = pick({0, 0, 10'000, 200'000});
  drawn.temper.damages = pick({0, 0, 10'000});
  drawn.temper.delay_packets = pick({0, 0, 16, 64, 256});
  drawn.host.checks_all = true;
  drawn.host.poll_gap_ns = pick({0, 0, 20'000, 2'000'000});
  drawn.host.consume_ns = pick({0, 5'000, 500'000});
  drawn.host.receive_delay_percent = pick({0, 0, 20, 80});
  drawn.engine.pages.credits = pick({32, 128, 512});
  drawn.engine.pages.quantum = pick({1, 4, 16});
  // From hardly any to plenty.
  drawn.host.pages = drawn.shape.planes * std::max(PageBudget::kLeastPages,
                                                   pick({16, 32, 64, 2 * drawn.engine.pages.credits, 8192}));
  drawn.host.data_bytes = pick({896, 1920, 3968});
  drawn.engine.eager_packets = pick({1, 8, 8, 32});
  drawn.engine.window_packets = pick({8, 64, 256});
  drawn.engine.served_peers = pick({1, 8});
  drawn.host.paths = std::max(drawn.shape.planes, pick({1, 8, 32}));
  drawn.engine.silence_ns = 60'000'000'000;
  drawn.host.short_pages = drawn.shape.planes * pick({0, 0, 2, 16, 256});
  return drawn;
}

}  // namespace

std::string run_small(uint64_t seed) {
  constexpr int64_t kPatienceNs = 120'000'000'000;
  Random random(seed);
  const Draw drawn = draw(random);
  World world(drawn.shape, drawn.temper, drawn.host, drawn.engine, seed);
  const uint32_t hosts = drawn.shape.hosts(), flows = random.between(1, 12);
  uint64_t left = 0;
  const bool may_hoard = random.happens(30);
  for (uint32_t f = 0; f < flows; ++f) {
    Flow flow;
    flow.source = random.between(0, hosts - 1);
    flow.target = random.happens(50) ? 0 : random.between(0, hosts - 1);
    if (flow.source == flow.target) flow.source = (flow.source + 1) % hosts;
    flow.bytes = random.happens(50) ? 0 : random.between(1, 60) * 1000;
    flow.most_bytes = random.happens(20) ? 400'000 : 30'000;
    flow.depth = random.between(1, kRing);
    flow.limit = random.between(1, 60);
    flow.hoards = may_hoard && random.happens(30);
    world.add_flow(flow);
  }
  for (uint32_t f = 0; f < flows; ++f) world.fill(f);
  for (uint32_t stops = random.between(0, 3); stops != 0; --stops) {
    const uint32_t host = random.between(0, hosts - 1);
    const auto at_ns = static_cast<int64_t>(random.next() % 5'000'000);
    world.at(at_ns, [&world, host, at_ns] { world.stop_host(host, at_ns + 3'000'000); });
  }
  if (drawn.shape.spines > 1 && random.happens(30)) {
    world.at(static_cast<int64_t>(random.next() % 2'000'000),
             [&world] { world.fabric().set_spine(0, 0, 0, true, false); });
    world.at(20'000'000, [&world] { world.fabric().set_spine(0, 0, 0, false, false); });
  }
  const uint32_t stopped = random.happens(25) ? random.between(0, hosts - 1) : kNoObject;
  if (stopped != kNoObject)
    world.at(static_cast<int64_t>(random.next() % 2'000'000),
             [&world, stopped] { world.stop_host(stopped, kNeverNs); });
  const auto is_of_stopped = [&](const Flow& flow) {
    return flow.source == stopped || flow.target == stopped;
  };
  for (uint32_t f = 0; f < flows; ++f) left += is_of_stopped(world.flow(f)) ? 0 : world.flow(f).limit;
  // First those whose GPU gives pages back, then all; but those of a host that has stopped for good.
  const auto are_done = [&](bool with_hoarders) {
    for (uint32_t f = 0; f < flows; ++f) {
      const Flow& flow = world.flow(f);
      if (!is_of_stopped(flow) && (with_hoarders || !flow.hoards) && flow.received < flow.limit) return false;
    }
    return true;
  };
  const auto are_others_done = [&] { return are_done(false); };
  const auto are_all_done = [&] { return are_done(true); };
  world.run(kPatienceNs, are_others_done);
  if (!are_others_done())
    return "seed " + std::to_string(seed) + ": others stand still while a GPU keeps pages";
  world.stop_hoarding();
  world.run(world.now_ns() + kPatienceNs, are_all_done);
  // What is under way still: acknowledgements, copies, receives that the GPU has. The host that has stopped
  // is given up meanwhile.
  world.run(world.now_ns() + (stopped == kNoObject ? 3'000'000'000 : 2 * drawn.engine.silence_ns));
  if (stopped != kNoObject) {
    for (uint32_t f = 0; f < flows; ++f)
      if (is_of_stopped(world.flow(f))) world.close_flow(f);
    world.run(world.now_ns() + 1'000'000'000);
  }
  std::string problem;
  if (!are_all_done())
    problem +=
        " " + std::to_string(world.totals().messages) + " of " + std::to_string(left) + " messages came;";
  if (world.totals().wrong != 0)
    problem += " packets at a wrong place: " + std::to_string(world.totals().wrong) + ";";
  if (world.totals().silent != 0 && stopped == kNoObject) problem += " peers given up;";
  problem += world.find_leftovers(stopped);
  return problem.empty() ? problem : "seed " + std::to_string(seed) + ":" + problem;
}

}  // namespace verbena::protocol::datagram::sim
