// What others' transports would make of a scenario, as models on the same fabric: reliable connections, one
// or four queue pairs with a path each, that go back to the first lost packet; and chunks of 64 KiB over many
// paths that are lost with any of their packets (an unreliable connection's messages), with the constants
// that UCCL has published. No congestion control: windows alone.
#pragma once

#include <cstdint>

#include "protocol/datagram/simulation/scenario.h"

namespace verbena::protocol::datagram::sim {

enum class Baseline : uint8_t { kOnePair, kFourPairs, kChunks };

const char* describe(Baseline baseline);
Report run_baseline(const Scenario& scenario, Baseline baseline);

}  // namespace verbena::protocol::datagram::sim
