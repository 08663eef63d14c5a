// Which port an endpoint uses.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "verbs/device.h"

namespace verbena::transport {

// The healthy port nearest to that GPU (an ordinal; kNoGpu: the first one); among equals they take turns by
// ordinal. `filter` as VERBENA_HCA, which counts if it is empty. Thread safe.
base::Result<std::unique_ptr<verbs::Device>> choose_device(const std::string& filter, int gpu);

}  // namespace verbena::transport
