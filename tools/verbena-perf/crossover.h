#pragma once
#include <cstdint>
#include <vector>

#include "tuner/calibration.h"

namespace verbena::tools::perf {

// Both take two measurements of the same sizes, ascending; sizes that only one has are passed over. Figures
// closer than a twentieth count as equal.

// The largest size up to which staged is nowhere slower than direct; 0 if it is slower at the smallest.
int64_t find_unpack_threshold(const std::vector<tuner::Point>& staged,
                              const std::vector<tuner::Point>& direct);

// The shortest piece of a message that is worth a further rail: half of the size from which on messages in
// pieces are nowhere slower than whole ones; the largest size if there is none, so that nothing of what was
// measured is cut. At least the least that the plugin takes.
int64_t find_min_stripe(const std::vector<tuner::Point>& cut, const std::vector<tuner::Point>& whole);

}  // namespace verbena::tools::perf
