#include "transport/memory/unpack_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace verbena::transport {

namespace {

constexpr size_t kCountBytes = sizeof(NetUnpackMeta::cnt);
constexpr size_t kHandleStrideBytes = 64;  // the GPU writes the beginning of each handle
// The counts of two queues must not overlap.
constexpr uint32_t kMinDescriptors = kCountBytes / sizeof(LoadMeta);
static_assert(kUnpackMaxDescriptors % kMinDescriptors == 0);

}  // namespace

base::Result<std::unique_ptr<UnpackMemory>> UnpackMemories::take(uint32_t descriptors, void* bounce_base) {
  descriptors = std::bit_ceil(std::max(descriptors, kMinDescriptors));
  std::unique_ptr<UnpackMemory> memory;
  {
    const std::lock_guard lock(mutex_);
    auto& spare = spare_[descriptors];
    if (spare.empty()) {
      if (auto outcome = add_block(descriptors); !outcome) return outcome.error();
    }
    memory = std::move(spare.back());
    spare.pop_back();
  }
  const UnpackDeviceHandle handle{memory->device_meta_, bounce_base, kUnpackFreshHead};
  auto outcome = base::write_buffer(*memory->handles_, memory->handle_offset_bytes_, &handle, sizeof(handle));
  if (outcome) return memory;
  give_back(std::move(memory));
  return outcome.error();
}

base::Outcome UnpackMemories::add_block(uint32_t descriptors) {
  const uint32_t queues = kUnpackMaxDescriptors / descriptors;
  const size_t stride_bytes = descriptors * sizeof(LoadMeta);
  auto metas =
      base::Buffer::allocate(base::Place::kHost, sizeof(NetUnpackMeta) + (queues - 1) * stride_bytes);
  if (!metas) return metas.error();
  auto handles = base::Buffer::allocate(base::Place::kDevice, queues * kHandleStrideBytes);
  if (!handles) return handles.error();
  auto block = std::make_unique<Block>(Block{std::move(*metas), std::move(*handles)});
  for (uint32_t i = queues; i-- > 0;) {
    auto memory = std::make_unique<UnpackMemory>();
    const auto at = [](void* start, size_t offset_bytes) { return static_cast<char*>(start) + offset_bytes; };
    memory->host_meta_ = reinterpret_cast<NetUnpackMeta*>(at(block->metas.host(), i * stride_bytes));
    memory->device_meta_ = reinterpret_cast<NetUnpackMeta*>(at(block->metas.device(), i * stride_bytes));
    memory->handle_offset_bytes_ = i * kHandleStrideBytes;
    memory->device_handle_ = at(block->handles.device(), memory->handle_offset_bytes_);
    memory->handles_ = &block->handles;
    memory->descriptors_ = descriptors;
    spare_[descriptors].push_back(std::move(memory));
  }
  blocks_.push_back(std::move(block));
  return {};
}

void UnpackMemories::give_back(std::unique_ptr<UnpackMemory> memory) {
  std::memset(memory->host_meta_->cnt, 0, kCountBytes);
  const std::lock_guard lock(mutex_);
  spare_[memory->descriptors_].push_back(std::move(memory));
}

}  // namespace verbena::transport
