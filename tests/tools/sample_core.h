#pragma once
// A small net plugin over UNIX sockets, for testing the tools without the product: it stages short messages
// in out-of-order descriptors and, when SAMPLE_FAULT names one, breaks the contract in one place, which the
// tool has to notice.
#include <cstddef>

#include "nccl/abi_tables.h"

namespace verbena::tools::sample {

bool unpacks();
abi::Result count_devices(int* count);
abi::Result make_device(int* device, int member_count);
abi::Result listen_on(int device, void* handle, void** listen_comm);
abi::Result connect_to(int device, void* handle, void** send_comm, abi::NetDeviceHandle** device_handle);
abi::Result accept_from(void* listen_comm, void** recv_comm, abi::NetDeviceHandle** device_handle);
abi::Result add_registration(void* comm, void** mhandle);
abi::Result register_dmabuf(void* comm, void* data, size_t length, int type, uint64_t offset, int fd,
                            void** mhandle);
abi::Result deregister_memory(void* comm, void* mhandle);
abi::Result start_send(void* send_comm, void* data, size_t length, void** request);
abi::Result start_receive(void* recv_comm, void* data, size_t length, void* mhandle, void** request);
abi::Result test_request(void* request, int* done, int* sizes);
abi::Result consume(void* recv_comm, int count, void* request);
abi::Result flush(void* recv_comm, int count, void** data, int* sizes, void** mhandles, void** request);
abi::Result close_comm(void* comm);

// With the arguments of the tables from v9 and v11 on.
inline abi::Result listen_in(void*, int device, void* handle, void** comm) {
  return listen_on(device, handle, comm);
}
inline abi::Result connect_in(void*, int device, void* handle, void** comm,
                              abi::NetDeviceHandle** device_handle) {
  return connect_to(device, handle, comm, device_handle);
}
inline abi::Result send_profiled(void* comm, void* data, size_t size, int, void*, void*, void** request) {
  return start_send(comm, data, size, request);
}
inline abi::Result receive_profiled(void* comm, int, void** data, size_t* sizes, int*, void** mhandles,
                                    void**, void** request) {
  return start_receive(comm, *data, *sizes, *mhandles, request);
}

}  // namespace verbena::tools::sample
