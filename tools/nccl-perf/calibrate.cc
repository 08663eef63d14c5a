#include "nccl-perf/calibrate.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "common/clock.h"
#include "common/error.h"
#include "tuner/calibration_file.h"

namespace verbena::tools::nccl {
namespace {

constexpr const char* kOurNetwork = "Verbena";

class Calibration {
 public:
  Calibration(const NcclPerfOptions& options, int ranks, const RunVariant& run)
      : options_(options),
        ranks_(static_cast<uint32_t>(ranks)),
        run_(run),
        deadline_ns_(deadline_after_s(options.budget_s)) {
    std::error_code error;
    if (!std::filesystem::exists(options.calibrate, error)) return;
    auto read = tuner::read_calibration_file(options.calibrate);
    if (!read.calibration) throw ToolError("--calibrate: " + options.calibrate + ": " + read.problem);
    content_ = std::move(*read.calibration);
  }

  int measure() {
    std::string unpack = options_.unpack;
    if (unpack.empty()) {
      unpack = decide_unpack();
    } else {
      content_.transport.unpack = unpack == "1";
    }
    decide_channels(unpack);
    const auto min_channels = static_cast<int>(content_.transport.min_channels.value_or(0));
    const std::vector<CalibrationStep> steps = list_steps(options_, unpack, own_channels_, min_channels);
    measure_all(steps);
    for (size_t index = 0; index < steps.size(); ++index) {
      for (auto& measurement : make_measurements(steps[index], rows_[index], ranks_)) {
        put_measurement(content_, std::move(measurement));
        ++measured_;
      }
    }
    return status_;
  }

  void write(const std::string& nccl_version) {
    content_.notes["collectives"] = "nccl-perf, NCCL " + nccl_version + ", " + gpu_;
    const std::string problem = write_calibration_file(options_.calibrate, content_);
    if (!problem.empty()) throw ToolError("--calibrate: " + problem);
    std::printf("# %s: %zu curves measured, %d runs left out for lack of time (--budget %g s); UNPACK %s\n",
                options_.calibrate.c_str(), measured_, left_out_, options_.budget_s,
                content_.transport.unpack.value_or(false) ? "on" : "off");
  }

 private:
  // Runs one step and keeps its rows; false if the budget was used up.
  bool measure_one(const CalibrationStep& step, std::vector<Row>& rows) {
    if (now_ns() > deadline_ns_) {
      ++left_out_;
      return false;
    }
    const StepResult result = run_(make_variant(step));
    if (status_ == kExitOk) status_ = result.status;
    if (result.status != kExitOk) return true;
    if (result.log.network != kOurNetwork)
      throw ToolError("--calibrate: NCCL did not use the plugin; it used " + result.log.network);
    gpu_ = result.gpu;
    if (step.channels == 0 && step.min_channels == 0) own_channels_ = result.log.channels;
    rows.insert(rows.end(), result.rows.begin(), result.rows.end());
    return true;
  }

  void measure_all(const std::vector<CalibrationStep>& steps) {
    std::vector<size_t> order(steps.size());
    for (size_t index = 0; index < order.size(); ++index) order[index] = index;
    rows_.assign(steps.size(), {});
    for (int round = 0; round < options_.rounds; ++round) {
      for (const size_t index : order) measure_one(steps[index], rows_[index]);
      std::reverse(order.begin(), order.end());
    }
  }

  std::string decide_unpack() {
    const std::vector<CalibrationStep> steps = list_unpack_steps(options_);
    measure_all(steps);
    const double gain =
        compute_gain(rows_[0], rows_[1], {Operation::kAllReduce, Operation::kSendRecv}, 0, UINT64_MAX);
    if (gain == 0) return content_.transport.unpack.value_or(false) ? "1" : "0";  // not measured this time
    const bool is_worthwhile = gain >= kWorthwhileUnpackGain;
    std::printf("# UNPACK: %.3f times as fast as direct placement: %s\n", gain, is_worthwhile ? "on" : "off");
    content_.transport.unpack = is_worthwhile;
    return is_worthwhile ? "1" : "0";
  }

  // Decides the minimum number of channels, if more channels than NCCL's default are clearly faster. Does not
  // change what the user has set.
  void decide_channels(const std::string& unpack) {
    const CalibrationStep own = list_channel_steps(options_, unpack, 0).front();
    std::vector<Row> base;
    if (!measure_one(own, base)) return;
    const bool decides_collectives = !has_setting("NCCL_MIN_NCHANNELS");
    const bool decides_peers =
        !has_setting("NCCL_NCHANNELS_PER_NET_PEER") && !has_setting("NCCL_P2P_NET_CHUNKSIZE");
    if (!decides_collectives && !decides_peers) return;
    const std::vector<CalibrationStep> steps = list_channel_steps(options_, unpack, own_channels_);
    std::vector<Row> collective_base = base, peer_base = base;
    if (decides_collectives) content_.transport.min_channels.reset();
    if (decides_peers) {
      content_.transport.net_peer_channels.reset();
      content_.transport.net_chunk_bytes.reset();
    }
    for (size_t index = 1; index < steps.size(); ++index) {
      const CalibrationStep& step = steps[index];
      std::vector<Row> rows;
      if (!measure_one(step, rows)) return;
      if (decides_collectives && step.min_channels > 0 &&
          are_channels_worthwhile(collective_base, rows, {Operation::kAllReduce}, true)) {
        content_.transport.min_channels = step.min_channels;
        collective_base = rows;
      }
      if (decides_peers &&
          are_channels_worthwhile(peer_base, rows, {Operation::kSendRecv, Operation::kAllToAll}, false)) {
        content_.transport.net_peer_channels = step.net_peer_channels;
        content_.transport.net_chunk_bytes.reset();
        if (step.net_chunk_bytes > 0)
          content_.transport.net_chunk_bytes = static_cast<int64_t>(step.net_chunk_bytes);
        peer_base = rows;
      }
    }
    const auto& transport = content_.transport;
    std::printf(
        "# channels: at least %lld for collectives, %lld for each peer of send/recv; chunks of %lld bytes (0 "
        "means NCCL's own value)\n",
        static_cast<long long>(transport.min_channels.value_or(0)),
        static_cast<long long>(transport.net_peer_channels.value_or(0)),
        static_cast<long long>(transport.net_chunk_bytes.value_or(0)));
    own_channels_ = static_cast<int>(transport.min_channels.value_or(own_channels_));
  }

  static bool has_setting(const char* name) {
    const char* const value = std::getenv(name);
    return value != nullptr && *value != '\0';
  }

  const NcclPerfOptions& options_;
  uint32_t ranks_;
  const RunVariant& run_;
  int64_t deadline_ns_;
  tuner::Calibration content_;
  std::vector<std::vector<Row>> rows_;  // by step
  int own_channels_ = 0;
  std::string gpu_;
  size_t measured_ = 0;
  int left_out_ = 0;
  int status_ = kExitOk;
};

}  // namespace

int run_calibration(const NcclPerfOptions& options, int ranks, const std::string& nccl_version,
                    const RunVariant& run) {
  Calibration calibration(options, ranks, run);
  const int status = calibration.measure();
  calibration.write(nccl_version);
  return status;
}

}  // namespace verbena::tools::nccl
