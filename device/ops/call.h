// What a launch of our kernels is told: host and kernels have it in common. Plain types, since nvcc reads it
// too.
#pragma once

#include <stdint.h>

#include "verbena/symm_abi.h"

namespace verbena::ops {

inline constexpr int32_t kMaxRanks = 16;
inline constexpr uint32_t kCountOperations = 5;  // of verbena_ops_operation
inline constexpr uint32_t kMaxCalls = 8;         // of a launch
inline constexpr uint32_t kMaxThreads = 512;
// Of a row of an all-reduce with a norm that does not go through memory: vectors that a thread has, blocks
// and warps that have the row.
inline constexpr uint32_t kMaxKept = 2, kMaxRowBlocks = 8, kMaxRowWarps = 64;
inline constexpr uint32_t kFewRowBlocks = 4;  // where one block has room too

// Numbered as verbena_ops_algorithm (verbena/ops.h). Packets (low_latency.cuh), or chunks behind flags
// (bulk.cuh); in one shot each rank sends its whole tensor to every other one.
enum class Algorithm : uint32_t {
  kAuto = 0,
  kOneShot = 1,
  kTwoShot = 2,
  kBulkOneShot = 3,
  kBulkTwoShot = 4,
  kCopyEngines = 5,  // no kernel of ours: the driver's copies
  kDirect = 6,       // of tensors in windows
  // In few bits.
  kFloat8 = 16,
  kInt8 = 17,
  kInt6 = 18,
  kInt4 = 19,
  kMxFloat8 = 20,
  kFloat8Int8 = 21,
  kInt4Int8 = 22,
};
inline constexpr uint32_t kCountAlgorithms = 7;  // of those that compute exactly
inline constexpr uint32_t kFirstCodec = 16, kCountCodecs = 7;
inline constexpr uint32_t kCountSingleCodecs = 5;  // the first of them: addends and sums by the same one
// Which codec; kCountCodecs or more: none.
constexpr uint32_t find_codec(Algorithm algorithm) {
  return static_cast<uint32_t>(algorithm) - kFirstCodec;
}
constexpr uint32_t find_codec_of_addends(uint32_t codec) {
  constexpr uint32_t kFirst[] = {0, 1, 2, 3, 4, find_codec(Algorithm::kFloat8), find_codec(Algorithm::kInt4)};
  return kFirst[codec];
}
constexpr bool is_coded(Algorithm algorithm) {
  return find_codec(algorithm) < kCountCodecs;
}
// Whether an all-reduce by this codec is one shot: between two ranks it sends no more than two shots would.
constexpr bool is_coded_one_shot(Algorithm algorithm, uint32_t ranks) {
  return ranks == 2 && find_codec(algorithm) < kCountSingleCodecs;
}

// Kernels that have a workspace of their own.
enum class Family : uint32_t { kPackets, kChunks };
inline constexpr uint32_t kFamilies = 2;
constexpr Family family_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
    case Algorithm::kBulkOneShot:
    case Algorithm::kBulkTwoShot:
    case Algorithm::kCopyEngines:
    case Algorithm::kDirect:
      return Family::kChunks;
    default:
      return Family::kPackets;
  }
}

struct Grid {
  uint32_t blocks, threads;
  uint32_t cluster = 1;  // blocks of one
};

// The last three have NormLaunch::norm: of rows that are there, of the sums of all ranks', of each rank's
// share of them.
enum class Kind : uint32_t {
  kAllReduce = 0,
  kExchange = 1,
  kExchangeReduce = 2,
  kNorm = 3,
  kAllReduceNorm = 4,
  kShardedNorm = 5,
};

// Where the messages of an exchange lie at one end: that of member r begins at r * member_bytes, and has rows
// of row_bytes, stride_bytes from one to the next (Rows of message_bytes.cuh).
struct Layout {
  uint64_t member_bytes, row_bytes, stride_bytes;
};

// Whose messages are of which length.
enum class Lengths : uint32_t {
  kEqual = 0,       // all `length_bytes`
  kFromRoot = 1,    // those of `root`; all others have none
  kByReceiver = 2,  // counts[r] for member r: a reduce-scatter
  kBySender = 3,    // counts[r] from member r: an all-gather
  kByPair = 4,      // counts[r] to member r, receive_counts[r] from it
};

struct Call {
  Kind kind;
  Algorithm algorithm;
  uint32_t type, reduction;  // of reduction.cuh
  const char* input;
  char* output;
  uint64_t length_bytes;  // of the tensor; of an exchange's longest message
  Layout source, destination;
  Lengths lengths;
  int32_t root;
  // In the GPU's memory, read by the kernel: of each member, in units of unit_bytes. Offsets null: each
  // message behind the one before. Messages lie in the first input_bytes and output_bytes.
  const int64_t *counts, *offsets, *receive_counts, *receive_offsets;
  uint64_t unit_bytes, input_bytes, output_bytes;
  uint64_t seed;  // of an all-reduce in few bits that rounds by chance; 0: to nearest
};

// RmsNorm of rms_norm.cuh, of any type.
struct Norm {
  uint64_t rows, hidden;
  const void *weight, *residual_in;
  void *residual_out, *output;
  uint64_t residual_in_stride, residual_out_stride, output_stride, padding, x_stride;
  float epsilon, weight_offset;
  uint32_t rounds_sum, rounds_normed;
  uint32_t quantisation;  // of RowQuantisation
  float min_scale;
  void *elements, *scales;
  uint64_t row_bytes, scale_row_stride, scale_block_stride;
};

// What the calls of a launch are: kernels with code for less are faster.
enum class Content : uint32_t { kAllReduces, kExchanges, kAnything };

// What all kernels are told.
struct Launch {
  SymmWorkspace<> workspace;
  // In memory of the host: the first error, a SymmStatus that is not kDone; 0: none.
  int64_t* status;
  uint32_t chunk_bytes;  // of Bulk; 0: as many as there is room for
  uint32_t programmatic_launch;
  uint32_t pause_before_ns, pause_after_ns;  // GridStart's
  // Of a team across hosts: the host's workspace, in the GPU's memory, and HostPlaces of across_hosts.cuh.
  const SymmWorkspace<>* host;
  uint32_t hosts;
  uint8_t members[kMaxRanks];
};
// The more a kernel is told, the later it starts: kernels for one call are told of one.
struct CallLaunch : Launch {
  Call call;
};
struct NormLaunch : CallLaunch {
  Norm norm;
};
struct GroupLaunch : Launch {
  uint32_t count_calls;
  Call calls[kMaxCalls];
};

// What ranks have to agree on in a call, as VERBENA_OPS_CHECK compares it. Addresses, strides and streams are
// each rank's own and have no part in it.
struct CallRecord {
  uint32_t kind, algorithm, type, reduction;
  uint32_t blocks, threads, cluster, chunk_bytes;
  uint64_t length_bytes, unit_bytes;
  uint64_t rows, hidden;
  uint32_t lengths, quantisation, outputs;
  int32_t root;
  uint64_t counts_hash, padding;       // of counts in the GPU's memory that ranks have alike
  uint64_t input_place, output_place;  // where peers read or write them: bytes behind a window's begin
};
// As words, of which none is padding.
inline constexpr uint32_t kRecordWords = sizeof(CallRecord) / sizeof(uint64_t);
static_assert(sizeof(CallRecord) == 112, "verbena: records are compared word by word");

// Before the records of all ranks travel, and behind that.
struct CompareLaunch : Launch {
  CallRecord record;
  const int64_t* counts;  // of the call, if all ranks have to have the same; or null
  // In memory of the host: this rank's record, all members', and this rank's of a call that was refused.
  CallRecord *own, *all, *refused;
};

}  // namespace verbena::ops
