// What an engine is made for: how many pages there are, how long they are and where they lie; how much of
// it may be under way. From the device, the rails' speed and the settings, once.
#pragma once

#include <cstdint>

#include "protocol/datagram/engine_state.h"
#include "transport/link/nic.h"

namespace verbena::transport::datagram {

struct EngineShape {
  protocol::datagram::EngineOptions options;
  uint32_t page_bytes = 0;
};
// `unpacks`: NCCL is offered that its kernels do; then the pages are divided among the rails of all `nics`,
// which may be null otherwise. `random`: where peers' turns begin.
EngineShape choose_shape(const Nic& nic, const NicRegistry* nics, bool unpacks, uint32_t random);

// The smallest of all rails', in bytes; 0: a port is down.
uint32_t find_mtu_bytes(const Nic& nic);

// Pages lie in memory of the GPU where softverbs writes them there, if kernels unpack them: they read them
// from there ten times as fast.
bool wants_gpu_pages(const Nic& nic);
// Else they do so only if that is asked for: memory of the host may be received into, too.
bool takes_gpu_pages(const Nic& nic, bool unpacks);

}  // namespace verbena::transport::datagram
