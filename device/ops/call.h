// The arguments of the library's kernels, shared by host and device code. This header uses only plain types,
// because nvcc compiles it, too.
#pragma once

#include <stdint.h>

#include "verbena/symm_abi.h"

namespace verbena::ops {

inline constexpr int32_t kMaxRanks = 16;
inline constexpr uint32_t kCountOperations = 5;  // number of values of verbena_ops_operation
inline constexpr uint32_t kMaxCalls = 8;         // calls per launch
inline constexpr uint32_t kMaxThreads = 512;
// Limits of the fused all-reduce and norm, which keeps rows in registers: the maximum numbers of vectors per
// thread, blocks per row, and warps per row.
inline constexpr uint32_t kMaxKept = 2, kMaxRowBlocks = 8, kMaxRowWarps = 64;
inline constexpr uint32_t kFewRowBlocks = 4;  // limit for rows that would also fit into one block

// The values are the same as in verbena_ops_algorithm (verbena/ops.h). kOneShot and kTwoShot send packets
// (low_latency.cuh); kBulk... send chunks with flags (bulk.cuh). In one shot, each rank sends its whole
// tensor to every other rank.
enum class Algorithm : uint32_t {
  kAuto = 0,
  kOneShot = 1,
  kTwoShot = 2,
  kBulkOneShot = 3,
  kBulkTwoShot = 4,
  kCopyEngines = 5,  // the driver's copies instead of a kernel
  kDirect = 6,       // for tensors in windows
  // Quantised algorithms.
  kFloat8 = 16,
  kInt8 = 17,
  kInt6 = 18,
  kInt4 = 19,
  kMxFloat8 = 20,
  kFloat8Int8 = 21,
  kInt4Int8 = 22,
  kLossless = 32,  // kBulkTwoShot of a team across hosts, with lossless encoding between hosts
};
inline constexpr uint32_t kCountAlgorithms = 7;  // number of exact algorithms
inline constexpr uint32_t kFirstCodec = 16, kCountCodecs = 7;
// Number of codecs that use the same format for addends and for sums. These codecs come first in Algorithm.
inline constexpr uint32_t kCountSingleCodecs = 5;
// Returns the index of the algorithm's codec. If the algorithm is exact, the result is kCountCodecs or more.
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
// Returns whether an all-reduce with this codec uses one shot. Between two ranks, one shot sends no more
// bytes than two shots.
constexpr bool is_coded_one_shot(Algorithm algorithm, uint32_t ranks) {
  return ranks == 2 && find_codec(algorithm) < kCountSingleCodecs;
}

// Families of kernels. Each family has a separate workspace.
enum class Family : uint32_t { kPackets, kChunks };
inline constexpr uint32_t kFamilies = 2;
constexpr Family family_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kAuto:
    case Algorithm::kBulkOneShot:
    case Algorithm::kBulkTwoShot:
    case Algorithm::kCopyEngines:
    case Algorithm::kDirect:
    case Algorithm::kLossless:
      return Family::kChunks;
    default:
      return Family::kPackets;
  }
}

struct Grid {
  uint32_t blocks, threads;
  uint32_t cluster = 1;  // blocks per cluster
  uint32_t rows = 1;     // rows of a fused norm that a block handles at a time
};

// The last four kinds use NormLaunch::norm. kNorm normalises local rows. kAllReduceNorm sums rows over all
// ranks, and each rank normalises all sums. In kShardedNorm, each rank normalises only its share of the sums.
// kFinalize computes rows from the outputs of local experts. kAllReduceNorm with a FinalizeLaunch also
// computes its input from these outputs.
enum class Kind : uint32_t {
  kAllReduce = 0,
  kExchange = 1,
  kExchangeReduce = 2,
  kNorm = 3,
  kAllReduceNorm = 4,
  kShardedNorm = 5,
  kFinalize = 6,
};

// The memory layout of an exchange's messages, in the input or in the output. The message of member r begins
// at r * member_bytes, and consists of rows of row_bytes with a stride of stride_bytes (Rows of
// message_bytes.cuh).
struct Layout {
  uint64_t member_bytes, row_bytes, stride_bytes;
};

// The lengths of an exchange's messages.
enum class Lengths : uint32_t {
  kEqual = 0,       // all messages have `length_bytes`
  kFromRoot = 1,    // only `root` sends messages
  kByReceiver = 2,  // the message for member r has counts[r] units (reduce-scatter)
  kBySender = 3,    // the message from member r has counts[r] units (all-gather)
  kByPair = 4,      // the message to member r has counts[r] units, and the message from member r has
                    // receive_counts[r] units
};

struct Call {
  Kind kind;
  Algorithm algorithm;
  uint32_t type, reduction;  // values of DataType and Reduction (reduction.cuh)
  const char* input;
  char* output;
  uint64_t length_bytes;  // length of the tensor, or of an exchange's longest message
  Layout source, destination;
  Lengths lengths;
  int32_t root;
  // Arrays in GPU memory, which the kernel reads: one value per member, in units of unit_bytes. If the
  // offsets are null, the messages are contiguous. Messages must lie in the first input_bytes of the input
  // and the first output_bytes of the output.
  const int64_t *counts, *offsets, *receive_counts, *receive_offsets;
  uint64_t unit_bytes, input_bytes, output_bytes;
  uint64_t seed;  // seed of the stochastic rounding of a quantised all-reduce; 0 rounds to nearest
};

// The arguments of RmsNorm in rms_norm.cuh, for any type.
struct Norm {
  uint64_t rows, hidden;
  const void *weight, *residual_in;
  void *residual_out, *output;
  uint64_t residual_in_stride, residual_out_stride, output_stride, padding, x_stride;
  float epsilon, weight_offset;
  uint32_t rounds_sum, rounds_normed;
  uint32_t quantisation;  // a RowQuantisation
  float min_scale;
  void *elements, *scales;
  uint64_t row_bytes, scale_row_stride, scale_block_stride;
};

// The arguments of MoeFinalize in moe/finalize.cuh, for any type.
struct Finalize {
  const void *rows, *shared;
  const int32_t* indices;
  const float* weights;
  uint64_t row_stride, shared_stride;
  uint32_t top_k;
};

// The kinds of calls in a launch. A kernel with code for only one kind is faster than a kernel with code for
// all kinds.
enum class Content : uint32_t { kAllReduces, kExchanges, kAnything };

// The arguments of every kernel.
struct Launch {
  SymmWorkspace<> workspace;
  // In host memory: the SymmStatus of the first error, or 0 if there is no error.
  int64_t* status;
  uint32_t chunk_bytes;  // chunk size of Bulk; 0 means the size of a slot
  uint32_t programmatic_launch;
  uint32_t pause_before_ns, pause_after_ns;  // for GridStart
  // The next members are used only by a team across hosts. These members are the host's workspace in GPU
  // memory, and the contents of HostPlaces in across_hosts.cuh.
  const SymmWorkspace<>* host;
  uint32_t hosts;
  uint8_t members[kMaxRanks];
};
// Kernels for a single call have a separate argument type, because a kernel with fewer arguments starts
// earlier.
struct CallLaunch : Launch {
  Call call;
};
struct NormLaunch : CallLaunch {
  Norm norm;
  uint32_t rows_at_once = 1;  // Grid::rows
};
struct FinalizeLaunch : NormLaunch {
  Finalize finalize;
};
struct GroupLaunch : Launch {
  uint32_t count_calls;
  Call calls[kMaxCalls];
};

// The properties of a call that must be equal on all ranks. With VERBENA_OPS_CHECK, the ranks compare their
// records. Addresses, strides and streams may differ and are not part of the record.
struct CallRecord {
  uint32_t kind, algorithm, type, reduction;
  uint32_t blocks, threads;
  uint16_t cluster, rows_at_once;
  uint32_t chunk_bytes;
  uint64_t length_bytes, unit_bytes;
  uint64_t rows, hidden;
  uint32_t lengths, quantisation, outputs;
  int32_t root;
  uint64_t counts_hash, padding;       // hash of the counts in GPU memory, if they must be equal on all ranks
  uint64_t input_place, output_place;  // offsets in a window, if peers access the tensors in the window
};
// The number of words of a record; no word is padding.
inline constexpr uint32_t kRecordWords = sizeof(CallRecord) / sizeof(uint64_t);
static_assert(sizeof(CallRecord) == 112, "verbena: records are compared word by word");

// The arguments of the two kernels that run before and after the exchange of records.
struct CompareLaunch : Launch {
  CallRecord record;
  const int64_t* counts;  // the call's counts if they must be equal on all ranks, otherwise null
  // In host memory: this rank's record, the records of all members, and this rank's record of a refused call.
  CallRecord *own, *all, *refused;
};

}  // namespace verbena::ops
