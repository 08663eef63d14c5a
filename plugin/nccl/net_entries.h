// The functions behind all tables, as one overload set. The type of a table's member selects the overload
// (net_tables.cc). Each function checks pointers that must not be null, converts the arguments to the core's
// types, and calls the core.
#pragma once

#include <algorithm>
#include <type_traits>

#include "base/hot_path.h"
#include "nccl/abi.h"
#include "nccl/boundary.h"
#include "nccl/logger_adapter.h"
#include "nccl/net_core.h"
#include "nccl/process_context.h"

namespace verbena::nccl::entries {

using abi::Result;

// Versions up to 8 have int sizes.
template <typename Size>
Outcome convert_size(const char* entry, Size size_bytes, size_t* out) {
  if constexpr (std::is_signed_v<Size>) {
    if (size_bytes < 0) [[unlikely]] {
      return base::fail(base::Status::kInvalidArgument,
                        "%s: invalid argument: the size is negative, %lld bytes", entry,
                        static_cast<long long>(size_bytes));
    }
  }
  *out = static_cast<size_t>(size_bytes);
  return {};
}

// --- Life cycle. init depends on the version's number, not only on its types.

template <int kVersion>
Result init(abi::DebugLogger logger, abi::ProfilerCallback profiler) noexcept {
  attach_logger(logger);
  return guard("init", {}, [&] { return ProcessContext::get().init(logger, profiler, kVersion); });
}

template <int kVersion>
Result init(abi::DebugLogger logger) noexcept {
  return init<kVersion>(logger, nullptr);
}

template <int kVersion>
Result init(void** context, uint64_t comm_id, abi::NetCommConfig* config, abi::DebugLogger logger,
            abi::ProfilerCallback profiler) noexcept {
  attach_logger(logger);
  return guard("init", {{"ctx", context}}, [&] {
    *context = nullptr;
    const int traffic_class = config == nullptr ? abi::kUndefined : config->traffic_class;
    return nccl::init(context, comm_id, traffic_class, logger, profiler, kVersion);
  });
}

inline Result finalize(void* context) noexcept {
  return guard("finalize", {}, [&] { return nccl::finalize(context); });
}

inline Result set_net_attr(void* context, abi::NetAttr* attributes) noexcept {
  return guard("setNetAttr", {{"netAttr", attributes}}, [&] { return set_attributes(context, *attributes); });
}

// --- Devices.

inline Result devices(int* count) noexcept {
  return guard("devices", {{"ndev", count}}, [&] { return count_devices(count); });
}

template <typename Properties>
Result get_properties(int device, Properties* properties) noexcept {
  return guard("getProperties", {{"props", properties}}, [&]() -> Outcome {
    abi::ncclNetProperties_v12_t newest{};
    if (const Outcome outcome = nccl::get_properties(device, &newest); !outcome) return outcome;
    convert_properties(newest, *properties);
    return {};
  });
}

template <typename Members>
Result make_vdevice(int* device, Members* members) noexcept {
  return guard("makeVDevice", {{"d", device}, {"props", members}}, [&]() -> Outcome {
    if (members->ndevs < 1 || members->ndevs > Members::kCapacity) {
      return base::fail(
          base::Status::kInvalidArgument,
          "makeVDevice: invalid argument: a virtual device can have 1 to %d devices, but ndevs is %d",
          Members::kCapacity, members->ndevs);
    }
    return make_virtual_device(device, convert_members<abi::ncclNetVDeviceProps_v12_t>(*members));
  });
}

// --- Connections. The send side has no device handle: NCCL's argument for it is left unchanged.

inline Result listen(void* context, int device, void* handle, void** listen_comm) noexcept {
  return guard("listen", {{"handle", handle}, {"listenComm", listen_comm}}, [&] {
    *listen_comm = nullptr;
    return nccl::listen(context, device, handle, listen_comm);
  });
}

inline Result listen(int device, void* handle, void** listen_comm) noexcept {
  return listen(ProcessContext::get().context(), device, handle, listen_comm);
}

inline Result connect_with(void* context, int device, int traffic_class, void* handle,
                           void** send_comm) noexcept {
  return guard("connect", {{"handle", handle}, {"sendComm", send_comm}}, [&] {
    *send_comm = nullptr;
    return nccl::connect(context, device, traffic_class, handle, send_comm);
  });
}

inline Result connect(void* context, int device, void* handle, void** send_comm,
                      abi::NetDeviceHandle**) noexcept {
  return connect_with(context, device, abi::kUndefined, handle, send_comm);
}

inline Result connect(int device, abi::NetCommConfig* config, void* handle, void** send_comm,
                      abi::NetDeviceHandle**) noexcept {
  const int traffic_class = config == nullptr ? abi::kUndefined : config->traffic_class;
  return connect_with(ProcessContext::get().context(), device, traffic_class, handle, send_comm);
}

inline Result connect(int device, void* handle, void** send_comm, abi::NetDeviceHandle**) noexcept {
  return connect_with(ProcessContext::get().context(), device, abi::kUndefined, handle, send_comm);
}

inline Result accept(void* listen_comm, void** recv_comm,
                     abi::NetDeviceHandle** recv_device_handle) noexcept {
  return guard("accept", {{"listenComm", listen_comm}, {"recvComm", recv_comm}}, [&] {
    *recv_comm = nullptr;
    return nccl::accept(listen_comm, recv_comm, recv_device_handle);
  });
}

inline Result close_send(void* send_comm) noexcept {
  return guard("closeSend", {{"sendComm", send_comm}}, [&] { return nccl::close_send(send_comm); });
}

inline Result close_recv(void* recv_comm) noexcept {
  return guard("closeRecv", {{"recvComm", recv_comm}}, [&] { return close_receive(recv_comm); });
}

inline Result close_listen(void* listen_comm) noexcept {
  return guard("closeListen", {{"listenComm", listen_comm}}, [&] { return nccl::close_listen(listen_comm); });
}

// --- Memory.

template <typename Size>
Result reg_mr(void* comm, void* data, Size size_bytes, int type, void** mhandle) noexcept {
  return guard("regMr", {{"comm", comm}, {"mhandle", mhandle}}, [&]() -> Outcome {
    *mhandle = nullptr;
    size_t length_bytes = 0;
    if (const Outcome outcome = convert_size("regMr", size_bytes, &length_bytes); !outcome) return outcome;
    return register_memory(comm, data, length_bytes, type, mhandle);
  });
}

inline Result reg_mr_dmabuf(void* comm, void* data, size_t size_bytes, int type, uint64_t offset_bytes,
                            int fd, void** mhandle) noexcept {
  return guard("regMrDmaBuf", {{"comm", comm}, {"mhandle", mhandle}}, [&] {
    *mhandle = nullptr;
    return register_dmabuf(comm, data, size_bytes, type, offset_bytes, fd, mhandle);
  });
}

inline Result dereg_mr(void* comm, void* mhandle) noexcept {
  return guard("deregMr", {{"comm", comm}, {"mhandle", mhandle}},
               [&] { return deregister_memory(comm, mhandle); });
}

// UNPACK's device code uses no memory handle, but NCCL requests one.
inline Result get_device_mr(void* comm, void* mhandle, void** device_mhandle) noexcept {
  return guard("getDeviceMr", {{"comm", comm}, {"mhandle", mhandle}, {"dptr_mhandle", device_mhandle}}, [&] {
    *device_mhandle = nullptr;
    return Outcome{};
  });
}

// --- Data. `request` and `done` are always written. NCCL's bootstrap passes null as profiler handles.

inline void reset_request(void** request) {
  if (request != nullptr) *request = nullptr;
}

// Inlined into the entries that also have a profiler's handle.
template <typename Size>
[[gnu::always_inline]] inline Result isend(void* send_comm, void* data, Size size_bytes, int tag,
                                           void* mhandle, void** request) noexcept {
  reset_request(request);
  return guard("isend", {{"sendComm", send_comm}, {"mhandle", mhandle}, {"request", request}},
               [&]() -> Outcome {
                 size_t length_bytes = 0;
                 if (const Outcome outcome = convert_size("isend", size_bytes, &length_bytes); !outcome)
                   return outcome;
                 return nccl::isend(send_comm, data, length_bytes, tag, mhandle, request);
               });
}

// A separate function with the same arguments, so that without profiling the arguments stay in their
// registers.
[[gnu::cold, gnu::noinline]] inline Result isend_profiled(void* send_comm, void* data, size_t size_bytes,
                                                          int tag, void* mhandle, void* phandle,
                                                          void** request) noexcept {
  name_parent(send_comm, phandle);
  return isend(send_comm, data, size_bytes, tag, mhandle, request);
}

inline Result isend(void* send_comm, void* data, size_t size_bytes, int tag, void* mhandle, void* phandle,
                    void** request) noexcept {
  if (is_profiling.load(std::memory_order_relaxed)) [[unlikely]]
    return isend_profiled(send_comm, data, size_bytes, tag, mhandle, phandle, request);
  return isend(send_comm, data, size_bytes, tag, mhandle, request);
}

// Returns the index of the first null handle, or -1.
inline int find_null(int n, void** mhandles) {
  for (int i = 0; i < std::min(n, kMaxReceives); ++i)
    if (mhandles[i] == nullptr) return i;
  return -1;
}
[[gnu::cold, gnu::noinline]] inline Outcome refuse_handle(int place) {
  return base::fail(base::Status::kInvalidArgument, "irecv: invalid argument: mhandles[%d] is NULL", place);
}

// Passes any `n` to the core, which rejects invalid values; reads at most kMaxReceives elements.
template <typename Size>
Outcome post_receive(void* recv_comm, int n, void** data, const Size* sizes_bytes, const int* tags,
                     void** mhandles, void** request) {
  if (n != 1 || mhandles[0] == nullptr) [[unlikely]] {
    if (const int place = find_null(n, mhandles); place >= 0) return refuse_handle(place);
  }
  if constexpr (std::is_same_v<Size, size_t>) {
    return nccl::irecv(recv_comm, n, data, sizes_bytes, tags, mhandles, request);
  } else {
    size_t lengths_bytes[kMaxReceives];
    lengths_bytes[0] = 0;
    for (int i = 0; i < std::min(n, kMaxReceives); ++i) {
      if (const Outcome outcome = convert_size("irecv", sizes_bytes[i], &lengths_bytes[i]); !outcome)
        return outcome;
    }
    return nccl::irecv(recv_comm, n, data, lengths_bytes, tags, mhandles, request);
  }
}

template <typename Size>
[[gnu::always_inline]] VERBENA_HOT_PATH inline Result irecv(void* recv_comm, int n, void** data,
                                                            Size* sizes_bytes, int* tags, void** mhandles,
                                                            void** request) noexcept {
  // Before version 9 there is no hint, and *request has an arbitrary value.
  if constexpr (std::is_same_v<Size, int>) reset_request(request);
  const Result result =
      guard("irecv",
            {{"recvComm", recv_comm},
             {"data", data},
             {"sizes", sizes_bytes},
             {"tags", tags},
             {"mhandles", mhandles},
             {"request", request}},
            [&] { return post_receive(recv_comm, n, data, sizes_bytes, tags, mhandles, request); });
  if (result != abi::kSuccess) [[unlikely]]
    reset_request(request);
  return result;
}

[[gnu::cold, gnu::noinline]] inline Result irecv_profiled(void* recv_comm, int n, void** data,
                                                          size_t* sizes_bytes, int* tags, void** mhandles,
                                                          void** phandles, void** request) noexcept {
  name_parent(recv_comm, phandles == nullptr ? nullptr : phandles[0]);
  return irecv(recv_comm, n, data, sizes_bytes, tags, mhandles, request);
}

inline Result irecv(void* recv_comm, int n, void** data, size_t* sizes_bytes, int* tags, void** mhandles,
                    void** phandles, void** request) noexcept {
  if (is_profiling.load(std::memory_order_relaxed)) [[unlikely]]
    return irecv_profiled(recv_comm, n, data, sizes_bytes, tags, mhandles, phandles, request);
  return irecv(recv_comm, n, data, sizes_bytes, tags, mhandles, request);
}

inline Result iflush(void* recv_comm, int n, void** data, int* sizes_bytes, void** mhandles,
                     void** request) noexcept {
  reset_request(request);
  return guard("iflush",
               {{"recvComm", recv_comm},
                {"data", data},
                {"sizes", sizes_bytes},
                {"mhandles", mhandles},
                {"request", request}},
               [&] { return nccl::iflush(recv_comm, n, data, sizes_bytes, mhandles, request); });
}

inline Result test(void* request, int* done, int* sizes_bytes) noexcept {
  if (done != nullptr) *done = 0;
  return guard("test", {{"request", request}, {"done", done}},
               [&] { return nccl::test(request, done, sizes_bytes); });
}

inline Result irecv_consumed(void* recv_comm, int n, void* request) noexcept {
  return guard("irecvConsumed", {{"recvComm", recv_comm}, {"request", request}},
               [&] { return nccl::irecv_consumed(recv_comm, n, request); });
}

}  // namespace verbena::nccl::entries
