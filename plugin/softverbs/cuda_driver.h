#pragma once

#include <cstddef>
#include <cstdint>

// The few calls of CUDA's driver that the device needs, found in the libcuda.so.1 that the application has
// loaded. Nothing here loads or initialises CUDA.
namespace verbena::softverbs::cuda {

using Result = int;
using Device = int;
using Context = void*;
using Stream = void*;
using Event = void*;
using Pointer = unsigned long long;
using Handle = unsigned long long;

inline constexpr Result kSuccess = 0, kNotReady = 600;

enum PointerAttribute : int {
  kContextOf = 1,
  kMemoryType = 2,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeBytes = 12,
};
inline constexpr unsigned kTypeDevice = 2;  // of kMemoryType

struct Uuid {
  uint8_t bytes[16];
};
struct IpcHandle {
  uint8_t bytes[64];
};
struct Location {
  int type;
  int id;
};
struct AccessDescription {
  Location location;
  int flags;
};
inline constexpr int kLocationDevice = 1, kReadWrite = 3, kPosixFd = 1, kCaptureRelaxed = 2;
inline constexpr unsigned kStreamNonBlocking = 1, kEventNoTiming = 2, kHostRegisterPortable = 1,
                          kIpcLazyPeerAccess = 1;

// How the copies of a batch are done.
struct BatchAttributes {
  int source_order;
  Location source_hint, target_hint;
  unsigned flags;
};
inline constexpr int kSourceInStreamOrder = 1;
inline constexpr unsigned kPreferOverlap = 1;

struct Driver {
  Result (*pointer_attributes)(unsigned count, PointerAttribute* which, void** data, Pointer pointer);
  Result (*context_get_current)(Context*);
  Result (*context_set_current)(Context);
  Result (*context_get_device)(Device*);
  Result (*context_priorities)(int* least, int* greatest);
  Result (*primary_context_retain)(Context*, Device);
  Result (*context_create)(Context*, unsigned flags, Device);  // leaves it current; may be missing
  Result (*device_uuid)(Uuid*, Device);
  Result (*stream_create)(Stream*, unsigned flags, int priority);
  Result (*event_create)(Event*, unsigned flags);
  Result (*event_record)(Event, Stream);
  Result (*event_query)(Event);
  Result (*copy_async)(Pointer to, Pointer from, size_t bytes, Stream);
  // May be missing.
  Result (*copy_batch_async)(Pointer* to, Pointer* from, size_t* bytes, size_t count, BatchAttributes*,
                             size_t* attribute_indices, size_t attribute_count, size_t* failed, Stream);
  Result (*host_register)(void*, size_t, unsigned flags);
  Result (*exchange_capture_mode)(int* mode);
  Result (*ipc_get_handle)(IpcHandle*, Pointer);
  Result (*ipc_open_handle)(Pointer*, IpcHandle, unsigned flags);
  Result (*ipc_close_handle)(Pointer);
  // Virtual memory management; null in old drivers.
  Result (*retain_allocation)(Handle*, void*);
  Result (*export_handle)(void* shareable, Handle, int type, unsigned long long flags);
  Result (*import_handle)(Handle*, void* shareable, int type);
  Result (*release)(Handle);
  Result (*address_reserve)(Pointer*, size_t bytes, size_t alignment, Pointer wish, unsigned long long flags);
  Result (*address_free)(Pointer, size_t);
  Result (*map)(Pointer, size_t bytes, size_t offset, Handle, unsigned long long flags);
  Result (*unmap)(Pointer, size_t);
  Result (*set_access)(Pointer, size_t, const AccessDescription*, size_t count);
};

// nullptr while the application has not loaded CUDA.
const Driver* find_driver();

// Makes a context current on a thread of ours, once and for all until another one is needed.
void enter(const Driver& driver, Context context);

// Makes a context current on a thread of the application for a scope, and lets calls pass that a stream
// capture elsewhere in the process would forbid.
class Scope {
 public:
  Scope(const Driver& driver, Context context);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const Driver& driver_;
  Context before_ = nullptr;
  int capture_mode_ = kCaptureRelaxed;
};

// exit() takes CUDA apart while threads of ours still run. A step that calls CUDA outside the application's
// own calls is a Use; those that begin once the process ends are refused.
class Use {
 public:
  Use();
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  // Whether CUDA may be called.
  explicit operator bool() const { return is_allowed_; }

  // From now on exit() refuses uses, and waits a while for those that have begun, before CUDA ends: once CUDA
  // is initialised, since exit() calls the latest handler first.
  static void refuse_at_exit();
  // In a forked child, whose threads are gone.
  static void forget_all();

 private:
  bool is_allowed_;
};

}  // namespace verbena::softverbs::cuda
