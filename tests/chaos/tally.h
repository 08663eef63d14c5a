#pragma once
#include <array>
#include <vector>

#include "chaos/round.h"
#include "chaos/round_plan.h"

namespace verbena::chaos {

// All rounds of a run, by fault.
class Tally {
 public:
  void add(const RoundPlan& plan, const RoundResult& result);
  void print() const;
  uint64_t problems() const { return problems_; }

 private:
  struct Samples {
    std::vector<double> all_ms;
    double longest_ms = -1;
    uint64_t longest_round = 0;

    void add(const std::vector<double>& more_ms, uint64_t round);
    void print(Fault fault, const char* kind) const;
  };
  struct Row {
    uint64_t rounds = 0, faults = 0, lives_done = 0, lives_failed = 0;
    uint64_t hung = 0, wrong = 0, otherwise_bad = 0;
    uint64_t messages = 0, bytes = 0;
    Samples stalls, reactions;
  };

  void print_counts() const;
  void print_times() const;
  void print_histogram() const;

  std::array<Row, std::size(kFaults)> rows_;
  uint64_t problems_ = 0;
};

}  // namespace verbena::chaos
