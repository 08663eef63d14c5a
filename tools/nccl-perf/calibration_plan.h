#pragma once
#include <string>
#include <vector>

#include "nccl-perf/options.h"
#include "nccl-perf/run.h"
#include "nccl-perf/variant.h"
#include "tuner/calibration.h"

namespace verbena::tools::nccl {

// One setting in which collectives are measured.
struct CalibrationStep {
  tuner::Algorithm algorithm = tuner::Algorithm::kRing;
  tuner::Protocol protocol = tuner::Protocol::kSimple;
  int channels = 0;  // the number of channels; 0: NCCL's default
  std::string unpack;
  std::vector<Operation> operations;
  uint64_t largest_bytes = 0;
  int min_channels = 0;       // 0: NCCL's default, also below
  int net_peer_channels = 0;  // of send/recv
  uint64_t net_chunk_bytes = 0;
};

// Returns the two runs that decide whether UNPACK is offered on the measured platform: one without UNPACK,
// then one with it.
std::vector<CalibrationStep> list_unpack_steps(const NcclPerfOptions& options);

// Returns a run with NCCL's default channels, runs with two, four and eight times as many channels for
// collectives, and runs with more channels and larger chunks for each peer of send/recv.
std::vector<CalibrationStep> list_channel_steps(const NcclPerfOptions& options, const std::string& unpack,
                                                int own_channels);

// How many times faster `other` is than `base`, on average over the sizes from `min_bytes` to `max_bytes`
// that both have; 0 if there is none.
double compute_gain(const std::vector<Row>& base, const std::vector<Row>& other,
                    const std::vector<Operation>& operations, uint64_t min_bytes, uint64_t max_bytes);
inline constexpr double kWorthwhileUnpackGain = 1.03;
// More channels take more of the GPU's multiprocessors, so long messages must gain clearly. Short ones must
// not lose, except for collectives (`may_lower`), where the tuner can use fewer channels for them.
bool are_channels_worthwhile(const std::vector<Row>& base, const std::vector<Row>& other,
                             const std::vector<Operation>& operations, bool may_lower);

// All other steps, the most valuable first. `own_channels` is NCCL's default, or its number with
// `min_channels`; 0 if unknown.
std::vector<CalibrationStep> list_steps(const NcclPerfOptions& options, const std::string& unpack,
                                        int own_channels, int min_channels);

Variant make_variant(const CalibrationStep& step);

// Makes a measurement for each collective from the rows of a step. Ignores rows with wrong elements.
std::vector<tuner::Measurement> make_measurements(const CalibrationStep& step, const std::vector<Row>& rows,
                                                  uint32_t ranks);

}  // namespace verbena::tools::nccl
