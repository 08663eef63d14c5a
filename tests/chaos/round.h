#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "chaos/round_plan.h"

namespace verbena::chaos {

struct RoundLimits {
  double hang_s = 30;  // without a word from either end
  double hold_s = 0;   // how long what hangs is left alone, for a debugger
};

// What one round came to. No problem: it ended as it must.
struct RoundResult {
  std::vector<std::string> problems;
  bool has_hung = false;
  bool is_wrong = false;  // data
  uint64_t strikes = 0;   // from outside
  uint64_t injected = 0;  // by softverbs, as it says itself
  uint64_t lives_done = 0, lives_failed = 0;
  uint64_t messages = 0, bytes = 0, staged = 0;
  std::vector<double> stalls_ms;     // of traffic that went on, one for each fault
  std::vector<double> reactions_ms;  // from the fault to the reported error
  double seconds = 0;
};

// Starts the two ends, does what is planned and judges what they say.
RoundResult run_round(const RoundPlan& plan, const std::string& plugin, const RoundLimits& limits);

}  // namespace verbena::chaos
