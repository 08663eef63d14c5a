// Chooses the algorithm of a collective of libverbena_ops.so by measurements of the platform. Pure: ranks
// with the same measurements make the same choice.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/calibration.h"

namespace verbena::tuner {

// Returns whether an algorithm needs tensors in windows. A rank cannot know this of other ranks' tensors, so
// such an algorithm is used only if a call asks for it or the communicator's has_windows promises it.
inline bool needs_windows(std::string_view algorithm) {
  return algorithm == "direct" || algorithm == "copy-engines";
}

// One variant of a call: an algorithm and its launch shape.
struct OpsWay {
  std::string algorithm;  // named as in verbena/ops.h, such as one-shot
  uint32_t blocks = 0, threads = 0, chunk_bytes = 0;
  double microseconds = 0;  // estimated for the requested size

  bool needs_windows() const { return tuner::needs_windows(algorithm); }
};

// The measurements that apply to a call: those with these values.
struct OpsKey {
  std::string_view operation;
  uint32_t ranks = 0, hosts = 1;
  std::string_view gpu;
};

// Returns the variants measured for this key, the fastest first. Times are interpolated between measured
// sizes. Empty if nothing was measured.
std::vector<OpsWay> list_ways(const std::vector<OpsMeasurement>& measurements, const OpsKey& key,
                              uint64_t bytes);

// A table of one key's measurements for fast repeated look-ups. Between two measured sizes each
// variant's time is linear, so each variant is the fastest in at most one interval there. A look-up finds its
// interval by binary search.
class OpsTable {
 public:
  struct Fastest {
    uint32_t number;  // what `accept` returned
    uint32_t blocks, threads, chunk_bytes;
    double microseconds;
  };
  // Returns a number for a variant that may be chosen; empty if it may not.
  using Accept = std::function<std::optional<uint32_t>(const OpsMeasurement& measured)>;

  OpsTable() = default;
  OpsTable(const std::vector<OpsMeasurement>& measurements, const OpsKey& key, const Accept& accept);
  // Returns the fastest variant; empty if nothing was measured. Any thread may call.
  std::optional<Fastest> find_fastest(uint64_t bytes) const;

 private:
  struct Way {
    OpsMeasurement measured;
    uint32_t number;
    uint64_t first_bytes, last_bytes;  // range of sizes for which it is a candidate
  };
  struct Interval {
    uint64_t end_bytes;  // the last size in it
    size_t way;          // the fastest variant for all its sizes, or kNone
  };
  static constexpr size_t kNone = SIZE_MAX;

  size_t compare_ways(uint64_t bytes) const;
  void append_intervals(uint64_t begin, size_t at_begin, uint64_t end, size_t at_end);

  std::vector<Way> ways_;
  std::vector<Interval> intervals_;  // ascending
};

// Parses a question of verbena-info --explain such as all_reduce:512k:4, or all_reduce:1m:4x2 for four ranks
// on two hosts, and explains the choice in lines of text. `problem` receives a clause that describes an
// error.
struct OpsQuestion {
  std::string operation;
  uint64_t bytes = 0;
  uint32_t ranks = 0, hosts = 1;
};
std::optional<OpsQuestion> parse_question(std::string_view text, std::string& problem);
// An empty `gpu` explains the choice for each GPU in the file. `forced` is VERBENA_OPS_ALGORITHM, or empty.
std::string explain_ways(const std::vector<OpsMeasurement>& measurements, const OpsQuestion& question,
                         std::string_view gpu, std::string_view forced);

}  // namespace verbena::tuner
