// Ranks of verbena-bench symm: Verbena's own contexts.
#include "verbena-bench/symm/rank.cuh"
#include "verbena-bench/symm/session.h"

namespace verbena::tools::symm {
namespace {

class VerbenaSession {
 public:
  using Context = SymmContext;
  explicit VerbenaSession(const SymmPlan& plan) : context_(parse_id(plan.id), plan.rank, plan.count_ranks) {}
  SymmetricContext& context() { return context_; }

 private:
  SymmetricContext context_;
};

}  // namespace

void run_rank(const SymmPlan& plan) {
  run_session<VerbenaSession>(plan);
}

}  // namespace verbena::tools::symm
