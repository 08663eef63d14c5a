// The plugin without a version: what every table of net_tables.cc adapts to. Arguments have the newest
// release's types; the meaning of each call is NCCL's (docs of its net plugin API). Failures are logged where
// they are found.
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

// May be called again and again, with and without a finalize between. `abi_version` is the table's number: it
// decides how receives are told apart (7..8: by registration order; 9..: by NCCL's hint; 11..: by attributes
// too).
Outcome init(void** context, uint64_t communicator_id, int traffic_class, abi::DebugLogger logger,
             abi::ProfilerCallback profiler, int abi_version);
// Tolerates a null context and one that init never finished. Communicators that are open stay usable, and are
// to be closed all the same.
Outcome finalize(void* context);
// No communicator of this context is open.
bool is_idle(void* context);

Outcome count_devices(int* count);
// Fills every field; the strings live until the library is unloaded.
Outcome get_properties(int device, abi::ncclNetProperties_v12_t* properties);
Outcome make_virtual_device(int* device, const abi::ncclNetVDeviceProps_v12_t& members);
Outcome set_attributes(void* context, const abi::NetAttr& attributes);

// `traffic_class` -1: the context's. Neither blocks: *comm stays null until the connection stands.
Outcome listen(void* context, int device, void* handle, void** listen_comm);
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm);
// `device_handle`: null, or points to null (a receive without unpack), or to a zeroed struct to fill.
Outcome accept(void* listen_comm, void** receive_comm, abi::NetDeviceHandle** device_handle);
Outcome close_send(void* send_comm);
Outcome close_receive(void* receive_comm);
Outcome close_listen(void* listen_comm);

Outcome register_memory(void* comm, void* data, size_t length_bytes, int type, void** mhandle);
Outcome register_dmabuf(void* comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes, int fd,
                        void** mhandle);
Outcome deregister_memory(void* comm, void* mhandle);

// What the next message of this communicator belongs to: a handle of NCCL's profiler, or null. To be called
// once somebody wants to know (VERBENA_PROFILER).
[[gnu::visibility("hidden")]] extern std::atomic<bool> is_profiling;
void name_parent(void* comm, void* phandle);

// *request is always written: null means "call again later". On entry to irecv it carries NCCL's hint (1: LL
// or LL128).
Outcome isend(void* send_comm, void* data, size_t length_bytes, int tag, void* mhandle, void** request);
// Up to kMaxReceives buffers a request, if the properties said so; each is filled by the next isend of its
// tag.
inline constexpr int kMaxReceives = 8;
Outcome irecv(void* receive_comm, int count, void** data, const size_t* lengths_bytes, const int* tags,
              void** mhandles, void** request);
Outcome iflush(void* receive_comm, int count, void** data, const int* lengths_bytes, void** mhandles,
               void** request);
// *done is always written; `lengths_bytes` may be null, or has room for one length for each buffer.
Outcome test(void* request, int* done, int* lengths_bytes);
Outcome irecv_consumed(void* receive_comm, int count, void* request);

}  // namespace verbena::nccl
