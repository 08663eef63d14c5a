#include "nccl-perf/run.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "common/clock.h"
#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/self_path.h"
#include "nccl-perf/nccl_log.h"
#include "nccl-perf/topology_file.h"

namespace verbena::tools::nccl {
namespace {

// The ranks' own deadlines are earlier, because a rank knows better what it waits for.
constexpr double kGraceS = 5;
// After one rank has failed, the others get this long to report the cause.
constexpr double kLastWordsS = 1;
constexpr double kSendTimeoutS = 5;
constexpr size_t kTailLines = 15;

std::string make_file_prefix(const std::string& variant) {
  std::string prefix = variant;
  std::replace(prefix.begin(), prefix.end(), ' ', '-');
  return prefix;
}

}  // namespace

int gpu_of_rank(int rank) {
  std::string why;
  return rank % std::max(count_cuda_devices(why), 1);
}

Run::Run(const NcclPerfOptions& options, const Variant& variant, int ranks, const std::string& log_folder)
    : options_(options),
      ranks_(ranks),
      log_folder_(log_folder),
      variant_arguments_(variant.arguments),
      file_prefix_(make_file_prefix(variant.name)),
      environment_(make_environment(options, variant)),
      states_(static_cast<size_t>(ranks)),
      gpu_names_(static_cast<size_t>(ranks)),
      variant_name_(variant.name),
      progress_(options.operations.size() * options.sizes_bytes.size()) {}

std::string Run::log_file(int rank) const {
  return log_folder_ + "/" + file_prefix_ + ".rank" + std::to_string(rank) + ".log";
}

// Devices that are not in sysfs have no place in NCCL's topology, and without one NCCL uses only one of them.
void Run::place_rails(Environment& environment, int rank) const {
  if (options_.rails < 2 || environment.find("NCCL_TOPO_FILE") != nullptr) return;
  const std::string file =
      log_folder_ + "/" + file_prefix_ + ".rank" + std::to_string(rank) + ".topology.xml";
  write_topology_file(file, gpu_of_rank(rank), options_.rails,
                      options_.join_rails ? RailPlacement::kJoined : RailPlacement::kSideBySide);
  environment.set("NCCL_TOPO_FILE", file);
}

void Run::start(const NcclCandidate& nccl, int argc, const char* const* argv) {
  for (int rank = 0; rank < ranks_; ++rank) {
    ChildCommand command;
    command.executable = find_self_executable().string();
    command.arguments.assign(argv + 1, argv + argc);
    command.arguments.insert(command.arguments.end(), variant_arguments_.begin(), variant_arguments_.end());
    command.arguments.push_back("--child-rank=" + std::to_string(rank));
    command.arguments.push_back("--child-ranks=" + std::to_string(ranks_));
    command.arguments.push_back("--child-nccl=" + nccl.path);
    command.environment = make_rank_environment(environment_, rank, log_file(rank));
    fit_plugin_name(command.environment, nccl.version);
    place_rails(command.environment, rank);
    group_.start(command);
  }
}

int64_t Run::find_deadline_ns() const {
  return deadline_after_s(options_.timeout_s + options_.soak_s + kGraceS);
}

int Run::execute(const NcclCandidate& nccl, int argc, const char* const* argv, const OnRow& on_row) {
  start(nccl, argc, argv);
  int64_t deadline_ns = find_deadline_ns();
  for (;;) {
    const ChildEvent event = group_.wait_event(deadline_ns);
    progressed_ = false;
    if (const auto status = handle_event(event, on_row)) return *status;
    if (progressed_) deadline_ns = find_deadline_ns();
  }
}

std::optional<int> Run::handle_event(const ChildEvent& event, const OnRow& on_row) {
  switch (event.kind) {
    case ChildEvent::Kind::kTimeout:
      return fail("no progress in " + format_seconds(options_.timeout_s + options_.soak_s + kGraceS), true);
    case ChildEvent::Kind::kLine:
      handle_line(event.child, nlohmann::json::parse(event.line), on_row);
      if (states_[event.child].error.empty()) return std::nullopt;
      collect_last_words();
      return fail("rank " + std::to_string(event.child) + " failed first", hung_);
    case ChildEvent::Kind::kExit:
      break;
  }
  if (!states_[event.child].done || group_.exit_status(event.child) != kExitOk) {
    collect_last_words();
    return fail("rank " + std::to_string(event.child) + ": " + group_.describe_exit(event.child), hung_);
  }
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    if (!group_.has_exited(rank)) return std::nullopt;
  }
  progress_.clear();
  return kExitOk;
}

void Run::handle_line(size_t rank, const nlohmann::json& line, const OnRow& on_row) {
  RankState& state = states_[rank];
  if (line.contains("phase")) {
    state.phase = line["phase"].get<std::string>();
    progressed_ = true;
    progress_.show(rows_, variant_name_ + ": " + state.phase);
  }
  if (line.contains("gpu")) gpu_names_[rank] = line["gpu"].get<std::string>();
  if (line.contains("id")) {
    for (size_t other = 1; other < states_.size(); ++other) {
      group_.send_line(other, line.dump(), deadline_after_s(kSendTimeoutS));
    }
  }
  if (line.contains("row")) add_row(line["row"], on_row);
  if (line.contains("error")) {
    state.error = line["error"].get<std::string>();
    hung_ = hung_ || line.value("hung", false);
  }
  if (line.contains("done")) state.done = true;
}

void Run::add_row(const nlohmann::json& row, const OnRow& on_row) {
  const std::string operation = row["operation"];
  const uint64_t requested_bytes = row["requested_bytes"];
  auto& [heard, joined] = partial_rows_[operation + " " + std::to_string(requested_bytes)];
  joined.operation = operation;
  joined.requested_bytes = requested_bytes;
  joined.time_us = std::max(joined.time_us, row["time_us"].get<double>());
  joined.p99_us = std::max(joined.p99_us, row["p99_us"].get<double>());
  joined.wrong += row["wrong"].get<uint64_t>();
  if (row.contains("soak")) merge(joined.soak, parse_soak(row["soak"]));
  if (++heard != ranks_) return;
  ++rows_;
  progress_.clear();
  on_row(joined);
}

void Run::collect_last_words() {
  const int64_t deadline_ns = deadline_after_s(kLastWordsS);
  for (;;) {
    const ChildEvent event = group_.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) return;
    if (event.kind == ChildEvent::Kind::kLine) {
      handle_line(event.child, nlohmann::json::parse(event.line), [](const Row&) {});
    }
  }
}

int Run::fail(const std::string& why, bool hung) {
  progress_.clear();
  std::fflush(stdout);
  std::fprintf(stderr, "nccl-perf: %s\n", why.c_str());
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    const RankState& state = states_[rank];
    std::fprintf(stderr, "nccl-perf: rank %zu (pid %d) in \"%s\": %s\n", rank, group_.pid(rank),
                 state.phase.c_str(),
                 !state.error.empty()      ? state.error.c_str()
                 : group_.has_exited(rank) ? group_.describe_exit(rank).c_str()
                                           : "no error line");
    if (!hung || group_.has_exited(rank)) continue;
    for (const std::string& thread : describe_threads(group_.pid(rank))) {
      std::fprintf(stderr, "nccl-perf:   thread %s\n", thread.c_str());
    }
  }
  group_.kill_all();
  for (int rank = 0; rank < ranks_; ++rank) {
    std::fprintf(stderr, "nccl-perf: last lines of %s:\n", log_file(rank).c_str());
    for (const std::string& line : take_last_lines(read_whole_file(log_file(rank)), kTailLines)) {
      std::fprintf(stderr, "    %s\n", line.c_str());
    }
  }
  return hung ? kExitHung : kExitFailed;
}

namespace {

std::string read_first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "1234 (name) S ..." -> "S"; the name may hold spaces and brackets.
std::string extract_state(const std::string& stat) {
  const size_t end = stat.rfind(") ");
  return end == std::string::npos ? "?" : stat.substr(end + 2, 1);
}

}  // namespace

std::vector<std::string> describe_threads(pid_t pid) {
  std::vector<std::string> lines;
  std::error_code error;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, error)) {
    const std::string waits_in = read_first_line(task.path() / "wchan");
    lines.push_back(task.path().filename().string() + " " + read_first_line(task.path() / "comm") + ": " +
                    extract_state(read_first_line(task.path() / "stat")) +
                    (waits_in.empty() || waits_in == "0" ? "" : " in " + waits_in));
  }
  return lines;
}

}  // namespace verbena::tools::nccl
