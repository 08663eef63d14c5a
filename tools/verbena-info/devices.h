// RDMA ports and the devices that the plugin makes of them, found by the plugin's own code in this process.
#pragma once
#include "verbena-info/document.h"

namespace verbena::tools::info {

// Fills "verbs_library", "devices", "parameters" and "problem" (why the plugin would refuse to start, or
// null). `gpus` of the document are there already.
void collect_devices(Json& document);

}  // namespace verbena::tools::info
