// NCCL's tables for its device API, by which kernels and streams of NCCL put, signal and read in other ranks'
// memory: GIN v11 (NCCL 2.28) and v13 (2.30), RMA v14 to v16 (2.30.7 to 2.32). As in abi_tables.h, NCCL fixes
// the order of the members, and a comment gives NCCL's type. This file has no code.
#pragma once

#include "nccl/abi.h"

namespace verbena::abi {

enum SignalOp : uint32_t { kSignalIncrement = 1, kSignalAdd = 2 };
// Bit of optFlags: another operation to the same peer follows at once.
inline constexpr uint32_t kAggregateRequests = 1;

inline constexpr uint64_t kMrForceStrictOrdering = 1;  // of regMrSym's flags

// The maximum number of receives per communicator. For each of them, NCCL has at most 32 outstanding
// operations of one context to one peer.
inline constexpr int kRmaMaxReceives = 8;

struct RmaConfig {  // ncclRmaConfig_v14_t to _v16_t
  int n_contexts;
  int traffic_class;
  int rank_stride;
};
static_assert(sizeof(RmaConfig) == 12 && offsetof(RmaConfig, rank_stride) == 8);

struct GinConfig_v13 {  // ncclGinConfig_v13_t
  int n_signals;
  int n_counters;
  int n_contexts;
  int queue_depth;
  int traffic_class;
};
static_assert(sizeof(GinConfig_v13) == 20 && offsetof(GinConfig_v13, traffic_class) == 16);

struct RmaProperties {  // ncclRmaProperties_v16_t
  bool flushes_all_puts_on_any_signal;
};
static_assert(sizeof(RmaProperties) == 1);

// What GIN's tables begin with, and the arguments with which each version configures a context.
template <typename PropertiesT, typename... Config>
struct GinSetup {
  using Properties = PropertiesT;
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, DebugLogger logger);
  Result (*devices)(int* count);
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, void* handles[], int nranks, int rank, void* listen_comm,
                    void** coll_comm);
  Result (*create_context)(void* coll_comm, Config... config, void** gin_context,
                           NetDeviceHandle** device_handle);
  Result (*reg_mr_sym)(void* coll_comm, void* data, size_t size, int type, uint64_t flags, void** mhandle,
                       void** gin_handle);
  Result (*reg_mr_sym_dmabuf)(void* coll_comm, void* data, size_t size, int type, uint64_t offset, int fd,
                              uint64_t flags, void** mhandle, void** gin_handle);
  Result (*dereg_mr_sym)(void* coll_comm, void* mhandle);
  Result (*destroy_context)(void* gin_context);
  Result (*close_coll)(void* coll_comm);
  Result (*close_listen)(void* listen_comm);
};
using GinSetup_v11 = GinSetup<ncclNetProperties_v11_t, int, int>;  // numbers of signals and of counters
using GinSetup_v13 = GinSetup<ncclNetProperties_v12_t, GinConfig_v13*>;
static_assert(sizeof(GinSetup_v11) == 104 && sizeof(GinSetup_v13) == 104);
static_assert(offsetof(GinSetup_v11, connect) == 40 && offsetof(GinSetup_v13, close_listen) == 96);

// The first argument of the data functions, of progress and of queryLastError is the communicator.
struct ncclGin_v11_t : GinSetup_v11 {  // ncclGin_v11_t
  Result (*iput)(void* coll_comm, uint64_t source_offset, void* source, size_t size, uint64_t offset,
                 void* destination, uint32_t rank, void** request);
  Result (*iput_signal)(void* coll_comm, uint64_t source_offset, void* source, size_t size, uint64_t offset,
                        void* destination, uint32_t rank, uint64_t signal_offset, void* signal,
                        uint64_t value, uint32_t op, void** request);
  Result (*test)(void* coll_comm, void* request, int* done);
  Result (*progress)(void* coll_comm);
  Result (*query_last_error)(void* coll_comm, bool* has_error);
  Result (*finalize)(void* context);
};
static_assert(sizeof(ncclGin_v11_t) == 152);

// v13: contexts, gets and flushes.
struct ncclGin_v13_t : GinSetup_v13 {  // ncclGin_v13_t
  Result (*iput)(void* gin_context, int context, uint64_t source_offset, void* source, size_t size,
                 uint64_t offset, void* destination, uint32_t rank, void** request);
  Result (*iput_signal)(void* gin_context, int context, uint64_t source_offset, void* source, size_t size,
                        uint64_t offset, void* destination, uint32_t rank, uint64_t signal_offset,
                        void* signal, uint64_t value, uint32_t op, void** request);
  Result (*iget)(void* gin_context, int context, uint64_t remote_offset, void* remote, size_t size,
                 uint64_t local_offset, void* local, uint32_t rank, void** request);
  Result (*iflush)(void* gin_context, int context, void* mhandle, uint32_t rank, void** request);
  Result (*test)(void* coll_comm, void* request, int* done);
  Result (*progress)(void* gin_context);
  Result (*query_last_error)(void* gin_context, bool* has_error);
  Result (*finalize)(void* context);
};
static_assert(sizeof(ncclGin_v13_t) == 168);

// What v14 to v16 begin with.
struct RmaBegin {
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, DebugLogger logger);
  Result (*devices)(int* count);
};
static_assert(sizeof(RmaBegin) == 24);

// The rest. Since v15 each operation has flags (`Flags`).
template <typename... Flags>
struct RmaRest {
  using Properties = ncclNetProperties_v12_t;
  Result (*get_properties)(int device, Properties* properties);
  Result (*listen)(void* context, int device, void* handle, void** listen_comm);
  Result (*connect)(void* context, void* handles[], int nranks, int rank, void* listen_comm,
                    void** coll_comm);
  Result (*create_context)(void* coll_comm, RmaConfig* config, void** rma_context);
  Result (*reg_mr_sym)(void* coll_comm, void* data, size_t size, int type, uint64_t flags, void** mhandle);
  Result (*reg_mr_sym_dmabuf)(void* coll_comm, void* data, size_t size, int type, uint64_t offset, int fd,
                              uint64_t flags, void** mhandle);
  Result (*dereg_mr_sym)(void* coll_comm, void* mhandle);
  Result (*destroy_context)(void* rma_context);
  Result (*close_coll)(void* coll_comm);
  Result (*close_listen)(void* listen_comm);
  Result (*iput)(void* rma_context, int context, uint64_t source_offset, void* source, size_t size,
                 uint64_t offset, void* destination, uint32_t rank, Flags... flags, void** request);
  Result (*iput_signal)(void* rma_context, int context, uint64_t source_offset, void* source, size_t size,
                        uint64_t offset, void* destination, uint32_t rank, uint64_t signal_offset,
                        void* signal, uint64_t value, uint32_t op, bool is_strong, Flags... flags,
                        void** request);
  Result (*iget)(void* rma_context, int context, uint64_t remote_offset, void* remote, size_t size,
                 uint64_t local_offset, void* local, uint32_t rank, Flags... flags, void** request);
  Result (*iflush)(void* rma_context, int context, void* mhandle, uint32_t rank, void** request);
  Result (*test)(void* coll_comm, void* request, int* done);
  Result (*progress)(void* rma_context);
  Result (*query_last_error)(void* rma_context, bool* has_error);
  Result (*finalize)(void* context);
};
using RmaRest_v15 = RmaRest<uint32_t>;
static_assert(sizeof(RmaRest<>) == 144 && sizeof(RmaRest_v15) == 144);
static_assert(offsetof(RmaRest<>, create_context) == 24 && offsetof(RmaRest<>, iput) == 80);
static_assert(offsetof(RmaRest<>, iput_signal) == 88 && offsetof(RmaRest<>, progress) == 120);
static_assert(offsetof(RmaRest_v15, iget) == 96 && offsetof(RmaRest_v15, iflush) == 104);
static_assert(offsetof(RmaRest_v15, test) == 112 && offsetof(RmaRest_v15, finalize) == 136);

struct ncclRma_v14_t : RmaBegin, RmaRest<> {};    // ncclRma_v14_t
struct ncclRma_v15_t : RmaBegin, RmaRest_v15 {};  // ncclRma_v15_t
static_assert(sizeof(ncclRma_v14_t) == 168 && sizeof(ncclRma_v15_t) == 168);

// v16: a function more.
struct RmaBegin_v16 : RmaBegin {
  Result (*get_rma_properties)(void* coll_comm, RmaProperties* properties);
};
struct ncclRma_v16_t : RmaBegin_v16, RmaRest_v15 {};  // ncclRma_v16_t
static_assert(sizeof(RmaBegin_v16) == 32 && sizeof(ncclRma_v16_t) == 176);

}  // namespace verbena::abi
