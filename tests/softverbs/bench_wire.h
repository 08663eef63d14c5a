#pragma once

#include <string>

namespace verbena::softverbs_test {

// Latency and bandwidth between two addresses, over the wire with 1 and 4 streams and over plain TCP. Both
// processes run here.
int measure_wire(const std::string& from, const std::string& to);

}  // namespace verbena::softverbs_test
