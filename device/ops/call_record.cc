#include "device/ops/call_record.h"

#include <array>
#include <cstring>

#include "verbena/ops.h"

namespace verbena::ops {
namespace {

template <size_t kCount>
std::string name(const std::array<const char*, kCount>& names, uint32_t number) {
  return number < kCount ? names[number] : std::to_string(number);
}

constexpr std::array kKinds = {"all-reduce", "exchange",        "reduce-scatter",
                               "norm",       "all-reduce norm", "reduce-scatter norm all-gather"};
constexpr std::array kTypes = {"float32", "float16", "bfloat16", "int32", "e4m3"};
constexpr std::array kReductions = {"sum", "mean", "min", "max"};
constexpr std::array kLengths = {"", " from a root", " by receivers' counts", " by senders' counts",
                                 " by each pair's counts"};

}  // namespace

CallRecord make_record(const Call& call, Algorithm algorithm, const Grid& grid, uint32_t chunk_bytes) {
  CallRecord record{};
  record.kind = static_cast<uint32_t>(call.kind);
  record.algorithm = static_cast<uint32_t>(algorithm);
  record.type = call.type;
  record.reduction = call.reduction;
  record.blocks = grid.blocks;
  record.threads = grid.threads;
  record.cluster = static_cast<uint16_t>(grid.cluster);
  record.rows_at_once = static_cast<uint16_t>(grid.rows);
  record.chunk_bytes = chunk_bytes;
  record.length_bytes = call.length_bytes;
  record.unit_bytes = call.unit_bytes;
  record.lengths = static_cast<uint32_t>(call.lengths);
  record.root = call.lengths == Lengths::kFromRoot ? call.root : 0;
  // The layout of an exchange's messages may differ between ranks. But either all ranks send the whole
  // tensor, or all ranks send parts.
  record.outputs = (call.source.member_bytes != 0 ? 1 : 0) | (call.destination.member_bytes != 0 ? 2 : 0);
  return record;
}

CallRecord make_record(const Call& call, const Norm& norm, const Grid& grid) {
  CallRecord record = make_record(call, call.algorithm, grid, 0);
  record.rows = norm.rows;
  record.hidden = norm.hidden;
  if (call.kind != Kind::kShardedNorm) return record;
  // These members describe the outputs that are exchanged after the norm.
  record.quantisation = norm.quantisation;
  record.padding = norm.padding;
  record.outputs = (norm.output != nullptr ? 1 : 0) | (norm.elements != nullptr ? 2 : 0);
  return record;
}

bool are_alike(const CallRecord& a, const CallRecord& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

std::string describe(const CallRecord& record) {
  std::string text = name(kKinds, record.kind) + name(kLengths, record.lengths);
  if (record.rows != 0) {
    text += " of " + std::to_string(record.rows) + " rows of " + std::to_string(record.hidden);
  } else if (record.length_bytes != 0) {
    text += " of " + std::to_string(record.length_bytes) + " bytes";
  }
  const auto kind = static_cast<Kind>(record.kind);
  if (kind != Kind::kExchange)
    text += " of " + name(kTypes, record.type) + ", " + name(kReductions, record.reduction);
  if (static_cast<Lengths>(record.lengths) == Lengths::kFromRoot) text += " " + std::to_string(record.root);
  text += " (algorithm " + std::to_string(record.algorithm) + ", " + std::to_string(record.blocks) +
          " blocks of " + std::to_string(record.threads) + " threads";
  if (record.chunk_bytes != 0) text += ", chunks of " + std::to_string(record.chunk_bytes) + " bytes";
  if (record.input_place != 0 || record.output_place != 0)
    text += ", input at byte " + std::to_string(record.input_place) + " and output at byte " +
            std::to_string(record.output_place) + " of their windows";
  if (record.counts_hash != 0) text += ", counts " + std::to_string(record.counts_hash);
  return text + ")";
}

}  // namespace verbena::ops
