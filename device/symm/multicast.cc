#include "device/symm/multicast.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda_api.h"
#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/host_domain.h"

namespace verbena::symm {
namespace {

using namespace ::verbena::cuda;  // NVIDIA's names
using base::Status;

using Text = std::array<char, 128>;

Text to_text(const std::string& from) {
  Text text{};
  std::copy_n(from.begin(), std::min(from.size(), text.size() - 1), text.begin());
  return text;
}

// A rank's message to the other ranks.
struct Offer {
  uint64_t granularity_bytes;
  uint32_t group;  // the lowest rank whose memory is mapped
  uint32_t is_alone;
  Text gpu;       // the GPU's identity on its host
  Text obstacle;  // empty if there is no problem
};

CUmulticastObjectProp describe_object(uint32_t count_gpus, uint64_t length_bytes) {
  CUmulticastObjectProp properties{};
  properties.numDevices = count_gpus;
  properties.size = length_bytes;
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

const base::CudaApi* find_driver() {
  const base::CudaApi* const cuda = base::find_cuda();
  const bool has_all = cuda != nullptr && cuda->can_map() && cuda->cuMulticastCreate != nullptr &&
                       cuda->cuMulticastAddDevice != nullptr && cuda->cuMulticastBindMem != nullptr &&
                       cuda->cuMulticastUnbind != nullptr && cuda->cuMulticastGetGranularity != nullptr;
  return has_all ? cuda : nullptr;
}

// Returns the error's text, or an empty text on success.
std::string describe(const char* call, CUresult result) {
  return result == CUDA_SUCCESS ? std::string() : std::string(call) + ": " + base::describe_cuda(result);
}

// Returns why this rank cannot take part. If it can take part, returns an empty text and sets the granularity
// in bytes.
std::string find_obstacle(uint32_t count_gpus, base::MemoryOwner owner, uint64_t* granularity_bytes) {
  if (base::parameters().nccl_nvls == 0) return "NCCL_NVLS_ENABLE is 0";
  if (owner.gpu == base::kNoGpu) return "this rank has no GPU";
  const base::CudaApi* const cuda = find_driver();
  if (cuda == nullptr)
    return "the driver has no multicast functions (install a driver for CUDA 12.1 or later)";
  CUdevice device = 0;
  int has_it = 0;
  if (cuda->cuDeviceGet(&device, owner.gpu) != CUDA_SUCCESS ||
      cuda->cuDeviceGetAttribute(&has_it, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, device) != CUDA_SUCCESS ||
      has_it == 0)
    return "the GPU does not support multicast, or multicast is disabled";
  size_t bytes = 0;
  const CUmulticastObjectProp properties = describe_object(count_gpus, uint64_t{1} << 30);
  const CUresult result =
      cuda->cuMulticastGetGranularity(&bytes, &properties, CU_MULTICAST_GRANULARITY_MINIMUM);
  *granularity_bytes = bytes;
  return describe("cuMulticastGetGranularity", result);
}

void tell(uint32_t rank, const std::string& cause) {
  base::log_warn("symm: rank %u: VERBENA_SYMM_MULTICAST has no effect: %s", rank, cause.c_str());
}

// Finds two ranks that use the same GPU. Returns (second rank, first rank); the second rank is 0 if there are
// none.
std::pair<size_t, size_t> find_shared_gpu(const std::vector<Offer>& all) {
  for (size_t second = 0; second < all.size(); ++second)
    for (size_t first = 0; first < second && all[second].is_alone == 0; ++first)
      if (all[first].group == all[second].group && all[first].gpu == all[second].gpu) return {second, first};
  return {};
}

}  // namespace

base::Result<uint64_t> agree_on_multicast(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                          base::MemoryOwner owner) {
  Offer mine{1, reach.first_rank(), !reach.has_peers(), {}, {}};
  if (reach.has_peers()) {
    mine.obstacle = to_text(find_obstacle(reach.count_slots, owner, &mine.granularity_bytes));
    if (owner.gpu != base::kNoGpu) mine.gpu = to_text(base::find_gpu_pci_address(owner.gpu));
  }
  const auto all = bootstrap.gather(mine);
  if (!all) return all.error();
  uint64_t most = 1;
  std::string cause;
  for (size_t rank = 0; rank < all->size() && cause.empty(); ++rank) {
    const Offer& offer = (*all)[rank];
    most = std::max(most, offer.granularity_bytes);
    if (offer.obstacle.front() != '\0') cause = "rank " + std::to_string(rank) + ": " + offer.obstacle.data();
  }
  if (const auto [second, first] = find_shared_gpu(*all); cause.empty() && second != 0)
    cause = "ranks " + std::to_string(first) + " and " + std::to_string(second) + " share a GPU";
  if (cause.empty() && most == 1) cause = "no rank can map another rank's memory";
  if (cause.empty()) return most;
  tell(bootstrap.rank(), cause);
  return uint64_t{0};
}

// ---- A window's part

base::Result<MulticastBinding> Multicast::bind(uint64_t offset, const base::MemoryPiece& own) const {
  const CUresult result =
      find_driver()->cuMulticastBindMem(object_, offset, own.handle(), 0, own.length_bytes(), 0);
  if (result != CUDA_SUCCESS) {
    return base::fail(Status::kCuda,
                      "symm: multicast: cannot bind a window of %llu bytes, because cuMulticastBindMem "
                      "failed: %s. Unset VERBENA_SYMM_MULTICAST",
                      static_cast<unsigned long long>(own.length_bytes()), base::describe_cuda(result));
  }
  MulticastBinding binding;
  binding.object_ = object_.get();
  binding.gpu_ = gpu_.get();
  binding.offset_ = offset;
  binding.length_bytes_ = own.length_bytes();
  return binding;
}

MulticastBinding::~MulticastBinding() {
  CUdevice device = 0;
  if (object_ != 0 && find_driver()->cuDeviceGet(&device, gpu_) == CUDA_SUCCESS)
    find_driver()->cuMulticastUnbind(object_, device, offset_, length_bytes_);
}

// ---- The object

namespace {

// Returns whether the step succeeded on all ranks. Collective.
base::Result<bool> ask_all(bootstrap::Bootstrap& bootstrap, const std::string& failure) {
  const auto all = bootstrap.gather(to_text(failure));
  if (!all) return all.error();
  for (size_t rank = 0; rank < all->size(); ++rank) {
    const Text& text = (*all)[rank];
    if (text.front() == '\0') continue;
    tell(bootstrap.rank(), "rank " + std::to_string(rank) + ": " + text.data());
    return false;
  }
  return true;
}

}  // namespace

base::Result<Multicast> Multicast::make(bootstrap::Bootstrap& bootstrap, const Reach& reach,
                                        base::MemoryOwner owner, uint64_t slot_bytes, uint64_t unit_bytes) {
  Multicast made(owner.gpu, slot_bytes);
  const bool is_creator = reach.has_peers() && reach.first_rank() == bootstrap.rank();
  base::FileDescriptor shared;
  std::string failure;
  if (is_creator) failure = made.create(reach.count_slots, shared);
  auto works = ask_all(bootstrap, failure);
  if (!works) return works.error();
  if (!*works) return Multicast();

  const int given = shared ? shared.get() : bootstrap::kNoDescriptor;
  const auto descriptors = bootstrap::share_descriptor(bootstrap, reach.domain, given);
  if (!descriptors) return descriptors.error();
  const auto& ranks = reach.domain.ranks();
  const auto creator = std::find(ranks.begin(), ranks.end(), reach.first_rank()) - ranks.begin();
  if (reach.has_peers()) failure = made.join(is_creator ? nullptr : &(*descriptors)[creator]);
  // Binding and mapping fail before all GPUs have joined.
  works = ask_all(bootstrap, failure);
  if (!works) return works.error();
  if (!*works) return Multicast();

  if (reach.has_peers()) failure = made.map(unit_bytes);
  if (reach.has_peers() && failure.empty()) failure = made.try_binding(unit_bytes);
  works = ask_all(bootstrap, failure);
  if (!works) return works.error();
  return *works ? std::move(made) : Multicast();
}

std::string Multicast::create(uint32_t count_gpus, base::FileDescriptor& shared) {
  const base::CudaApi& cuda = *find_driver();
  const CUmulticastObjectProp properties = describe_object(count_gpus, length_bytes_);
  if (const CUresult result = cuda.cuMulticastCreate(&object_.get(), &properties); result != CUDA_SUCCESS)
    return describe("cuMulticastCreate (a smaller VERBENA_SYMM_HEAP_BYTES may help)", result);
  int descriptor = -1;
  const CUresult result =
      cuda.cuMemExportToShareableHandle(&descriptor, object_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) shared.reset(descriptor);
  return describe("cuMemExportToShareableHandle", result);
}

// `given` is the file descriptor from the rank that created the object. It is null on the rank that created
// the object.
std::string Multicast::join(const base::FileDescriptor* given) {
  const base::CudaApi& cuda = *find_driver();
  if (given != nullptr) {
    void* const as_pointer = reinterpret_cast<void*>(static_cast<uintptr_t>(given->get()));
    const CUresult result = cuda.cuMemImportFromShareableHandle(&object_.get(), as_pointer,
                                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (result != CUDA_SUCCESS) return describe("cuMemImportFromShareableHandle", result);
  }
  CUdevice device = 0;
  const CUresult result = cuda.cuDeviceGet(&device, gpu_);
  if (result != CUDA_SUCCESS) return describe("cuDeviceGet", result);
  return describe("cuMulticastAddDevice", cuda.cuMulticastAddDevice(object_, device));
}

std::string Multicast::map(uint64_t unit_bytes) {
  const base::CudaApi& cuda = *find_driver();
  CUresult result = cuda.cuMemAddressReserve(&begin_.get(), length_bytes_, unit_bytes, 0, 0);
  if (result != CUDA_SUCCESS) return describe("cuMemAddressReserve", result);
  result = cuda.cuMemMap(begin_, length_bytes_, 0, object_, 0);
  if (result != CUDA_SUCCESS) return describe("cuMemMap", result);
  is_mapped_ = true;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, gpu_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return describe("cuMemSetAccess", cuda.cuMemSetAccess(begin_, length_bytes_, &access, 1));
}

// Binds memory for a test, so that an unsupported machine is detected before kernels get addresses.
std::string Multicast::try_binding(uint64_t unit_bytes) const {
  const base::CudaApi& cuda = *find_driver();
  const auto piece = base::MemoryPiece::allocate({gpu_}, unit_bytes);
  CUdevice device = 0;
  if (!piece || cuda.cuDeviceGet(&device, gpu_) != CUDA_SUCCESS)
    return "the memory for the test allocation is not available";
  const CUresult result = cuda.cuMulticastBindMem(object_, 0, piece->handle(), 0, unit_bytes, 0);
  if (result != CUDA_SUCCESS) return describe("cuMulticastBindMem", result);
  return describe("cuMulticastUnbind", cuda.cuMulticastUnbind(object_, device, 0, unit_bytes));
}

uint64_t Multicast::delta_from(const std::byte* slot) const {
  return is_there() ? begin_ - reinterpret_cast<uint64_t>(slot) : 0;
}

Multicast::~Multicast() {
  if (object_ == 0) return;
  const base::CudaApi& cuda = *find_driver();
  if (is_mapped_) cuda.cuMemUnmap(begin_, length_bytes_);
  if (begin_ != 0) cuda.cuMemAddressFree(begin_, length_bytes_);
  cuda.cuMemRelease(object_);
}

}  // namespace verbena::symm
