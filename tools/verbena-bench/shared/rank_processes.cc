#include "verbena-bench/shared/rank_processes.h"

#include <cstdio>

#include "common/clock.h"
#include "common/error.h"
#include "common/progress.h"
#include "verbena-bench/shared/rank_identity.h"
#include "verbena/verbena.h"

namespace verbena::tools::bench {
namespace {

constexpr double kLastWordsS = 5;

}  // namespace

std::string make_unique_id() {
  verbena_unique_id id{};
  if (verbena_get_unique_id(&id) != VERBENA_SUCCESS) throw ToolError(verbena_last_error());
  return to_digits(id.bytes, sizeof(id.bytes));
}

void print(const OutputOptions& output, const std::string& text) {
  if (text.empty() || output.takes_stdout()) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

Environment make_rank_environment() {
  Environment environment = Environment::copy_own();
  // Loading a kernel at its first launch waits for running kernels, and they may wait for a peer that waits
  // for us.
  environment.set_default("CUDA_MODULE_LOADING", "EAGER");
  return environment;
}

void run_ranks(unsigned ranks, const std::function<ChildCommand(unsigned rank)>& make_command,
               double timeout_s, const OutputOptions& output, Figures& figures) {
  ChildGroup group;
  for (unsigned rank = 0; rank < ranks; ++rank) group.start(make_command(rank));
  std::string failure, last;
  int64_t deadline_ns = deadline_after_s(timeout_s);
  Progress progress(0);
  for (unsigned left = ranks; left > 0;) {
    const ChildEvent event = group.wait_event(deadline_ns);
    if (event.kind == ChildEvent::Kind::kTimeout) {
      if (!failure.empty()) break;
      throw HangError("no rank has reported progress for " + format_seconds(timeout_s) +
                      (last.empty() ? "" : " after the line \"" + last + "\"") + "; --timeout allows more");
    }
    if (failure.empty()) deadline_ns = deadline_after_s(timeout_s);
    const std::string rank = "rank " + std::to_string(event.child) + ": ";
    if (event.kind == ChildEvent::Kind::kLine) {
      progress.clear();
      last = event.line.substr(0, 60);
      if (!figures.take(event.line)) print(output, rank + event.line + "\n");
      print(output, figures.take_finished_checks());
      progress.show(0, "after: " + last);
      continue;
    }
    --left;
    if (group.exit_status(event.child) == kExitOk || !failure.empty()) continue;
    failure = rank + group.describe_exit(event.child);
    deadline_ns = deadline_after_s(kLastWordsS);
  }
  if (!failure.empty()) throw ToolError(failure);
}

int deliver_checked(Result& result, uint64_t wrong, const OutputOptions& output) {
  result.status = wrong == 0 ? "ok" : "wrong data";
  result.details["wrong"] = wrong;
  return deliver_result(result, output, wrong == 0 ? kExitOk : kExitWrongData);
}

}  // namespace verbena::tools::bench
