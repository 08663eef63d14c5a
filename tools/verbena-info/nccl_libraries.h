// The libraries of NCCL on this host, and which of the plugin's tables each would take.
#pragma once
#include <string>

#include "verbena-info/document.h"

namespace verbena::tools::info {

// `wanted`: --nccl, may be empty; `plugin`: the document's.
Json collect_nccl_libraries(const std::string& wanted, const Json& plugin);

}  // namespace verbena::tools::info
