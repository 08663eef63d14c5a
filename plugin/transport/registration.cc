#include "transport/registration.h"

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

// A dma-buf first; where the device refuses it, by address if a peer memory module lets it.
base::Result<verbs::MemoryRegion> register_on(verbs::Device& device, void* address, size_t length_bytes,
                                              int fd, uint64_t offset_bytes, verbs::Access access) {
  if (fd < 0) return verbs::MemoryRegion::register_memory(device, address, length_bytes, access);
  auto region = verbs::MemoryRegion::register_dmabuf(device, address, length_bytes, offset_bytes, fd, access);
  if (region || !device.supports_gpu_pointers()) return region;
  auto by_address = verbs::MemoryRegion::register_memory(device, address, length_bytes, access);
  if (by_address) {
    base::log_info("device %s:%d: registered by address what it refused as a dma-buf", device.name().c_str(),
                   device.port_number());
  }
  return by_address;
}

}  // namespace

base::Result<std::unique_ptr<Registration>> register_on_rails(const Nic& nic, void* address,
                                                              size_t length_bytes, bool is_gpu_memory, int fd,
                                                              uint64_t offset_bytes) {
  auto registration = std::make_unique<Registration>();
  registration->address = address;
  registration->length_bytes = length_bytes;
  registration->is_gpu_memory = is_gpu_memory;
  const verbs::Access access{.remote_read = true,
                             .remote_write = true,
                             .relaxed_ordering = base::parameters().pci_relaxed_ordering != 0};
  for (size_t rail = 0; rail < nic.rails.size(); ++rail) {
    verbs::Device& device = *nic.rails[rail];
    auto region = register_on(device, address, length_bytes, fd, offset_bytes, access);
    if (!region) return region.error();
    registration->regions[rail] = std::move(*region);
  }
  return registration;
}

}  // namespace verbena::transport
