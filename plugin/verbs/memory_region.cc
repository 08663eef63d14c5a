#include <cerrno>

#include "base/log.h"
#include "verbs/library.h"
#include "verbs/mlx5.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Result;
using base::Status;

// LOCAL_WRITE is needed for receives, for reads and for remote writes, and NCCL's buffers are always
// writable.
unsigned encode_access(const Access& access) {
  unsigned flags = IBV_ACCESS_LOCAL_WRITE;
  if (access.remote_read) flags |= IBV_ACCESS_REMOTE_READ;
  if (access.remote_write) flags |= IBV_ACCESS_REMOTE_WRITE;
  if (access.remote_atomic) flags |= IBV_ACCESS_REMOTE_ATOMIC;
  if (access.relaxed_ordering) flags |= IBV_ACCESS_RELAXED_ORDERING;
  return flags;
}

const char* hint_at_cause(int errno_value) {
  switch (errno_value) {
    case EFAULT:
      return ", because the memory is not mapped, or is GPU memory that this device cannot reach; for GPU "
             "memory, load nvidia_peermem or use dma-buf";
    case EOPNOTSUPP:
      return ", because the device or its driver does not support this kind of memory";
    default:
      return hint_at_memory(errno_value);
  }
}

base::Error fail_registration(const Device& device, const char* kind, const void* address,
                              size_t length_bytes) {
  const int errno_value = errno;
  return base::fail_errno(
      Status::kSystem, errno_value, "device %s:%d: cannot register %s%s (address %p, length %zu bytes)",
      device.name().c_str(), device.port_number(), kind, hint_at_cause(errno_value), address, length_bytes);
}

}  // namespace

void Destroyer::operator()(ibv_mr* region) const {
  const char* const device = name_device(region->context);
  const int error = library->dereg_mr(region);
  if (error != 0) base::log_warn("device %s: a memory region cannot be released (errno %d)", device, error);
}

Result<MemoryRegion> MemoryRegion::register_memory(Device& device, void* address, size_t length_bytes,
                                                   Access access) {
  const Library& library = device.library();
  // Only the newer function accepts optional flags. The older function is called without them, which is
  // always allowed.
  const bool has_optional_flags = library.reg_mr_iova2 != nullptr;
  if (!has_optional_flags) access.relaxed_ordering = false;
  const unsigned flags = encode_access(access);
  ibv_mr* region = has_optional_flags
                       ? library.reg_mr_iova2(device.domain(), address, length_bytes,
                                              reinterpret_cast<uintptr_t>(address), flags)
                       : library.reg_mr(device.domain(), address, length_bytes, static_cast<int>(flags));
  if (region == nullptr) return fail_registration(device, "memory", address, length_bytes);
  MemoryRegion result;
  result.region_ = Owned<ibv_mr>(region, Destroyer{&library});
  result.local_key_ = region->lkey;
  result.remote_key_ = region->rkey;
  return result;
}

Result<MemoryRegion> MemoryRegion::register_dmabuf(Device& device, void* address, size_t length_bytes,
                                                   uint64_t offset_bytes, int fd, Access access) {
  const Library& library = device.library();
  if (library.reg_dmabuf_mr == nullptr) {
    return base::fail(
        Status::kSystem,
        "device %s:%d: cannot register a dma-buf, because %s is too old to have ibv_reg_dmabuf_mr",
        device.name().c_str(), device.port_number(), library.path().c_str());
  }
  const auto iova = reinterpret_cast<uintptr_t>(address);
  const auto flags = static_cast<int>(encode_access(access));
  ibv_mr* region =
      access.data_direct
          ? device.mlx5()->register_dmabuf(device.domain(), offset_bytes, length_bytes, iova, fd, flags)
          : library.reg_dmabuf_mr(device.domain(), offset_bytes, length_bytes, iova, fd, flags);
  if (region == nullptr)
    return fail_registration(device, access.data_direct ? "a dma-buf for Data Direct" : "a dma-buf", address,
                             length_bytes);
  MemoryRegion result;
  result.region_ = Owned<ibv_mr>(region, Destroyer{&library});
  result.local_key_ = region->lkey;
  result.remote_key_ = region->rkey;
  return result;
}

}  // namespace verbena::verbs
