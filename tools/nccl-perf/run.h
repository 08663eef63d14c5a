#pragma once
#include <sys/types.h>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/child_group.h"
#include "common/nccl_search.h"
#include "common/progress.h"
#include "nccl-perf/options.h"
#include "nccl-perf/soak.h"
#include "nccl-perf/variant.h"

namespace verbena::tools::nccl {

// One size of one operation over all ranks: the slowest rank's median and p99, and the wrong elements of all.
struct Row {
  std::string operation;
  uint64_t requested_bytes = 0;
  double time_us = 0;
  uint64_t wrong = 0;
  double p99_us = 0;
  Soak soak = {};  // of all ranks
};

// Returns the GPU of a rank: rank modulo the number of GPUs.
int gpu_of_rank(int rank);

// The processes of one variant, from the start to the last exit.
class Run {
 public:
  using OnRow = std::function<void(const Row&)>;

  Run(const NcclPerfOptions& options, const Variant& variant, int ranks, const std::string& log_folder);

  // Returns kExitOk, kExitFailed or kExitHung; prints failures to stderr, with the last lines of the logs.
  int execute(const NcclCandidate& nccl, int argc, const char* const* argv, const OnRow& on_row);

  const std::vector<std::string>& gpu_names() const { return gpu_names_; }
  std::vector<std::string> list_settings() const { return environment_.list_applied(); }
  std::string log_file(int rank) const;

 private:
  struct RankState {
    std::string phase = "start";
    std::string error;
    bool done = false;
  };

  // The deadline by which the next phase must begin.
  int64_t find_deadline_ns() const;
  void start(const NcclCandidate& nccl, int argc, const char* const* argv);
  void place_rails(Environment& environment, int rank) const;
  std::optional<int> handle_event(const ChildEvent& event, const OnRow& on_row);
  void handle_line(size_t rank, const nlohmann::json& line, const OnRow& on_row);
  void add_row(const nlohmann::json& row, const OnRow& on_row);
  void collect_last_words();
  int fail(const std::string& why, bool hung);

  const NcclPerfOptions& options_;
  int ranks_;
  std::string log_folder_;
  std::vector<std::string> variant_arguments_;
  std::string file_prefix_;
  Environment environment_;
  ChildGroup group_;
  std::vector<RankState> states_;
  std::vector<std::string> gpu_names_;
  std::map<std::string, std::pair<int, Row>> partial_rows_;  // by operation and size: ranks heard, joined row
  bool hung_ = false;
  bool progressed_ = false;
  std::string variant_name_;
  uint64_t rows_ = 0;  // reported by all ranks
  Progress progress_;
};

// One line for each thread of a process that hangs: its name, its state and, if the kernel shows it, the
// function that it waits in.
std::vector<std::string> describe_threads(pid_t pid);

// One rank, in its own process, on the GPU with its number. Exchanges lines of JSON over kControlDescriptor:
//   out: "gpu": its name;  "id": NCCL's unique id (rank 0);  "phase": what begins;  "row": one size of one
//        operation;  "error" (and "hung"): why it ends;  "done"
//   in:  "id"
int run_rank(const NcclPerfOptions& options);

}  // namespace verbena::tools::nccl
