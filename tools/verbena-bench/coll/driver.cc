#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "common/cuda_driver.h"
#include "common/error.h"
#include "common/self_path.h"
#include "common/tcp.h"
#include "tuner/calibration_file.h"
#include "verbena-bench/coll/contenders.h"
#include "verbena-bench/coll/options.h"
#include "verbena-bench/coll/report.h"
#include "verbena-bench/shared/rank_processes.h"
#include "verbena-bench/subcommands.h"

namespace verbena::tools::coll {
namespace {

constexpr const char* kNccl = "nccl";

template <typename T>
std::string join(const std::vector<T>& parts) {
  std::ostringstream text;
  for (const T& part : parts) text << (&part == &parts.front() ? "" : ",") << part;
  return text.str();
}

// A rank has the arguments of this process, and its identity.
void measure_ours(const CollOptions& options, int gpus, int argc, const char* const* argv,
                  bench::Figures& figures) {
  const CollPlan& plan = options.rank_plan;
  std::string shared = bench::make_unique_id() + "," + std::to_string(plan.count_ranks);
  if (std::count(options.against.begin(), options.against.end(), kNccl) != 0)
    shared += "," + make_nccl_id(plan.nccl_library);
  const auto make_command = [&](unsigned rank) {
    ChildCommand command{find_self_executable().string(), {"coll"}, bench::make_rank_environment()};
    command.arguments.insert(command.arguments.end(), argv + 1, argv + argc);
    const auto gpu = std::to_string(rank % static_cast<unsigned>(gpus));
    command.arguments.push_back("--rank-of=" + std::to_string(rank) + "," + gpu + "," + shared);
    if (plan.hosts > 1)
      command.environment.set("VERBENA_HOSTID",
                              "host-" + std::to_string(rank / (plan.count_ranks / plan.hosts)));
    return command;
  };
  bench::run_ranks(plan.count_ranks, make_command, plan.timeout_s, options.output, figures);
}

// If a contender that works on PyTorch tensors fails, its figures so far are kept.
void measure_torch(const CollOptions& options, const std::string& contender, bench::Figures& figures) {
  const CollPlan& plan = options.rank_plan;
  const uint16_t port = TcpListener(0).port();  // a free one, at which the ranks meet
  const auto make_command = [&](unsigned rank) {
    ChildCommand command{options.python,
                         {find_own_file("verbena-bench-torch.py").string(), contender, join(plan.operations),
                          join(plan.sizes), join(plan.types), std::to_string(plan.hidden),
                          std::to_string(plan.repeats), std::to_string(plan.chain)},
                         Environment::copy_own()};
    command.environment.set("RANK", std::to_string(rank));
    command.environment.set("LOCAL_RANK", std::to_string(rank));
    command.environment.set("WORLD_SIZE", std::to_string(plan.count_ranks));
    command.environment.set("MASTER_ADDR", "127.0.0.1");
    command.environment.set("MASTER_PORT", std::to_string(port));
    return command;
  };
  try {
    bench::run_ranks(plan.count_ranks, make_command, plan.timeout_s, options.output, figures);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-bench coll: %s failed and is skipped from here on: %s\n", contender.c_str(),
                 error.what());
  }
}

// The file keeps what else is in it.
void write_calibration(const std::string& path, const std::vector<tuner::OpsMeasurement>& measurements) {
  tuner::Calibration calibration;
  if (std::filesystem::exists(path)) {
    const auto parsed = tuner::read_calibration_file(path);
    if (!parsed.calibration) throw ToolError(path + ": " + parsed.problem);
    calibration = *parsed.calibration;
  }
  tuner::put_ops_measurements(calibration, measurements);
  calibration.notes["ops"] = describe_release("verbena-bench coll");
  if (const std::string problem = tuner::write_calibration_file(path, calibration); !problem.empty())
    throw ToolError(path + ": " + problem);
}

// Between hosts, the library compares algorithms by their times for bfloat16. Throws UsageError.
void check_comparison(const CollPlan& plan) {
  const auto has = [](const std::vector<std::string>& all, const std::string& one) {
    return std::find(all.begin(), all.end(), one) != all.end();
  };
  if (!has(plan.types, "bf16"))
    throw UsageError("--calibrate with --hosts needs measurements of bfloat16; add bf16 to --type");
  for (const std::string& operation : plan.operations)
    if (!has(plan.operations, plain_name(operation)))
      throw UsageError("--calibrate with " + operation + " needs " + plain_name(operation) +
                       " for the comparison. Add this operation to --operation");
}

// Throws UsageError.
void choose_ranks(CollOptions& options, int gpus) {
  CollPlan& plan = options.rank_plan;
  if (options.ranks == 0) options.ranks = plan.measures ? gpus : std::max(gpus, 2);
  if (options.ranks < 2)
    throw UsageError("--ranks " + std::to_string(options.ranks) + ": the number of ranks must be at least 2");
  if (plan.measures && options.ranks > gpus)
    std::fprintf(
        stderr,
        "note: several ranks share a GPU, so the results do not show the speed of links between GPUs\n");
  plan.count_ranks = static_cast<unsigned>(options.ranks);
  if (plan.count_ranks % plan.hosts != 0)
    throw UsageError("--hosts " + std::to_string(plan.hosts) + ": " + std::to_string(plan.count_ranks) +
                     " ranks cannot be divided evenly among these hosts");
  if (!options.calibrate.empty() && plan.hosts > 1) check_comparison(plan);
}

int run_parent(CollOptions options, int argc, const char* const* argv) {
  const int gpus = require_cuda_devices("verbena-bench coll", "GPUs");
  if (gpus == 0) return kExitNoDevice;
  choose_ranks(options, gpus);
  const unsigned ranks = options.rank_plan.count_ranks;
  Result result = begin_result("verbena-bench coll", argc, argv);
  bench::Figures figures(ranks, bench::Figures::Join::kSlowest);
  measure_ours(options, gpus, argc, argv, figures);
  for (const std::string& contender : options.against)
    if (contender != kNccl) measure_torch(options, contender, figures);
  const Report report(figures, options.rank_plan.chain);
  if (!options.calibrate.empty())
    write_calibration(options.calibrate, report.list_measurements(options.rank_plan.hosts));
  const std::string table = report.format_table();
  if (!table.empty()) bench::print(options.output, "\n" + table);
  result.setup = {{"ranks", std::to_string(ranks) + " on " + std::to_string(gpus) + " GPUs"},
                  {"time",
                   "time per operation on the slowest rank, from graphs of different lengths, in which each "
                   "operation uses the previous result"}};
  result.tables = report.list_tables();
  result.details = {{"ranks", ranks}};
  return bench::deliver_checked(result, figures.wrong(), options.output);
}

}  // namespace

int run_tool(int argc, char** argv) {
  const auto parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const CollOptions& options = parsed.options;
  const std::string rank = options.is_rank ? ": rank " + std::to_string(options.rank_plan.rank) : "";
  return report_errors("verbena-bench coll" + rank, [&] {
    if (!options.is_rank) return run_parent(options, argc, argv);
    prepare_child_process();
    run_rank(options.rank_plan);
    return static_cast<int>(kExitOk);
  });
}

}  // namespace verbena::tools::coll
