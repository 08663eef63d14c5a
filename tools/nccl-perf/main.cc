#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/nccl_search.h"
#include "nccl-perf/calibrate.h"
#include "nccl-perf/report.h"
#include "nccl-perf/run.h"

namespace verbena::tools::nccl {
namespace {

// The folder of NCCL's logs: the user's, or a temporary one, which is removed unless a run has failed.
class LogFolder {
 public:
  explicit LogFolder(const std::string& wanted) : path_(wanted), temporary_(wanted.empty()) {
    std::error_code error;
    if (!temporary_) {
      std::filesystem::create_directories(path_, error);
      if (error) throw ToolError("cannot make " + path_ + ": " + error.message());
      return;
    }
    std::string pattern = (std::filesystem::temp_directory_path(error) / "nccl-perf-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr)
      throw ToolError("cannot make " + pattern + ": " + std::strerror(errno));
    path_ = pattern;
  }
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;
  ~LogFolder() {
    std::error_code error;
    if (temporary_ && !kept_) std::filesystem::remove_all(path_, error);
  }

  const std::string& path() const { return path_; }
  void keep() { kept_ = true; }

 private:
  std::string path_;
  bool temporary_;
  bool kept_ = false;
};

int list_nccl(const NcclPerfOptions& options) {
  const std::vector<NcclCandidate> candidates = find_nccl_libraries(options.nccl);
  bool chosen = false;
  for (const NcclCandidate& candidate : candidates) {
    const bool usable = !candidate.version.empty();
    std::printf("%s %-10s %-10s %s%s%s\n", usable && !chosen ? "*" : " ",
                usable ? candidate.version.c_str() : "-", candidate.source.c_str(), candidate.path.c_str(),
                usable ? "" : ": ", candidate.problem.c_str());
    chosen = chosen || usable;
  }
  if (!chosen) std::fprintf(stderr, "nccl-perf: no usable libnccl.so.2 found\n");
  return chosen ? kExitOk : kExitFailed;
}

// The number of ranks; 0, after an error line, if there can be none.
int choose_ranks(const NcclPerfOptions& options) {
  const int gpus = require_cuda_devices("nccl-perf", "a GPU; try verbena-perf");
  if (gpus == 0) return 0;
  const int ranks = options.ranks == 0 ? std::max(gpus, 2) : options.ranks;
  if (ranks > gpus)
    std::fprintf(stderr,
                 "nccl-perf: %d ranks share %d GPU%s and wait for each other's time slices. The data is "
                 "checked, but the times are meaningless\n",
                 ranks, gpus, gpus == 1 ? "" : "s");
  return ranks;
}

// Returns the exit status; stores the outcome of the run in `result`, unless null.
int run_variant(const NcclPerfOptions& options, const Variant& variant, int ranks, const NcclCandidate& nccl,
                const std::string& log_folder, Report& report, int argc, const char* const* argv,
                StepResult* result = nullptr) {
  Run run(options, variant, ranks, log_folder);
  report.begin_variant(variant, run.list_settings());
  int status = run.execute(nccl, argc, argv, [&](const Row& row) {
    report.add_row(row);
    if (result != nullptr) result->rows.push_back(row);
  });
  std::vector<NcclLog> logs;
  logs.reserve(static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    logs.push_back(parse_nccl_log(read_whole_file(run.log_file(rank))));
  for (const NcclLog& log : logs) {
    if (status != kExitOk || is_network_of(variant, log.network)) continue;
    std::fprintf(stderr, "nccl-perf: the run with %s is invalid, because NCCL used the network %s instead\n",
                 variant.name.c_str(), log.network.c_str());
    status = kExitFailed;
  }
  report.end_variant(logs, run.gpu_names(), status);
  if (result != nullptr) {
    result->status = status;
    result->log = logs[0];
    result->gpu = run.gpu_names()[0];
  }
  return status;
}

int calibrate(const NcclPerfOptions& options, int ranks, const NcclCandidate& nccl, LogFolder& folder,
              Report& report, int argc, const char* const* argv) {
  report.begin_round(0);
  return run_calibration(options, ranks, nccl.version, [&](const Variant& variant) {
    StepResult result;
    if (run_variant(options, variant, ranks, nccl, folder.path(), report, argc, argv, &result) != kExitOk)
      folder.keep();
    return result;
  });
}

// Runs all variants, round after round.
int run_rounds(const NcclPerfOptions& options, int ranks, const NcclCandidate& nccl, LogFolder& folder,
               Report& report, int argc, const char* const* argv) {
  int status = kExitOk;
  std::vector<Variant> variants = list_variants(options);
  for (int round = 0; round < options.rounds; ++round) {
    report.begin_round(round);
    for (const Variant& variant : variants) {
      // A variant that fails prints its error; the others still give figures.
      const int outcome = run_variant(options, variant, ranks, nccl, folder.path(), report, argc, argv);
      if (outcome != kExitOk) folder.keep();
      if (status == kExitOk) status = outcome;
    }
    std::reverse(variants.begin(), variants.end());  // so that no variant always runs second
  }
  return status;
}

int run_all(const NcclPerfOptions& options, int argc, const char* const* argv) {
  const int ranks = choose_ranks(options);
  if (ranks == 0) return kExitNoDevice;
  const NcclCandidate nccl = choose_nccl(find_nccl_libraries(options.nccl));
  Result result = begin_result("nccl-perf", argc, argv);
  LogFolder folder(options.log_folder);
  Report report(options, ranks);
  report.begin(nccl);
  int status = options.calibrate.empty() ? run_rounds(options, ranks, nccl, folder, report, argc, argv)
                                         : calibrate(options, ranks, nccl, folder, report, argc, argv);
  report.finish();
  report.fill(result);
  if (status == kExitOk && report.wrong_elements() != 0) status = kExitWrongData;
  return deliver_result(result, options.output, status);
}

int run_tool(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const NcclPerfOptions& options = parsed.options;
  return report_errors("nccl-perf", [&] {
    if (!options.probe_nccl.empty()) return run_nccl_probe(options.probe_nccl);
    if (options.child_rank >= 0) return run_rank(options);
    return options.list_nccl ? list_nccl(options) : run_all(options, argc, argv);
  });
}

}  // namespace
}  // namespace verbena::tools::nccl

int main(int argc, char** argv) {
  return verbena::tools::nccl::run_tool(argc, argv);
}
