
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string_view>

#include "common/error.h"
#include "common/table.h"
#include "tuner/calibration_file.h"
#include "verbena-perf/crossover.h"
#include "verbena-perf/driver.h"
#include "verbena-perf/report.h"

namespace verbena::tools::perf {
namespace {

using Arguments = std::vector<std::string>;

constexpr unsigned kRounds = 2;
constexpr const char* kMinStripe = "VERBENA_MIN_STRIPE_BYTES";
constexpr const char* kAlwaysCut = "4096";
constexpr const char* kNeverCut = "1g";

bool names(const std::string& argument, std::string_view option) {
  return argument.starts_with(std::string(option) + "=");
}

class Calibration {
 public:
  explicit Calibration(const PerfOptions& options) : options_(options) {
    for (const std::string& argument : options.workload_arguments) {
      for (const char* own : {"--unpack", "--threshold", "--mode", "--against", "--transport"}) {
        if (names(argument, own))
          throw UsageError(std::string("--calibrate itself chooses what to compare; leave out ") + own);
      }
      shared_.push_back(argument);
      has_sizes_ = has_sizes_ || names(argument, "--sizes") || names(argument, "--size") ||
                   names(argument, "--factor");
      has_repeats_ = has_repeats_ || names(argument, "--repeats");
    }
    std::error_code error;
    if (!std::filesystem::exists(options.calibrate, error)) return;
    auto read = tuner::read_calibration_file(options.calibrate);
    if (!read.calibration) throw ToolError("--calibrate: " + options.calibrate + ": " + read.problem);
    content_ = std::move(*read.calibration);
  }

  int measure() {
    tuner::TransportEntries& transport = content_.transport;
    const Way staged{"staged", {"--unpack=1", "--threshold=unlimited"}, ""},
        direct{"direct", {"--unpack=0"}, ""};
    if (const int status = compare(staged, direct, "8:1M", transport.staged, transport.direct);
        status != kExitOk)
      return status;
    transport.unpack_threshold_bytes = find_unpack_threshold(transport.staged, transport.direct);
    // The sender on the other host would cut messages by its own environment.
    if (options_.rails < 2 || options_.has_two_hosts()) return kExitOk;
    std::vector<tuner::Point> cut, whole;
    const Way in_pieces{"in pieces", {"--unpack=0"}, kAlwaysCut}, in_one{"whole", {"--unpack=0"}, kNeverCut};
    if (const int status = compare(in_pieces, in_one, "8k:4M", cut, whole); status != kExitOk) return status;
    transport.min_stripe_bytes = find_min_stripe(cut, whole);
    return kExitOk;
  }

  void write() {
    content_.notes["transport"] = "verbena-perf, " + device_;
    const std::string problem = write_calibration_file(options_.calibrate, content_);
    if (!problem.empty()) throw ToolError("--calibrate: " + problem);
    const tuner::TransportEntries& transport = content_.transport;
    std::printf("# %s: unpack_threshold_bytes %lld", options_.calibrate.c_str(),
                static_cast<long long>(*transport.unpack_threshold_bytes));
    if (transport.min_stripe_bytes)
      std::printf(", min_stripe_bytes %lld", static_cast<long long>(*transport.min_stripe_bytes));
    std::printf("; nccl-perf --calibrate measures on GPUs whether UNPACK is faster\n");
  }

 private:
  struct Way {
    const char* name;
    Arguments arguments;
    std::string min_stripe;
  };
  using Samples = std::map<uint64_t, std::vector<double>>;  // latencies by size

  // Figures vary by a tenth from one process placement to another, and drift should affect both settings
  // equally: so the runs alternate, 0 1 1 0, and medians are compared.
  int compare(const Way& first, const Way& second, const char* sizes, std::vector<tuner::Point>& first_points,
              std::vector<tuner::Point>& second_points) {
    Samples samples[2];
    for (unsigned index = 0; index < 2 * kRounds; ++index) {
      const bool is_second = index % 4 == 1 || index % 4 == 2;
      const int status = run(is_second ? second : first, sizes, samples[is_second]);
      if (status != kExitOk) return status;
    }
    first_points = take_medians(samples[0]);
    second_points = take_medians(samples[1]);
    return kExitOk;
  }

  static std::vector<tuner::Point> take_medians(Samples& samples) {
    std::vector<tuner::Point> points;
    for (auto& [bytes, latencies_us] : samples)
      points.push_back({bytes, compute_median(std::move(latencies_us))});
    return points;
  }

  std::vector<std::string> list_arguments(const Way& way, const char* sizes) const {
    Arguments arguments{"verbena-perf", "--mode=latency", "--plugin=" + options_.plugin,
                        "--device=" + std::to_string(options_.device)};
    arguments.insert(arguments.end(), shared_.begin(), shared_.end());
    arguments.insert(arguments.end(), way.arguments.begin(), way.arguments.end());
    if (!has_sizes_) arguments.insert(arguments.end(), {std::string("--sizes=") + sizes, "--factor=4"});
    if (!has_repeats_) arguments.push_back("--repeats=3");
    if (!options_.client.empty()) {
      arguments.push_back("--client=" + options_.client);
      arguments.push_back("--port=" + std::to_string(options_.port));
    }
    return arguments;
  }

  // One run of the tool within this process.
  int run(const Way& way, const char* sizes, Samples& samples) {
    const Arguments arguments = list_arguments(way, sizes);
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    const auto parsed = parse_options(static_cast<int>(argv.size()), argv.data());
    if (parsed.exit_status >= 0) return parsed.exit_status;
    if (!way.min_stripe.empty()) setenv(kMinStripe, way.min_stripe.c_str(), 1);
    std::printf("#\n# === %s ===\n", way.name);
    Report report(parsed.options);
    const int status = run_once(parsed.options, report, static_cast<int>(argv.size()), argv.data());
    if (status != kExitOk) return status;
    for (const nlohmann::json& row : report.rows()) {
      if (row.at("size") == 0) continue;
      const auto added = row.at("latency_passes_us").get<std::vector<double>>();
      auto& latencies_us = samples[row.at("size")];
      latencies_us.insert(latencies_us.end(), added.begin(), added.end());
    }
    device_ = report.device().at("name").get<std::string>();
    return kExitOk;
  }

  const PerfOptions& options_;
  Arguments shared_;
  bool has_sizes_ = false;
  bool has_repeats_ = false;
  tuner::Calibration content_;
  std::string device_;
};

}  // namespace

int run_calibration(const PerfOptions& options) {
  return report_errors("verbena-perf", [&] {
    setenv("VERBENA_TUNING_FILE", "", 1);  // earlier measurements must not influence this one
    if (options.server)
      throw UsageError("--calibrate cannot be combined with --server; use the option on the client");
    Calibration calibration(options);
    const int status = calibration.measure();
    if (status == kExitOk) calibration.write();
    return status;
  });
}

}  // namespace verbena::tools::perf
