// The function tables that NCCL looks up as data symbols ncclNetPlugin_v7 .. ncclNetPlugin_v12. The order of
// the members is fixed by NCCL. Neighbouring versions that differ only in a type share one template.
#pragma once

#include "nccl/abi.h"

namespace verbena::abi {

// v7 to v9: v8 widened the size of a registration, v9 those of messages.
template <typename PropertiesT, typename RegisterSize, typename MessageSize>
struct NetTableWithoutProfiler {
  using Properties = PropertiesT;
  const char* name;
  Result (*init)(DebugLogger logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, void* handle, void** send_comm, NetDeviceHandle** send_device_handle);
  Result (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** recv_device_handle);
  Result (*reg_mr)(void* comm, void* data, RegisterSize size, int type, void** mhandle);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, MessageSize size, int tag, void* mhandle, void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, MessageSize* sizes, int* tags, void** mhandles,
                  void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
};
using ncclNet_v7_t = NetTableWithoutProfiler<ncclNetProperties_v7_t, int, int>;     // ncclNet_v7_t
using ncclNet_v8_t = NetTableWithoutProfiler<ncclNetProperties_v8_t, size_t, int>;  // ncclNet_v8_t
static_assert(sizeof(ncclNet_v7_t) == 19 * sizeof(void*) && sizeof(ncclNet_v8_t) == 152);
static_assert(offsetof(ncclNet_v8_t, isend) == 80 && offsetof(ncclNet_v8_t, irecv_consumed) == 144);

// ncclNet_v9_t
struct ncclNet_v9_t : NetTableWithoutProfiler<ncclNetProperties_v9_t, size_t, size_t> {
  Result (*make_vdevice)(int* device, ncclNetVDeviceProps_v9_t* members);
};
static_assert(sizeof(ncclNet_v9_t) == 160);

// From v10 on: profiler handles of isend and irecv.
template <typename VDevicePropsT>
struct NetTransfers {
  Result (*accept)(void* listen_comm, void** recv_comm, NetDeviceHandle** recv_device_handle);
  Result (*reg_mr)(void* comm, void* data, size_t size, int type, void** mhandle);
  Result (*reg_mr_dmabuf)(void* comm, void* data, size_t size, int type, uint64_t offset, int fd,
                          void** mhandle);
  Result (*dereg_mr)(void* comm, void* mhandle);
  Result (*isend)(void* send_comm, void* data, size_t size, int tag, void* mhandle, void* phandle,
                  void** request);
  Result (*irecv)(void* recv_comm, int n, void** data, size_t* sizes, int* tags, void** mhandles,
                  void** phandles, void** request);
  Result (*iflush)(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request);
  Result (*test)(void* request, int* done, int* sizes);
  Result (*close_send)(void* send_comm);
  Result (*close_recv)(void* recv_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*get_device_mr)(void* comm, void* mhandle, void** device_mhandle);
  Result (*irecv_consumed)(void* recv_comm, int n, void* request);
  Result (*make_vdevice)(int* device, VDevicePropsT* members);
};
static_assert(sizeof(NetTransfers<ncclNetVDeviceProps_v9_t>) == 14 * sizeof(void*));

// v10: a profiler callback, and a configuration for connect.
struct NetSetup_v10 {
  using Properties = ncclNetProperties_v10_t;
  const char* name;
  Result (*init)(DebugLogger logger, ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(int device, void* handle, void** listen_comm);
  Result (*connect)(int device, NetCommConfig* config, void* handle, void** send_comm,
                    NetDeviceHandle** send_device_handle);
};
struct ncclNet_v10_t : NetSetup_v10, NetTransfers<ncclNetVDeviceProps_v9_t> {};  // ncclNet_v10_t
static_assert(sizeof(NetSetup_v10) == 48 && sizeof(ncclNet_v10_t) == 160);

// v11 and v12: a context for each NCCL communicator, finalize and hints; v12 joins up to 8 devices.
template <typename PropertiesT>
struct NetSetupWithContext {
  using Properties = PropertiesT;
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, NetCommConfig* config, DebugLogger logger,
                 ProfilerCallback profiler);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, int device, void* handle, void** send_comm,
                    NetDeviceHandle** send_device_handle);
};
template <typename PropertiesT, typename VDevicePropsT>
struct NetTableWithContext : NetSetupWithContext<PropertiesT>, NetTransfers<VDevicePropsT> {
  Result (*finalize)(void* context);
  Result (*set_net_attr)(void* context, NetAttr* attributes);
};
using ncclNet_v11_t =
    NetTableWithContext<ncclNetProperties_v11_t, ncclNetVDeviceProps_v9_t>;  // ncclNet_v11_t
using ncclNet_v12_t =
    NetTableWithContext<ncclNetProperties_v12_t, ncclNetVDeviceProps_v12_t>;  // ncclNet_v12_t
static_assert(sizeof(NetSetupWithContext<ncclNetProperties_v12_t>) == 48);
static_assert(sizeof(ncclNet_v11_t) == 176 && sizeof(ncclNet_v12_t) == 176);

}  // namespace verbena::abi
