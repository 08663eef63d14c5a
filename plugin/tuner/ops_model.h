// How a collective of libverbena_ops.so is done on a platform: by what was measured there. Pure; every rank
// with the same measurements gives the same answer.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/calibration.h"

namespace verbena::tuner {

// For tensors in windows, which one rank cannot know of the others': only where a call asks for it, or where
// the communicator's has_windows promises it.
inline bool needs_windows(std::string_view algorithm) {
  return algorithm == "direct" || algorithm == "copy-engines";
}

// One way of doing a call.
struct OpsWay {
  std::string algorithm;  // as verbena/ops.h names them: one-shot
  uint32_t blocks = 0, threads = 0, chunk_bytes = 0;
  double microseconds = 0;  // as it is estimated for the size that was asked for

  bool needs_windows() const { return tuner::needs_windows(algorithm); }
};

// What was measured for this operation, number of ranks and GPU, each with its time between the sizes that
// were measured; the fastest first. Empty: nothing.
std::vector<OpsWay> list_ways(const std::vector<OpsMeasurement>& measurements, std::string_view operation,
                              uint32_t ranks, std::string_view gpu, uint64_t bytes);

// The same for calls that ask again and again: the measurements of one operation, sorted out when the table
// is made. Between two measured sizes each way's time is a line, so each way is the fastest in one interval
// there at most; a call finds its interval by a binary search, whatever the number of measurements.
class OpsTable {
 public:
  struct Fastest {
    uint32_t number;  // what `accept` returned
    uint32_t blocks, threads, chunk_bytes;
    double microseconds;
  };
  // A number for a way that may be chosen; none: it may not.
  using Accept = std::function<std::optional<uint32_t>(const OpsMeasurement& measured)>;

  OpsTable() = default;
  OpsTable(const std::vector<OpsMeasurement>& measurements, std::string_view operation, uint32_t ranks,
           std::string_view gpu, const Accept& accept);
  // None: nothing was measured. Any thread.
  std::optional<Fastest> find_fastest(uint64_t bytes) const;

 private:
  struct Way {
    OpsMeasurement measured;
    uint32_t number;
    uint64_t first_bytes, last_bytes;  // sizes that it is tried for
  };
  struct Interval {
    uint64_t end_bytes;  // the last size in it
    size_t way;          // the fastest one of all its sizes, or kNone
  };
  static constexpr size_t kNone = SIZE_MAX;

  size_t compare_ways(uint64_t bytes) const;
  void append_intervals(uint64_t begin, size_t at_begin, uint64_t end, size_t at_end);

  std::vector<Way> ways_;
  std::vector<Interval> intervals_;  // ascending
};

// What is asked for: all_reduce:512k:4, and what was measured for it, in lines for people. `problem` is a
// clause.
struct OpsQuestion {
  std::string operation;
  uint64_t bytes = 0;
  uint32_t ranks = 0;
};
std::optional<OpsQuestion> parse_question(std::string_view text, std::string& problem);
// `gpu` empty: of each GPU in the file. `forced`: VERBENA_OPS_ALGORITHM, or empty.
std::string explain_ways(const std::vector<OpsMeasurement>& measurements, const OpsQuestion& question,
                         std::string_view gpu, std::string_view forced);

}  // namespace verbena::tuner
