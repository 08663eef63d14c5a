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
  int channels = 0;  // the maximum that was allowed; 0: NCCL's default
  uint32_t ranks = 0;
  uint32_t nodes = 0;
  std::vector<Point> points;  // ascending by bytes
  bool operator==(const Measurement&) const = default;

  bool is_same_way(const Measurement& other) const {
    return function == other.function && algorithm == other.algorithm && protocol == other.protocol &&
           channels == other.channels && ranks == other.ranks && nodes == other.nodes;
  }
};

// The best values of the plugin's settings on the platform; absent if not measured.
struct TransportEntries {
  std::optional<bool> unpack;
  std::optional<int64_t> unpack_threshold_bytes;
  std::optional<int64_t> min_stripe_bytes;
  std::optional<int64_t> min_channels;       // NCCL's own settings: collectives' channels,
  std::optional<int64_t> net_peer_channels;  // those of send/recv to one peer,
  std::optional<int64_t> net_chunk_bytes;    // and the pieces that send/recv cuts messages into
  std::vector<Point> staged;                 // one message, there and half of the way back
  std::vector<Point> direct;
  bool operator==(const TransportEntries&) const = default;
};

struct Calibration {
  std::map<std::string, std::string> notes;  // where and with what it was measured: for people
  TransportEntries transport;
  std::vector<Measurement> collectives;
  bool operator==(const Calibration&) const = default;
};

// Replaces the measurement of the same algorithm, protocol and channels, or appends it.
void put_measurement(Calibration& calibration, Measurement measurement);

}  // namespace verbena::tuner
