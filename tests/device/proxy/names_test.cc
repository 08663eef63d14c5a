// Kernels as TileScale generates them, on teams whose proxies drive endpoints.
#include <gtest/gtest.h>

#include "device/proxy/support/rdma_fleet.h"
#include "device/symm/names_kernels.h"

namespace verbena::device_test {
namespace {

struct Case {
  int32_t ranks, domain_ranks;
};

class NamesTest : public testing::TestWithParam<Case> {
 protected:
  NamesTest() : fleet_(make_shape(GetParam().ranks, GetParam().domain_ranks)) {}

  // `kernel(rank)` on every rank, by blocks of `threads`.
  template <typename Kernel>
  void run(uint32_t blocks, uint32_t threads, const Kernel& kernel) {
    run_on_all(fleet_, 1, blocks, threads, [&](int32_t rank) {
      write_table(fleet_, rank, [&](int32_t peer) { return is_in_reach(rank, peer); });
      kernel(rank);
    });
  }
  bool is_in_reach(int32_t rank, int32_t peer) const {
    return rank / GetParam().domain_ranks == peer / GetParam().domain_ranks;
  }

  RdmaFleet fleet_;
};
INSTANTIATE_TEST_SUITE_P(Teams, NamesTest, testing::Values(Case{2, 1}, Case{4, 2}), [](const auto& one) {
  return std::to_string(one.param.ranks) + "By" + std::to_string(one.param.domain_ranks);
});

TEST_P(NamesTest, PutsAreSignaledAndWaitedFor) {
  fill_ring(fleet_);
  std::vector<std::vector<float>> sums(static_cast<size_t>(fleet_.size()), std::vector<float>(128));
  run(2, 64, [&](int32_t rank) { run_ring(fleet_, rank, sums); });
  EXPECT_TRUE(is_doubled(sums));
}
TEST_P(NamesTest, EveryScope) {
  run(1, 64, [&](int32_t rank) { every_scope(fleet_, rank); });
}
TEST_P(NamesTest, BroadcastAndCollect) {
  run(1, 64, [&](int32_t rank) { broadcast_and_collect(fleet_, rank); });
}
TEST_P(NamesTest, AValueIsStored) {
  run(1, 1, [&](int32_t rank) {
    store_a_value(fleet_, rank, [&](int32_t peer) { return is_in_reach(rank, peer); });
  });
}

}  // namespace
}  // namespace verbena::device_test
