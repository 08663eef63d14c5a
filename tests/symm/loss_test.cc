// Ranks exit while others use the context: waits end, and the context names the lost rank.
#include <gmock/gmock.h>

#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/clock.h"
#include "base/parameters.h"
#include "bootstrap/environment.h"
#include "symm/support/contexts.h"

namespace verbena::symm {
namespace {

using testing::HasSubstr;

// Whether the context has failed within a minute.
bool await_end(const Context& context) {
  const auto deadline = base::Deadline::after_ms(60'000);
  while (context.state() == SymmAbort::kNone) {
    if (deadline.has_passed()) return false;
    usleep(1000);
  }
  return true;
}

class LossTest : public testing::TestWithParam<base::SymmPath> {};
INSTANTIATE_TEST_SUITE_P(Paths, LossTest, testing::Values(base::SymmPath::kAuto, base::SymmPath::kRdma),
                         name_path);

TEST_P(LossTest, APeerThatIsKilledEndsWaits) {
  const std::string port = std::to_string(bootstrap::reserve_port());
  bootstrap::Processes ranks(3, [&](uint32_t rank) {
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", "3", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("VERBENA_BOOTSTRAP_PORT", port.c_str(), 1);
    if (!base::load_parameters()) return 1;
    auto joined = bootstrap::join_from_environment();
    if (!joined) return 2;
    auto context = Context::create(std::move(*joined), make_settings(GetParam()));
    if (!context || !(*context)->barrier()) return 3;
    if (rank == 2) raise(SIGKILL);
    if (!await_end(**context)) return 4;
    const bool is_named = (*context)->state() == SymmAbort::kNetworkFailed &&
                          (*context)->error().find("rank 2") != std::string::npos;
    return is_named ? 0 : 5;
  });
  EXPECT_EQ(ranks.await(bootstrap::kPatienceMs), (std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST_P(LossTest, LeavingTogetherIsNoLoss) {
  run_contexts(3, make_settings(GetParam()), [](Context& context) {
    usleep(2 * Watch::kLookMs * 1000);
    EXPECT_EQ(context.state(), SymmAbort::kNone);
    EXPECT_EQ(context.error(), "");
  });
}

TEST_P(LossTest, OneThatLeavesAloneEndsTheOthersWaits) {
  run_ranks(2, [&](bootstrap::Bootstrap joined, uint32_t rank) {
    auto context = Context::create(std::move(joined), make_settings(GetParam()));
    ASSERT_TRUE(context);
    if (rank == 1) return;
    EXPECT_TRUE(await_end(**context));
    EXPECT_THAT((*context)->error(), HasSubstr("rank 1"));
  });
}

}  // namespace
}  // namespace verbena::symm
