#pragma once
#include <string>
#include <vector>

#include "nccl-perf/options.h"
#include "nccl-perf/run.h"
#include "nccl-perf/variant.h"
#include "tuner/calibration.h"

namespace verbena::tools::nccl {

// One way to run collectives, for its costs.
struct CalibrationStep {
  tuner::Algorithm algorithm = tuner::Algorithm::kRing;
  tuner::Protocol protocol = tuner::Protocol::kSimple;
  int channels = 0;  // the most that NCCL may make; 0: its own number
  std::string unpack;
  std::vector<Operation> operations;
  uint64_t largest_bytes = 0;
  int min_channels = 0;       // 0: NCCL's own, as below
  int net_peer_channels = 0;  // of send/recv
  uint64_t net_chunk_bytes = 0;
};

// The two runs that decide whether UNPACK is offered where it was measured: without, then with it.
std::vector<CalibrationStep> list_unpack_steps(const Options& options);

// A first run with NCCL's own channels, then with twice, four and eight times as many for collectives, and
// with more of them and longer pieces for each peer of send/recv.
std::vector<CalibrationStep> list_channel_steps(const Options& options, const std::string& unpack,
                                                int own_channels);

// Above 1: `other` is that much faster, on the average of the sizes from `least_bytes` to `most_bytes` that
// both have; 0: there is none.
double compute_gain(const std::vector<Row>& base, const std::vector<Row>& other,
                    const std::vector<Operation>& operations, uint64_t least_bytes, uint64_t most_bytes);
inline constexpr double kWorthwhileUnpackGain = 1.03;
// More channels are more of the GPU's cores: long messages must gain clearly. Short ones must not lose, but
// for collectives (`may_lower`), where the tuner takes fewer channels for them.
bool are_channels_worthwhile(const std::vector<Row>& base, const std::vector<Row>& other,
                             const std::vector<Operation>& operations, bool may_lower);

// Everything else, what is worth most first. `own_channels` is what NCCL makes by itself, or from
// `min_channels` on; 0: unknown.
std::vector<CalibrationStep> list_steps(const Options& options, const std::string& unpack, int own_channels,
                                        int min_channels);

Variant make_variant(const CalibrationStep& step);

// What a step's rows say: a measurement for each collective. Rows with wrong elements say nothing.
std::vector<tuner::Measurement> make_measurements(const CalibrationStep& step, const std::vector<Row>& rows,
                                                  uint32_t ranks);

}  // namespace verbena::tools::nccl
