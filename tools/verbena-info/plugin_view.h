// What NCCL would be told: the plugin's own table, loaded as NCCL loads it in a process of its own, so that
// whatever happens there leaves the tool alone.
#pragma once
#include "common/environment.h"
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

// Fills "plugin" and "nccl_view". `environment`: the user's.
void collect_plugin_view(Json& document, const Options& options, const Environment& environment);

// The child's side.
int run_plugin_view(const Options& options);

}  // namespace verbena::tools::info
