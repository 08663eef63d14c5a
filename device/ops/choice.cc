#include "device/ops/choice.h"

#include <algorithm>

#include "verbena/verbena.hpp"

namespace verbena::ops {
namespace {

constexpr uint64_t kKi = 1 << 10, kMi = 1 << 20;

// Up to these sizes, the named algorithm is the fastest between H200s (docs/measurements). The values for
// three and for more than four GPUs are estimated from the number of bytes that each rank sends;
// verbena-bench coll --calibrate measures them. The comment after a threshold names the measurement on which
// it is based.
//
// All-reduces: bytes of the tensor. Between two ranks, one shot and two shots send the same number of bytes.
// The limits for one shot were compared with a model that has a time for each peer and a time for each byte
// sent. `tools/report/thresholds.py --estimate` fits the model to the tables of two and four GPUs. Its limit
// is 90 to 189 KiB between eight ranks (here 128 KiB), 54 to 175 KiB between 16 ranks (here 64 KiB), and 268
// KiB between three ranks (here 341 KiB). The model contradicts only the limit for three ranks, where the
// times differ by 5 %, which is the largest error of the fit.
constexpr uint64_t kMaxOneShotOfTwo = 2 * kMi;  // h200x4-collectives-of-2
constexpr uint64_t kMaxOneShotOfAll = 1 * kMi;  // h200x4-collectives; divided by the number of ranks
constexpr uint64_t kMaxTwoShot = 64 * kMi;      // h200x4-collectives
// Other operations: bytes that a rank sends to all other ranks; for a broadcast, bytes of the message.
constexpr uint64_t kMaxExchangeByPackets = 48 * kMi;  // h200x4-collectives
constexpr uint64_t kMaxBroadcastInOneShot = 2 * kMi;  // h200x4-collectives
// From these sizes on, a quantised all-reduce is faster than an exact all-reduce. INT8 and the codecs with
// two formats need two shots even between two ranks, so they are faster only from twice these sizes on.
constexpr uint64_t kMinCoded = 2 * kMi;              // h200x4-few-bits
constexpr uint64_t kMinCodedAcrossHosts = 16 * kKi;  // h200x4-across-hosts
// Limits for fusing an all-reduce and its norm into one kernel. The first limit is the number of rows per
// block. The second limit, for more than two ranks, is the number of bytes that each rank sends. The third
// limit is the row length from which two ranks fuse any number of rows.
constexpr uint64_t kMaxFusedRowsOfBlock = 4;          // h200x4-norm, h200x2-norm
constexpr uint64_t kMaxFusedBytes = 1 * kMi;          // h200x4-norm
constexpr uint64_t kMinFusedRowBytesOfTwo = 1 * kKi;  // 2026-12-01-h200-norm-rows
constexpr uint64_t kMaxPairedRowsOfBlock = 4;         // 2026-11-30-h200x2-norm-warps
// A block of a fused norm handles several rows at a time if these have fewer warps than this.
constexpr uint64_t kMinRowsWarps = 14;  // 2026-12-01-h200-norm-rows
// If a tensor is longer than this and is sent in chunks, the kernel has twice as many blocks with half as
// many threads.
constexpr uint64_t kMaxOneChunkBlock = 2 * kMi;  // h200x4-collectives
// Between hosts: bytes per block; max number of blocks for tensors of up to kMaxFewHostBytes. Longer tensors
// use all blocks.
constexpr uint64_t kHostBlockBytes = 64 * kKi;  // h200x2-hosts
constexpr uint32_t kFewHostBlocks = 8;          // h200x2-hosts
constexpr uint64_t kMaxFewHostBytes = 1 * kMi;  // h200x2-hosts
// A norm that does not wait for other ranks uses this many times as many blocks as a norm that waits.
constexpr uint64_t kNormBlocks = 8;  // h200x2-norm

constexpr uint64_t kCodedTileBytes = 2048;  // bytes of the tensor that a warp quantises at once
constexpr uint64_t kWarpBytes = 32 * kVectorBytes, kMaxBlockWarps = kMaxThreads / 32;

constexpr const char* kOperationNames[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast",
                                           "all_to_all"};
constexpr const char* kAlgorithmNames[kCountAlgorithms] = {
    "auto", "one-shot", "two-shot", "bulk-one-shot", "bulk-two-shot", "copy-engines", "direct"};
constexpr const char* kLosslessName = "lossless";
// Names of the operations in a tuning file.
constexpr const char* kCodedNames[kCountCodecs] = {
    "all_reduce_fp8",   "all_reduce_int8",     "all_reduce_int6",     "all_reduce_int4",
    "all_reduce_mxfp8", "all_reduce_fp8_int8", "all_reduce_int4_int8"};

constexpr uint64_t divide_up(uint64_t number, uint64_t by) {
  return (number + by - 1) / by;
}
// Returns whether a kernel can have the number of threads of a measurement.
bool has_whole_warps(const tuner::OpsMeasurement& one) {
  return one.threads % 32 == 0 && one.threads <= kMaxThreads;
}
// The rows that a block of a fused norm handles at a time. Each row has `row_warps` warps, which keep `kept`
// vectors per thread.
struct RowsOfBlock {
  uint64_t rows, row_warps, kept;
};
// A block should have so many warps that it has enough elements in flight. If too few rows fit into a block,
// each thread keeps two vectors, and more rows fit.
// @param warps  number of warps of a row if each thread keeps one vector
// @param most  max number of rows at a time
// @param slot_bytes  max number of bytes that a block sends at a time
RowsOfBlock fill_block(uint64_t warps, uint64_t most, uint64_t slot_bytes) {
  const uint64_t kept_of_one = divide_up(warps, kMaxBlockWarps);
  RowsOfBlock best{1, divide_up(warps, kept_of_one), kept_of_one};
  for (uint64_t kept = 1; kept <= kMaxKept && best.rows * warps < kMinRowsWarps; ++kept) {
    const uint64_t row_warps = divide_up(warps, kept), row_bytes = kept * row_warps * kWarpBytes;
    const uint64_t rows = std::min({most, kMaxBlockWarps / row_warps, slot_bytes / row_bytes});
    if (rows > best.rows) best = {rows, row_warps, kept};
  }
  return best;
}
// Rounds a number of threads up to whole warps, but to at most kMaxThreads.
constexpr uint32_t round_threads(uint64_t threads) {
  return static_cast<uint32_t>(std::min<uint64_t>(kMaxThreads, divide_up(threads, 32) * 32));
}

// Returns kAuto if no algorithm has this name.
Algorithm find_algorithm(const std::string& name) {
  for (uint32_t i = 1; i < kCountAlgorithms; ++i)
    if (name == kAlgorithmNames[i]) return static_cast<Algorithm>(i);
  return name == kLosslessName ? Algorithm::kLossless : Algorithm::kAuto;
}

const char* name_of(Algorithm algorithm) {
  return algorithm == Algorithm::kLossless ? kLosslessName
                                           : kAlgorithmNames[static_cast<uint32_t>(algorithm)];
}

bool is_exact(Algorithm algorithm) {
  return static_cast<uint32_t>(algorithm) < kCountAlgorithms;
}

}  // namespace

// Blocks that wait for peers must not fill a GPU. Otherwise two communicators could deadlock: the blocks of
// one communicator fill this GPU, the blocks of the other communicator fill a peer's GPU, and both wait for
// blocks that cannot start. So the first communicator leaves a few multiprocessors free, and each further
// communicator gets at most half as many blocks.
uint32_t choose_max_blocks(uint32_t multiprocessors, uint32_t communicators) {
  const uint32_t most = multiprocessors - multiprocessors / 32;
  // FAULT(every_communicator_fills_the_gpu)
  return std::clamp<uint32_t>(communicators == 0 ? most : most / 2, 1, kDefaultBlocks);
}

void refuse_hosts(const char* what) {
  throw Failure(VERBENA_INVALID_USAGE, std::string("ops: ") + what +
                                           " works only within a host, but this team spans several hosts. "
                                           "docs/collectives.md lists what works across hosts");
}

// Compares names here, only once, so that calls do not have to compare names.
Chooser::Chooser(const Platform& platform, const std::vector<tuner::OpsMeasurement>& measurements,
                 const std::string& gpu)
    : platform_(platform) {
  const bool is_lossless = platform_.forced == Algorithm::kLossless;
  if (platform_.is_across_hosts() ? !is_lossless && platform_.forced != Algorithm::kBulkTwoShot : is_lossless)
    platform_.forced = Algorithm::kAuto;
  if (gpu.empty()) return;
  const auto index = [&](const char* operation, auto is_possible) {
    const auto accept = [&](const tuner::OpsMeasurement& one) -> std::optional<uint32_t> {
      const Algorithm algorithm = find_algorithm(one.algorithm);
      const bool is_right = algorithm != Algorithm::kAuto && has_whole_warps(one) && is_possible(algorithm);
      return is_right ? std::optional(static_cast<uint32_t>(algorithm)) : std::nullopt;
    };
    return tuner::OpsTable(measurements, {operation, platform.ranks, platform.hosts, gpu}, accept);
  };
  const auto is_exact_algorithm = [&](Algorithm algorithm) {
    return platform.is_across_hosts()
               ? algorithm == Algorithm::kBulkTwoShot
               : algorithm != Algorithm::kLossless && !tuner::needs_windows(name_of(algorithm));
  };
  for (uint32_t operation = 0; operation < exact_.size(); ++operation) {
    exact_[operation] = index(kOperationNames[operation], is_exact_algorithm);
    if (platform.is_across_hosts())
      of_bfloat16_[operation] = index(kOperationNames[operation], [&](Algorithm algorithm) {
        return is_exact_algorithm(algorithm) || algorithm == Algorithm::kLossless;
      });
  }
  in_windows_ = index(kOperationNames[VERBENA_OPS_ALL_REDUCE], [&](Algorithm algorithm) {
    return is_exact_algorithm(algorithm) || algorithm == Algorithm::kDirect;
  });
  for (uint32_t codec = 0; codec < kCountCodecs; ++codec)
    coded_[codec] = tuner::OpsTable(measurements, {kCodedNames[codec], platform.ranks, platform.hosts, gpu},
                                    [](const tuner::OpsMeasurement& one) {
                                      return has_whole_warps(one) ? std::optional(0U) : std::nullopt;
                                    });
}

uint32_t Chooser::max_blocks(Family family) const {
  if (platform_.is_across_hosts()) return count_host_blocks(platform_.blocks);
  return family == Family::kChunks ? count_chunk_blocks(platform_.blocks) : platform_.blocks;
}

Choice Chooser::choose(verbena_ops_operation operation, uint64_t bytes, Tensors tensors) const {
  if (is_forced()) {
    const bool is_plain = platform_.forced == Algorithm::kLossless && !tensors.are_bfloat16;
    return spread(is_plain ? Algorithm::kBulkTwoShot : platform_.forced, operation, bytes);
  }
  const bool is_in_windows = tensors.are_in_windows && operation == VERBENA_OPS_ALL_REDUCE;
  // Without a measurement of the plain algorithm nothing says that encoding is faster.
  // FAULT(lossless_is_compared_with_nothing)
  const bool may_encode = tensors.are_bfloat16 && platform_.is_across_hosts() &&
                          exact_[operation].find_fastest(bytes).has_value();
  const tuner::OpsTable& table = may_encode      ? of_bfloat16_[operation]
                                 : is_in_windows ? in_windows_
                                                 : exact_[operation];
  if (const auto way = table.find_fastest(bytes)) {
    const auto algorithm = static_cast<Algorithm>(way->number);
    return {
        algorithm, {std::min(way->blocks, max_blocks(family_of(algorithm))), way->threads}, way->chunk_bytes};
  }
  return choose_by_rules(operation, bytes, is_in_windows);
}

Choice Chooser::choose_quantised(Algorithm codec, uint64_t bytes) const {
  const Choice exact = choose(VERBENA_OPS_ALL_REDUCE, bytes, {});
  if (!platform_.is_across_hosts() && is_forced()) return exact;
  const auto coded = coded_[find_codec(codec)].find_fastest(bytes);
  const auto instead = exact_[VERBENA_OPS_ALL_REDUCE].find_fastest(bytes);
  if (!coded || !instead) {
    if (platform_.is_across_hosts())
      return bytes < kMinCodedAcrossHosts ? exact : spread(codec, VERBENA_OPS_ALL_REDUCE, bytes);
    const bool pays_late = codec == Algorithm::kInt8 || find_codec(codec) >= kCountSingleCodecs;
    return bytes < (pays_late ? 2 : 1) * kMinCoded ? exact : spread_codec(codec, bytes);
  }
  if (instead->microseconds <= coded->microseconds) return exact;
  return {codec, {std::min(coded->blocks, max_blocks(Family::kPackets)), coded->threads}, 0};
}

std::optional<Choice> Chooser::choose_fused(const Choice& choice, uint64_t rows, uint64_t bytes,
                                            bool is_asked) const {
  if (is_coded(choice.algorithm)) return std::nullopt;
  Algorithm algorithm = choice.algorithm;
  if (!is_asked) {
    const bool has_few = rows <= kMaxFusedRowsOfBlock * max_blocks(Family::kPackets);
    const bool is_faster = platform_.ranks == 2 ? has_few || bytes / rows >= kMinFusedRowBytesOfTwo
                                                : has_few && bytes * (platform_.ranks - 1) <= kMaxFusedBytes;
    if (!is_faster) return std::nullopt;
    algorithm = Algorithm::kOneShot;
  }
  if (!spread_rows(algorithm, rows, bytes / rows)) return std::nullopt;
  return Choice{algorithm, {}, 0};
}

Choice Chooser::complete(const Choice& chosen, const verbena_ops_choice* asked) const {
  Choice choice = chosen;
  if (asked == nullptr) return choice;
  const bool is_lossless = asked->algorithm == VERBENA_OPS_LOSSLESS;
  // Within a host, the lossless codec is not used.
  if (!leaves_algorithm(asked) && (!is_lossless || platform_.is_across_hosts()))
    choice.algorithm = static_cast<Algorithm>(asked->algorithm);
  if (asked->blocks != 0) choice.grid.blocks = asked->blocks;
  if (asked->threads != 0) choice.grid.threads = asked->threads;
  const bool is_other = choice.algorithm != chosen.algorithm;
  const uint32_t most = max_blocks(family_of(choice.algorithm));
  if (is_other && asked->blocks == 0) choice.grid.blocks = std::min(choice.grid.blocks, most);
  if (is_other || asked->chunk_bytes != 0) choice.chunk_bytes = asked->chunk_bytes;
  if (platform_.is_across_hosts() && choice.algorithm != Algorithm::kBulkTwoShot &&
      choice.algorithm != Algorithm::kLossless && !is_coded(choice.algorithm))
    refuse_hosts("an algorithm that is not bulk-two-shot, lossless or quantised");
  if (choice.algorithm == Algorithm::kCopyEngines)
    throw Failure(VERBENA_INVALID_ARGUMENT,
                  "ops: copy engines support all-gathers only. Choose another algorithm");
  const bool takes_all_blocks = choice.algorithm == Algorithm::kDirect || is_coded(choice.algorithm);
  if (takes_all_blocks && is_other) {
    if (asked->blocks == 0) choice.grid.blocks = std::min(most, kDefaultBlocks);
    if (asked->threads == 0) choice.grid.threads = kMaxThreads;
  }
  const bool is_right = (is_exact(choice.algorithm) || is_coded(choice.algorithm) ||
                         choice.algorithm == Algorithm::kLossless) &&
                        choice.grid.blocks <= most && choice.grid.threads % 32 == 0 &&
                        choice.grid.threads <= kMaxThreads && choice.chunk_bytes % kVectorBytes == 0;
  if (!is_right) {
    throw Failure(VERBENA_INVALID_ARGUMENT,
                  "ops: invalid choice of algorithm " + std::to_string(asked->algorithm) + ", " +
                      std::to_string(asked->blocks) + " blocks of " + std::to_string(asked->threads) +
                      " threads, chunks of " + std::to_string(asked->chunk_bytes) +
                      " bytes. The maximum is " + std::to_string(most) + " blocks of " +
                      std::to_string(kMaxThreads) +
                      " threads. The number of threads must be a multiple of 32, and the size of a chunk "
                      "must be a multiple of " +
                      std::to_string(kVectorBytes) + " bytes");
  }
  return choice;
}

Choice Chooser::choose_by_rules(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows) const {
  if (platform_.is_across_hosts()) return spread(Algorithm::kBulkTwoShot, operation, bytes);
  const uint32_t ranks = platform_.ranks;
  if (operation == VERBENA_OPS_ALL_REDUCE) {
    if (bytes <= (ranks == 2 ? kMaxOneShotOfTwo : kMaxOneShotOfAll / ranks))
      return spread(Algorithm::kOneShot, operation, bytes);
    if (bytes <= kMaxTwoShot) return spread(Algorithm::kTwoShot, operation, bytes);
    if (is_in_windows) return spread(Algorithm::kDirect, operation, bytes);
    return spread(ranks == 2 ? Algorithm::kBulkOneShot : Algorithm::kBulkTwoShot, operation, bytes);
  }
  if (operation == VERBENA_OPS_BROADCAST && ranks > 2 && bytes > kMaxBroadcastInOneShot)
    return spread(Algorithm::kBulkTwoShot, operation, bytes);
  const bool is_by_packets = bytes * (ranks - 1) <= kMaxExchangeByPackets;
  return spread(is_by_packets ? Algorithm::kOneShot : Algorithm::kBulkOneShot, operation, bytes);
}

Choice Chooser::spread(Algorithm algorithm, verbena_ops_operation operation, uint64_t bytes) const {
  if (platform_.is_across_hosts()) return spread_across_hosts(algorithm, bytes);
  if (family_of(algorithm) == Family::kChunks) return spread_chunks(algorithm, bytes);
  if (is_coded(algorithm)) return spread_codec(algorithm, bytes);
  return spread_packets(algorithm, operation != VERBENA_OPS_ALL_REDUCE, bytes);
}

Choice Chooser::spread_chunks(Algorithm algorithm, uint64_t bytes) const {
  const bool is_long = bytes > kMaxOneChunkBlock && algorithm != Algorithm::kDirect;
  const uint32_t blocks = std::min(max_blocks(Family::kChunks), (is_long ? 2 : 1) * kDefaultBlocks);
  return {algorithm, {blocks, is_long ? kMaxThreads / 2 : kMaxThreads}, 0};
}

// A warp processes one tile at a time. In one shot between two ranks, it processes several tiles.
Choice Chooser::spread_codec(Algorithm algorithm, uint64_t bytes) const {
  const uint64_t tiles = std::max<uint64_t>(1, divide_up(bytes, kCodedTileBytes));
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(platform_.blocks, tiles));
  const uint64_t of_block = divide_up(tiles, blocks);
  const uint64_t warps = is_coded_one_shot(algorithm, platform_.ranks)
                             ? std::max(of_block / 4, std::min<uint64_t>(of_block / 2, 8))
                             : of_block;
  return {algorithm, {blocks, round_threads(std::max<uint64_t>(warps, 1) * 32)}, 0};
}

// A thread has one packet or, in an exchange, one packet per peer. Up to some length, many small blocks are
// faster than a few large blocks; this length is shorter for two shots. For long tensors, a thread has
// several packets.
Choice Chooser::spread_packets(Algorithm algorithm, bool is_exchange, uint64_t bytes) const {
  const bool is_two_shot = algorithm == Algorithm::kTwoShot && !is_exchange;
  const uint64_t peers = is_exchange ? std::max<uint32_t>(platform_.ranks, 2) - 1 : 1;
  const uint64_t length = is_two_shot ? bytes / platform_.ranks : bytes;
  const uint64_t most = uint64_t{platform_.blocks} * kMaxThreads;
  uint64_t threads = std::max<uint64_t>(1, divide_up(length, kVectorBytes)) * peers;
  if (threads > most && !is_exchange) threads = std::max(threads / 2, most / 2);
  const uint64_t few = is_two_shot ? most / 16 : most / 4;
  const uint64_t some = is_two_shot ? most / 4 : most / 2;
  const uint64_t block = threads <= few ? 128 : threads <= some ? 256 : kMaxThreads;
  const uint64_t blocks = std::min<uint64_t>(platform_.blocks, divide_up(threads, block));
  uint64_t of_block = std::min(block, threads);
  if (is_exchange) {
    // A block handles the same part of each peer's message. The number of bytes may be unknown.
    of_block = std::max<uint64_t>(1, divide_up(divide_up(length, kVectorBytes), blocks)) * peers;
  }
  return {algorithm, {static_cast<uint32_t>(blocks), round_threads(of_block)}, 0};
}

Choice Chooser::spread_across_hosts(Algorithm algorithm, uint64_t bytes) const {
  const uint64_t parts = std::max<uint64_t>(1, divide_up(bytes, kHostBlockBytes));
  const uint32_t most = max_blocks(Family::kChunks);
  const uint32_t few = bytes <= kMaxFewHostBytes ? kFewHostBlocks : most;
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>({parts, few, most}));
  return {algorithm, {blocks, round_threads(std::max<uint64_t>(1, bytes / kVectorBytes / blocks))}, 0};
}

// With few rows, a cluster of blocks handles each row. The warps of one block delay each other, because a
// multiprocessor issues for only four warps at a time. With more than four blocks, waiting for the last block
// costs more.
std::optional<Grid> Chooser::spread_rows(Algorithm algorithm, uint64_t rows, uint64_t row_bytes) const {
  if (platform_.is_across_hosts() || algorithm != Algorithm::kOneShot) return std::nullopt;
  const uint64_t warps = divide_up(row_bytes, kWarpBytes);
  if (rows == 0 || warps > kMaxRowWarps) return std::nullopt;
  // A block should have at least two warps. A row that does not fit into one block takes two blocks. Between
  // two ranks, a row whose threads would keep two vectors each also takes two blocks, if a block would have
  // only a few such rows.
  const bool are_pairs = platform_.ranks == 2 && warps > kMaxBlockWarps && rows >= platform_.blocks &&
                         rows <= kMaxPairedRowsOfBlock * platform_.blocks;
  uint64_t cluster = 1;
  if (platform_.has_clusters) {
    while (2 * cluster <= std::min<uint64_t>(kMaxRowBlocks, platform_.blocks) && 4 * cluster <= warps &&
           ((2 * cluster <= kFewRowBlocks && 2 * cluster * rows <= platform_.blocks) ||
            (cluster == 1 && are_pairs) || warps > cluster * kMaxKept * kMaxBlockWarps))
      cluster *= 2;
  }
  const uint64_t slot_bytes = find_data_bytes(platform_.packet_slot_bytes);
  const uint64_t most = cluster == 1 && platform_.ranks == 2 ? rows / platform_.blocks : 1;
  const RowsOfBlock block = fill_block(divide_up(warps, cluster), most, slot_bytes);
  const uint64_t threads = 32 * block.rows * block.row_warps;
  if (block.kept > kMaxKept || block.kept * threads * kVectorBytes > slot_bytes) return std::nullopt;
  const uint64_t clusters = std::min<uint64_t>(divide_up(rows, block.rows), platform_.blocks / cluster);
  return Grid{static_cast<uint32_t>(clusters * cluster), static_cast<uint32_t>(threads),
              static_cast<uint32_t>(cluster), static_cast<uint32_t>(block.rows)};
}

// Each block normalises whole rows.
Grid Chooser::spread_norm(uint64_t rows, bool meets_ranks) const {
  const uint64_t most = (meets_ranks ? 1 : kNormBlocks) * platform_.blocks;
  return {static_cast<uint32_t>(std::min(rows, most)), kMaxThreads};
}

}  // namespace verbena::ops
