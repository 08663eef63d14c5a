#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "chaos/folder.h"
#include "chaos/round.h"
#include "chaos/round_plan.h"

namespace verbena::chaos {

// What the driver knows of one end.
struct End {
  size_t child = 0;  // its process of now
  std::string phase;
  unsigned percent = 0;
  std::map<unsigned, nlohmann::json> lives;  // what it said of each
  bool is_killed = false;
  bool is_replaced = false;
  bool has_finished = false;
  bool has_exited = true;
  std::string exit;
  std::string last_words;
};

struct Struck {
  int64_t at_ns = 0;
  const Strike* strike = nullptr;
};

// After a round: what is not as it must be, and the figures.
void judge(const RoundPlan& plan, const std::array<End, kEnds>& ends, const std::vector<Struck>& struck,
           const Folder& folder, RoundResult& result);

}  // namespace verbena::chaos
