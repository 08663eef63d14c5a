#pragma once
#include <cstdint>
#include <vector>

#include "tuner/calibration.h"

namespace verbena::tools::perf {

// Both functions compare two measurements over ascending sizes. They ignore sizes that only one measurement
// has. Figures that differ by less than 5 % count as equal.

// The largest size up to which staged is never slower than direct; 0 if it is slower at the smallest size.
int64_t find_unpack_threshold(const std::vector<tuner::Point>& staged,
                              const std::vector<tuner::Point>& direct);

// The shortest stripe: half of the size from which striped messages are never slower than whole ones. If
// there is no such size, the largest size, so that no measured size is striped. At least the minimum of the
// plugin's setting.
int64_t find_min_stripe(const std::vector<tuner::Point>& cut, const std::vector<tuner::Point>& whole);

}  // namespace verbena::tools::perf
