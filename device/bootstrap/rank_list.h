// Ranks as people read them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbena::bootstrap {

// `rank 5`, `ranks 1, 3 and 4`, `ranks 1, 5 to 7 and 12 others`: ascending, and not too long for a line.
std::string show_ranks(std::span<const uint32_t> ranks);

}  // namespace verbena::bootstrap
