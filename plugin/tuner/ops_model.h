// How a collective of libverbena_ops.so is done on a platform: by what was measured there. Pure; every rank
// with the same measurements gives the same answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/calibration.h"

namespace verbena::tuner {

// One way of doing a call.
struct OpsWay {
  std::string algorithm;  // as verbena/ops.h names them: one-shot
  uint32_t blocks = 0, threads = 0, chunk_bytes = 0;
  double microseconds = 0;  // as it is estimated for the size that was asked for

  // For tensors in windows, which one rank cannot know of the others': only where a call asks for it, or
  // where the communicator's has_windows promises it.
  bool needs_windows() const { return algorithm == "direct" || algorithm == "copy-engines"; }
};

// What was measured for this operation, number of ranks and GPU, each with its time between the sizes that
// were measured; the fastest first. Empty: nothing.
std::vector<OpsWay> list_ways(const std::vector<OpsMeasurement>& measurements, std::string_view operation,
                              uint32_t ranks, std::string_view gpu, uint64_t bytes);

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
