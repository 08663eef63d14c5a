#include <filesystem>
#include <string>
#include <vector>

#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/self_path.h"
#include "verbena-bench/shared/rank_processes.h"
#include "verbena-bench/subcommands.h"
#include "verbena-bench/symm/options.h"
#include "verbena-bench/symm/report.h"

namespace verbena::tools::symm {
namespace {

// The ranks of each backend are a separate program beside this one, so that none needs the libraries of
// others, and this one no nvcc.
std::string find_rank_executable(const std::string& backend) {
  const std::string name = "verbena-bench-symm-" + backend;
  const auto found = find_self_executable().parent_path() / name;
  if (!std::filesystem::exists(found))
    throw ToolError(found.string() + " is missing. Build the target " + name +
                    ", which needs nvcc and the backend's headers (tools/verbena-bench/symm/README.md)");
  return found.string();
}

void measure_backend(const SymmOptions& options, const std::string& backend, int gpus,
                     bench::Figures& figures) {
  const std::string id = bench::make_unique_id(), executable = find_rank_executable(backend);
  const auto make_command = [&](unsigned rank) {
    ChildCommand command{executable,
                         {id, std::to_string(rank), std::to_string(figures.ranks()),
                          std::to_string(rank % static_cast<unsigned>(gpus)),
                          std::to_string(options.checks_only ? 0 : options.repeats)},
                         bench::make_rank_environment()};
    if (!options.path.empty()) command.environment.set("VERBENA_SYMM_PATH", options.path);
    return command;
  };
  bench::run_ranks(figures.ranks(), make_command, options.timeout_s, options.output, figures);
}

void print_tables(const SymmOptions& options, const std::vector<BackendFigures>& backends) {
  for (const ResultTable& table : list_result_tables(backends))
    bench::print(options.output, "\n" + format_text(table));
}

int run_all(const SymmOptions& options, int argc, const char* const* argv) {
  const int gpus = require_cuda_devices("verbena-bench symm", "a GPU");
  if (gpus == 0) return kExitNoDevice;
  const auto ranks = static_cast<unsigned>(options.ranks != 0 ? options.ranks : gpus == 1 ? 2 : gpus);
  Result result = begin_result("verbena-bench symm", argc, argv);
  std::vector<BackendFigures> all;
  uint64_t wrong = 0;
  for (const std::string& backend : options.backends) {
    if (options.backends.size() > 1) bench::print(options.output, backend + ":\n");
    bench::Figures& figures =
        all.emplace_back(backend, bench::Figures(ranks, bench::Figures::Join::kFastest)).second;
    measure_backend(options, backend, gpus, figures);
    print_tables(options, {all.back()});
    wrong += figures.wrong();
  }
  if (all.size() > 1) print_tables(options, all);
  result.setup = {{"ranks", std::to_string(ranks) + " on " + std::to_string(gpus) + " GPUs"},
                  {"path", options.path.empty() ? "as VERBENA_SYMM_PATH says" : options.path},
                  {"time", "the time of the fastest rank in each sample"}};
  result.tables = list_result_tables(all);
  result.details = {{"ranks", ranks}};
  return bench::deliver_checked(result, wrong, options.output);
}

}  // namespace

int run_tool(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  return report_errors("verbena-bench symm", [&] { return run_all(parsed.options, argc, argv); });
}

}  // namespace verbena::tools::symm
