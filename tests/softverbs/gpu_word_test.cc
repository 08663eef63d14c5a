#include <algorithm>
#include <cstring>

#include "gpu_fixture.h"

// Atomic operations on each kind of memory.
namespace verbena::softverbs_test {
namespace {

// Adds from two queue pairs at once to one word of each kind of memory: none is lost, each sees what was
// there before.
void drive_adds(Kind far_kind) {
  constexpr uint64_t kAdds = 40;
  Node node;
  QueuePair first(node), second(node);
  first.connect(second.address());
  second.connect(first.address());
  Registered far(node, far_kind, 0);
  Buffer results(node, 16 * kAdds);
  far.memory.clear();
  const auto add = [&](QueuePair& pair, uint64_t i) {
    Send send(IBV_WR_ATOMIC_FETCH_AND_ADD, i);
    send.from(results, 8 * i, 8);
    send.request.wr.atomic = {far.memory.address() + 64, 1, 0, far.mr->rkey};
    return send.post(pair);
  };
  for (uint64_t i = 0; i < 2 * kAdds; ++i) ASSERT_EQ(add(i % 2 == 0 ? first : second, i), 0);
  for (uint64_t i = 0; i < 2 * kAdds; ++i) ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  std::vector<uint64_t> before(2 * kAdds);
  memcpy(before.data(), results.data(), before.size() * 8);
  std::sort(before.begin(), before.end());
  for (uint64_t i = 0; i < 2 * kAdds; ++i) EXPECT_EQ(before[i], i);
  Buffer copy(node, 8);
  Send read(IBV_WR_RDMA_READ, 1);
  read.from(copy, 0, 8);
  ASSERT_EQ(read.to(far.memory.address() + 64, far.mr->rkey).post(first), 0);
  ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  uint64_t sum = 0;
  memcpy(&sum, copy.data(), 8);
  EXPECT_EQ(sum, 2 * kAdds);
}

class GpuWordTest : public ::testing::TestWithParam<Kind> {};

TEST_P(GpuWordTest, AddsToWords) {
  SKIP_WITHOUT_GPU();
  run_apart([] { drive_adds(GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuWordTest, ::testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(get_name(test.param)); });

}  // namespace
}  // namespace verbena::softverbs_test
