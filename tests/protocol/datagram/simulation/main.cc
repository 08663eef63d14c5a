// Runs scenarios, one a line of the arguments or of stdin, and prints what came of them.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "protocol/datagram/simulation/baseline.h"

int main(int count, char** arguments) {
  using namespace verbena::protocol::datagram::sim;
  std::string line;
  for (int i = 1; i < count; ++i) line += std::string(i == 1 ? "" : " ") + arguments[i];
  const auto take_word = [&line](const std::string& word) {
    const bool is_there = line.compare(0, word.size() + 1, word + " ") == 0;
    if (is_there) line.erase(0, word.size() + 1);
    return is_there;
  };
  const bool compares = take_word("compare"), prints_bins = take_word("bins");
  const auto act = [&](const std::string& text) {
    Scenario scenario;
    if (const std::string problem = scenario.read(text); !problem.empty()) {
      std::fprintf(stderr, "verbena-fabric-sim: %s\n", problem.c_str());
      return false;
    }
    const auto begin = std::chrono::steady_clock::now();
    const Report report = run(scenario);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::printf("# %s\n%s            %.1f s, %.2f M events/s%s\n", text.c_str(),
                report.describe(scenario).c_str(), seconds,
                static_cast<double>(report.events) / seconds / 1e6, report.leftovers.c_str());
    for (const Baseline baseline : {Baseline::kOnePair, Baseline::kFourPairs, Baseline::kChunks}) {
      if (!compares) break;
      const Report other = run_baseline(scenario, baseline);
      std::printf("            %-17s goodput %.3f  min/max %.3f  queue %u  core %u  dropped %llu\n",
                  describe(baseline), other.goodput, other.most > 0 ? other.least / other.most : 0,
                  other.last_hop_queue, other.core_queue, static_cast<unsigned long long>(other.dropped));
      if (!prints_bins) continue;
      for (size_t i = 0; i < other.bins.size(); ++i) std::printf("%zu:%.3f ", i, other.bins[i]);
      std::printf("\n");
    }
    if (prints_bins) {
      for (size_t i = 0; i < report.bins.size(); ++i) std::printf("%zu:%.3f ", i, report.bins[i]);
      std::printf("\n");
    }
    std::fflush(stdout);
    return true;
  };
  if (!line.empty()) return act(line) ? 0 : 2;
  while (std::getline(std::cin, line))
    if (!line.empty() && line[0] != '#' && !act(line)) return 2;
  return 0;
}
