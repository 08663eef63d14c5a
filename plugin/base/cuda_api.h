// The functions of libcuda.so.1 that the plugin uses, found at run time. Prototypes follow the driver API's
// ABI; no CUDA header is needed to build. Internal to base: others use cuda_driver.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::base {

using CudaResult = int;
using CudaDevice = int;
using CudaContext = struct CudaContextTag*;
using CudaStream = struct CudaStreamTag*;
using CudaAddress = unsigned long long;

inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr unsigned kCudaHostPortable = 0x1;
inline constexpr unsigned kCudaHostDeviceMap = 0x2;
inline constexpr unsigned kCudaStreamNonBlocking = 0x1;
inline constexpr int kCudaPointerContext = 1;
inline constexpr int kCudaPointerMemoryType = 2;
inline constexpr int kCudaPointerBufferId = 7;
inline constexpr int kCudaPointerDeviceOrdinal = 9;
inline constexpr unsigned kCudaMemoryTypeDevice = 2;
inline constexpr int kCudaDeviceDmabufSupported = 124;
inline constexpr int kCudaDeviceUsesHostPointers = 91;  // for registered memory, as the CPU does
inline constexpr int kCudaDevicePciBus = 33, kCudaDevicePciDevice = 34, kCudaDevicePciDomain = 50;
inline constexpr int kCudaCaptureRelaxed = 2;

// Virtual memory management: memory that is mapped where its user wants it.
using CudaPiece = unsigned long long;
struct CudaPlace {
  int type, id;
};
struct CudaPieceProperties {
  int type;
  int shared_as;
  CudaPlace place;
  void* windows_only;
  unsigned char compression;
  unsigned char for_nics;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(CudaPieceProperties) == 32);
struct CudaPieceAccess {
  CudaPlace place;
  int flags;
};
static_assert(sizeof(CudaPieceAccess) == 12);
inline constexpr int kCudaPiecePinned = 1, kCudaPlaceDevice = 1, kCudaReadAndWrite = 3, kCudaShareAsFile = 1;
inline constexpr int kCudaGranularityRecommended = 1, kCudaExportDmabuf = 1;
inline constexpr int kCudaDeviceMapsForNics = 110;

// X(member, exported name, parameters)
#define VERBENA_CUDA_FUNCTIONS(X)                                                                            \
  X(init, "cuInit", (unsigned flags))                                                                        \
  X(get_error_string, "cuGetErrorString", (CudaResult result, const char** text))                            \
  X(get_device_count, "cuDeviceGetCount", (int* count))                                                      \
  X(get_device, "cuDeviceGet", (CudaDevice * device, int ordinal))                                           \
  X(get_device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, CudaDevice device))            \
  X(retain_primary_context, "cuDevicePrimaryCtxRetain", (CudaContext * context, CudaDevice device))          \
  X(release_primary_context, "cuDevicePrimaryCtxRelease_v2", (CudaDevice device))                            \
  X(get_current_context, "cuCtxGetCurrent", (CudaContext * context))                                         \
  X(get_context_device, "cuCtxGetDevice", (CudaDevice * device))                                             \
  X(push_context, "cuCtxPushCurrent_v2", (CudaContext context))                                              \
  X(pop_context, "cuCtxPopCurrent_v2", (CudaContext * context))                                              \
  X(get_pointer_attribute, "cuPointerGetAttribute", (void* value, int attribute, CudaAddress address))       \
  X(allocate_device, "cuMemAlloc_v2", (CudaAddress * address, size_t length_bytes))                          \
  X(free_device, "cuMemFree_v2", (CudaAddress address))                                                      \
  X(allocate_host, "cuMemHostAlloc", (void** address, size_t length_bytes, unsigned flags))                  \
  X(free_host, "cuMemFreeHost", (void* address))                                                             \
  X(get_device_pointer, "cuMemHostGetDevicePointer_v2", (CudaAddress * address, void* host, unsigned flags)) \
  X(fill_async, "cuMemsetD8Async",                                                                           \
    (CudaAddress target, unsigned char value, size_t count, CudaStream stream))                              \
  X(copy_to_device_async, "cuMemcpyHtoDAsync_v2",                                                            \
    (CudaAddress target, const void* source, size_t length_bytes, CudaStream stream))                        \
  X(create_stream, "cuStreamCreate", (CudaStream * stream, unsigned flags))                                  \
  X(synchronize_stream, "cuStreamSynchronize", (CudaStream stream))                                          \
  X(destroy_stream, "cuStreamDestroy_v2", (CudaStream stream))                                               \
  X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int* mode))

// Null where the driver has none.
#define VERBENA_OPTIONAL_CUDA_FUNCTIONS(X)                                                       \
  X(register_host, "cuMemHostRegister_v2", (void* address, size_t length_bytes, unsigned flags)) \
  X(unregister_host, "cuMemHostUnregister", (void* address))                                     \
  X(export_range, "cuMemGetHandleForAddressRange",                                               \
    (void* descriptor, CudaAddress begin, size_t length_bytes, int type, unsigned long long flags))

// Null where the driver lacks one of them.
#define VERBENA_MAPPING_CUDA_FUNCTIONS(X)                                                               \
  X(get_granularity, "cuMemGetAllocationGranularity",                                                   \
    (size_t * bytes, const CudaPieceProperties* properties, int option))                                \
  X(reserve_addresses, "cuMemAddressReserve",                                                           \
    (CudaAddress * begin, size_t length_bytes, size_t alignment, CudaAddress wish,                      \
     unsigned long long flags))                                                                         \
  X(free_addresses, "cuMemAddressFree", (CudaAddress begin, size_t length_bytes))                       \
  X(create_piece, "cuMemCreate",                                                                        \
    (CudaPiece * piece, size_t length_bytes, const CudaPieceProperties* properties,                     \
     unsigned long long flags))                                                                         \
  X(release_piece, "cuMemRelease", (CudaPiece piece))                                                   \
  X(map_piece, "cuMemMap",                                                                              \
    (CudaAddress begin, size_t length_bytes, size_t offset, CudaPiece piece, unsigned long long flags)) \
  X(unmap_piece, "cuMemUnmap", (CudaAddress begin, size_t length_bytes))                                \
  X(set_access, "cuMemSetAccess",                                                                       \
    (CudaAddress begin, size_t length_bytes, const CudaPieceAccess* access, size_t count))              \
  X(share_piece, "cuMemExportToShareableHandle",                                                        \
    (void* descriptor, CudaPiece piece, int type, unsigned long long flags))                            \
  X(open_shared, "cuMemImportFromShareableHandle", (CudaPiece * piece, void* descriptor, int type))     \
  X(retain_piece, "cuMemRetainAllocationHandle", (CudaPiece * piece, void* address))                    \
  X(get_piece_properties, "cuMemGetAllocationPropertiesFromHandle",                                     \
    (CudaPieceProperties * properties, CudaPiece piece))                                                \
  X(get_address_range, "cuMemGetAddressRange_v2",                                                       \
    (CudaAddress * begin, size_t * length_bytes, CudaAddress address))

struct CudaApi {
#define VERBENA_MEMBER(member, name, arguments) CudaResult(*member) arguments = nullptr;
  VERBENA_CUDA_FUNCTIONS(VERBENA_MEMBER)
  VERBENA_OPTIONAL_CUDA_FUNCTIONS(VERBENA_MEMBER)
  VERBENA_MAPPING_CUDA_FUNCTIONS(VERBENA_MEMBER)
#undef VERBENA_MEMBER

  bool can_map() const;  // all of VERBENA_MAPPING_CUDA_FUNCTIONS are there
};

// Loaded on the first call and kept for the life of the library; null where there is no usable driver.
// cuInit is left to the application: without it there is no current context, and that answers every question.
const CudaApi* find_cuda();

// The driver's words for a result.
const char* describe_cuda(CudaResult result);

// While it lives, calls of this thread do not disturb stream capture in other threads.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& cuda);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaApi& cuda_;
  int mode_ = kCudaCaptureRelaxed;  // what to set; after construction the thread's own mode
};

// Makes the context that owns an allocation current, so that any thread may work on it.
class OwningContext {
 public:
  OwningContext(const CudaApi& cuda, CudaAddress address);
  ~OwningContext();
  OwningContext(const OwningContext&) = delete;
  OwningContext& operator=(const OwningContext&) = delete;
  // False when the context is gone, and the allocation with it.
  explicit operator bool() const { return pushed_; }

 private:
  const CudaApi& cuda_;
  bool pushed_ = false;
};

}  // namespace verbena::base
