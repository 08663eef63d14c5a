#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// What to do about a rail's test that failed with these words; `gpu` is a GPU's index or kHostMemory.
std::string suggest_remedy(const std::string& words, const Json& device, int gpu);

}  // namespace verbena::tools::info
