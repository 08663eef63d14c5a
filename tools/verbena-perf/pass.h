#pragma once
#include <cstdint>

namespace verbena::tools::perf {

// One run of messages of one size over one connection. Both sides count the connection's messages, so that
// they agree on the pattern of each. Distinct messages are filled one by one, for the pass that verifies
// every byte; the others repeat a window of prepared ones, so that filling stays out of what is timed.
struct Pass {
  uint64_t length_bytes = 0;
  uint64_t count = 0;
  bool distinct = true;
  uint64_t first_sequence = 0;

  uint64_t pattern_index(uint64_t message, unsigned window) const {
    return first_sequence + (distinct ? message : message % window);
  }
};

// Sums over all passes of one size.
struct ReceiveCounts {
  uint64_t staged = 0;  // receives whose slot held descriptors
  uint64_t direct = 0;
  uint64_t descriptors = 0;
  uint64_t verified_bytes = 0;
  uint64_t wrong_bytes = 0;
};

}  // namespace verbena::tools::perf
