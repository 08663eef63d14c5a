// The plugin's functions, independent of NCCL's version. Every table of net_tables.cc calls them. Arguments
// have the types of the newest release. NCCL's documentation of its net plugin API describes each call. The
// code that detects a failure logs it.
//
// Threads: init, devices, getProperties, makeVDevice and finalize lock a process-wide mutex. One
// communicator's data calls (isend, irecv, iflush, test, irecvConsumed) come from one thread; registration
// may run beside them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "nccl/abi.h"

namespace verbena::nccl {

using base::Outcome;

// May be called repeatedly, with or without finalize() in between. `abi_version` is the table's number. It
// decides how receives are classified: 7 and 8 by registration order, from 9 on also by NCCL's hint, from 11
// on also by attributes.
Outcome init(void** context, uint64_t communicator_id, int traffic_class, abi::DebugLogger logger,
             abi::ProfilerCallback profiler, int abi_version);
// Accepts a null context, and a context whose init() failed. Open communicators stay usable, and must still
// be closed.
Outcome finalize(void* context);
// Returns whether no communicator of this context is open.
bool is_idle(void* context);

Outcome count_devices(int* count);
// Fills every field; the strings live until the library is unloaded.
Outcome get_properties(int device, abi::ncclNetProperties_v12_t* properties);
Outcome make_virtual_device(int* device, const abi::ncclNetVDeviceProps_v12_t& members);
Outcome set_attributes(void* context, const abi::NetAttr& attributes);

// `traffic_class` -1 stands for the context's. connect() and accept() do not block: the communicator stays
// null until the connection is established.
Outcome listen(void* context, int device, void* handle, void** listen_comm);
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm);
// `device_handle` is null, points to null (no unpacking), or points to a zeroed structure to fill.
Outcome accept(void* listen_comm, void** receive_comm, abi::NetDeviceHandle** device_handle);
Outcome close_send(void* send_comm);
Outcome close_receive(void* receive_comm);
Outcome close_listen(void* listen_comm);

Outcome register_memory(void* comm, void* data, size_t length_bytes, int type, void** mhandle);
Outcome register_dmabuf(void* comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes, int fd,
                        void** mhandle);
Outcome deregister_memory(void* comm, void* mhandle);

// Sets the parent event of the communicator's next message: a handle of NCCL's profiler, or null. Called only
// while is_profiling is set (VERBENA_PROFILER).
[[gnu::visibility("hidden")]] extern std::atomic<bool> is_profiling;
void name_parent(void* comm, void* phandle);

// *request is always written: null means "call again later". On entry to irecv it carries NCCL's hint (1: LL
// or LL128).
Outcome isend(void* send_comm, void* data, size_t length_bytes, int tag, void* mhandle, void** request);
// A request has up to kMaxReceives buffers, if the device's properties allow it. The next isend with a
// buffer's tag fills the buffer.
inline constexpr int kMaxReceives = 8;
Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes, const int* tags,
              void** mhandles, void** request);
Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request);
// Always writes *done. `lengths_bytes` is null, or has one element for each buffer.
Outcome test(void* request, int* done, int* lengths_bytes);
Outcome irecv_consumed(void* receive_comm, int count, void* request);

}  // namespace verbena::nccl
