// Chooses the ports of an endpoint.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/device.h"

namespace verbena::transport {

// Returns the healthy ports nearest to a GPU (`gpu` is an ordinal; kNoGpu selects all ports), up to a maximum
// number. GPUs that are near the same ports start with different ports, by ordinal. `filter` has the syntax
// of VERBENA_HCA, which is used if `filter` is empty. Thread safe.
base::Result<std::vector<std::unique_ptr<verbs::Device>>> choose_devices(const std::string& filter, int gpu,
                                                                         uint32_t most);

}  // namespace verbena::transport
