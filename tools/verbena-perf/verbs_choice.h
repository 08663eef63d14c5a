#pragma once
#include <string>

#include "common/environment.h"

namespace verbena::tools::perf {

// NCCL takes the libibverbs.so.1 that the loader finds. Puts the one in front that the plugin would open.
void choose_same_verbs(Environment& environment, const std::string& plugin);

}  // namespace verbena::tools::perf
