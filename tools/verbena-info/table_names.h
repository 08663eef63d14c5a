// Which of the plugin's tables an NCCL looks up.
#pragma once
#include <set>
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// The numbers behind `prefix`, e.g. "ncclNetPlugin_v", among the names that a file holds: NCCL looks its
// plugins' tables up by such names. Reads the file, runs nothing of it. Empty if it cannot be read.
std::set<int> read_table_names(const std::string& path, const std::string& prefix);

// The newest of `wanted` that is among `exported`, as NCCL takes it; null if there is none.
Json choose_table(const std::set<int>& wanted, const Json& exported);

}  // namespace verbena::tools::info
