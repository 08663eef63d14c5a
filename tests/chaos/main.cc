// Real processes over softverbs, faults at random moments, every byte verified. README.md says how to use it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>

#include "chaos/round.h"
#include "chaos/tally.h"
#include "chaos/worker.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/self_path.h"

namespace {

using namespace verbena::chaos;
namespace tools = verbena::tools;

struct Options {
  uint64_t seed = 1, rounds = 20;
  int64_t round = -1;
  double seconds = 0;
  std::vector<Fault> faults{std::begin(kFaults), std::end(kFaults)};
  RoundLimits limits;
  bool is_verbose = false;
};

void print_problems(const RoundPlan& plan, const RoundResult& result, const std::string& faults) {
  std::printf("BAD round %lu (%s): %s\n", plan.round, describe_fault(plan.fault), plan.describe().c_str());
  for (const std::string& problem : result.problems) std::printf("  %s\n", problem.c_str());
  std::printf("  repeat: verbena-chaos --seed %lu --round %lu%s\n", plan.seed, plan.round, faults.c_str());
}

// Stops after the current round, which cleans up and reports.
std::atomic<bool> is_asked_to_stop{false};

void stop_on_signals() {
  for (const int number : {SIGINT, SIGTERM})
    std::signal(number, [](int) { is_asked_to_stop.store(true, std::memory_order_relaxed); });
}

int run(const Options& options, const std::string& plugin, const std::string& faults) {
  Tally tally;
  const uint64_t first = options.round < 0 ? 0 : static_cast<uint64_t>(options.round);
  const uint64_t count = options.round < 0 ? options.rounds : 1;
  const int64_t begin_ns = tools::now_ns();
  uint64_t done = 0;
  for (; done < count && !is_asked_to_stop; ++done) {
    if (options.seconds != 0 && tools::now_ns() - begin_ns > static_cast<int64_t>(options.seconds * 1e9))
      break;
    const RoundPlan plan = make_plan(options.seed, first + done, options.faults);
    const RoundResult result = run_round(plan, plugin, options.limits);
    tally.add(plan, result);
    if (!result.problems.empty()) {
      print_problems(plan, result, faults);
    } else if (options.is_verbose) {
      std::printf("ok round %lu (%s, %.2f s", plan.round, describe_fault(plan.fault), result.seconds);
      for (const double took_ms : result.stalls_ms) std::printf(", stall %.0f ms", took_ms);
      for (const double took_ms : result.reactions_ms) std::printf(", error after %.0f ms", took_ms);
      std::printf("): %s\n", plan.describe().c_str());
    }
    std::fflush(stdout);
  }
  tally.print();
  std::printf("\nseed %lu, %lu of %lu rounds in %.0f s, %lu bad\n", options.seed, done, count,
              static_cast<double>(tools::now_ns() - begin_ns) * 1e-9, tally.problems());
  return tally.problems() == 0 ? tools::kExitOk : tools::kExitFailed;
}

void add_options(CLI::App& app, Options& options, std::vector<std::string>& faults) {
  app.add_option("--seed", options.seed, "of all rounds")->capture_default_str();
  app.add_option("--rounds", options.rounds, "how many")->capture_default_str();
  app.add_option("--round", options.round, "only this one");
  app.add_option("--seconds", options.seconds, "no round begins later");
  app.add_option("--faults", faults, "only these: none,kill,stop,flap,blackout,plan,leave")->delimiter(',');
  app.add_option("--hang", options.limits.hang_s, "seconds without a word of either end that are a hang")
      ->capture_default_str();
  app.add_option("--hold", options.limits.hold_s,
                 "seconds for which a round that hangs is left for a debugger");
  app.add_flag("-v,--verbose", options.is_verbose, "a line a round");
}

void add_worker_options(CLI::App& app, WorkerOptions& worker) {
  app.add_option("--plugin", worker.plugin, "libnccl-net.so");
  app.add_option("--end", worker.end)->group("");
  app.add_option("--life", worker.first_life)->group("");
  app.add_option("--output", worker.output)->group("");
  app.add_option("--traffic", worker.traffic)->group("");
}

std::vector<Fault> choose_faults(const std::vector<std::string>& names) {
  std::vector<Fault> faults;
  for (const Fault fault : kFaults)
    if (std::count(names.begin(), names.end(), describe_fault(fault)) != 0) faults.push_back(fault);
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Two processes exchange verified messages over softverbs while things fail."};
  Options options;
  WorkerOptions worker;
  worker.plugin = tools::find_default_plugin().string();
  std::vector<std::string> faults;
  add_options(app, options, faults);
  add_worker_options(app, worker);
  CLI11_PARSE(app, argc, argv);
  if (!worker.traffic.empty()) return run_worker(worker);
  if (!faults.empty()) options.faults = choose_faults(faults);
  std::string repeated;
  for (const std::string& fault : faults) repeated += (repeated.empty() ? " --faults " : ",") + fault;
  try {
    stop_on_signals();
    return run(options, worker.plugin, repeated);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-chaos: %s\n", error.what());
    return tools::kExitFailed;
  }
}
