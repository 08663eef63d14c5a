#pragma once
#include <string>

#include "chaos/traffic.h"

namespace verbena::chaos {

struct WorkerOptions {
  std::string plugin;
  std::string output;   // what it and the libraries say goes to this file
  std::string traffic;  // as JSON
  unsigned end = 0;
  unsigned first_life = 1;
};

// One end of a round, a process. Reports to the driver in lines of JSON:
//   "phase", "percent": what begins, and how much of its traffic is done;
//   "result": how a life ended ("done", "left", "failed", "wrong", "alone": the partner went before it had
//   said where it listens), with "error" and figures;  "finished": it has closed everything;  "error": it
//   cannot go on.
// Before each further life it waits for a line.
int run_worker(const WorkerOptions& options);

}  // namespace verbena::chaos
