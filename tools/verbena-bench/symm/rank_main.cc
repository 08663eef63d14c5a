// The process of a rank, which verbena-bench symm starts.
#include "common/child_group.h"
#include "common/error.h"
#include "verbena-bench/symm/symm_plan.h"

namespace {

constexpr int kArguments = 5;

unsigned read_number(const char* text) {
  return static_cast<unsigned>(std::stoul(text));
}

}  // namespace

int main(int argc, char** argv) {
  using namespace verbena::tools;
  if (argc != 1 + kArguments) {
    std::fprintf(stderr, "%s: start verbena-bench symm instead, which starts this program\n", argv[0]);
    return kExitUsage;
  }
  return report_errors(std::string("verbena-bench symm: rank ") + argv[2], [&] {
    symm::SymmPlan plan;
    plan.id = argv[1];
    plan.rank = read_number(argv[2]);
    plan.count_ranks = read_number(argv[3]);
    plan.gpu = static_cast<int>(read_number(argv[4]));
    plan.rounds = read_number(argv[5]);
    prepare_child_process();
    symm::run_rank(plan);
    return static_cast<int>(kExitOk);
  });
}
