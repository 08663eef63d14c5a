// The counts of all connections of the process, including closed ones, by label.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "observe/counter.h"
#include "observe/flight_recorder.h"

namespace verbena::observe {

enum class Direction : uint8_t { kSend, kReceive, kOneSided };
inline const char* name_of(Direction direction) {
  static constexpr const char* kNames[] = {"send", "receive", "one-sided"};
  return kNames[static_cast<size_t>(direction)];
}

struct EndKey {
  Direction direction = Direction::kSend;
  std::string peer;
  auto operator<=>(const EndKey&) const = default;
};
struct RailKey {
  EndKey end;
  std::string rail;
  auto operator<=>(const RailKey&) const = default;
};
struct PathKey {
  RailKey rail;  // "several" for a message that more than one rail carried
  Path path = Path::kStaged;
  auto operator<=>(const PathKey&) const = default;
};

struct PathTotals {
  uint64_t messages = 0, bytes = 0;
  std::array<uint64_t, kBuckets> latency{};
  uint64_t latency_sum_ns = 0;
};
// The latency quantile `share` (0 to 1): the upper limit of its bucket; 0 if nothing was counted.
int64_t find_quantile_ns(const PathTotals& totals, double share);

struct ChunkTotals {
  uint64_t chunks = 0, bytes = 0;
};
struct RailTotals {
  uint64_t failures = 0, revivals = 0;
};
struct EndTotals {
  uint64_t stalls = 0, replayed_chunks = 0, failures = 0;
  uint64_t open_requests = 0;  // now
  uint64_t connections = 0;    // now
};

struct Totals {
  std::map<PathKey, PathTotals> messages;
  std::map<PathKey, ChunkTotals> chunks;
  std::map<RailKey, RailTotals> rails;
  std::map<EndKey, EndTotals> ends;

  void add(const Totals& other);
  // Over all peers and rails.
  PathTotals sum(Direction direction, Path path) const;
};

}  // namespace verbena::observe
