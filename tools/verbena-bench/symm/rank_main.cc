// The process of a rank, which verbena-bench symm starts.
#include "common/child_group.h"
#include "common/error.h"
#include "common/option_style.h"
#include "common/self_path.h"
#include "verbena-bench/symm/symm_plan.h"

int main(int argc, char** argv) {
  using namespace verbena::tools;
  symm::SymmPlan plan;
  CLI::App app("The process of a rank. verbena-bench symm starts it with these arguments.");
  app.add_option("ID", plan.id, "unique id of the ranks")->required();
  app.add_option("RANK", plan.rank, "this rank")->required();
  app.add_option("RANKS", plan.count_ranks, "number of ranks")->required();
  app.add_option("GPU", plan.gpu, "device index")->required();
  app.add_option("SAMPLES", plan.rounds, "samples of each figure; 0 means checks only")->required();
  style_help(app, find_self_executable().filename());
  const int status = parse_arguments(app, argc, argv, [] {});
  if (status >= 0) return status;
  return report_errors("verbena-bench symm: rank " + std::to_string(plan.rank), [&] {
    prepare_child_process();
    symm::run_rank(plan);
    return static_cast<int>(kExitOk);
  });
}
