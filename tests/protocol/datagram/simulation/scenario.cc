#include "protocol/datagram/simulation/scenario.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

namespace verbena::protocol::datagram::sim {
namespace {

double payload_share(const FabricShape& shape, const HostTemper& host) {
  return static_cast<double>(host.data_bytes) / shape.full_bytes;
}

// Bytes a nanosecond of payload on one link.
double find_line_rate(const Scenario& scenario) {
  return scenario.shape.gigabits / 8 * payload_share(scenario.shape, scenario.host) * scenario.shape.planes;
}

uint64_t count_pages_in_use(World& world, uint32_t host) {
  PageBudget& budget = world.host(host).budget();
  return uint64_t{budget.held()} + budget.parked() + budget.lent() + budget.moving();
}

void plan_fault(World& world, const Scenario& scenario) {
  if (scenario.fault.empty()) return;
  Fabric& fabric = world.fabric();
  if (scenario.fault == "links") {
    // Links that die at random times and come back later.
    const uint32_t leaves = scenario.shape.leaves_per_pod * scenario.shape.pods;
    for (uint32_t i = 0; i < scenario.failing_links; ++i) {
      const uint32_t leaf = world.random().between(0, leaves - 1);
      const uint32_t spine = world.random().between(0, scenario.shape.spines - 1);
      const auto begin_ns =
          static_cast<int64_t>(world.random().next() % static_cast<uint64_t>(scenario.run_ns));
      const int64_t reroute_ns = scenario.reroute_ns;
      world.at(begin_ns, [&fabric, leaf, spine] { fabric.set_leaf_link(0, leaf, spine, true, false); });
      if (reroute_ns != 0)
        world.at(begin_ns + reroute_ns,
                 [&fabric, leaf, spine] { fabric.set_leaf_link(0, leaf, spine, true, true); });
      world.at(begin_ns + 5'000'000,
               [&fabric, leaf, spine] { fabric.set_leaf_link(0, leaf, spine, false, false); });
    }
    return;
  }
  const std::string fault = scenario.fault;
  const uint32_t stopped = scenario.stopped_hosts;
  const auto act = [&world, &fabric, fault, stopped](bool is_rerouted) {
    if (fault == "spine") fabric.set_spine(0, 0, 0, true, is_rerouted);
    if (fault == "rail") fabric.set_host(0, 0, true);
    if (fault == "slow") fabric.slow_leaf_link(0, 0, 0, 10);
    for (uint32_t host = 1; fault == "hosts" && host <= stopped; ++host) world.stop_host(host, kNeverNs);
  };
  world.at(scenario.fault_ns, [act] { act(false); });
  if (scenario.reroute_ns != 0) world.at(scenario.fault_ns + scenario.reroute_ns, [act] { act(true); });
}

// Steps that wait for each other: a host sends its next message when the one of its neighbour has come.
void start_steps(World& world, const Scenario& scenario, std::vector<int64_t>& step_ns) {
  const uint32_t hosts = scenario.hosts != 0 ? scenario.hosts : scenario.shape.hosts();
  Flow flow;
  flow.bytes = scenario.message_bytes;
  flow.depth = 2;
  flow.limit = scenario.steps;
  auto flow_of_source = std::make_shared<std::vector<uint32_t>>(hosts);
  auto began_ns = std::make_shared<std::vector<int64_t>>(hosts, 0);
  for (uint32_t i = 0; i < hosts; ++i) {
    flow.source = i;
    flow.target = (i + 1) % hosts;
    if (scenario.name == "tree") flow.target = i == 0 ? 1 : (i - 1) / 2;
    (*flow_of_source)[i] = world.add_flow(flow);
  }
  // A ring: the next step once the neighbour's has come. A tree: once those of all children have.
  const bool is_tree = scenario.name == "tree";
  world.on_received = [&world, flow_of_source, began_ns, &step_ns, is_tree, hosts](uint32_t id, uint64_t) {
    const uint32_t target = world.flow(id).target;
    step_ns.push_back(world.now_ns() - (*began_ns)[target]);
    (*began_ns)[target] = world.now_ns();
    if (is_tree && target == 0) return;
    Flow& own = world.flow((*flow_of_source)[target]);
    uint64_t ready = own.sent + 1;
    for (uint32_t child = 2 * target + 1; is_tree && child <= 2 * target + 2 && child < hosts; ++child)
      ready = std::min(ready, world.flow((*flow_of_source)[child]).received);
    while (own.sent < std::min(ready, own.limit)) world.send_one((*flow_of_source)[target]);
  };
  for (uint32_t i = is_tree ? 1 : 0; i < hosts; ++i) {
    const bool is_leaf = is_tree && 2 * i + 1 >= hosts;
    is_leaf ? world.fill((*flow_of_source)[i]) : world.begin_steps((*flow_of_source)[i], !is_tree);
  }
}

double at_rank(std::vector<int64_t>& sorted, double share) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(share * static_cast<double>(sorted.size() - 1));
  return static_cast<double>(sorted[rank]) / 1000;
}

}  // namespace

std::vector<Pairing> pair_up(const Scenario& scenario, Random& random) {
  std::vector<Pairing> pairs;
  const uint32_t hosts = scenario.hosts != 0 ? scenario.hosts : scenario.shape.hosts();
  if (scenario.name == "flow") {
    pairs.push_back({0, hosts - 1});
  } else if (scenario.name == "incast") {
    for (uint32_t i = 0; i < scenario.senders; ++i) pairs.push_back({1 + i % (hosts - 1), 0});
  } else if (scenario.name == "permutation") {
    // Each sends to one that does not share its leaf.
    std::vector<uint32_t> targets(hosts);
    for (uint32_t i = 0; i < hosts; ++i) targets[i] = i;
    for (bool is_good = false; !is_good;) {
      for (uint32_t i = hosts - 1; i > 0; --i) std::swap(targets[i], targets[random.between(0, i)]);
      for (uint32_t tries = 0; tries < 50 * hosts; ++tries) {
        const uint32_t i = random.between(0, hosts - 1), j = random.between(0, hosts - 1);
        const auto leaf = [&](uint32_t host) { return host / scenario.shape.hosts_per_leaf; };
        if (leaf(i) == leaf(targets[i]) && leaf(i) != leaf(targets[j]) && leaf(j) != leaf(targets[i]))
          std::swap(targets[i], targets[j]);
      }
      is_good = true;
      for (uint32_t i = 0; i < hosts; ++i)
        is_good = is_good && i / scenario.shape.hosts_per_leaf != targets[i] / scenario.shape.hosts_per_leaf;
    }
    for (uint32_t i = 0; i < hosts; ++i) pairs.push_back({i, targets[i]});
  } else if (scenario.name == "alltoall") {
    const uint32_t stride = hosts > 64 ? hosts / 32 : 1;  // of many hosts, a share of all pairs
    for (uint32_t shift = 1; shift < hosts; shift += stride)
      for (uint32_t i = 0; i < hosts; ++i) pairs.push_back({i, (i + shift) % hosts});
  }
  return pairs;
}

std::string Scenario::read(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  const std::map<std::string, std::function<void(const std::string&)>> fields = {
      {"name", [&](const std::string& v) { name = v; }},
      {"fault", [&](const std::string& v) { fault = v; }},
  };
  std::map<std::string, std::function<void(double)>> numbers;
  const auto field = [&](const char* key, auto& target) {
    numbers[key] = [&target](double value) { target = static_cast<std::decay_t<decltype(target)>>(value); };
  };
  field("seed", seed), field("senders", senders), field("hosts", hosts), field("bytes", message_bytes);
  field("depth", depth), field("warm_ns", warm_ns), field("run_ns", run_ns), field("steps", steps);
  field("fault_ns", fault_ns), field("reroute_ns", reroute_ns), field("links", failing_links);
  field("stopped", stopped_hosts);
  field("bin_ns", bin_ns);
  field("leaf_hosts", shape.hosts_per_leaf), field("leaves", shape.leaves_per_pod), field("pods", shape.pods);
  field("spines", shape.spines), field("cores", shape.cores_per_spine), field("planes", shape.planes);
  field("gigabits", shape.gigabits), field("buffer", shape.buffer_packets),
      field("lossless", shape.is_lossless), field("mark", shape.mark_packets),
      field("skew_ns", shape.skew_ns);
  field("loses", temper.loses), field("doubles", temper.doubles), field("damages", temper.damages);
  field("reorders", temper.delay_packets);
  field("pages", host.pages), field("engine_ns", host.packet_ns), field("poll_gap_ns", host.poll_gap_ns),
      field("consume_ns", host.consume_ns);
  field("credits", engine.pages.credits), field("quantum", engine.pages.quantum),
      field("eager", engine.eager_packets);
  field("window", engine.window_packets), field("paths", host.paths), field("served", engine.served_peers);
  field("acks", engine.ack_packets), field("late_ns", engine.late_ns);
  while (words >> word) {
    const size_t at = word.find('=');
    if (at == std::string::npos) return "\"" + word + "\" is no setting";
    const std::string key = word.substr(0, at), value = word.substr(at + 1);
    if (const auto found = fields.find(key); found != fields.end()) {
      found->second(value);
    } else if (const auto number = numbers.find(key); number != numbers.end()) {
      number->second(std::atof(value.c_str()));
    } else {
      return "there is no setting \"" + key + "\"";
    }
  }
  return {};
}

Report run(const Scenario& scenario) {
  World world(scenario.shape, scenario.temper, scenario.host, scenario.engine, scenario.seed);
  Report report;
  plan_fault(world, scenario);
  std::vector<int64_t> step_ns;
  const bool has_steps = scenario.name == "ring" || scenario.name == "tree";
  if (has_steps) {
    start_steps(world, scenario, step_ns);
  } else {
    Flow flow;
    flow.bytes = scenario.message_bytes;
    flow.depth = scenario.depth;
    for (const Pairing& pair : pair_up(scenario, world.random())) {
      flow.source = pair.source;
      flow.target = pair.target;
      world.add_flow(flow);
    }
    for (uint32_t f = 0; f < world.flows(); ++f) world.fill(f);
  }
  const double line_rate = find_line_rate(scenario);
  const uint32_t watched = scenario.name == "incast" ? 0 : world.flows() != 0 ? world.flow(0).target : 0;
  std::map<uint32_t, bool> targets;
  for (uint32_t f = 0; f < world.flows(); ++f) targets[world.flow(f).target] = true;
  const double capacity = line_rate * static_cast<double>(targets.size());
  world.measure(false);
  // The goodput of each bin, and how many pages are in use.
  uint64_t bytes_before = 0;
  const int64_t end_ns = scenario.warm_ns + scenario.run_ns;
  for (int64_t at_ns = 0; at_ns < end_ns;) {
    at_ns = std::min(at_ns + scenario.bin_ns, end_ns);
    if (at_ns > scenario.warm_ns && at_ns - scenario.bin_ns <= scenario.warm_ns) {
      world.measure(true);
      static_cast<void>(world.fabric().take_longest_queue(watched));
    }
    world.run(at_ns);
    const uint64_t packets = world.sum_received_bytes();
    report.bins.push_back(static_cast<double>(packets - bytes_before) / static_cast<double>(scenario.bin_ns) /
                          capacity);
    bytes_before = packets;
    report.peak_pages = std::max(report.peak_pages, count_pages_in_use(world, watched));
    if (world.queue().is_empty()) break;
  }
  report.end_ns = world.now_ns();
  report.totals = std::move(world.totals());
  report.engine = world.sum_statistics();
  report.events = world.events();
  report.dropped = world.fabric().dropped();
  report.swallowed = world.fabric().swallowed();
  report.lost = world.fabric().lost();
  report.last_hop_queue = world.fabric().take_longest_queue(watched);
  report.core_queue = world.fabric().longest_core_queue();
  double sum = 0, squares = 0, least = 1e300, most = 0;
  for (uint32_t f = 0; f < world.flows(); ++f) {
    const auto bytes = static_cast<double>(world.flow(f).measured_bytes);
    sum += bytes;
    squares += bytes * bytes;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  if (sum > 0) {
    const double flows = world.flows(), mean = sum / flows;
    report.goodput = sum / static_cast<double>(scenario.run_ns) / capacity;
    report.jain = sum * sum / (flows * squares);
    report.least = least / mean;
    report.most = most / mean;
  }
  auto& latencies = has_steps ? step_ns : report.totals.latencies_ns;
  std::sort(latencies.begin(), latencies.end());
  report.p50_us = at_rank(latencies, 0.5);
  report.p99_us = at_rank(latencies, 0.99);
  report.max_us = at_rank(latencies, 1);
  if (has_steps) {
    for (uint32_t f = 0; f < world.flows(); ++f)
      if (world.flow(f).sent != 0 && world.flow(f).received < scenario.steps)
        report.leftovers = "steps are not done";
  }
  return report;
}

std::string Report::describe(const Scenario& scenario) const {
  char line[512];
  std::snprintf(line, sizeof(line),
                "%-11s goodput %.3f  min/max %.3f  jain %.4f  p50 %.1f us  p99 %.1f us  max %.1f us  queue "
                "%u  core %u  "
                "dropped %llu  pages %llu\n",
                scenario.name.c_str(), goodput, most > 0 ? least / most : 0, jain, p50_us, p99_us, max_us,
                last_hop_queue, core_queue, static_cast<unsigned long long>(dropped),
                static_cast<unsigned long long>(peak_pages));
  std::string text = line;
  const auto u = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  std::snprintf(
      line, sizeof(line),
      "            packets %llu  resent %llu  in vain %llu  acks %.3f/packet  probes %llu  timeouts %llu  "
      "wishes "
      "%llu  refused %llu  rests %llu  late %llu  wrong %llu  silent %llu  lost %llu  swallowed %llu  events "
      "%.1f/packet\n",
      u(engine.sent_packets), u(engine.resent_packets), u(engine.in_vain),
      engine.received_packets
          ? static_cast<double>(engine.sent_acks) / static_cast<double>(engine.received_packets)
          : 0,
      u(engine.probes), u(engine.timeouts), u(engine.sent_requests), u(engine.refused_packets),
      u(engine.rested_paths), u(engine.late_marks), u(totals.wrong), u(totals.silent), u(lost), u(swallowed),
      engine.sent_packets ? static_cast<double>(events) / static_cast<double>(engine.sent_packets) : 0);
  return text + line;
}

}  // namespace verbena::protocol::datagram::sim
