#include "fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

// A stand-in for libcuda.so.1 on machines without a GPU, so that the code around the driver's calls runs in
// every test. "Device memory" is a memfd: its address faults when the CPU touches it, and only these copies
// know where it really is. Streams are threads that take their time. It says nothing about how a real GPU
// behaves.
using namespace fake_cuda;
using driver_stand_in::current, driver_stand_in::kGrainBytes;

namespace {

// What all handles of a multicast object know: who has joined, and who has bound memory where.
struct Multicast {
  unsigned gpus = 0, joined = 0;  // `gpus`: how many there are to be
  int handles = 1;
  std::map<std::pair<int, size_t>, size_t> bound;  // by GPU and offset: bytes
};

// An allocation has one for as long as anybody holds it or maps it.
struct Handle {
  int fd;
  size_t bytes;
  int gpu;
  bool is_exportable;
  int holders = 1;
  ino_t multicast = 0;  // of which object
};

struct Range {
  size_t bytes = 0;
  uint8_t* alias = nullptr;  // where the CPU may really touch it
  int fd = -1;
  int gpu = 0;
  bool is_legacy = false, is_exportable = false;
  unsigned access = 0;       // a bit for each GPU that may use it
  Handle* handle = nullptr;  // of what is mapped there
};

std::mutex mutex;
bool has_multicast = false;  // see fake_offer_multicast()
std::string refused_call;    // see fake_refuse_multicast()
int refused_gpu = 0;
std::map<ino_t, Multicast> multicasts;
bool is_open = false;             // GPU memory does not fault: see fake_open_memory()
std::map<Pointer, Range> ranges;  // by start
std::map<Pointer, size_t> reservations;
std::map<uint64_t, size_t> host_ranges;
Context contexts[kGpus] = {{0}, {1}};  // the primary ones

ino_t identify(int fd) {
  struct stat status {};
  return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

size_t round_up(size_t bytes) {
  return (bytes + kGrainBytes - 1) / kGrainBytes * kGrainBytes;
}

// The range that holds an address; with the mutex held.
std::pair<Pointer, Range*> find_range(Pointer address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return {0, nullptr};
  --after;
  return address < after->first + after->second.bytes ? std::pair(after->first, &after->second)
                                                      : std::pair(Pointer{0}, nullptr);
}

Pointer reserve(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return reinterpret_cast<Pointer>(address);
}

// Memory that nobody has unbound keeps an object, for tests to see. With the mutex held.
void forget_unused(ino_t multicast) {
  const auto object = multicasts.find(multicast);
  if (object->second.handles == 0 && object->second.bound.empty()) multicasts.erase(object);
}

// With the mutex held.
bool refuses(const char* call) {
  return refused_call == call && current != nullptr && current->gpu == refused_gpu;
}

void release(Handle* handle) {
  if (handle == nullptr || --handle->holders > 0) return;
  if (handle->multicast != 0) {
    --multicasts[handle->multicast].handles;
    forget_unused(handle->multicast);
  }
  close(handle->fd);
  delete handle;
}

void attach(Pointer at, int fd, size_t bytes, int gpu, bool is_legacy, bool is_exportable = false,
            Handle* handle = nullptr) {
  void* alias = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  std::lock_guard lock(mutex);
  if (is_open)
    mmap(reinterpret_cast<void*>(at), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  ranges[at] = {bytes,         static_cast<uint8_t*>(alias), fd,    gpu, is_legacy,
                is_exportable, is_legacy ? ~0u : 0u,         handle};
  if (handle != nullptr) ++handle->holders;
}

int detach(Pointer at) {
  std::lock_guard lock(mutex);
  const auto range = ranges.find(at);
  if (range == ranges.end()) return kInvalidValue;
  munmap(range->second.alias, range->second.bytes);
  if (is_open)
    mmap(reinterpret_cast<void*>(at), range->second.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  close(range->second.fd);
  release(range->second.handle);
  ranges.erase(range);
  return kSuccess;
}

// With the mutex held.
bool is_complete(const Handle& handle) {
  const auto object = multicasts.find(handle.multicast);
  return object != multicasts.end() &&
         __builtin_popcount(object->second.joined) == static_cast<int>(object->second.gpus);
}

// What cuIpcGetMemHandle puts into its 64 bytes, which need no alignment.
struct __attribute__((packed)) Ipc {
  int pid, fd, gpu;
  size_t bytes;
};

struct Location {
  int type, id;
};
struct AllocationProperties {
  int type, handle_types;
  Location location;
};

}  // namespace

namespace fake_cuda {

uint8_t* resolve(Pointer address, size_t bytes, int* gpu) {
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  if (gpu != nullptr) *gpu = range == nullptr ? kHost : range->gpu;
  if (range == nullptr) return reinterpret_cast<uint8_t*>(address);  // the host's
  if (current == nullptr || (range->access >> current->gpu & 1) == 0 ||
      address + bytes > start + range->bytes)
    return nullptr;
  return range->alias + (address - start);
}

size_t measure_span(Pointer address, size_t bytes) {
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  return range == nullptr ? bytes : std::min(bytes, static_cast<size_t>(start + range->bytes - address));
}

Context* get_context() {
  return current;
}

bool offers_multicast() {
  std::lock_guard lock(mutex);
  return has_multicast;
}

}  // namespace fake_cuda

// Of this stand-in, before anything is allocated: the CPU may use GPU memory from now on, as kernels that an
// emulator runs do (fake_set_launcher()).
API fake_open_memory() {
  std::lock_guard lock(mutex);
  is_open = true;
  return kSuccess;
}
API cuDeviceGetCount(int* count) {
  *count = kGpus;
  return kSuccess;
}
API cuDevicePrimaryCtxRetain(Context** context, int gpu) {
  *context = &contexts[gpu];
  return kSuccess;
}
API cuCtxCreate_v2(Context** context, unsigned, int gpu) {
  *context = current = new Context{gpu};
  return kSuccess;
}
API cuCtxDestroy_v2(Context*) {
  return kSuccess;
}
API cuCtxSetCurrent(Context* context) {
  expect_alive();
  current = context;
  return kSuccess;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return kSuccess;
}
API cuCtxSynchronize() {
  return kSuccess;
}

// Attributes 11 and 12 of memory that was mapped by itself tell of its reservation, as the driver's do.
API cuPointerGetAttributes(unsigned count, const int* which, void** data, Pointer address) {
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  std::pair<Pointer, size_t> extent{start, range == nullptr ? 0 : range->bytes};
  if (range != nullptr && !range->is_legacy) {
    const auto after = reservations.upper_bound(address);
    if (after != reservations.begin()) extent = *std::prev(after);
  }
  for (unsigned i = 0; i < count; ++i) {
    const bool is_known = range != nullptr;
    switch (which[i]) {
      case 1:
        *static_cast<Context**>(data[i]) = is_known && range->is_legacy ? &contexts[range->gpu] : nullptr;
        break;
      case 2:
        *static_cast<unsigned*>(data[i]) = is_known ? 2 : 0;
        break;
      case 8:
        *static_cast<unsigned*>(data[i]) = 0;
        break;
      case 9:
        *static_cast<int*>(data[i]) = is_known ? range->gpu : -1;
        break;
      case 10:
        *static_cast<unsigned*>(data[i]) = is_known && range->is_legacy ? 1 : 0;
        break;
      case 11:
        *static_cast<Pointer*>(data[i]) = extent.first;
        break;
      case 12:
        *static_cast<size_t*>(data[i]) = extent.second;
        break;
      default:
        return kInvalidValue;
    }
  }
  return kSuccess;
}

API cuMemAlloc_v2(Pointer* address, size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  const int fd = memfd_create("fake-device", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kInvalidValue;
  *address = reserve(bytes);
  attach(*address, fd, bytes, current->gpu, true);
  return kSuccess;
}
API cuMemFree_v2(Pointer address) {
  return detach(address);
}
API cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  std::lock_guard lock(mutex);
  return host_ranges.emplace(reinterpret_cast<uint64_t>(address), bytes).second ? kSuccess
                                                                                : kAlreadyRegistered;
}

API cuMemHostUnregister(void* address) {
  std::lock_guard lock(mutex);
  return host_ranges.erase(reinterpret_cast<uint64_t>(address)) == 1 ? kSuccess : kInvalidValue;
}

// FAKE_CUDA_NO_SHARING: no process maps memory of another, as in some containers, and of some instances of a
// GPU.
namespace {
bool shares_memory() {
  static const bool shares = getenv("FAKE_CUDA_NO_SHARING") == nullptr;
  return shares;
}
}  // namespace
API cuIpcGetMemHandle(Ipc* handle, Pointer address) {
  const DriverLock driver;
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  if (range == nullptr || !range->is_legacy) return kInvalidValue;
  *handle = {getpid(), range->fd, range->gpu, range->bytes};
  return kSuccess;
}
struct IpcHandle {
  uint8_t bytes[64];
};
API cuIpcOpenMemHandle_v2(Pointer* address, IpcHandle handle, unsigned) {
  Ipc ipc{};
  memcpy(&ipc, handle.bytes, sizeof(ipc));
  if (current == nullptr || ipc.pid == getpid()) return kInvalidContext;
  if (!shares_memory()) return kNotSupported;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", ipc.pid, ipc.fd);
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  *address = reserve(ipc.bytes);
  attach(*address, fd, ipc.bytes, ipc.gpu, true);
  return kSuccess;
}
API cuIpcCloseMemHandle(Pointer address) {
  return detach(address);
}

API cuMemCreate(Handle** handle, size_t bytes, const AllocationProperties* properties, unsigned long long) {
  if (bytes % kGrainBytes != 0) return kInvalidValue;
  const int fd = memfd_create("fake-device", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kInvalidValue;
  *handle = new Handle{fd, bytes, properties->location.id, properties->handle_types == 1};
  return kSuccess;
}
API cuMemRelease(Handle* handle) {
  std::lock_guard lock(mutex);
  release(handle);
  return kSuccess;
}
API cuMemAddressReserve(Pointer* address, size_t bytes, size_t alignment, Pointer, unsigned long long) {
  // Nothing but multicast asks for an alignment.
  {
    std::lock_guard lock(mutex);
    if (alignment != 0 && refuses("cuMemAddressReserve")) return kInvalidValue;
  }
  *address = reserve(round_up(bytes));
  std::lock_guard lock(mutex);
  reservations[*address] = round_up(bytes);
  return kSuccess;
}
API cuMemAddressFree(Pointer address, size_t bytes) {
  {
    std::lock_guard lock(mutex);
    reservations.erase(address);
  }
  munmap(reinterpret_cast<void*>(address), round_up(bytes));
  return kSuccess;
}
API cuMemMap(Pointer address, size_t bytes, size_t offset, Handle* handle, unsigned long long) {
  if (offset != 0 || bytes % kGrainBytes != 0 || bytes > handle->bytes) return kInvalidValue;
  if (handle->multicast != 0) {
    std::lock_guard lock(mutex);
    if (!is_complete(*handle)) return kNotReady;
    if (refuses("cuMemMap")) return kInvalidValue;
  }
  attach(address, dup(handle->fd), bytes, handle->gpu, false, handle->is_exportable, handle);
  return kSuccess;
}
API cuMemUnmap(Pointer address, size_t) {
  return detach(address);
}
API cuMemSetAccess(Pointer address, size_t bytes, const Location* who, size_t) {
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  if (range == nullptr || start != address || range->bytes != bytes) return kInvalidValue;
  if (range->handle != nullptr && range->handle->multicast != 0 && refuses("cuMemSetAccess"))
    return kInvalidValue;
  range->access |= 1u << who->id;
  return kSuccess;
}
API cuMemRetainAllocationHandle(Handle** handle, void* address) {
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(reinterpret_cast<Pointer>(address));
  if (range == nullptr || range->handle == nullptr) return kInvalidValue;
  *handle = range->handle;
  ++range->handle->holders;
  return kSuccess;
}
API cuMemExportToShareableHandle(int* fd, Handle* handle, int, unsigned long long) {
  if (!handle->is_exportable) return kNotSupported;
  if (handle->multicast != 0) {
    std::lock_guard lock(mutex);
    if (refuses("cuMemExportToShareableHandle")) return kInvalidValue;
  }
  *fd = dup(handle->fd);
  return kSuccess;
}
API cuMemImportFromShareableHandle(Handle** handle, void* descriptor, int) {
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  struct stat status {};
  if (fstat(fd, &status) != 0) return kInvalidValue;
  if (!shares_memory()) return kNotSupported;
  std::lock_guard lock(mutex);
  const auto object = multicasts.find(status.st_ino);
  if (object != multicasts.end() && refuses("cuMemImportFromShareableHandle")) return kInvalidValue;
  *handle = new Handle{dup(fd), static_cast<size_t>(status.st_size), 0, true};
  if (object != multicasts.end()) {
    (*handle)->multicast = status.st_ino;
    ++object->second.handles;
  }
  return kSuccess;
}

// Multicast objects, which all handles of a process know by their files: memory can be bound and mapped when
// all GPUs have joined, each once. They carry nothing.
struct MulticastProperties {
  unsigned gpus;
  size_t bytes;
  unsigned long long handle_types, flags;
};
constexpr size_t kMulticastGrainBytes = 2 * kGrainBytes;

API cuMulticastGetGranularity(size_t* grain, const MulticastProperties*, int) {
  std::lock_guard lock(mutex);
  if (refuses("cuMulticastGetGranularity")) return kInvalidValue;
  *grain = kMulticastGrainBytes;
  return kSuccess;
}
API cuMulticastCreate(Handle** handle, const MulticastProperties* properties) {
  std::lock_guard lock(mutex);
  if (!has_multicast || properties->bytes % kMulticastGrainBytes != 0) return kInvalidValue;
  if (refuses("cuMulticastCreate")) return kInvalidValue;
  const int fd = memfd_create("fake-multicast", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(properties->bytes)) != 0) return kInvalidValue;
  *handle = new Handle{fd, properties->bytes, 0, properties->handle_types == 1};
  (*handle)->multicast = identify(fd);
  multicasts[identify(fd)].gpus = properties->gpus;
  return kSuccess;
}
API cuMulticastAddDevice(Handle* handle, int gpu) {
  std::lock_guard lock(mutex);
  if (handle->multicast == 0 || refuses("cuMulticastAddDevice")) return kInvalidValue;
  Multicast& object = multicasts[handle->multicast];
  if ((object.joined >> gpu & 1) != 0 || is_complete(*handle)) return kInvalidValue;
  object.joined |= 1u << gpu;
  return kSuccess;
}
API cuMulticastBindMem(Handle* handle, size_t offset, Handle* memory, size_t memory_offset, size_t bytes,
                       unsigned long long) {
  std::lock_guard lock(mutex);
  if (!is_complete(*handle)) return kNotReady;
  if (refuses("cuMulticastBindMem")) return kInvalidValue;
  if ((offset | memory_offset | bytes) % kMulticastGrainBytes != 0 || memory_offset + bytes > memory->bytes ||
      offset + bytes > handle->bytes || !memory->is_exportable)
    return kInvalidValue;
  auto& bound = multicasts[handle->multicast].bound;
  for (const auto& [where, length] : bound)
    if (where.first == memory->gpu && where.second < offset + bytes && offset < where.second + length)
      return kInvalidValue;
  bound[{memory->gpu, offset}] = bytes;
  return kSuccess;
}
API cuMulticastUnbind(Handle* handle, int gpu, size_t offset, size_t bytes) {
  std::lock_guard lock(mutex);
  const auto object = multicasts.find(handle->multicast);
  if (object == multicasts.end() || refuses("cuMulticastUnbind")) return kInvalidValue;
  const auto bound = object->second.bound.find({gpu, offset});
  if (bound == object->second.bound.end() || bound->second != bytes) return kInvalidValue;
  object->second.bound.erase(bound);
  return kSuccess;
}
// Of this stand-in. Off at first, as where NVLink's switches have none.
API fake_offer_multicast(int is_offered) {
  std::lock_guard lock(mutex);
  has_multicast = is_offered != 0;
  return kSuccess;
}
// This call of the driver's on multicast objects fails while this GPU is current; "": none does.
API fake_refuse_multicast(const char* name, int gpu) {
  std::lock_guard lock(mutex);
  refused_call = name;
  refused_gpu = gpu;
  return kSuccess;
}
// How many objects there are, and how many pieces of memory are bound in all of them.
API fake_count_multicast(int* objects, int* bound) {
  std::lock_guard lock(mutex);
  *objects = static_cast<int>(multicasts.size());
  *bound = 0;
  for (const auto& [file, object] : multicasts) *bound += static_cast<int>(object.bound.size());
  return kSuccess;
}
API cuMemGetAllocationPropertiesFromHandle(AllocationProperties* properties, Handle* handle) {
  *properties = {1, handle->is_exportable ? 1 : 0, {1, handle->gpu}};
  return kSuccess;
}
API cuMemGetAddressRange_v2(Pointer* begin, size_t* bytes, Pointer address) {
  if (current == nullptr) return kInvalidContext;
  std::lock_guard lock(mutex);
  const auto [start, range] = find_range(address);
  if (range == nullptr) return kInvalidValue;
  *begin = start;
  *bytes = range->bytes;
  return kSuccess;
}
