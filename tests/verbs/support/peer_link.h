// How a test and its peer process tell each other where they are.
#pragma once

#include "verbs/types.h"

namespace verbena::verbs {

struct PeerHello {
  PortAddress port;
  QueuePairAddress pair;
  uint64_t address;
  uint32_t remote_key;
  uint32_t length_bytes;
};

}  // namespace verbena::verbs
