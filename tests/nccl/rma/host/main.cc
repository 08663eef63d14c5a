// Processes that drive the tables of NCCL's device API as NCCL's proxy does, without a GPU, over whatever
// device the environment names: every signal counted, every payload checked, ranks that are slow or die;
// latency and rate.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "common/clock.h"
#include "common/error.h"
#include "common/self_path.h"
#include "nccl/rma/host/rank.h"

namespace {

using namespace verbena::nccl::testing;
namespace tools = verbena::tools;

// Collects those that end within the time, and kills the others. Behind one that failed, other than by
// `killed`, the others have little time left: they wait for it in vain.
std::vector<int> wait_for(const std::vector<pid_t>& processes, double seconds, int killed) {
  constexpr double kPatienceS = 5;
  std::vector<int> states(processes.size(), -1);
  int64_t deadline_ns = tools::deadline_after_s(seconds);
  size_t left = processes.size();
  while (left > 0) {
    for (size_t i = 0; i < processes.size(); ++i) {
      if (states[i] != -1 || waitpid(processes[i], &states[i], WNOHANG) != processes[i]) continue;
      --left;
      if (states[i] != 0 && static_cast<int>(i) != killed)
        deadline_ns = std::min(deadline_ns, tools::deadline_after_s(kPatienceS));
    }
    if (tools::now_ns() > deadline_ns) {
      for (size_t i = 0; i < processes.size(); ++i) {
        if (states[i] == -1) kill(processes[i], SIGKILL);
      }
    }
    usleep(1000);
  }
  return states;
}

struct Total {
  uint64_t messages = 0, failed_queue_pairs = 0;
  uint32_t bad = 0;
};

Total print_reports(const RunOptions& options, Meeting& meeting, const std::vector<int>& states) {
  Total total;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    const RankReport& report = meeting.reports[rank];
    const bool is_killed = static_cast<int>(rank) == options.killed;
    const bool is_right =
        is_killed ? WIFSIGNALED(states[rank]) != 0 : states[rank] == 0 && report.problem[0] == 0;
    std::printf("rank %u: %s: %lu messages received, %lu wrong, %lu calls, queue pairs failed %lu", rank,
                is_killed  ? "killed"
                : is_right ? "ok"
                           : "BAD",
                report.messages.load(), report.wrong.load(), report.calls.load(),
                report.failed_queue_pairs.load());
    if (report.loss_ms >= 0) std::printf(", error %ld ms after the death", report.loss_ms.load());
    std::printf("%s%s\n", report.problem[0] != 0 ? ": " : "", report.problem.data());
    if (!is_right && report.problem[0] == 0) std::printf("  it ended with state %#x\n", states[rank]);
    total.messages += report.messages;
    total.failed_queue_pairs += report.failed_queue_pairs;
    if (!is_right) ++total.bad;
  }
  return total;
}

int run(const RunOptions& options, bool expects_failures) {
  Meeting& meeting = Meeting::make();
  Figures& figures = *static_cast<Figures*>(
      mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> processes;
  for (uint32_t rank = 0; rank < options.ranks; ++rank) {
    std::fflush(nullptr);
    const pid_t process = fork();
    if (process == 0) {
      run_rank(options, rank, meeting, &figures);
      std::fflush(nullptr);
      _exit(meeting.reports[rank].problem[0] == 0 ? 0 : 1);
    }
    processes.push_back(process);
  }
  const int64_t begin_ns = tools::now_ns();
  const std::vector<int> states = wait_for(processes, options.seconds + 30, options.killed);
  const double seconds = static_cast<double>(tools::now_ns() - begin_ns) * 1e-9;
  const Total total = print_reports(options, meeting, states);
  if (options.work == Work::kLatency)
    std::printf("latency of a put of %u bytes with its signal, one way: median %.2f us, p99 %.2f us\n",
                options.bytes, figures.median_us, figures.p99_us);
  if (options.work == Work::kRate)
    std::printf("puts of %u bytes with their signals: %.0f per second\n", options.bytes, figures.rate);
  const bool lacks_failures = expects_failures && total.failed_queue_pairs == 0;
  std::printf("%s: %lu messages, queue pairs failed %lu, %.1f s: %s\n", options.table.c_str(), total.messages,
              total.failed_queue_pairs, seconds,
              total.bad != 0   ? "BAD"
              : lacks_failures ? "BAD: the plan of faults struck nothing"
                               : "ok");
  return total.bad == 0 && !lacks_failures ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Drives the tables of NCCL's device API as NCCL does, without a GPU");
  RunOptions options;
  bool expects_failures = false;
  options.plugin = tools::find_default_plugin().string();
  const std::map<std::string, Work> works{
      {"count", Work::kCount}, {"latency", Work::kLatency}, {"rate", Work::kRate}};
  app.add_option("--work", options.work, "count, latency or rate")->transform(CLI::CheckedTransformer(works));
  app.add_option("--plugin", options.plugin, "the library");
  app.add_option("--table", options.table, "the symbol")->capture_default_str();
  app.add_option("--ranks", options.ranks, "processes")
      ->check(CLI::Range(1U, kMaxRanks))
      ->capture_default_str();
  app.add_option("--contexts", options.contexts)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--rails", options.rails, "devices that each rank joins to one")->capture_default_str();
  app.add_option("--rounds", options.rounds, "communicators, one after the other")->capture_default_str();
  app.add_option("--messages", options.messages, "of each rank, in a round")->capture_default_str();
  app.add_option("--bytes", options.bytes, "the longest payload")->capture_default_str();
  app.add_option("--slow", options.slow, "the rank that waits between its steps");
  app.add_option("--kill", options.killed, "the rank that dies in the middle");
  app.add_option("--seconds", options.seconds, "for the run")->capture_default_str();
  app.add_flag("--expect-failures", expects_failures, "bad if no queue pair failed");
  app.add_flag("--gpu-words", options.has_gpu_words, "signals are counted in GPU memory");
  app.add_flag("-v,--verbose", options.is_verbose, "the plugin's log");
  CLI11_PARSE(app, argc, argv);
  // Another run beside this one is none of its network.
  setenv("SOFTVERBS_JOB", ("gin-host-" + std::to_string(getpid())).c_str(), 0);
  return run(options, expects_failures);
}
