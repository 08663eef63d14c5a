#include "transport/memory/registration.h"

#include <sys/stat.h>

#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

// Identifies memory. NCCL exports a new dma-buf for every registration, each with its own inode, so CUDA's
// identifier of the memory is preferred. An inode identifies one dma-buf (kernels that can register dma-bufs
// give each one its own inode); together with the address that corresponds to its start, it identifies the
// memory. No inode is 0, so the two kinds of identifiers never collide. Descriptors of one allocation with
// different mappings count as equal, because a region that the device has registered reaches the same bytes
// through any of them.
verbs::MemoryIdentity identify(const verbs::RegionRequest& request) {
  if (request.kind == verbs::MemoryKind::kHost) return {};
  const auto* start = static_cast<const std::byte*>(request.address);
  if (const uint64_t allocation = base::find_gpu_allocation(start); allocation != 0) {
    return {{allocation, 0, 0}, base::find_gpu_allocation(start + request.length_bytes - 1) == allocation};
  }
  struct stat file {};
  if (request.kind != verbs::MemoryKind::kDmabuf || fstat(request.fd, &file) != 0) return {};
  return {{file.st_dev, file.st_ino, reinterpret_cast<uintptr_t>(start) - request.offset_bytes}, true};
}

}  // namespace

base::Result<std::unique_ptr<Registration>> register_on_rails(const Nic& nic, void* address,
                                                              size_t length_bytes, bool is_gpu_memory, int fd,
                                                              uint64_t offset_bytes) {
  auto registration = std::make_unique<Registration>();
  registration->address = address;
  registration->length_bytes = length_bytes;
  registration->is_gpu_memory = is_gpu_memory;
  verbs::RegionRequest request{.address = address,
                               .length_bytes = length_bytes,
                               .kind = fd >= 0         ? verbs::MemoryKind::kDmabuf
                                       : is_gpu_memory ? verbs::MemoryKind::kGpuPointer
                                                       : verbs::MemoryKind::kHost,
                               .access = {.remote_read = true,
                                          .remote_write = true,
                                          .relaxed_ordering = base::parameters().pci_relaxed_ordering != 0},
                               .identity = {},
                               .fd = fd,
                               .offset_bytes = offset_bytes};
  request.identity = identify(request);
  bool is_on_any = false;
  for (size_t rail = 0; rail < nic.rails.size(); ++rail) {
    if (nic.rails[rail]->has_failed()) continue;
    request.access.data_direct = fd >= 0 && !nic.rails[rail]->data_direct_path().empty();
    auto region = nic.rails[rail]->regions().take(request);
    if (!region && nic.rails[rail]->has_failed()) continue;
    if (!region) return region.error();  // the earlier rails' regions are released
    is_on_any = true;
    registration->remote_keys[rail] = region->remote_key();
    registration->regions[rail] = std::move(*region);
  }
  if (is_on_any) return registration;
  return base::fail(base::Status::kSystem, "device %s: cannot register memory: the device has failed",
                    nic.name.c_str());
}

}  // namespace verbena::transport
