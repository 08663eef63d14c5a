#include <algorithm>
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
#include "common/tcp.h"
#include "tuner/calibration_file.h"
#include "verbena-bench/coll/contenders.h"
#include "verbena-bench/coll/figures.h"
#include "verbena-bench/coll/options.h"

namespace verbena::tools::coll {
namespace {

constexpr double kLastWordsS = 5;

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
  return text;
}

std::string list_numbers(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> parts;
  parts.reserve(numbers.size());
  for (const uint64_t number : numbers) parts.push_back(std::to_string(number));
  return join(parts);
}

void start_ranks(ChildGroup& group, const Options& options, int gpus) {
  verbena_unique_id id{};
  if (verbena_get_unique_id(&id) != VERBENA_SUCCESS) throw ToolError(verbena_last_error());
  const CollPlan& plan = options.rank_plan;
  std::vector<std::string> common = {"--rank-of",     to_digits(id.bytes, sizeof(id.bytes)),
                                     "--ranks",       std::to_string(options.ranks),
                                     "--size",        list_numbers(plan.sizes),
                                     "--type",        join(plan.types),
                                     "--operation",   join(plan.operations),
                                     "--repeats",     std::to_string(plan.repeats),
                                     "--chain",       std::to_string(plan.chain),
                                     "--blocks",      std::to_string(plan.blocks),
                                     "--timeout",     std::to_string(plan.timeout_s),
                                     "--packets",     std::to_string(plan.packet_bytes),
                                     "--hidden",      std::to_string(plan.hidden),
                                     "--hosts",       std::to_string(plan.hosts),
                                     "--soak",        std::to_string(plan.soak),
                                     "--random",      std::to_string(plan.random),
                                     "--seed",        std::to_string(plan.seed),
                                     "--experts",     std::to_string(plan.moe_experts),
                                     "--top-k",       std::to_string(plan.moe_top_k),
                                     "--row-bytes",   std::to_string(plan.moe_row_bytes),
                                     "--scale-bytes", std::to_string(plan.moe_scale_bytes)};
  if (!plan.moe_tokens.empty()) {
    const std::vector<uint64_t> tokens(plan.moe_tokens.begin(), plan.moe_tokens.end());
    common.insert(common.end(), {"--moe", list_numbers(tokens)});
  }
  if (!plan.library.empty()) common.insert(common.end(), {"--library", plan.library});
  if (!plan.checks) common.emplace_back("--no-check");
  if (!plan.measures) common.emplace_back("--check");
  if (!plan.all_shapes) common.emplace_back("--chosen");
  if (plan.delay_us != 0) common.insert(common.end(), {"--delay", std::to_string(plan.delay_us)});
  if (plan.is_quick) common.emplace_back("--quick");
  if (plan.pdl) common.emplace_back("--pdl");
  if (has(options.against, "nccl")) {
    const std::string nccl_id = make_nccl_id(plan.nccl_library);
    common.insert(common.end(), {"--against", "nccl", "--nccl", plan.nccl_library, "--nccl-id", nccl_id});
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    ChildCommand command;
    command.executable = find_self_executable().string();
    command.arguments = common;
    command.arguments.insert(command.arguments.end(),
                             {"--rank", std::to_string(rank), "--gpu", std::to_string(rank % gpus)});
    command.environment = Environment::copy_own();
    // Loading a kernel at its first launch waits for running kernels, and they may wait for a peer that waits
    // for us.
    command.environment.set_default("CUDA_MODULE_LOADING", "EAGER");
    const auto of_host = static_cast<unsigned>(options.ranks) / plan.hosts;
    if (plan.hosts > 1)
      command.environment.set("VERBENA_HOSTID",
                              "host-" + std::to_string(static_cast<unsigned>(rank) / of_host));
    group.start(command);
  }
}

// `port`: a free one, at which the contender's ranks meet.
void start_torch(ChildGroup& group, const Options& options, const std::string& contender, uint16_t port) {
  const CollPlan& plan = options.rank_plan;
  for (int rank = 0; rank < options.ranks; ++rank) {
    ChildCommand command;
    command.executable = options.python;
    command.arguments = {find_own_file("verbena-coll-torch.py").string(),
                         contender,
                         join(plan.operations),
                         list_numbers(plan.sizes),
                         join(plan.types),
                         std::to_string(plan.hidden),
                         std::to_string(plan.repeats),
                         std::to_string(plan.chain)};
    command.environment = Environment::copy_own();
    command.environment.set("RANK", std::to_string(rank));
    command.environment.set("LOCAL_RANK", std::to_string(rank));
    command.environment.set("WORLD_SIZE", std::to_string(options.ranks));
    command.environment.set("MASTER_ADDR", "127.0.0.1");
    command.environment.set("MASTER_PORT", std::to_string(port));
    group.start(command);
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
  calibration.notes["ops"] = "verbena-coll " VERBENA_RELEASE;
  if (const std::string problem = tuner::write_calibration_file(path, calibration); !problem.empty())
    throw ToolError(path + ": " + problem);
}

// Prints nothing if standard output is reserved for the result.
void print(const Options& options, const std::string& text) {
  if (text.empty() || options.output.takes_stdout()) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Waits until all ranks have ended; a rank that fails prints its error itself.
void collect(ChildGroup& group, const Options& options, Figures& figures) {
  std::string failure, last;
  int left = options.ranks;
  int64_t deadline_ns = deadline_after_s(options.rank_plan.timeout_s);
  Progress progress(0);
  while (left > 0) {
    const ChildEvent event = group.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) {
      if (!failure.empty()) break;
      throw HangError("no rank reported anything for " + format_seconds(options.rank_plan.timeout_s) +
                      (last.empty() ? "" : " after the line \"" + last + "\"") + "; --timeout allows more");
    }
    if (failure.empty()) deadline_ns = deadline_after_s(options.rank_plan.timeout_s);
    if (event.kind == ChildEvent::Kind::kLine) {
      progress.clear();
      last = event.line.substr(0, 60);
      if (!figures.take(event.line))
        print(options, "rank " + std::to_string(event.child) + ": " + event.line + "\n");
      print(options, figures.take_finished_checks());
      progress.show(0, "after: " + last);
      continue;
    }
    --left;
    if (group.exit_status(event.child) == kExitOk || !failure.empty()) continue;
    failure = "rank " + std::to_string(event.child) + ": " + group.describe_exit(event.child);
    deadline_ns = deadline_after_s(kLastWordsS);
  }
  if (!failure.empty()) throw ToolError(failure);
}

// If a contender that works on PyTorch tensors fails, its figures so far are kept.
void measure_torch(const Options& options, const std::string& contender, Figures& figures) {
  try {
    ChildGroup group;
    start_torch(group, options, contender, TcpListener(0).port());
    collect(group, options, figures);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-coll: %s failed and is skipped from here on: %s\n", contender.c_str(),
                 error.what());
  }
}

int run_parent(Options options, int argc, const char* const* argv) {
  std::string why;
  const int gpus = count_cuda_devices(why);
  if (gpus == 0) {
    std::fprintf(stderr, "no CUDA device: verbena-coll needs GPUs%s\n",
                 why.empty() ? "" : (" (" + why + ")").c_str());
    return kExitNoDevice;
  }
  const bool measures = options.rank_plan.measures;
  if (options.ranks == 0) options.ranks = measures ? gpus : std::max(gpus, 2);
  if (options.ranks < 2)
    throw UsageError("--ranks " + std::to_string(options.ranks) + ": ranks are 2 or more");
  if (measures && options.ranks > gpus)
    std::fprintf(stderr, "note: ranks share GPUs, so no figure includes a link between GPUs\n");
  const auto ranks = static_cast<unsigned>(options.ranks);
  if (ranks % options.rank_plan.hosts != 0)
    throw UsageError("--hosts " + std::to_string(options.rank_plan.hosts) + ": " + std::to_string(ranks) +
                     " ranks cannot be divided evenly among them");
  Result result = begin_result("verbena-coll", argc, argv);
  Figures figures(ranks, options.rank_plan.chain);
  {
    ChildGroup group;
    start_ranks(group, options, gpus);
    collect(group, options, figures);
  }
  for (const std::string& contender : options.against)
    if (contender != "nccl") measure_torch(options, contender, figures);
  if (!options.calibrate.empty()) write_calibration(options.calibrate, figures.list_measurements());
  const std::string table = figures.format_table();
  if (!table.empty()) print(options, "\n" + table);
  const uint64_t wrong = figures.wrong();
  result.setup = {{"ranks", std::to_string(ranks) + " on " + std::to_string(gpus) + " GPUs"},
                  {"time",
                   "time per operation on the slowest rank, from graphs of different lengths, in which each "
                   "operation uses the previous result"}};
  result.status = wrong == 0 ? "ok" : "wrong data";
  result.tables = figures.list_tables();
  result.details = {{"ranks", ranks}, {"wrong", wrong}};
  return deliver_result(result, options.output, wrong == 0 ? kExitOk : kExitWrongData);
}

int run_tool(int argc, char** argv) {
  const ParsedOptions parsed = parse_options(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const Options& options = parsed.options;
  const std::string rank = options.is_rank ? ": rank " + std::to_string(options.rank_plan.rank) : "";
  return report_errors("verbena-coll" + rank, [&] {
    if (!options.is_rank) return run_parent(options, argc, argv);
    prepare_child_process();
    run_rank(options.rank_plan);
    return static_cast<int>(kExitOk);
  });
}

}  // namespace
}  // namespace verbena::tools::coll

int main(int argc, char** argv) {
  return verbena::tools::coll::run_tool(argc, argv);
}
