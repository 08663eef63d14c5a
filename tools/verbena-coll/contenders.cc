#include "verbena-coll/contenders.h"

#include <algorithm>
#include <cstdio>

#include "common/error.h"
#include "verbena-coll/numbers.h"

namespace verbena::tools::coll {
namespace {

std::string describe_choice(const verbena_ops_choice& choice) {
  std::string name = std::string("verbena/") + describe_algorithm(choice.algorithm);
  if (choice.algorithm == VERBENA_OPS_AUTO) return name;
  name += "/" + std::to_string(choice.blocks) + "x" + std::to_string(choice.threads);
  if (choice.chunk_bytes != 0) name += "/" + std::to_string(choice.chunk_bytes >> 10) + "K";
  return name;
}

void* as_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(address);
}

// By how many blocks of so many threads each thread has one packet; and by half of them.
void add_packets(std::vector<verbena_ops_choice>& choices, verbena_ops_algorithm algorithm, uint64_t bytes,
                 uint64_t bytes_each, uint32_t most_blocks) {
  const uint64_t all = std::max<uint64_t>(1, (bytes + bytes_each - 1) / bytes_each);
  for (const uint32_t threads : {128U, 256U, 512U}) {
    const uint64_t full = (all + threads - 1) / threads;
    if (full == 1 && threads > 128 && all <= threads / 2) continue;
    for (const uint64_t blocks : {full, (full + 1) / 2}) {
      if (blocks > 4ULL * most_blocks || (blocks != full && (full < 16 || threads != 512))) continue;
      choices.push_back(
          {algorithm, static_cast<uint32_t>(std::min<uint64_t>(blocks, most_blocks)), threads, 0});
    }
  }
}

}  // namespace

const char* describe_algorithm(verbena_ops_algorithm algorithm) {
  switch (algorithm) {
    case VERBENA_OPS_AUTO:
      return "auto";
    case VERBENA_OPS_ONE_SHOT_16:
      return "one-shot-16";
    case VERBENA_OPS_ONE_SHOT_128:
      return "one-shot-128";
    case VERBENA_OPS_TWO_SHOT_16:
      return "two-shot-16";
    case VERBENA_OPS_TWO_SHOT_128:
      return "two-shot-128";
    case VERBENA_OPS_BULK_ONE_SHOT:
      return "bulk-one-shot";
    case VERBENA_OPS_BULK_TWO_SHOT:
      return "bulk-two-shot";
  }
  return "?";
}

std::vector<verbena_ops_choice> list_choices(uint64_t bytes, unsigned ranks, uint32_t most_blocks) {
  constexpr uint64_t kKi = 1 << 10, kMi = 1 << 20;
  std::vector<verbena_ops_choice> choices = {{VERBENA_OPS_AUTO, 0, 0, 0}};
  if (bytes <= 64 * kKi) add_packets(choices, VERBENA_OPS_ONE_SHOT_16, bytes, 8, most_blocks);
  if (bytes * (ranks - 1) <= 4 * kMi) add_packets(choices, VERBENA_OPS_ONE_SHOT_128, bytes, 15, most_blocks);
  if (bytes >= 32 * kKi && bytes <= 512 * kKi)
    add_packets(choices, VERBENA_OPS_TWO_SHOT_16, bytes / ranks, 8, most_blocks);
  if (bytes >= 32 * kKi && bytes <= 16 * kMi)
    add_packets(choices, VERBENA_OPS_TWO_SHOT_128, bytes / ranks, 15, most_blocks);
  for (const auto algorithm : {VERBENA_OPS_BULK_ONE_SHOT, VERBENA_OPS_BULK_TWO_SHOT}) {
    const bool is_one = algorithm == VERBENA_OPS_BULK_ONE_SHOT;
    if (bytes < 256 * kKi || (is_one && bytes * (ranks - 1) > 64 * kMi)) continue;
    for (const uint32_t blocks : {32U, 64U, 128U}) {
      for (const uint32_t threads : {256U, 512U}) {
        for (const uint32_t chunk : {0U, 8192U}) {
          if ((chunk != 0 && (threads != 512 || blocks == 32)) || (blocks == 32 && bytes > 4 * kMi)) continue;
          choices.push_back({algorithm, std::min(blocks, most_blocks), threads, chunk});
        }
      }
    }
  }
  return choices;
}

OurContender::OurContender(const OpsLibrary& library, verbena_ops* ops, const verbena_ops_choice& choice)
    : library_(library), ops_(ops), choice_(choice), name_(describe_choice(choice)) {}

void OurContender::enqueue(const Work& work, CUstream stream) {
  check(library_.verbena_ops_all_reduce(ops_, as_pointer(work.from), as_pointer(work.to), work.count,
                                        work.type, VERBENA_OPS_SUM, &choice_, stream),
        "verbena_ops_all_reduce");
}

NcclContender::NcclContender(const std::string& library, const std::string& id, unsigned rank,
                             unsigned count_ranks)
    : library_(nccl::load_nccl(library)) {
  nccl::NcclUniqueId unique{};
  from_digits(id, unique.bytes.data(), unique.bytes.size());
  library_.check(library_.init_rank(&comm_, static_cast<int>(count_ranks), unique, static_cast<int>(rank)),
                 "ncclCommInitRank");
  int version = 0;
  library_.check(library_.get_version(&version), "ncclGetVersion");
  name_ = "nccl/" + nccl::format_nccl_version(version);
}

void NcclContender::enqueue(const Work& work, CUstream stream) {
  library_.check(library_.all_reduce(as_pointer(work.from), as_pointer(work.to), work.count,
                                     find_nccl_type(work.type), nccl::kNcclSum, comm_, stream),
                 "ncclAllReduce");
}

std::string make_nccl_id(const std::string& library) {
  const nccl::NcclLibrary loaded = nccl::load_nccl(library);
  nccl::NcclUniqueId unique{};
  loaded.check(loaded.get_unique_id(&unique), "ncclGetUniqueId");
  return to_digits(unique.bytes.data(), unique.bytes.size());
}

std::string to_digits(const void* data, size_t length_bytes) {
  std::string digits;
  for (size_t i = 0; i < length_bytes; ++i) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", static_cast<const unsigned char*>(data)[i]);
    digits += pair;
  }
  return digits;
}

void from_digits(const std::string& digits, void* data, size_t length_bytes) {
  if (digits.size() != 2 * length_bytes) throw ToolError("an id of the wrong length");
  for (size_t i = 0; i < length_bytes; ++i)
    static_cast<unsigned char*>(data)[i] =
        static_cast<unsigned char>(std::stoul(digits.substr(2 * i, 2), nullptr, 16));
}

}  // namespace verbena::tools::coll
