#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "softverbs/engine/memory_region.h"
#include "softverbs/engine/objects.h"
#include "softverbs/verbs/extended_verbs.h"

// Device memory (ibv_alloc_dm): memory of the library that the application accesses only by copies and work
// requests.
namespace verbena::softverbs {
namespace {

constexpr uint64_t kWordBytes = 4;  // the granularity of its copies, as on real devices
constexpr uint32_t kMaxAlignmentLog = 12;

struct DeviceMemory {
  ibv_dm base{};
  uint8_t* bytes = nullptr;
  uint64_t length = 0;
  std::atomic<uint32_t> users{0};
  DeviceMemory* origin = nullptr;  // set in imported memory, which shares the bytes of `origin`
};

struct MemoryTable {
  std::mutex mutex;
  std::map<uint32_t, DeviceMemory*> memories;  // by handle
  uint32_t last_handle = 0;
};
MemoryTable& get_table() {
  static auto* table = new MemoryTable;
  return *table;
}

DeviceMemory& get_memory(ibv_dm* memory) {
  return *reinterpret_cast<DeviceMemory*>(memory);
}

bool is_inside(const DeviceMemory& memory, uint64_t offset, uint64_t length) {
  return offset <= memory.length && length <= memory.length - offset;
}

int check_copy(const DeviceMemory& memory, uint64_t offset, uint64_t length) {
  const bool is_aligned = offset % kWordBytes == 0 && length % kWordBytes == 0;
  return is_aligned && is_inside(memory, offset, length) ? 0 : EFAULT;
}

int copy_in(ibv_dm* base, uint64_t offset, const void* from, size_t length) {
  DeviceMemory& memory = get_memory(base);
  if (const int error = check_copy(memory, offset, length); error != 0) return error;
  memcpy(memory.bytes + offset, from, length);
  return 0;
}

int copy_out(void* to, ibv_dm* base, uint64_t offset, size_t length) {
  const DeviceMemory& memory = get_memory(base);
  if (const int error = check_copy(memory, offset, length); error != 0) return error;
  memcpy(to, memory.bytes + offset, length);
  return 0;
}

DeviceMemory* make_memory(ibv_context* context, uint8_t* bytes, uint64_t length) {
  auto* memory = new DeviceMemory;
  memory->bytes = bytes;
  memory->length = length;
  memory->base.context = context;
  memory->base.memcpy_to_dm = copy_in;
  memory->base.memcpy_from_dm = copy_out;
  return memory;
}

}  // namespace

ibv_dm* allocate_device_memory(ibv_context* context, ibv_alloc_dm_attr* init) try {
  if (init->comp_mask != 0 || init->log_align_req > kMaxAlignmentLog) return fail_with<ibv_dm>(EOPNOTSUPP);
  if (init->length == 0 || init->length > kMaxDeviceMemoryBytes) return fail_with<ibv_dm>(EINVAL);
  void* bytes = mmap(nullptr, init->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) return fail_with<ibv_dm>(ENOMEM);
  DeviceMemory* memory = make_memory(context, static_cast<uint8_t*>(bytes), init->length);
  std::lock_guard lock(get_table().mutex);
  memory->base.handle = ++get_table().last_handle;
  get_table().memories[memory->base.handle] = memory;
  return &memory->base;
}
SOFTVERBS_CATCH

int free_device_memory(ibv_dm* base) {
  DeviceMemory& memory = get_memory(base);
  std::lock_guard lock(get_table().mutex);
  if (memory.origin != nullptr) return EINVAL;  // ibv_unimport_dm
  if (memory.users.load() != 0) return EBUSY;
  get_table().memories.erase(base->handle);
  munmap(memory.bytes, memory.length);
  delete &memory;
  return 0;
}

ibv_mr* register_device_memory(ibv_pd* pd, ibv_dm* base, uint64_t offset, size_t length, unsigned access) {
  DeviceMemory& memory = get_memory(base);
  if ((access & IBV_ACCESS_ZERO_BASED) == 0 || !is_inside(memory, offset, length))
    return fail_with<ibv_mr>(EINVAL);
  ibv_mr* region = register_memory(pd, memory.bytes + offset, length, 0, static_cast<int>(access));
  if (region == nullptr) return nullptr;
  memory.users.fetch_add(1);
  reinterpret_cast<Mr*>(region)->memory_users = &memory.users;
  region->addr = nullptr;
  return region;
}

}  // namespace verbena::softverbs

using namespace verbena::softverbs;

// Works only within the process, like every import in this library.
SOFTVERBS_API ibv_dm* ibv_import_dm(ibv_context* context, uint32_t handle) try {
  std::lock_guard lock(get_table().mutex);
  const auto known = get_table().memories.find(handle);
  if (known == get_table().memories.end()) return fail_with<ibv_dm>(ENOENT);
  DeviceMemory& origin = *known->second;
  DeviceMemory* memory = make_memory(context, origin.bytes, origin.length);
  memory->base.handle = handle;
  memory->origin = &origin;
  origin.users.fetch_add(1);
  return &memory->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API void ibv_unimport_dm(ibv_dm* base) {
  DeviceMemory& memory = get_memory(base);
  memory.origin->users.fetch_sub(1);
  delete &memory;
}
