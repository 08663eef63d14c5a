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

// The functions of the tables by their names there; overloads where versions have other arguments.
namespace entries {

inline abi::Result listen(int device, void* handle, void** comm) {
  return listen_on(device, handle, comm);
}
inline abi::Result listen(void*, int device, void* handle, void** comm) {
  return listen_on(device, handle, comm);
}
inline abi::Result connect(int device, void* handle, void** comm, abi::NetDeviceHandle** device_handle) {
  return connect_to(device, handle, comm, device_handle);
}
inline abi::Result connect(void*, int device, void* handle, void** comm,
                           abi::NetDeviceHandle** device_handle) {
  return connect_to(device, handle, comm, device_handle);
}
template <typename Size>
abi::Result reg_mr(void* comm, void*, Size, int, void** mhandle) {
  return add_registration(comm, mhandle);
}
template <typename Size>
abi::Result isend(void* comm, void* data, Size size, int, void*, void** request) {
  return start_send(comm, data, static_cast<size_t>(size), request);
}
inline abi::Result isend(void* comm, void* data, size_t size, int, void*, void*, void** request) {
  return start_send(comm, data, size, request);
}
template <typename Size>
abi::Result irecv(void* comm, int, void** data, Size* sizes, int*, void** mhandles, void** request) {
  return start_receive(comm, *data, static_cast<size_t>(*sizes), *mhandles, request);
}
inline abi::Result irecv(void* comm, int, void** data, size_t* sizes, int*, void** mhandles, void**,
                         void** request) {
  return start_receive(comm, *data, *sizes, *mhandles, request);
}
template <typename Members>
abi::Result make_vdevice(int* device, Members* members) {
  return make_device(device, members->ndevs);
}

}  // namespace entries

// A table of any version, whose get_device_mr is missing.
template <typename Table>
constexpr Table make_table(const char* name, decltype(Table::init) init,
                           decltype(Table::get_properties) properties) {
  Table table{};
  table.name = name;
  table.init = init;
  table.devices = count_devices;
  table.get_properties = properties;
  table.listen = entries::listen;
  table.connect = entries::connect;
  table.accept = accept_from;
  table.reg_mr = entries::reg_mr;
  table.reg_mr_dmabuf = register_dmabuf;
  table.dereg_mr = deregister_memory;
  table.isend = entries::isend;
  table.irecv = entries::irecv;
  table.iflush = flush;
  table.test = test_request;
  table.close_send = table.close_recv = table.close_listen = close_comm;
  table.irecv_consumed = consume;
  if constexpr (requires { table.make_vdevice; }) table.make_vdevice = entries::make_vdevice;
  if constexpr (requires { table.finalize; }) {
    table.finalize = [](void*) { return abi::kSuccess; };
    table.set_net_attr = [](void*, abi::NetAttr*) { return abi::kSuccess; };
  }
  return table;
}

}  // namespace verbena::tools::sample
