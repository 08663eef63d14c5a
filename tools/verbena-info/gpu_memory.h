// How a NIC reaches GPU memory (GPUDirect), and why not better.
#pragma once
#include "verbena-info/document.h"
#include "verbs/device.h"

namespace verbena::tools::info {

// {"path": "dma-buf", "peer memory", "softverbs" or "none", "why", "try"}; `gpus` as collect_gpus makes it.
Json explain_gpu_memory(const verbs::Device& device, const Json& gpus);

}  // namespace verbena::tools::info
