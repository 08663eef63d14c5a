// The self-tests of one rail and one memory, in a process of their own: a connection of the plugin's device
// to itself, over which NCCL's calls move patterns.
#pragma once
#include "verbena-info/options.h"

namespace verbena::tools::info {

// The child's side: `options.child` is "rail DEVICE MEMORY", the plugin's index of the device and a GPU's
// index or kHostMemory. Answers {"test", "ok", "detail"} for each test, in the order of list_rail_tests(),
// until one fails.
int run_rail_tests(const Options& options);

std::string name_rail_test_role(int device, int gpu);

}  // namespace verbena::tools::info
