#include "chaos/tally.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "common/table.h"

namespace verbena::chaos {

void Tally::Samples::add(const std::vector<double>& more_ms, uint64_t round) {
  for (const double sample_ms : more_ms) {
    all_ms.push_back(sample_ms);
    if (sample_ms <= longest_ms) continue;
    longest_ms = sample_ms;
    longest_round = round;
  }
}

void Tally::Samples::print(Fault fault, const char* kind) const {
  if (all_ms.empty()) return;
  std::printf("%-10s %-26s %6zu %9.1f %9.1f %9.1f %9lu\n", describe_fault(fault), kind, all_ms.size(),
              tools::compute_median(all_ms), tools::compute_percentile(all_ms, 99), longest_ms,
              longest_round);
}

void Tally::add(const RoundPlan& plan, const RoundResult& result) {
  Row& row = rows_[static_cast<size_t>(plan.fault)];
  ++row.rounds;
  row.faults += result.strikes + result.injected;
  for (const unsigned percent : plan.traffic.leave_percent) row.faults += percent < kNeverPercent ? 1 : 0;
  row.lives_done += result.lives_done;
  row.lives_failed += result.lives_failed;
  row.messages += result.messages;
  row.bytes += result.bytes;
  row.stalls.add(result.stalls_ms, plan.round);
  row.reactions.add(result.reactions_ms, plan.round);
  if (result.problems.empty()) return;
  ++problems_;
  ++(result.has_hung ? row.hung : result.is_wrong ? row.wrong : row.otherwise_bad);
}

void Tally::print() const {
  print_counts();
  print_times();
  print_histogram();
}

void Tally::print_counts() const {
  std::printf("\n%-10s %7s %7s %8s %9s %9s %9s %5s %6s %6s\n", "fault", "rounds", "faults", "ends",
              "reported", "messages", "MiB", "hung", "wrong", "other");
  std::printf("%-10s %7s %7s %8s %9s %9s %9s %5s %6s %6s\n", "", "", "", "done", "error", "verified",
              "verified", "", "data", "");
  Row all;
  const auto print = [](const char* name, const Row& row) {
    std::printf("%-10s %7lu %7lu %8lu %9lu %9lu %9lu %5lu %6lu %6lu\n", name, row.rounds, row.faults,
                row.lives_done, row.lives_failed, row.messages, row.bytes >> 20, row.hung, row.wrong,
                row.otherwise_bad);
  };
  for (const Fault fault : kFaults) {
    const Row& row = rows_[static_cast<size_t>(fault)];
    if (row.rounds != 0) print(describe_fault(fault), row);
    all.rounds += row.rounds;
    all.faults += row.faults;
    all.lives_done += row.lives_done;
    all.lives_failed += row.lives_failed;
    all.messages += row.messages;
    all.bytes += row.bytes;
    all.hung += row.hung;
    all.wrong += row.wrong;
    all.otherwise_bad += row.otherwise_bad;
  }
  print("all", all);
}

void Tally::print_times() const {
  std::printf("\n%-10s %-26s %6s %9s %9s %9s %9s\n", "fault", "milliseconds", "count", "median", "p99", "max",
              "in round");
  for (const Fault fault : kFaults) {
    const Row& row = rows_[static_cast<size_t>(fault)];
    row.stalls.print(fault, "longest stall");
    row.reactions.print(fault, "fault to reported error");
  }
}

// Of the stalls of all rounds whose traffic went on.
void Tally::print_histogram() const {
  constexpr size_t kBuckets = 16;
  constexpr double kMaxColumns = 60;
  std::array<uint64_t, kBuckets> counts{};
  for (const Row& row : rows_) {
    for (const double stall_ms : row.stalls.all_ms) {
      const size_t bucket = stall_ms < 1 ? 0 : 1 + static_cast<size_t>(std::log2(stall_ms));
      ++counts[std::min(bucket, kBuckets - 1)];
    }
  }
  const uint64_t most = *std::max_element(counts.begin(), counts.end());
  if (most == 0) return;
  std::printf("\nlongest stall of each fault\n");
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (counts[bucket] == 0) continue;
    const auto columns = static_cast<size_t>(
        std::ceil(kMaxColumns * static_cast<double>(counts[bucket]) / static_cast<double>(most)));
    std::printf("  < %6u ms %6lu %s\n", 1U << bucket, counts[bucket], std::string(columns, '#').c_str());
  }
}

}  // namespace verbena::chaos
