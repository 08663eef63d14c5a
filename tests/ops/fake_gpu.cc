// libcuda.so.1 for tests: GPUs whose memory is the host's and whose kernels, those of libverbena_ops.so, run
// on the emulated machine of tests/device/emulator (fake_kernels.cc), one grid at a time for each stream.
// Ranks are threads or processes, each with a GPU of its own; what they write to each other's memory they see
// as on one machine. Streams are threads, graphs lists of what was captured. FAKE_GPUS says how many GPUs
// there are (default 4).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "abi/cuda.h"
#include "base/driver_stand_in.h"
#include "ops/fake_kernels.h"

using namespace verbena;
using namespace verbena::cuda;
using driver_stand_in::Context, driver_stand_in::current, driver_stand_in::kGrainBytes,
    driver_stand_in::kInvalidContext;

namespace {

constexpr CUresult kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kNotFound = 500,
                   kCaptureInvalid = 901;

using Clock = std::chrono::steady_clock;
int count_gpus() {
  const char* const text = std::getenv("FAKE_GPUS");
  return text == nullptr ? 4 : std::atoi(text);
}

// FAKE_GPU_CAPABILITIES: the major compute capability of each GPU, one digit each, the first ones first
// ("9,8").
int find_capability(int gpu) {
  const char* const text = std::getenv("FAKE_GPU_CAPABILITIES");
  const auto at = static_cast<size_t>(gpu) * 2;
  return text == nullptr || at >= std::strlen(text) ? 9 : text[at] - '0';
}

Context* find_context(int gpu) {
  static std::vector<Context> contexts = [] {
    std::vector<Context> all;
    for (int i = 0; i < count_gpus(); ++i) all.push_back({i});
    return all;
  }();
  return &contexts[static_cast<size_t>(gpu)];
}

struct Handle {
  int fd;
  size_t bytes;
  int gpu, holders = 1;
};
struct Range {
  size_t bytes;
  int gpu;
  Handle* handle;  // of what is mapped there; null: of cuMemAlloc
  uint64_t id;
};
std::mutex memory_mutex;
std::map<CUdeviceptr, Range> ranges;
uint64_t next_id = 1;

void release(Handle* handle) {
  if (handle == nullptr || --handle->holders > 0) return;
  close(handle->fd);
  delete handle;
}
std::pair<CUdeviceptr, Range*> find_range(CUdeviceptr address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return {0, nullptr};
  --after;
  if (address >= after->first + after->second.bytes) return {0, nullptr};
  return {after->first, &after->second};
}

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0, reached = 0;
  Clock::time_point time;
};

using Task = std::function<void()>;
struct Graph {
  std::vector<Task> tasks;
};

class Stream {
 public:
  void push(Task task) {
    const std::lock_guard lock(mutex_);
    if (graph_ != nullptr) return graph_->tasks.push_back(std::move(task));
    tasks_.push_back(std::move(task));
    ++issued_;
    changed_.notify_all();
  }
  void begin_capture() {
    const std::lock_guard lock(mutex_);
    graph_ = new Graph;
  }
  Graph* end_capture() {
    const std::lock_guard lock(mutex_);
    return std::exchange(graph_, nullptr);
  }
  bool is_capturing() {
    const std::lock_guard lock(mutex_);
    return graph_ != nullptr;
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return done_ == issued_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    const uint64_t until = issued_;
    changed_.wait(lock, [&] { return done_ >= until; });
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !tasks_.empty(); });
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  Graph* graph_ = nullptr;
  uint64_t issued_ = 0, done_ = 0;
  std::thread thread_{[this] { work(); }};  // never ends: the process does
};

// Streams and their GPUs, the default one among them: it is the process's.
std::mutex streams_mutex;
std::vector<std::pair<Stream*, int>> streams;
Stream* add_stream(int gpu) {
  auto* const stream = new Stream;
  const std::lock_guard lock(streams_mutex);
  streams.emplace_back(stream, gpu);
  return stream;
}
Stream* find_stream(CUstream stream) {
  static auto* const legacy = add_stream(-1);
  return stream == nullptr ? legacy : reinterpret_cast<Stream*>(stream);
}

// ---- Kernels ----

const Kernel kPause{};

CUresult launch(CUfunction handle, const GridShape& grid, CUstream stream, void** parameters) {
  const auto& kernel = *reinterpret_cast<const Kernel*>(handle);
  const auto gpu = static_cast<uint32_t>(current == nullptr ? 0 : current->gpu);
  if (kernel.run == nullptr) {
    const uint64_t length_ns = *static_cast<const uint64_t*>(parameters[0]);
    find_stream(stream)->push([=] { std::this_thread::sleep_for(std::chrono::nanoseconds(length_ns)); });
    return CUDA_SUCCESS;
  }
  const auto* const told = static_cast<const std::byte*>(parameters[0]);
  const std::vector<std::byte> launch(told, told + kernel.launch_bytes);
  find_stream(stream)->push([=] { kernel.run(gpu, grid, launch.data()); });
  return CUDA_SUCCESS;
}

}  // namespace

// Without fake_kernels.cc.
[[gnu::weak]] const Kernel* verbena::find_kernel(const std::string&) {
  return nullptr;
}

// ---- The driver, the GPUs, their contexts ----

API cuInit(unsigned) {
  return count_gpus() == 0 ? kNoDevice : CUDA_SUCCESS;
}
API cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
API cuGetErrorName(CUresult status, const char** text) {
  *text = status == kNoDevice ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_OF_THE_STAND_IN";
  return CUDA_SUCCESS;
}
API cuDeviceGetCount(int* count) {
  *count = count_gpus();
  return CUDA_SUCCESS;
}
API cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return ordinal < count_gpus() ? CUDA_SUCCESS : kInvalidValue;
}
API cuDeviceGetName(char* name, int capacity, CUdevice device) {
  const int capability = find_capability(device);
  std::snprintf(name, static_cast<size_t>(capacity), capability == 9 ? "emulated GPU%.0d" : "emulated GPU %d",
                capability == 9 ? 0 : capability);
  return CUDA_SUCCESS;
}
API cuDeviceGetPCIBusId(char* text, int capacity, CUdevice device) {
  std::snprintf(text, static_cast<size_t>(capacity), "FFFE:%02X:00.0", device + 1);  // of no real device
  return CUDA_SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = find_capability(device);
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = device + 1;
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = 200;
      break;
    default:
      *value = 0;
  }
  return CUDA_SUCCESS;
}
API cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(find_context(device));
  return CUDA_SUCCESS;
}
API cuCtxSetCurrent(CUcontext context) {
  current = reinterpret_cast<Context*>(context);
  return CUDA_SUCCESS;
}
API cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return CUDA_SUCCESS;
}

// ---- Memory ----

API cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  if (current == nullptr) return kInvalidContext;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  const std::lock_guard lock(memory_mutex);
  ranges[*address] = {bytes, current->gpu, nullptr, next_id++};
  return CUDA_SUCCESS;
}
API cuMemFree_v2(CUdeviceptr address) {
  const std::lock_guard lock(memory_mutex);
  const auto range = ranges.find(address);
  if (range == ranges.end()) return kInvalidValue;
  munmap(reinterpret_cast<void*>(address), range->second.bytes);
  ranges.erase(range);
  return CUDA_SUCCESS;
}
API cuMemHostRegister_v2(void*, size_t, unsigned) {
  return CUDA_SUCCESS;
}
API cuMemHostUnregister(void*) {
  return CUDA_SUCCESS;
}
API cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = size_t{8} << 30;
  return CUDA_SUCCESS;
}
API cuMemGetAddressRange_v2(CUdeviceptr* begin, size_t* bytes, CUdeviceptr address) {
  const std::lock_guard lock(memory_mutex);
  const auto [start, range] = find_range(address);
  if (range == nullptr) return kInvalidValue;
  if (begin != nullptr) *begin = start;
  if (bytes != nullptr) *bytes = range->bytes;
  return CUDA_SUCCESS;
}
API cuPointerGetAttribute(void* value, int which, CUdeviceptr address) {
  const std::lock_guard lock(memory_mutex);
  const auto [start, range] = find_range(address);
  if (range == nullptr) return kInvalidValue;
  switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<Context**>(value) = find_context(range->gpu);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<uint64_t*>(value) = range->id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(value) = range->gpu;
      return CUDA_SUCCESS;
    default:
      return kInvalidValue;
  }
}
API cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kOutOfMemory;
  *address = reinterpret_cast<CUdeviceptr>(memory);
  return CUDA_SUCCESS;
}
API cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}
API cuMemCreate(Handle** handle, size_t bytes, const CUmemAllocationProp* properties, unsigned long long) {
  const int fd = memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  *handle = new Handle{fd, bytes, properties->location.id};
  return CUDA_SUCCESS;
}
API cuMemRelease(Handle* handle) {
  const std::lock_guard lock(memory_mutex);
  release(handle);
  return CUDA_SUCCESS;
}
API cuMemRetainAllocationHandle(Handle** handle, void* address) {
  const std::lock_guard lock(memory_mutex);
  const auto [start, range] = find_range(reinterpret_cast<CUdeviceptr>(address));
  if (range == nullptr || range->handle == nullptr) return kInvalidValue;
  *handle = range->handle;
  ++range->handle->holders;
  return CUDA_SUCCESS;
}
API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, Handle* handle) {
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties->location = {CU_MEM_LOCATION_TYPE_DEVICE, handle->gpu};
  return CUDA_SUCCESS;
}
API cuMemExportToShareableHandle(int* descriptor, Handle* handle, int, unsigned long long) {
  *descriptor = fcntl(handle->fd, F_DUPFD_CLOEXEC, 0);
  return CUDA_SUCCESS;
}
API cuMemImportFromShareableHandle(Handle** handle, void* descriptor, int) {
  const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
  struct stat status {};
  if (fstat(fd, &status) != 0) return kInvalidValue;
  *handle = new Handle{fcntl(fd, F_DUPFD_CLOEXEC, 0), static_cast<size_t>(status.st_size), 0};
  return CUDA_SUCCESS;
}
API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, Handle* handle, unsigned long long) {
  void* const mapped = mmap(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, handle->fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return kInvalidValue;
  const std::lock_guard lock(memory_mutex);
  ranges[address] = {bytes, handle->gpu, handle, next_id++};
  ++handle->holders;
  return CUDA_SUCCESS;
}
API cuMemUnmap(CUdeviceptr address, size_t bytes) {
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  const std::lock_guard lock(memory_mutex);
  const auto range = ranges.find(address);
  if (range == ranges.end()) return kInvalidValue;
  release(range->second.handle);
  ranges.erase(range);
  return CUDA_SUCCESS;
}
API cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

// ---- Streams, events, graphs ----

API cuStreamCreate(CUstream* stream, unsigned) {
  *stream = reinterpret_cast<CUstream>(add_stream(current == nullptr ? 0 : current->gpu));
  return CUDA_SUCCESS;
}
API cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return cuStreamCreate(stream, flags);
}
API cuCtxSynchronize() {
  if (current == nullptr) return kInvalidContext;
  std::vector<Stream*> all;
  {
    const std::lock_guard lock(streams_mutex);
    for (const auto& [stream, gpu] : streams)
      if (gpu < 0 || gpu == current->gpu) all.push_back(stream);
  }
  for (Stream* const stream : all) stream->wait();
  return CUDA_SUCCESS;
}
API cuStreamDestroy_v2(CUstream) {
  return CUDA_SUCCESS;
}
// With FAKE_GPU_BUSY the stream never gets empty, as one with a hanging kernel.
API cuStreamQuery(CUstream stream) {
  if (std::getenv("FAKE_GPU_BUSY") != nullptr) return CUDA_ERROR_NOT_READY;
  return find_stream(stream)->is_idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API cuStreamSynchronize(CUstream stream) {
  if (find_stream(stream)->is_capturing()) return kCaptureInvalid;
  find_stream(stream)->wait();
  return CUDA_SUCCESS;
}
API cuStreamBeginCapture_v2(CUstream stream, int) {
  find_stream(stream)->begin_capture();
  return CUDA_SUCCESS;
}
API cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  *graph = reinterpret_cast<CUgraph>(find_stream(stream)->end_capture());
  return CUDA_SUCCESS;
}
API cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  *exec = reinterpret_cast<CUgraphExec>(new Graph(*reinterpret_cast<Graph*>(graph)));
  return CUDA_SUCCESS;
}
API cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  for (const Task& task : reinterpret_cast<Graph*>(exec)->tasks) find_stream(stream)->push(task);
  return CUDA_SUCCESS;
}
API cuGraphExecDestroy(CUgraphExec exec) {
  delete reinterpret_cast<Graph*>(exec);
  return CUDA_SUCCESS;
}
API cuGraphDestroy(CUgraph graph) {
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}
// There until the process ends, as no call here destroys them.
API cuEventCreate(CUevent* event, unsigned) {
  static std::mutex mutex;
  static auto* const events = new std::deque<Event>;
  const std::lock_guard lock(mutex);
  *event = reinterpret_cast<CUevent>(&events->emplace_back());
  return CUDA_SUCCESS;
}
API cuEventRecord(CUevent handle, CUstream stream) {
  auto* const event = reinterpret_cast<Event*>(handle);
  {
    const std::lock_guard lock(event->mutex);
    ++event->recorded;
  }
  find_stream(stream)->push([event] {
    const std::lock_guard lock(event->mutex);
    ++event->reached;
    event->time = Clock::now();
    event->changed.notify_all();
  });
  return CUDA_SUCCESS;
}
API cuEventQuery(CUevent handle) {
  auto* const event = reinterpret_cast<Event*>(handle);
  const std::lock_guard lock(event->mutex);
  return event->reached >= event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
API cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  *milliseconds = std::chrono::duration<float, std::milli>(reinterpret_cast<Event*>(end)->time -
                                                           reinterpret_cast<Event*>(begin)->time)
                      .count();
  return CUDA_SUCCESS;
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  find_stream(stream)->push(
      [=] { std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes); });
  return CUDA_SUCCESS;
}
API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, stream);
}
API cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(to), from, bytes, stream);
}
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  find_stream(stream)->push([=] { std::memset(reinterpret_cast<void*>(to), value, count); });
  return CUDA_SUCCESS;
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  find_stream(stream)->push([=] {
    for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  });
  return CUDA_SUCCESS;
}

// ---- Modules and kernels ----

std::atomic<int> modules{0};
extern "C" __attribute__((visibility("default"))) int fake_gpu_count_modules() {
  return modules;
}
API cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, int*, void**) {
  if (std::getenv("FAKE_GPU_TAKES_NO_MODULES") != nullptr) return 222;  // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
  ++modules;
  *module = reinterpret_cast<CUmodule>(new int(0));
  return CUDA_SUCCESS;
}
API cuModuleUnload(CUmodule module) {
  --modules;
  delete reinterpret_cast<int*>(module);
  return CUDA_SUCCESS;
}
API cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  const Kernel* const found = name == std::string("verbena_ops_pause") ? &kPause : find_kernel(name);
  *function = reinterpret_cast<CUfunction>(const_cast<Kernel*>(found));
  return found == nullptr ? kNotFound : CUDA_SUCCESS;
}
API cuFuncSetAttribute(CUfunction, int, int) {
  return CUDA_SUCCESS;
}
API cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, CUstream stream, void** parameters, void**) {
  return launch(function, {blocks, threads}, stream, parameters);
}
API cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  GridShape grid{config->gridDimX, config->blockDimX};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      grid.cluster = config->attrs[i].value.clusterDim.x;
  }
  return launch(function, grid, config->hStream, parameters);
}
