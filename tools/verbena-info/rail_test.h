// The self-tests of one way for messages, in a process of their own: a connection of the plugin's device to
// itself, over which NCCL's calls move patterns.
#pragma once
#include <string>
#include <vector>

#include "verbena-info/options.h"
#include "verbena-info/test_memory.h"

namespace verbena::tools::info {

struct RailRole {
  std::vector<int> devices;  // the plugin's indices; several are joined first, as NCCL joins them
  int gpu = kHostMemory;
  bool is_staged = false;  // receives take slots, and the CPU moves what they describe, as the GPU would
};

// As --child takes it, and back; no devices where the text is none.
std::string format_role(const RailRole& role);
RailRole parse_role(const std::string& text);

// The child's side. Answers {"test", "ok", "detail"} for each test, in their order, until one fails.
int run_rail_tests(const Options& options);

}  // namespace verbena::tools::info
