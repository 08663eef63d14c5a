// What verbena/moe.h refuses, since blocks that wait for each other must all be resident.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/rank_process.h"
#include "verbena/moe.h"

namespace verbena {
namespace {

constexpr uint32_t kMultiprocessors = 132;  // of the emulated GPU

verbena_moe_options make_options(uint32_t blocks) {
  verbena_moe_options options{};
  options.experts = 4;
  options.max_tokens = 8;
  options.top_k = 2;
  options.hidden = 8;
  options.blocks = blocks;
  return options;
}
class Moe {
 public:
  Moe(Rank& rank, uint32_t blocks) {
    const verbena_moe_options options = make_options(blocks);
    check(verbena_moe_create(rank.context().handle(), verbena_team_world(rank.context().handle()), &options,
                             &moe_));
    verbena_moe_layout layout{};
    check(verbena_moe_get_layout(moe_, &layout));
    handle_.resize(layout.bytes / 16 + 1);
    output_.resize(2 * 8);
  }
  ~Moe() { static_cast<void>(verbena_moe_destroy(moe_)); }
  Moe(const Moe&) = delete;
  Moe& operator=(const Moe&) = delete;

  // Without tokens.
  verbena_result dispatch(uint32_t blocks) {
    verbena_moe_dispatch_arguments arguments{};
    arguments.row_bytes = 16;
    arguments.id_bits = 32;
    arguments.output = output_.data();
    arguments.handle = handle_.data();
    arguments.blocks = blocks;
    return verbena_moe_dispatch(moe_, &arguments, nullptr);
  }

 private:
  struct alignas(16) Vector {
    uint64_t words[2];
  };
  verbena_moe* moe_ = nullptr;
  std::vector<Vector> handle_, output_;
};

// A block that is not resident sends nothing, and the peers' resident blocks wait for it.
TEST(MoeMisuse, MoreBlocksThanMultiprocessors) {
  expect_run({0, 0}, [](Rank& rank, uint32_t) -> std::string {
    const verbena_moe_options options = make_options(kMultiprocessors + 1);
    verbena_context* const context = rank.context().handle();
    verbena_moe* moe = nullptr;
    return verbena_moe_create(context, verbena_team_world(context), &options, &moe) ==
                   VERBENA_INVALID_ARGUMENT
               ? ""
               : "accepted";
  });
}
// Kernels of two exchanges may run at the same time in another order on each rank.
TEST(MoeMisuse, TwoExchangesFillTheGpu) {
  expect_run({0, 0}, [](Rank& rank, uint32_t) -> std::string {
    Moe first(rank, 0), second(rank, 0);
    return second.dispatch(kMultiprocessors / 2 + 1) == VERBENA_INVALID_ARGUMENT ? "" : "accepted";
  });
}

}  // namespace
}  // namespace verbena
