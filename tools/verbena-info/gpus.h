// GPUs that the CUDA driver shows to this process.
#pragma once
#include "verbena-info/document.h"

namespace verbena::tools::info {

// {"driver": "13.0", "problem", "devices": [...]}; `problem` says why there is none.
Json collect_gpus();

}  // namespace verbena::tools::info
