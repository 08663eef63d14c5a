#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/child_group.h"
#include "common/clock.h"
#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/progress.h"
#include "common/self_path.h"
#include "verbena-bench/symm/figures.h"
#include "verbena-bench/symm/options.h"
#include "verbena/verbena.h"

namespace verbena::tools::symm {
namespace {

constexpr double kLastWordsS = 5;

std::string make_id() {
  verbena_unique_id id{};
  if (verbena_get_unique_id(&id) != VERBENA_SUCCESS) throw ToolError(verbena_last_error());
  std::string digits;
  for (const uint8_t byte : id.bytes) {
    char pair[3];
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    digits += pair;
  }
  return digits;
}

// The ranks of each backend are a separate program beside this one, so that none needs the libraries of
// others.
std::string find_rank_executable(const std::string& backend) {
  const auto self = find_self_executable();
  if (backend == "verbena") return self.string();
  const auto found = self.parent_path() / ("verbena-symm-" + backend);
  if (!std::filesystem::exists(found))
    throw ToolError(found.string() +
                    " is missing: build it with the backend's headers (tools/verbena-bench/symm/README.md)");
  return found.string();
}

void start_ranks(ChildGroup& group, const Options& options, const std::string& backend, int gpus) {
  const std::string id = make_id();
  const std::string executable = find_rank_executable(backend);
  for (int rank = 0; rank < options.ranks; ++rank) {
    ChildCommand command;
    command.executable = executable;
    command.arguments = {"--ranks",   std::to_string(options.ranks),
                         "--rank",    std::to_string(rank),
                         "--rank-of", id,
                         "--gpu",     std::to_string(rank % gpus),
                         "--repeats", std::to_string(options.repeats)};
    if (options.checks_only) command.arguments.push_back("--check");
    command.environment = Environment::copy_own();
    // Loading a kernel at its first launch waits for running kernels, and they may wait for a peer that waits
    // for us.
    command.environment.set_default("CUDA_MODULE_LOADING", "EAGER");
    if (!options.path.empty()) command.environment.set("VERBENA_SYMM_PATH", options.path);
    group.start(command);
  }
}

// Prints nothing if standard output is reserved for the result.
void print(const Options& options, const std::string& text) {
  if (text.empty() || options.output.takes_stdout()) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Shows each check when the last rank has finished it, so that the user sees the progress.
void show_checks(Figures& figures, const Options& options) {
  print(options, figures.take_finished_checks(options.ranks));
}

// Waits until all ranks have ended; a rank that fails prints its error itself.
void collect(ChildGroup& group, const Options& options, Figures& figures) {
  std::string failure;
  int left = options.ranks;
  int64_t deadline_ns = deadline_after_s(options.timeout_s);
  Progress progress(0);
  while (left > 0) {
    const ChildEvent event = group.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) {
      if (!failure.empty()) break;
      throw HangError("no rank reported anything for " + format_seconds(options.timeout_s));
    }
    if (failure.empty()) deadline_ns = deadline_after_s(options.timeout_s);
    if (event.kind == ChildEvent::Kind::kLine) {
      progress.clear();
      if (!figures.take(event.line))
        print(options, "rank " + std::to_string(event.child) + ": " + event.line + "\n");
      show_checks(figures, options);
      progress.show(0, "after: " + event.line.substr(0, event.line.find(' ', event.line.find(' ') + 1)));
      continue;
    }
    --left;
    if (group.exit_status(event.child) == kExitOk || !failure.empty()) continue;
    failure = "rank " + std::to_string(event.child) + ": " + group.describe_exit(event.child);
    deadline_ns = deadline_after_s(kLastWordsS);
  }
  if (!failure.empty()) throw ToolError(failure);
}

int run_parent(Options options, int argc, const char* const* argv) {
  std::string why;
  const int gpus = count_cuda_devices(why);
  if (gpus == 0) {
    std::fprintf(stderr, "no CUDA device: verbena-symm needs a GPU%s\n",
                 why.empty() ? "" : (" (" + why + ")").c_str());
    return kExitNoDevice;
  }
  if (options.ranks == 0) options.ranks = gpus == 1 ? 2 : gpus;
  const auto ranks = static_cast<unsigned>(options.ranks);
  Result result = begin_result("verbena-symm", argc, argv);
  std::vector<BackendFigures> all;
  uint64_t wrong = 0;
  for (const std::string& backend : options.backends) {
    if (options.backends.size() > 1) print(options, backend + ":\n");
    ChildGroup group;
    BackendFigures& one = all.emplace_back(backend, Figures());
    start_ranks(group, options, backend, gpus);
    collect(group, options, one.second);
    print(options, "\n" + one.second.format_table(ranks) + "\n");
    wrong += one.second.wrong();
  }
  if (all.size() > 1) print(options, format_comparison(all, ranks));
  result.setup = {{"ranks", std::to_string(ranks) + " on " + std::to_string(gpus) + " GPUs"},
                  {"path", options.path.empty() ? "as VERBENA_SYMM_PATH says" : options.path},
                  {"time", "of each sample the fastest rank's"}};
  result.status = wrong == 0 ? "ok" : "wrong data";
  result.tables = list_result_tables(all);
  result.details = {{"ranks", ranks}, {"wrong", wrong}};
  return deliver_result(result, options.output, wrong == 0 ? kExitOk : kExitWrongData);
}

int run_tool(int argc, char** argv) {
  const ParsedOptions parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const Options& options = parsed.options;
  const std::string rank = options.is_rank ? ": rank " + std::to_string(options.rank_plan.rank) : "";
  return report_errors("verbena-symm" + rank, [&] {
    if (!options.is_rank) return run_parent(options, argc, argv);
    prepare_child_process();
    run_rank(options.rank_plan);
    return static_cast<int>(kExitOk);
  });
}

}  // namespace
}  // namespace verbena::tools::symm

int main(int argc, char** argv) {
  return verbena::tools::symm::run_tool(argc, argv);
}
