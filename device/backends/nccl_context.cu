// libverbena_nccl.so: creates contexts over an NCCL communicator of the application.
#include <nccl.h>

#include <algorithm>
#include <cstring>

#include "device/backends/cuda_calls.h"
#include "device/backends/process_library.h"
#include "device/backends/shared_heap.h"
#include "verbena/device/backends/nccl.cuh"

namespace verbena::backends {
namespace {

// NCCL's functions are looked up in the NCCL library that the process has loaded, because NCCL versions
// differ.
struct Nccl {
  ProcessLibrary library{"libnccl.so.2"};
#define VERBENA_NCCL_FUNCTION(name) decltype(&::name) name = library.find<decltype(::name)>(#name)
  VERBENA_NCCL_FUNCTION(ncclGetVersion);
  VERBENA_NCCL_FUNCTION(ncclGetErrorString);
  VERBENA_NCCL_FUNCTION(ncclGetLastError);
  VERBENA_NCCL_FUNCTION(ncclCommCount);
  VERBENA_NCCL_FUNCTION(ncclCommUserRank);
  VERBENA_NCCL_FUNCTION(ncclCommCuDevice);
  VERBENA_NCCL_FUNCTION(ncclMemAlloc);
  VERBENA_NCCL_FUNCTION(ncclMemFree);
  VERBENA_NCCL_FUNCTION(ncclAllGather);
  VERBENA_NCCL_FUNCTION(ncclCommWindowRegister);
  VERBENA_NCCL_FUNCTION(ncclCommWindowDeregister);
  VERBENA_NCCL_FUNCTION(ncclDevCommCreate);
  VERBENA_NCCL_FUNCTION(ncclDevCommDestroy);
  ncclTeam_t (*team_in_reach)(ncclComm_t) = library.find<ncclTeam_t(ncclComm_t)>("ncclTeamLsa");
#undef VERBENA_NCCL_FUNCTION

  Nccl() {
    int loaded = 0;
    check(ncclGetVersion(&loaded), "ncclGetVersion");
    // Before NCCL 2.29, the device communicator does not contain its own size, and this size changed between
    // releases of 2.28.
    if (loaded != NCCL_VERSION_CODE) {
      throw Failure(
          VERBENA_INVALID_USAGE,
          "libverbena_nccl.so was built with NCCL " + std::to_string(NCCL_VERSION_CODE) +
              " and contains NCCL's device code of this version, but the process has loaded version " +
              std::to_string(loaded));
    }
  }
  // NCCLX is NCCL with additional host functions.
  bool is_ncclx() const {
    return library.seek<void()>("ncclCommDump") != nullptr ||
           library.seek<void()>("ncclAllReduceSparseBlock") != nullptr;
  }
  void check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) const {
    if (result == ncclSuccess) return;
    throw Failure(
        result == ncclRemoteError ? VERBENA_REMOTE_ERROR : VERBENA_SYSTEM_ERROR,
        std::string(call) + ": " + ncclGetErrorString(result) + ": " + ncclGetLastError(communicator));
  }
};

// Sets places[r] to the address at which rank r's window is mapped in this rank; leaves it unchanged if it is
// not mapped.
__global__ void find_places_in(ncclDevComm communicator, ncclWindow_t window, void** places) {
  const ncclTeam reached = ncclTeamLsa(communicator);
  for (int peer = static_cast<int>(threadIdx.x); peer < reached.nRanks; peer += static_cast<int>(blockDim.x))
    places[ncclTeamRankToWorld(communicator, reached, peer)] = ncclGetLsaPointer(window, 0, peer);
}

class NcclHeap : public SharedHeap {
 public:
  NcclHeap(const Nccl& nccl, ncclComm_t communicator, uint32_t rank, uint32_t count_ranks)
      : SharedHeap(nccl.is_ncclx() ? kSymmNcclx : kSymmNccl, rank, count_ranks),
        nccl_(nccl),
        communicator_(communicator) {
    is_world_only_ = true;  // a device communicator has only one set of signals
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~NcclHeap() override;

  void gather(const void* mine, void* all, size_t bytes_each) override;
  // Allocates the heap. Collective.
  void allocate(size_t window_bytes);
  // Includes the application's buffer, if there is one. The application keeps its ownership.
  void open(bool uses_loads_and_stores, void* buffer, size_t buffer_bytes);

 private:
  ncclWindow_t register_window(void* begin, size_t length_bytes);
  void take_buffer();
  void create_communicator(bool needs_network);
  void copy_communicator();
  std::vector<char*> find_places(ncclWindow_t window);
  void find_peers(bool uses_loads_and_stores);

  const Nccl& nccl_;
  ncclComm_t communicator_;
  cudaStream_t stream_ = nullptr;
  char* staging_ = nullptr;  // buffer of gather() in GPU memory
  size_t staging_bytes_ = 0;
  void* memory_ = nullptr;  // the heap's memory, allocated by NCCL
  ncclWindow_t window_ = nullptr;
  void* buffer_ = nullptr;
  size_t buffer_bytes_ = 0;
  ncclWindow_t buffer_window_ = nullptr;
  char* buffer_place_ = nullptr;  // the address at which NCCL has mapped the heap in this rank
  ncclDevComm device_{};
  bool has_device_ = false;
  ncclDevComm* device_copy_ = nullptr;  // a copy of device_ that kernels read
};

// Ignores failures, because a destructor cannot report them.
NcclHeap::~NcclHeap() {
  if (has_device_) nccl_.ncclDevCommDestroy(communicator_, &device_);
  if (buffer_window_ != nullptr) nccl_.ncclCommWindowDeregister(communicator_, buffer_window_);
  if (window_ != nullptr) nccl_.ncclCommWindowDeregister(communicator_, window_);
  if (memory_ != nullptr) nccl_.ncclMemFree(memory_);
  cudaFree(device_copy_);
  cudaFree(staging_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void NcclHeap::gather(const void* mine, void* all, size_t bytes_each) {
  const size_t needed_bytes = bytes_each * (count_ranks() + 1);
  if (needed_bytes > staging_bytes_) {
    CHECK_CUDA(cudaFree(staging_));
    staging_ = nullptr;
    staging_bytes_ = std::max(needed_bytes, size_t{64} << 10);
    CHECK_CUDA(cudaMalloc(&staging_, staging_bytes_));
  }
  char* const gathered = staging_ + bytes_each;
  CHECK_CUDA(cudaMemcpyAsync(staging_, mine, bytes_each, cudaMemcpyHostToDevice, stream_));
  nccl_.check(nccl_.ncclAllGather(staging_, gathered, bytes_each, ncclUint8, communicator_, stream_),
              "ncclAllGather", communicator_);
  CHECK_CUDA(cudaMemcpyAsync(all, gathered, bytes_each * count_ranks(), cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
}

void NcclHeap::allocate(size_t window_bytes) {
  agree("ncclMemAlloc", [&] {
    length_bytes_ = measure(window_bytes);
    nccl_.check(nccl_.ncclMemAlloc(&memory_, length_bytes_), "ncclMemAlloc");
    begin_ = memory_;
  });
}

void NcclHeap::open(bool uses_loads_and_stores, void* buffer, size_t buffer_bytes) {
  buffer_ = buffer;
  buffer_bytes_ = buffer_bytes;
  const int in_reach = uses_loads_and_stores ? nccl_.team_in_reach(communicator_).nRanks : 1;
  agree("ncclCommWindowRegister", [&] { window_ = register_window(memory_, length_bytes_); });
  // Registered after the heap, so that NCCL maps it behind the heap.
  if (buffer_ != nullptr)
    agree("ncclCommWindowRegister", [&] { buffer_window_ = register_window(buffer_, buffer_bytes_); });
  agree("ncclDevCommCreate", [&] { create_communicator(in_reach < static_cast<int>(count_ranks())); });
  agree("setting up the device communicator", [&] {
    if (buffer_ != nullptr) take_buffer();
    set_peer(rank(), begin_, begin_);
    find_peers(uses_loads_and_stores);
    copy_communicator();
  });
}

ncclWindow_t NcclHeap::register_window(void* begin, size_t length_bytes) {
  ncclWindow_t window = nullptr;
  nccl_.check(
      nccl_.ncclCommWindowRegister(communicator_, begin, length_bytes, &window, NCCL_WIN_COLL_SYMMETRIC),
      "ncclCommWindowRegister", communicator_);
  if (window == nullptr) {
    throw Failure(VERBENA_INVALID_USAGE,
                  "ncclCommWindowRegister created no symmetric window. Check that NCCL_CUMEM_ENABLE and "
                  "NCCL_WIN_ENABLE are not 0, that the GPUs of each host can access each other over NVLink "
                  "or PCIe, and that ncclMemAlloc or cuMemCreate allocated the buffer");
  }
  return window;
}

// NCCL maps all windows of a communicator into one address range for each rank, at equal distances. So the
// mappings of heap and buffer can serve as one heap.
void NcclHeap::take_buffer() {
  const auto heaps = find_places(window_), buffers = find_places(buffer_window_);
  begin_ = heaps[rank()];
  buffer_place_ = buffers[rank()];
  const auto distance = buffers[rank()] - heaps[rank()];
  for (uint32_t peer = 0; peer < count_ranks(); ++peer) {
    const bool is_alike = heaps[peer] == nullptr || buffers[peer] - heaps[peer] == distance;
    if (is_alike && distance >= static_cast<ptrdiff_t>(length_bytes_)) continue;
    throw Failure(VERBENA_INVALID_USAGE,
                  "NCCL has not mapped the buffer directly after the heap. Create this context before the "
                  "communicator has other windows, or use memory of the context's windows as the buffer");
  }
  reach_bytes_ = static_cast<size_t>(distance) + buffer_bytes_;
  aliases_.push_back({buffer_, buffer_bytes_, buffer_place_});
}

void NcclHeap::create_communicator(bool needs_network) {
  ncclDevCommRequirements wanted{};
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
  wanted = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#endif
  wanted.ginForceEnable = needs_network;
  wanted.ginSignalCount = needs_network ? static_cast<int>(kNcclSymmSignals) : 0;
  nccl_.check(nccl_.ncclDevCommCreate(communicator_, &wanted, &device_), "ncclDevCommCreate", communicator_);
  has_device_ = true;
}

void NcclHeap::copy_communicator() {
  CHECK_CUDA(cudaMalloc(&device_copy_, sizeof(device_)));
  CHECK_CUDA(cudaMemcpyAsync(device_copy_, &device_, sizeof(device_), cudaMemcpyHostToDevice, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  NcclSymmContext context{};
  context.communicator = device_copy_;
  context.window = window_;
  context.buffer = buffer_window_;
  context.buffer_begin = reinterpret_cast<uint64_t>(buffer_place_);
  context.buffer_end = context.buffer_begin + buffer_bytes_;
  // The members that follow the base class.
  const auto* const whole = reinterpret_cast<const char*>(&context);
  extension_.assign(whole + sizeof(SymmContext), whole + sizeof(context));
}

std::vector<char*> NcclHeap::find_places(ncclWindow_t window) {
  std::vector<char*> places(count_ranks());
  const size_t length_bytes = places.size() * sizeof(void*);
  void** on_gpu = nullptr;
  CHECK_CUDA(cudaMalloc(&on_gpu, length_bytes));
  const std::unique_ptr<void*, cudaError_t (*)(void*)> owned(on_gpu,
                                                             [](void* memory) { return cudaFree(memory); });
  CHECK_CUDA(cudaMemsetAsync(on_gpu, 0, length_bytes, stream_));
  find_places_in<<<1, 64, 0, stream_>>>(device_, window, on_gpu);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpyAsync(places.data(), on_gpu, length_bytes, cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  return places;
}

void NcclHeap::find_peers(bool uses_loads_and_stores) {
  if (!uses_loads_and_stores) return;
  const auto places = find_places(window_);
  for (uint32_t peer = 0; peer < count_ranks(); ++peer) {
    if (peer != rank() && places[peer] != nullptr) set_peer(peer, begin_, places[peer]);
  }
}

verbena_context* create_context(ncclComm_t communicator, size_t window_bytes, void* buffer,
                                size_t buffer_bytes) {
  static const Nccl nccl;
  int rank = 0, count_ranks = 0, gpu = 0, current = 0;
  nccl.check(nccl.ncclCommUserRank(communicator, &rank), "ncclCommUserRank", communicator);
  nccl.check(nccl.ncclCommCount(communicator, &count_ranks), "ncclCommCount", communicator);
  nccl.check(nccl.ncclCommCuDevice(communicator, &gpu), "ncclCommCuDevice", communicator);
  CHECK_CUDA(cudaGetDevice(&current));
  if (gpu != current) {
    throw Failure(VERBENA_INVALID_USAGE, "GPU " + std::to_string(current) +
                                             " is current, but the communicator is on GPU " +
                                             std::to_string(gpu) + ". Call cudaSetDevice() first");
  }
  auto heap = std::make_unique<NcclHeap>(nccl, communicator, static_cast<uint32_t>(rank),
                                         static_cast<uint32_t>(count_ranks));
  heap->allocate(window_bytes);
  heap->open(verbena_uses_loads_and_stores() != 0, buffer, buffer_bytes);
  return make_context(std::move(heap));
}

}  // namespace
}  // namespace verbena::backends

verbena_result verbena_nccl_context_create(ncclComm* communicator, size_t heap_bytes,
                                           verbena_context** context) {
  using namespace verbena::backends;
  return guard([&] {
    if (communicator == nullptr || context == nullptr)
      throw verbena::Failure(VERBENA_INVALID_ARGUMENT,
                             "the communicator or the pointer for the context is NULL");
    *context = create_context(communicator, heap_bytes, nullptr, 0);
  });
}

verbena_result verbena_nccl_context_create_with_buffer(ncclComm* communicator, void* buffer,
                                                       size_t buffer_bytes, size_t heap_bytes,
                                                       verbena_context** context) {
  using namespace verbena::backends;
  return guard([&] {
    if (communicator == nullptr || context == nullptr || buffer == nullptr || buffer_bytes == 0)
      throw verbena::Failure(VERBENA_INVALID_ARGUMENT,
                             "the communicator, the buffer or the pointer for the context is NULL, or the "
                             "length of the buffer is 0");
    *context = create_context(communicator, heap_bytes, buffer, buffer_bytes);
  });
}
