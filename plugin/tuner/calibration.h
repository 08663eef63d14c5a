// The measurements of a platform: the content of a tuning file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tuner/kind.h"

namespace verbena::tuner {

struct Point {
  uint64_t bytes = 0;  // as NCCL counts a collective's size: the larger of what a rank sends and receives
  double microseconds = 0;
  bool operator==(const Point&) const = default;
};

// One collective with one algorithm, protocol and number of channels, over sizes.
struct Measurement {
  Function function = Function::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  int channels = 0;  // maximum number of channels; 0: NCCL's default
  uint32_t ranks = 0;
  uint32_t nodes = 0;
  std::vector<Point> points;  // ascending by bytes
  bool operator==(const Measurement&) const = default;

  bool is_same_way(const Measurement& other) const {
    return function == other.function && algorithm == other.algorithm && protocol == other.protocol &&
           channels == other.channels && ranks == other.ranks && nodes == other.nodes;
  }
};

// The best values of the plugin's settings on the platform. A value that was not measured is absent.
struct TransportEntries {
  std::optional<bool> unpack;
  std::optional<int64_t> unpack_threshold_bytes;
  std::optional<int64_t> min_stripe_bytes;
  std::optional<int64_t> min_channels;       // NCCL's own settings: channels of collectives,
  std::optional<int64_t> net_peer_channels;  // channels of send/recv to one peer,
  std::optional<int64_t> net_chunk_bytes;    // and the chunk size of send/recv
  std::vector<Point> staged;                 // half a round trip of one message
  std::vector<Point> direct;
  bool operator==(const TransportEntries&) const = default;
};

// A collective of libverbena_ops.so with one algorithm, over sizes; the number of blocks grows with the size.
// Between hosts the tensors were of bfloat16, whose elements the algorithm "lossless" encodes.
struct OpsPoint {
  uint64_t bytes = 0;  // bytes of a rank's tensor or message
  uint32_t blocks = 0;
  double microseconds = 0;
  bool operator==(const OpsPoint&) const = default;
};
struct OpsMeasurement {
  std::string operation;  // all_reduce, all_gather, reduce_scatter, broadcast, all_to_all
  std::string algorithm;  // one-shot
  std::string gpu;        // the name that the driver gives
  uint32_t ranks = 0, threads = 0, chunk_bytes = 0;
  std::vector<OpsPoint> points;  // ascending by bytes
  uint32_t hosts = 1;            // with the same number of ranks each
  bool operator==(const OpsMeasurement&) const = default;

  bool is_same_way(const OpsMeasurement& other) const {
    return operation == other.operation && algorithm == other.algorithm && gpu == other.gpu &&
           ranks == other.ranks && hosts == other.hosts && threads == other.threads &&
           chunk_bytes == other.chunk_bytes;
  }
};

struct Calibration {
  std::map<std::string, std::string> notes;  // where and how it was measured, for readers
  TransportEntries transport;
  std::vector<Measurement> collectives;
  std::vector<OpsMeasurement> ops = {};
  bool operator==(const Calibration&) const = default;
};

// Replaces the measurement of the same algorithm, protocol and channels, or appends it.
void put_measurement(Calibration& calibration, Measurement measurement);
// Replaces all measurements of the same operation, GPU, and numbers of ranks and hosts.
void put_ops_measurements(Calibration& calibration, const std::vector<OpsMeasurement>& measurements);

}  // namespace verbena::tuner
