#include "nccl-perf/calibration_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "common/table.h"

namespace verbena::tools::nccl {
namespace {

using tuner::Algorithm;
using tuner::Protocol;

constexpr Protocol kProtocols[] = {Protocol::kSimple, Protocol::kLl, Protocol::kLl128};
// LL uses half of the bandwidth for flags: it never wins above this size, and is slow to measure there.
constexpr uint64_t kLargestLlBytes = 8 << 20;
constexpr uint64_t kLargestUnpackBytes = 4 << 20;
constexpr uint64_t kLongChunkBytes = 512 << 10;
constexpr int kFewerChannels[] = {2, 4, 8, 16};  // divisors of NCCL's default
constexpr int kMaxChannels = 32;

const char* spell(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kTree:
      return "Tree";
    case Algorithm::kPat:
      return "PAT";
    default:
      return "Ring";
  }
}

const char* spell(Protocol protocol) {
  switch (protocol) {
    case Protocol::kLl:
      return "LL";
    case Protocol::kLl128:
      return "LL128";
    default:
      return "Simple";
  }
}

// NCCL does not ask a tuner about send/recv and all-to-all.
std::optional<tuner::Function> find_function(Operation operation) {
  switch (operation) {
    case Operation::kAllReduce:
      return tuner::Function::kAllReduce;
    case Operation::kAllGather:
      return tuner::Function::kAllGather;
    case Operation::kReduceScatter:
      return tuner::Function::kReduceScatter;
    case Operation::kBroadcast:
      return tuner::Function::kBroadcast;
    default:
      return std::nullopt;
  }
}

bool has_algorithm(Algorithm algorithm, Operation operation) {
  switch (algorithm) {
    case Algorithm::kTree:
      return operation == Operation::kAllReduce;
    case Algorithm::kPat:
      return operation == Operation::kAllGather || operation == Operation::kReduceScatter;
    default:
      return find_function(operation).has_value();
  }
}

class Planner {
 public:
  Planner(const NcclPerfOptions& options, const std::string& unpack, int min_channels)
      : options_(options), unpack_(unpack), min_channels_(min_channels) {}

  void add(Algorithm algorithm, Protocol protocol, int channels) {
    CalibrationStep step{algorithm, protocol, channels, unpack_, {}, options_.sizes_bytes.back()};
    if (channels == 0) step.min_channels = min_channels_;
    for (const Operation operation : options_.operations) {
      if (has_algorithm(algorithm, operation)) step.operations.push_back(operation);
    }
    if (protocol == Protocol::kLl) step.largest_bytes = std::min(step.largest_bytes, kLargestLlBytes);
    if (!step.operations.empty()) steps_.push_back(step);
  }
  std::vector<CalibrationStep> take() { return std::move(steps_); }

 private:
  const NcclPerfOptions& options_;
  std::string unpack_;
  int min_channels_;
  std::vector<CalibrationStep> steps_;
};

}  // namespace

std::vector<CalibrationStep> list_unpack_steps(const NcclPerfOptions& options) {
  std::vector<CalibrationStep> steps;
  for (const char* unpack : {"0", "1"}) {
    steps.push_back({Algorithm::kRing,
                     Protocol::kSimple,
                     0,
                     unpack,
                     {Operation::kAllReduce, Operation::kSendRecv},
                     std::min(options.sizes_bytes.back(), kLargestUnpackBytes)});
  }
  return steps;
}

std::vector<CalibrationStep> list_channel_steps(const NcclPerfOptions& options, const std::string& unpack,
                                                int own_channels) {
  CalibrationStep step{Algorithm::kRing, Protocol::kSimple, 0, unpack, {}, options.sizes_bytes.back()};
  step.operations = {Operation::kAllReduce, Operation::kSendRecv, Operation::kAllToAll};
  std::vector<CalibrationStep> steps{step};
  // Multiples of the channels of collectives; channels and chunk size of send/recv to one peer. 0: NCCL's
  // default.
  constexpr struct {
    int times, peer;
    uint64_t chunk_bytes;
  } kTrials[] = {
      {2, 4, 0}, {4, 8, 0}, {8, 2, kLongChunkBytes}, {0, 4, kLongChunkBytes}, {0, 8, kLongChunkBytes}};
  for (const auto& trial : kTrials) {
    step.min_channels = own_channels * trial.times <= kMaxChannels ? own_channels * trial.times : 0;
    step.net_peer_channels = trial.peer;
    step.net_chunk_bytes = trial.chunk_bytes;
    steps.push_back(step);
  }
  return steps;
}

double compute_gain(const std::vector<Row>& base, const std::vector<Row>& other,
                    const std::vector<Operation>& operations, uint64_t min_bytes, uint64_t max_bytes) {
  double sum = 0;
  int count = 0;
  for (const Row& row : base) {
    const auto operation = parse_operation(row.operation);
    if (!operation || std::find(operations.begin(), operations.end(), *operation) == operations.end())
      continue;
    if (row.requested_bytes < min_bytes || row.requested_bytes > max_bytes) continue;
    const auto same = std::find_if(other.begin(), other.end(), [&](const Row& candidate) {
      return candidate.operation == row.operation && candidate.requested_bytes == row.requested_bytes;
    });
    if (same == other.end() || row.wrong != 0 || same->wrong != 0) continue;
    sum += std::log(row.time_us / same->time_us);
    ++count;
  }
  return count == 0 ? 0 : std::exp(sum / count);
}

bool are_channels_worthwhile(const std::vector<Row>& base, const std::vector<Row>& other,
                             const std::vector<Operation>& operations, bool may_lower) {
  constexpr uint64_t kLongBytes = 1 << 20, kVeryLongBytes = 32 << 20;
  constexpr double kClearGain = 1.1, kNoLoss = 0.95;
  if (may_lower) return compute_gain(base, other, operations, kVeryLongBytes, UINT64_MAX) >= kClearGain;
  if (compute_gain(base, other, operations, kLongBytes, UINT64_MAX) < kClearGain) return false;
  const double gain_of_short = compute_gain(base, other, operations, 0, kLongBytes - 1);
  return gain_of_short == 0 || gain_of_short >= kNoLoss;
}

std::vector<CalibrationStep> list_steps(const NcclPerfOptions& options, const std::string& unpack,
                                        int own_channels, int min_channels) {
  Planner planner(options, unpack, min_channels);
  for (const Protocol protocol : kProtocols) planner.add(Algorithm::kRing, protocol, 0);
  for (const Protocol protocol : kProtocols) planner.add(Algorithm::kTree, protocol, 0);
  planner.add(Algorithm::kPat, Protocol::kSimple, 0);
  for (const int part : kFewerChannels) {
    if (own_channels < part) continue;
    for (const Protocol protocol : kProtocols) planner.add(Algorithm::kRing, protocol, own_channels / part);
    for (const Protocol protocol : kProtocols) planner.add(Algorithm::kTree, protocol, own_channels / part);
  }
  return planner.take();
}

Variant make_variant(const CalibrationStep& step) {
  Variant variant;
  variant.name =
      std::string(name_of(step.algorithm)) + " " + std::string(name_of(step.protocol)) +
      (step.channels == 0 ? "" : " of " + std::to_string(step.channels) + " channels") +
      (step.min_channels == 0 ? "" : " of " + std::to_string(step.min_channels) + " channels or more") +
      (step.net_peer_channels == 0 ? "" : " " + std::to_string(step.net_peer_channels) + " a peer") +
      (step.net_chunk_bytes == 0 ? "" : " by " + std::to_string(step.net_chunk_bytes) + " bytes") +
      (step.unpack == "1" ? " with unpack" : "");
  variant.unpack = step.unpack;
  variant.settings = {{"NCCL_ALGO", spell(step.algorithm)},
                      {"NCCL_PROTO", spell(step.protocol)},
                      {"VERBENA_TUNING_FILE", "none"}};  // earlier measurements must not influence this one
  if (step.channels > 0) {
    // Sets both limits, because NCCL's default may be smaller.
    variant.settings.emplace_back("NCCL_MIN_NCHANNELS", std::to_string(step.channels));
    variant.settings.emplace_back("NCCL_MAX_NCHANNELS", std::to_string(step.channels));
  }
  if (step.min_channels > 0)
    variant.settings.emplace_back("NCCL_MIN_NCHANNELS", std::to_string(step.min_channels));
  if (step.net_peer_channels > 0)
    variant.settings.emplace_back("NCCL_NCHANNELS_PER_NET_PEER", std::to_string(step.net_peer_channels));
  if (step.net_chunk_bytes > 0)
    variant.settings.emplace_back("NCCL_P2P_NET_CHUNKSIZE", std::to_string(step.net_chunk_bytes));
  for (const Operation operation : step.operations) {
    variant.arguments.push_back(std::string("--child-op=") + describe_operation(operation));
  }
  variant.arguments.push_back("--child-end=" + std::to_string(step.largest_bytes));
  return variant;
}

std::vector<tuner::Measurement> make_measurements(const CalibrationStep& step, const std::vector<Row>& rows,
                                                  uint32_t ranks) {
  std::vector<tuner::Measurement> measurements;
  for (const Operation operation : step.operations) {
    const auto function = find_function(operation);
    if (!function) continue;
    std::map<uint64_t, std::vector<double>> times_us;  // small sizes may be rounded to the same size
    for (const Row& row : rows) {
      if (row.operation != describe_operation(operation) || row.wrong != 0 || !(row.time_us > 0)) continue;
      times_us[make_shape(operation, row.requested_bytes, ranks).size_bytes].push_back(row.time_us);
    }
    if (times_us.empty()) continue;
    tuner::Measurement measurement{*function, step.algorithm, step.protocol, step.channels, ranks, ranks, {}};
    for (auto& [bytes, samples] : times_us) {
      measurement.points.push_back({bytes, compute_median(std::move(samples))});
    }
    measurements.push_back(std::move(measurement));
  }
  return measurements;
}

}  // namespace verbena::tools::nccl
