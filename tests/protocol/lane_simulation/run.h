// A group of ranks, run to the end with the faults that a seed decides.
#pragma once

#include <cstdint>
#include <string>

namespace verbena::protocol::lane_simulation {

struct Report {
  std::string problem;  // empty: all went well
  uint64_t operations = 0, steps = 0, faults = 0, failures = 0, revivals = 0, replays = 0, lost_answers = 0;
  uint64_t moves = 0, errors = 0;

  void add(const Report& other);
};

Report run(uint64_t seed, bool fails);

}  // namespace verbena::protocol::lane_simulation
