// The functions behind all tables of NCCL's device API, as one overload set. The type of a table's member
// selects the overload (rma_tables.cc). Each function checks pointers that must not be null, converts the
// arguments to the core's types, and calls the core. A communicator and a context are both an RmaContext, so
// each function accepts either.
#pragma once

#include <algorithm>
#include <climits>

#include "base/hot_path.h"
#include "nccl/adapt.h"
#include "nccl/boundary.h"
#include "nccl/net_core.h"
#include "nccl/rma_communicator.h"
#include "nccl/rma_core.h"

namespace verbena::nccl::rma_entries {

using abi::Result;

// --- Life cycle and devices.

inline Result init(void** context, uint64_t communicator_id, abi::DebugLogger logger) noexcept {
  return guard("init", {{"ctx", context}}, [&] { return init_rma(context, communicator_id, logger); });
}

inline Result finalize(void* context) noexcept {
  return guard("finalize", {}, [&] { return nccl::finalize(context); });
}

inline Result devices(int* count) noexcept {
  return guard("devices", {{"ndev", count}}, [&] { return count_devices(count); });
}

template <typename Properties>
Result get_properties(int device, Properties* properties) noexcept {
  return guard("getProperties", {{"props", properties}}, [&]() -> Outcome {
    abi::ncclNetProperties_v12_t newest;
    if (const Outcome found = get_rma_device(device, &newest); !found) return found;
    convert_properties(newest, *properties);
    return {};
  });
}

// A signal from one rank does not order the puts of other ranks.
inline Result get_rma_properties(void* coll_comm, abi::RmaProperties* properties) noexcept {
  return guard("getRmaProperties", {{"collComm", coll_comm}, {"props", properties}}, [&]() -> Outcome {
    properties->flushes_all_puts_on_any_signal = false;
    return {};
  });
}

inline Result listen(void*, int device, void* handle, void** listen_comm) noexcept {
  return guard("listen", {{"handle", handle}, {"listenComm", listen_comm}}, [&] {
    *listen_comm = nullptr;
    return listen_rma(device, handle, listen_comm);
  });
}

inline Result close_listen(void* listen_comm) noexcept {
  return guard("closeListen", {{"listenComm", listen_comm}}, [&] { return close_rma_listener(listen_comm); });
}

// `kJoinsAll`: NCCL creates no contexts with this table. The context that NCCL passes may belong to another
// plugin.
template <bool kJoinsAll>
Result connect(void*, void* handles[], int count_ranks, int rank, void* listen_comm,
               void** coll_comm) noexcept {
  return guard("connect", {{"handles", handles}, {"listenComm", listen_comm}, {"collComm", coll_comm}}, [&] {
    *coll_comm = nullptr;
    return connect_rma(handles, count_ranks, rank, listen_comm, kJoinsAll, coll_comm);
  });
}

inline RmaContext& as_context(void* pointer) {
  return *static_cast<RmaContext*>(pointer);
}
inline RmaCommunicator& communicator_of(void* pointer) {
  return *as_context(pointer).communicator;
}
inline RmaRegion* as_region(void* mhandle) {
  return static_cast<RmaRegion*>(mhandle);
}

inline Result close_coll(void* coll_comm) noexcept {
  return guard("closeColl", {{"collComm", coll_comm}}, [&]() -> Outcome {
    delete as_context(coll_comm).communicator;
    return {};
  });
}

// --- Contexts. Converts the configurations of later releases to these options.

inline RmaContextOptions convert_config(int contexts, int traffic_class, int rank_stride) {
  const bool has_class = traffic_class != INT_MIN && traffic_class >= 0;
  return {static_cast<uint32_t>(std::max(contexts, 1)), has_class ? traffic_class : abi::kUndefined,
          static_cast<uint32_t>(std::max(rank_stride, 1))};
}

inline Outcome create_context(void* coll_comm, const RmaContextOptions& options, void** context) {
  auto made = communicator_of(coll_comm).create_context(options);
  if (!made) return made.error();
  *context = *made;
  return {};
}

inline Result create_context(void* coll_comm, abi::RmaConfig* config, void** context) noexcept {
  return guard("createContext", {{"collComm", coll_comm}, {"config", config}, {"rmaCtx", context}}, [&] {
    return create_context(
        coll_comm, convert_config(config->n_contexts, config->traffic_class, config->rank_stride), context);
  });
}

// The plugin has no device handle, because NCCL's own code runs on the GPU if a plugin only moves bytes.
inline Result create_context(void* coll_comm, abi::GinConfig_v13* config, void** context,
                             abi::NetDeviceHandle** device_handle) noexcept {
  return guard("createContext", {{"collComm", coll_comm}, {"config", config}, {"ginCtx", context}}, [&] {
    if (device_handle != nullptr) *device_handle = nullptr;
    return create_context(coll_comm, convert_config(config->n_contexts, config->traffic_class, 1), context);
  });
}

inline Result create_context(void* coll_comm, int, int, void** context,
                             abi::NetDeviceHandle** device_handle) noexcept {
  return guard("createContext", {{"collComm", coll_comm}, {"ginCtx", context}}, [&] {
    if (device_handle != nullptr) *device_handle = nullptr;
    return create_context(coll_comm, RmaContextOptions(), context);
  });
}

inline Result destroy_context(void* context) noexcept {
  return guard("destroyContext", {{"ctx", context}}, [&]() -> Outcome {
    communicator_of(context).destroy_context(&as_context(context));
    return {};
  });
}

// --- Memory. GIN's tables have two handles for a region, which are the same here.

// NCCL requests strict ordering for memory with signals, and where the user requests it.
inline Result register_region(const char* entry, void* coll_comm, const verbena::EndpointMemory& memory,
                              void** mhandle, void** gin_handle) noexcept {
  return guard(entry, {{"collComm", coll_comm}, {"mhandle", mhandle}}, [&]() -> Outcome {
    *mhandle = nullptr;
    auto made = communicator_of(coll_comm).register_memory(memory);
    if (!made) return made.error();
    *mhandle = *made;
    if (gin_handle != nullptr) *gin_handle = *made;
    return {};
  });
}
inline bool is_ordered(uint64_t flags) {
  return (flags & abi::kMrForceStrictOrdering) != 0;
}

inline Result reg_mr_sym(void* coll_comm, void* data, size_t size_bytes, int, uint64_t flags, void** mhandle,
                         void** gin_handle) noexcept {
  return register_region("regMrSym", coll_comm, {data, size_bytes, -1, 0, is_ordered(flags)}, mhandle,
                         gin_handle);
}
inline Result reg_mr_sym(void* coll_comm, void* data, size_t size_bytes, int type, uint64_t flags,
                         void** mhandle) noexcept {
  return reg_mr_sym(coll_comm, data, size_bytes, type, flags, mhandle, nullptr);
}
inline Result reg_mr_sym_dmabuf(void* coll_comm, void* data, size_t size_bytes, int, uint64_t offset_bytes,
                                int fd, uint64_t flags, void** mhandle, void** gin_handle) noexcept {
  return register_region("regMrSymDmaBuf", coll_comm, {data, size_bytes, fd, offset_bytes, is_ordered(flags)},
                         mhandle, gin_handle);
}
inline Result reg_mr_sym_dmabuf(void* coll_comm, void* data, size_t size_bytes, int type,
                                uint64_t offset_bytes, int fd, uint64_t flags, void** mhandle) noexcept {
  return reg_mr_sym_dmabuf(coll_comm, data, size_bytes, type, offset_bytes, fd, flags, mhandle, nullptr);
}

inline Result dereg_mr_sym(void* coll_comm, void* mhandle) noexcept {
  return guard("deregMrSym", {{"collComm", coll_comm}, {"mhandle", mhandle}}, [&]() -> Outcome {
    communicator_of(coll_comm).deregister_memory(as_region(mhandle));
    return {};
  });
}

// --- Data. Every signal is strong, so `is_strong` is ignored.

inline Outcome convert_signal(uint64_t offset, void* region, uint64_t value, uint32_t op, RmaSignal* signal) {
  if (region == nullptr || (op != abi::kSignalIncrement && op != abi::kSignalAdd)) [[unlikely]] {
    return base::fail(
        base::Status::kInvalidArgument, "iputSignal: %s (operation %u)",
        region == nullptr ? "the signal has no memory handle (signalMhandle is NULL)" : "unknown operation",
        op);
  }
  *signal = {offset, as_region(region), op == abi::kSignalIncrement ? 1 : value};
  return {};
}

VERBENA_HOT_PATH inline Result iput(void* context, int index, uint64_t source_offset, void* source,
                                    size_t size_bytes, uint64_t offset, void* destination, uint32_t rank,
                                    uint32_t flags, void** request) noexcept {
  return guard("iput", {{"ctx", context}, {"request", request}}, [&] {
    *request = nullptr;
    return communicator_of(context).put(
        as_context(context), static_cast<uint32_t>(index), rank,
        {source_offset, as_region(source), size_bytes, offset, as_region(destination)}, {},
        (flags & abi::kAggregateRequests) != 0, request);
  });
}
inline Result iput(void* context, int index, uint64_t source_offset, void* source, size_t size_bytes,
                   uint64_t offset, void* destination, uint32_t rank, void** request) noexcept {
  return iput(context, index, source_offset, source, size_bytes, offset, destination, rank, 0U, request);
}
inline Result iput(void* coll_comm, uint64_t source_offset, void* source, size_t size_bytes, uint64_t offset,
                   void* destination, uint32_t rank, void** request) noexcept {
  return iput(coll_comm, 0, source_offset, source, size_bytes, offset, destination, rank, 0U, request);
}

VERBENA_HOT_PATH inline Result iput_signal(void* context, int index, uint64_t source_offset, void* source,
                                           size_t size_bytes, uint64_t offset, void* destination,
                                           uint32_t rank, uint64_t signal_offset, void* signal,
                                           uint64_t value, uint32_t op, bool, uint32_t flags,
                                           void** request) noexcept {
  return guard("iputSignal", {{"ctx", context}, {"request", request}}, [&]() -> Outcome {
    *request = nullptr;
    RmaSignal converted;
    if (const Outcome sane = convert_signal(signal_offset, signal, value, op, &converted); !sane) return sane;
    return communicator_of(context).put(
        as_context(context), static_cast<uint32_t>(index), rank,
        {source_offset, as_region(source), size_bytes, offset, as_region(destination)}, converted,
        (flags & abi::kAggregateRequests) != 0, request);
  });
}
inline Result iput_signal(void* context, int index, uint64_t source_offset, void* source, size_t size_bytes,
                          uint64_t offset, void* destination, uint32_t rank, uint64_t signal_offset,
                          void* signal, uint64_t value, uint32_t op, bool is_strong,
                          void** request) noexcept {
  return iput_signal(context, index, source_offset, source, size_bytes, offset, destination, rank,
                     signal_offset, signal, value, op, is_strong, 0U, request);
}
inline Result iput_signal(void* context, int index, uint64_t source_offset, void* source, size_t size_bytes,
                          uint64_t offset, void* destination, uint32_t rank, uint64_t signal_offset,
                          void* signal, uint64_t value, uint32_t op, void** request) noexcept {
  return iput_signal(context, index, source_offset, source, size_bytes, offset, destination, rank,
                     signal_offset, signal, value, op, true, 0U, request);
}
inline Result iput_signal(void* coll_comm, uint64_t source_offset, void* source, size_t size_bytes,
                          uint64_t offset, void* destination, uint32_t rank, uint64_t signal_offset,
                          void* signal, uint64_t value, uint32_t op, void** request) noexcept {
  return iput_signal(coll_comm, 0, source_offset, source, size_bytes, offset, destination, rank,
                     signal_offset, signal, value, op, true, 0U, request);
}

inline Result iget(void* context, int index, uint64_t remote_offset, void* remote, size_t size_bytes,
                   uint64_t local_offset, void* local, uint32_t rank, uint32_t flags,
                   void** request) noexcept {
  return guard("iget", {{"ctx", context}, {"request", request}}, [&] {
    *request = nullptr;
    return communicator_of(context).get(
        as_context(context), static_cast<uint32_t>(index), rank,
        {local_offset, as_region(local), size_bytes, remote_offset, as_region(remote)},
        (flags & abi::kAggregateRequests) != 0, request);
  });
}
inline Result iget(void* context, int index, uint64_t remote_offset, void* remote, size_t size_bytes,
                   uint64_t local_offset, void* local, uint32_t rank, void** request) noexcept {
  return iget(context, index, remote_offset, remote, size_bytes, local_offset, local, rank, 0U, request);
}

// No request means that the operation is done.
inline Result iflush(void* context, int, void*, uint32_t, void** request) noexcept {
  return guard("iflush", {{"ctx", context}, {"request", request}}, [&]() -> Outcome {
    *request = nullptr;
    communicator_of(context).flush();
    return {};
  });
}

VERBENA_HOT_PATH inline Result test(void* coll_comm, void* request, int* done) noexcept {
  return guard("test", {{"collComm", coll_comm}, {"request", request}, {"done", done}}, [&] {
    *done = 0;
    return communicator_of(coll_comm).test(*static_cast<RmaRequest*>(request), done);
  });
}

inline Result progress(void* context) noexcept {
  return guard("progress", {{"ctx", context}}, [&] { return communicator_of(context).progress(); });
}

inline Result query_last_error(void* context, bool* has_error) noexcept {
  return guard("queryLastError", {{"ctx", context}, {"hasError", has_error}}, [&]() -> Outcome {
    *has_error = communicator_of(context).has_error();
    return {};
  });
}

}  // namespace verbena::nccl::rma_entries
