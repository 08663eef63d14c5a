// Which ports an endpoint uses.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/device.h"

namespace verbena::transport {

// The healthy ports nearest to that GPU (an ordinal; kNoGpu: all), at most so many; GPUs with the same ones
// near begin with different ones, by ordinal. `filter` as VERBENA_HCA, which counts if it is empty. Thread
// safe.
base::Result<std::vector<std::unique_ptr<verbs::Device>>> choose_devices(const std::string& filter, int gpu,
                                                                         uint32_t most);

}  // namespace verbena::transport
