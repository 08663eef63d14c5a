#include "transport/registration.h"

#include "base/parameters.h"

namespace verbena::transport {

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
    auto region = fd < 0 ? verbs::MemoryRegion::register_memory(device, address, length_bytes, access)
                         : verbs::MemoryRegion::register_dmabuf(device, address, length_bytes, offset_bytes,
                                                                fd, access);
    if (!region) return region.error();
    registration->regions[rail] = std::move(*region);
  }
  return registration;
}

}  // namespace verbena::transport
