// NCCL's tuner ABI, versions 2 (NCCL 2.21) to 6 (NCCL 2.30): the data symbols ncclTunerPlugin_vN, which NCCL
// looks up in libnccl-tuner.so or else in the network plugin. NCCL fixes the order of the members.
#pragma once

#include "nccl/abi.h"

namespace verbena::abi {

inline constexpr int kTunerUndefined = -1;  // v2's algorithm and protocol: NCCL chooses

// ncclNvlDomainInfo_v5_t, _v6_t.
struct NvlDomainInfo {
  int domains;
  int min_ranks_per_domain;
  int max_ranks_per_domain;
};
static_assert(sizeof(NvlDomainInfo) == 12 && offsetof(NvlDomainInfo, max_ranks_per_domain) == 8);

// ncclTunerConstants_v5_t, _v6_t: the constants of NCCL's own model. A tuner may change them; this tuner does
// not. Latency in us, bandwidth in GB/s.
struct TunerConstants {
  double base_latencies[7][3];
  double hardware_latencies[3][7][3];
  double ll_max_bandwidths[4][3];
  double ring_ll128_channel_bandwidths[4][3];
  double tree_ll128_channel_bandwidths[4][3];
  double tree_channel_bandwidths[4][3];
  double nvls_tree_channel_bandwidths[4][3];
};
static_assert(sizeof(TunerConstants) == 1152 && offsetof(TunerConstants, ll_max_bandwidths) == 672);

// This version does not show NCCL's costs. The tuner returns an algorithm and a protocol, or neither, and a
// number of channels (0: NCCL's default).
struct ncclTuner_v2_t {  // ncclTuner_v2_t
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, DebugLogger logger, void** context);
  Result (*get_coll_info)(void* context, int function, size_t bytes, int collnet_support, int nvls_support,
                          int pipelined_ops, int* algorithm, int* protocol, int* channels);
  Result (*destroy)(void* context);
};

// From here on NCCL shows its costs in microseconds: `costs`, whatever its declared type, is the address of
// float[algorithms][protocols]; -1 excludes an entry. Since v4 NCCL also tells whether the user's buffers can
// be registered (`Registered`).
template <typename... Registered>
struct TunerTableWithCosts {
  const char* name;
  Result (*init)(size_t ranks, size_t nodes, DebugLogger logger, void** context);
  Result (*get_coll_info)(void* context, int function, size_t bytes, int pipelined_ops, float** costs,
                          int algorithms, int protocols, Registered... registered, int* channels);
  Result (*destroy)(void* context);
};
using ncclTuner_v3_t = TunerTableWithCosts<>;     // ncclTuner_v3_t
using ncclTuner_v4_t = TunerTableWithCosts<int>;  // ncclTuner_v4_t

struct ncclTuner_v5_t {  // ncclTuner_v5_t
  const char* name;
  Result (*init)(void** context, uint64_t comm_id, size_t ranks, size_t nodes, DebugLogger logger,
                 NvlDomainInfo* domains, TunerConstants* constants);
  Result (*get_coll_info)(void* context, int function, size_t bytes, int pipelined_ops, float** costs,
                          int algorithms, int protocols, int registered, int* channels);
  Result (*finalize)(void* context);
};

struct ncclTuner_v6_t : ncclTuner_v5_t {  // ncclTuner_v6_t
  // May be null; NCCL then uses its own chunk size.
  Result (*get_chunk_size)(void* context, int function, size_t bytes, int algorithm, int protocol,
                           int channels, size_t* chunk_bytes);
};
static_assert(sizeof(ncclTuner_v2_t) == 32 && sizeof(ncclTuner_v3_t) == 32 && sizeof(ncclTuner_v4_t) == 32);
static_assert(offsetof(ncclTuner_v2_t, get_coll_info) == 16 && offsetof(ncclTuner_v4_t, destroy) == 24);
static_assert(sizeof(ncclTuner_v5_t) == 32 && offsetof(ncclTuner_v5_t, get_coll_info) == 16);
static_assert(sizeof(ncclTuner_v6_t) == 40);

}  // namespace verbena::abi
