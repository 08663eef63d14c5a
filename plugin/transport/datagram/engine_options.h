// Chooses the sizes of an engine, once: the number, length and memory of its pages, and the number of packets
// in flight. The choice depends on the device, the speed of the rails and the settings.
#pragma once

#include <cstdint>

#include "protocol/datagram/engine_state.h"
#include "transport/link/nic.h"

namespace verbena::transport::datagram {

struct EngineShape {
  protocol::datagram::EngineOptions options;
  uint32_t page_bytes = 0;
};
// `unpacks` means that NCCL was offered UNPACK. In this case the pages are divided among the rails of all
// `nics`; otherwise `nics` may be null. `random` determines which peer is served first.
EngineShape choose_shape(const Nic& nic, const NicRegistry* nics, bool unpacks, uint32_t random);

// Returns the smallest MTU of all rails in bytes, or 0 if a port is down.
uint32_t find_mtu_bytes(const Nic& nic);

// Returns whether pages should be in GPU memory: only if softverbs writes them there and kernels unpack them.
// Kernels read from GPU memory ten times as fast.
bool wants_gpu_pages(const Nic& nic);
// For other devices, pages are in GPU memory only on request, because receives may also have buffers in host
// memory.
bool takes_gpu_pages(const Nic& nic, bool unpacks);

}  // namespace verbena::transport::datagram
