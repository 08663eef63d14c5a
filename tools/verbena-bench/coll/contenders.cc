#include "verbena-bench/coll/contenders.h"

#include <algorithm>

#include "common/error.h"
#include "verbena-bench/coll/numbers.h"

namespace verbena::tools::coll {
namespace {

constexpr uint64_t kPacketBytes = 16;  // of data

std::string describe_choice(const verbena_ops_choice& choice) {
  std::string name = std::string("verbena/") + describe_algorithm(choice.algorithm);
  if (choice.algorithm == VERBENA_OPS_AUTO || choice.algorithm == VERBENA_OPS_COPY_ENGINES) return name;
  name += "/" + std::to_string(choice.blocks) + "x" + std::to_string(choice.threads);
  if (choice.chunk_bytes != 0) name += "/" + std::to_string(choice.chunk_bytes >> 10) + "K";
  return name;
}

// The number of blocks of that many threads with one packet for each thread; and by half of them. Where that
// is more than there may be, by all of them.
void add_packets(std::vector<verbena_ops_choice>& choices, verbena_ops_algorithm algorithm, uint64_t bytes,
                 uint32_t max_blocks) {
  const uint64_t all = std::max<uint64_t>(1, (bytes + kPacketBytes - 1) / kPacketBytes);
  for (const uint32_t threads : {128U, 256U, 512U}) {
    const uint64_t full = (all + threads - 1) / threads;
    if (full == 1 && threads > 128 && all <= threads / 2) continue;
    if (full > 4ULL * max_blocks) {
      if (threads > 128) choices.push_back({algorithm, max_blocks, threads, 0});
      continue;
    }
    for (const uint64_t blocks : {full, (full + 1) / 2}) {
      if (blocks != full && (full < 16 || threads != 512)) continue;
      choices.push_back(
          {algorithm, static_cast<uint32_t>(std::min<uint64_t>(blocks, max_blocks)), threads, 0});
    }
  }
}

}  // namespace

const char* describe_algorithm(verbena_ops_algorithm algorithm) {
  switch (algorithm) {
    case VERBENA_OPS_AUTO:
    case VERBENA_OPS_AUTO_BFLOAT16:
      return "auto";
    case VERBENA_OPS_ONE_SHOT:
      return "one-shot";
    case VERBENA_OPS_TWO_SHOT:
      return "two-shot";
    case VERBENA_OPS_BULK_ONE_SHOT:
      return "bulk-one-shot";
    case VERBENA_OPS_BULK_TWO_SHOT:
      return "bulk-two-shot";
    case VERBENA_OPS_COPY_ENGINES:
      return "copy-engines";
    case VERBENA_OPS_DIRECT:
      return "direct";
    case VERBENA_OPS_LOSSLESS:
      return "lossless";
    default:
      return "coded";
  }
}

namespace {

const std::vector<Named>& list_named() {
  static const std::vector<Named> all = {
      {"all_reduce"},
      {"all_gather", VERBENA_OPS_ALL_GATHER},
      {"reduce_scatter", VERBENA_OPS_REDUCE_SCATTER},
      {"broadcast", VERBENA_OPS_BROADCAST},
      {"all_to_all", VERBENA_OPS_ALL_TO_ALL},
      {"all_reduce_fp8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_FP8},
      {"all_reduce_int8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_INT8},
      {"all_reduce_int6", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_INT6},
      {"all_reduce_int4", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_INT4},
      {"all_reduce_mxfp8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_MXFP8},
      {"all_reduce_fp8_int8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_FP8_INT8},
      {"all_reduce_int4_int8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_INT4_INT8},
      {"all_reduce_norm", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_AUTO, true},
      {"all_reduce_norm_fp8", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_AUTO, true, VERBENA_OPS_FP8_TOKEN},
      {"all_reduce_norm_fp8_tensor", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_AUTO, true, VERBENA_OPS_FP8_TENSOR},
      {"moe_finalize_all_reduce_norm", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_AUTO, true,
       VERBENA_OPS_NOT_QUANTISED, false, true},
      {"all_reduce_lossless", VERBENA_OPS_ALL_REDUCE, VERBENA_OPS_AUTO, false, VERBENA_OPS_NOT_QUANTISED,
       true},
      {"all_gather_lossless", VERBENA_OPS_ALL_GATHER, VERBENA_OPS_AUTO, false, VERBENA_OPS_NOT_QUANTISED,
       true},
      {"reduce_scatter_lossless", VERBENA_OPS_REDUCE_SCATTER, VERBENA_OPS_AUTO, false,
       VERBENA_OPS_NOT_QUANTISED, true},
      {"broadcast_lossless", VERBENA_OPS_BROADCAST, VERBENA_OPS_AUTO, false, VERBENA_OPS_NOT_QUANTISED, true},
      {"all_to_all_lossless", VERBENA_OPS_ALL_TO_ALL, VERBENA_OPS_AUTO, false, VERBENA_OPS_NOT_QUANTISED,
       true},
  };
  return all;
}

}  // namespace

std::vector<std::string> list_operations() {
  std::vector<std::string> names;
  for (const Named& one : list_named()) names.push_back(one.name);
  return names;
}

std::string plain_name(const std::string& name) {
  constexpr std::string_view kEncoded = "_lossless";
  return name.ends_with(kEncoded) ? name.substr(0, name.size() - kEncoded.size()) : name;
}

Named find_operation(const std::string& name) {
  for (const Named& one : list_named())
    if (one.name == name) return one;
  throw UsageError("unknown operation: " + name);
}

std::vector<verbena_ops_choice> list_coded_choices(verbena_ops_algorithm codec, uint64_t bytes,
                                                   uint32_t max_blocks) {
  std::vector<verbena_ops_choice> choices = {{VERBENA_OPS_AUTO, 0, 0, 0}};
  for (const uint32_t blocks : {32U, 64U, 128U}) {
    for (const uint32_t threads : {64U, 128U, 256U, 512U}) {
      const bool is_small = blocks == 32 || threads < 256;
      if (blocks <= max_blocks && !(is_small && bytes > 4 << 20))
        choices.push_back({codec, blocks, threads, 0});
    }
  }
  if (max_blocks < 32) choices.push_back({codec, max_blocks, 128, 0});
  return choices;
}

std::vector<verbena_ops_choice> list_choices_across_hosts(verbena_ops_algorithm codec, uint64_t bytes,
                                                          uint32_t max_blocks) {
  std::vector<verbena_ops_choice> choices = {{VERBENA_OPS_AUTO, 0, 0, 0}};
  for (const uint32_t blocks : {1U, 2U, 4U, 8U, 16U}) {
    if (blocks > max_blocks || bytes / blocks < 4096) continue;
    choices.push_back({codec == VERBENA_OPS_AUTO ? VERBENA_OPS_BULK_TWO_SHOT : codec, blocks, 512, 0});
  }
  return choices;
}

std::vector<verbena_ops_choice> list_choices(verbena_ops_operation operation, uint64_t bytes, unsigned ranks,
                                             uint32_t max_blocks) {
  constexpr uint64_t kKi = 1 << 10, kMi = 1 << 20;
  std::vector<verbena_ops_choice> choices = {{VERBENA_OPS_AUTO, 0, 0, 0}};
  const bool has_two_shots = operation == VERBENA_OPS_ALL_REDUCE;
  // In an exchange, each thread handles a packet of one peer.
  const uint64_t spread = has_two_shots ? bytes : bytes * (ranks - 1);
  if (bytes * (ranks - 1) <= 64 * kMi) add_packets(choices, VERBENA_OPS_ONE_SHOT, spread, max_blocks);
  if (operation == VERBENA_OPS_ALL_GATHER && bytes >= 64 * kKi)
    choices.push_back({VERBENA_OPS_COPY_ENGINES, 0, 0, 0});
  if (has_two_shots && bytes >= 32 * kKi && bytes <= 64 * kMi)
    add_packets(choices, VERBENA_OPS_TWO_SHOT, bytes / ranks, max_blocks);
  const bool is_passed_on = operation == VERBENA_OPS_BROADCAST && ranks > 2;
  for (const auto algorithm : {VERBENA_OPS_BULK_ONE_SHOT, VERBENA_OPS_BULK_TWO_SHOT, VERBENA_OPS_DIRECT}) {
    const bool is_one = algorithm == VERBENA_OPS_BULK_ONE_SHOT;
    const bool is_there = is_one || has_two_shots || (algorithm == VERBENA_OPS_BULK_TWO_SHOT && is_passed_on);
    if (bytes < (has_two_shots ? 256 : 64) * kKi || !is_there) continue;
    if ((has_two_shots || is_passed_on) && is_one && bytes * (ranks - 1) > 64 * kMi) continue;
    for (const uint32_t blocks : {32U, 64U, 128U, 256U}) {
      if (blocks != 32 && blocks > 2 * max_blocks) continue;
      if (blocks == 32 && max_blocks > 32 && bytes > 4 * kMi) continue;
      for (const uint32_t threads : {256U, 512U}) {
        for (const uint32_t chunk : {0U, 8192U, 16384U, 32768U}) {
          if (chunk != 0 && (algorithm == VERBENA_OPS_DIRECT || blocks < 128)) continue;
          if (blocks == 256 && threads == 512) continue;
          choices.push_back({algorithm, std::min(blocks, 2 * max_blocks), threads, chunk});
        }
      }
    }
  }
  return choices;
}

OurContender::OurContender(const OpsLibrary& library, verbena_ops* ops, const verbena_ops_choice& choice,
                           verbena_ops_algorithm codec)
    : library_(library), ops_(ops), choice_(choice), codec_(codec), name_(describe_choice(choice)) {}

void OurContender::enqueue(const Work& work, CUstream stream) {
  const void* const from = as_pointer(work.from);
  void* const to = as_pointer(work.to);
  const uint64_t bytes = work.count * get_element_bytes(work.type);
  const bool is_hinted = choice_.algorithm == VERBENA_OPS_AUTO && work.type == VERBENA_OPS_BFLOAT16;
  verbena_ops_choice choice = choice_;
  if (is_hinted) choice.algorithm = VERBENA_OPS_AUTO_BFLOAT16;
  switch (work.operation) {
    case VERBENA_OPS_ALL_REDUCE:
      if (codec_ != VERBENA_OPS_AUTO)
        return check(library_.verbena_ops_all_reduce_quantised(ops_, from, to, work.count, work.type, codec_,
                                                               0, &choice, stream),
                     "verbena_ops_all_reduce_quantised");
      return check(library_.verbena_ops_all_reduce(ops_, from, to, work.count, work.type, VERBENA_OPS_SUM,
                                                   &choice, stream),
                   "verbena_ops_all_reduce");
    case VERBENA_OPS_ALL_GATHER:
      return check(library_.verbena_ops_all_gather(ops_, from, to, 1, bytes, &choice, stream),
                   "verbena_ops_all_gather");
    case VERBENA_OPS_REDUCE_SCATTER:
      return check(library_.verbena_ops_reduce_scatter(ops_, from, to, 1, work.count, work.type,
                                                       VERBENA_OPS_SUM, &choice, stream),
                   "verbena_ops_reduce_scatter");
    case VERBENA_OPS_BROADCAST:
      return check(library_.verbena_ops_broadcast(ops_, from, to, bytes, work.root, &choice, stream),
                   "verbena_ops_broadcast");
    case VERBENA_OPS_ALL_TO_ALL:
      return check(library_.verbena_ops_all_to_all(ops_, from, to, bytes, 1, 1, &choice, stream),
                   "verbena_ops_all_to_all");
  }
}

NormContender::NormContender(const OpsLibrary& library, verbena_ops* ops, const NormPlaces& places,
                             const Named& what, Kind kind, Contender* all_reduce, const std::string& name,
                             const verbena_ops_choice& choice)
    : library_(library),
      ops_(ops),
      places_(places),
      what_(what),
      kind_(kind),
      all_reduce_(all_reduce),
      name_(name),
      choice_(choice) {}

void NormContender::enqueue(const Work& work, CUstream stream) {
  if (kind_ == Kind::kBare) return all_reduce_->enqueue(work, stream);
  verbena_ops_norm norm{};
  norm.hidden = places_.hidden;
  norm.rows = work.count / places_.hidden;
  norm.weight = as_pointer(places_.weight);
  norm.epsilon = 1e-6F;
  norm.residual_in = as_pointer(places_.residual_in);
  norm.residual_out = as_pointer(places_.residual_out);
  norm.output = as_pointer(work.to);
  norm.residual_in_stride = norm.residual_out_stride = norm.output_stride = norm.quantised_stride =
      places_.hidden;
  norm.quantisation = what_.quantisation;
  norm.quantised = as_pointer(places_.quantised);
  norm.scales = as_pointer(places_.scales);
  norm.scale_row_stride = norm.scale_block_stride = 1;
  // The sum itself is of no use, as to who runs a model: verbena.ops calls it in the same way.
  if (kind_ == Kind::kFused && what_.is_finalized) {
    const verbena_ops_moe_finalize finalize{as_pointer(places_.expert_rows),
                                            places_.hidden,
                                            static_cast<const int32_t*>(as_pointer(places_.indices)),
                                            static_cast<const float*>(as_pointer(places_.expert_weights)),
                                            NormPlaces::kTopK,
                                            as_pointer(work.from),
                                            places_.hidden};
    return check(library_.verbena_ops_moe_finalize_all_reduce_norm(ops_, &finalize, norm.output, work.type,
                                                                   &norm, VERBENA_OPS_AUTO, &choice_, stream),
                 "verbena_ops_moe_finalize_all_reduce_norm");
  }
  if (kind_ == Kind::kFused)
    return check(library_.verbena_ops_all_reduce_norm(ops_, as_pointer(work.from), norm.output, work.type,
                                                      &norm, VERBENA_OPS_AUTO, &choice_, stream),
                 "verbena_ops_all_reduce_norm");
  Work alone = work;
  alone.to = places_.sum;
  all_reduce_->enqueue(alone, stream);
  check(
      library_.verbena_ops_norm_rows(ops_, as_pointer(places_.sum), places_.hidden, work.type, &norm, stream),
      "verbena_ops_norm_rows");
}

NcclContender::NcclContender(const std::string& library, const std::string& id, unsigned rank,
                             unsigned count_ranks)
    : library_(nccl::load_nccl(library)), count_ranks_(count_ranks) {
  nccl::NcclUniqueId unique{};
  bench::from_digits(id, unique.bytes.data(), unique.bytes.size());
  library_.check(library_.init_rank(&comm_, static_cast<int>(count_ranks), unique, static_cast<int>(rank)),
                 "ncclCommInitRank");
  int version = 0;
  library_.check(library_.get_version(&version), "ncclGetVersion");
  name_ = "nccl/" + nccl::format_nccl_version(version);
}

void NcclContender::enqueue(const Work& work, CUstream stream) {
  const void* const from = as_pointer(work.from);
  void* const to = as_pointer(work.to);
  const int type = find_nccl_type(work.type);
  const uint64_t bytes = work.count * get_element_bytes(work.type);
  switch (work.operation) {
    case VERBENA_OPS_ALL_REDUCE:
      return library_.check(library_.all_reduce(from, to, work.count, type, nccl::kNcclSum, comm_, stream),
                            "ncclAllReduce");
    case VERBENA_OPS_ALL_GATHER:
      return library_.check(library_.all_gather(from, to, work.count, type, comm_, stream), "ncclAllGather");
    case VERBENA_OPS_REDUCE_SCATTER:
      return library_.check(
          library_.reduce_scatter(from, to, work.count, type, nccl::kNcclSum, comm_, stream),
          "ncclReduceScatter");
    case VERBENA_OPS_BROADCAST:
      return library_.check(
          library_.broadcast(from, to, work.count, type, static_cast<int>(work.root), comm_, stream),
          "ncclBroadcast");
    case VERBENA_OPS_ALL_TO_ALL:
      break;
  }
  library_.check(library_.group_start(), "ncclGroupStart");
  for (unsigned peer = 0; peer < count_ranks_; ++peer) {
    const int to_peer = static_cast<int>(peer);
    library_.check(
        library_.send(as_pointer(work.from + peer * bytes), work.count, type, to_peer, comm_, stream),
        "ncclSend");
    library_.check(
        library_.receive(as_pointer(work.to + peer * bytes), work.count, type, to_peer, comm_, stream),
        "ncclRecv");
  }
  library_.check(library_.group_end(), "ncclGroupEnd");
}

std::string make_nccl_id(const std::string& library) {
  const nccl::NcclLibrary loaded = nccl::load_nccl(library);
  nccl::NcclUniqueId unique{};
  loaded.check(loaded.get_unique_id(&unique), "ncclGetUniqueId");
  return bench::to_digits(unique.bytes.data(), unique.bytes.size());
}

}  // namespace verbena::tools::coll
