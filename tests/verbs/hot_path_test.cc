// Posting and polling must not allocate.
#include <array>

#include "support/allocation_counter.h"
#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class HotPathTest : public FakeDeviceTest {};

TEST_F(HotPathTest, AllocatesNothing) {
  auto completions = CompletionQueue::create(device(), 64);
  auto receives = SharedReceiveQueue::create(device(), 64);
  ASSERT_TRUE(completions && receives);
  auto pair = QueuePair::create(device(), *completions, {.send_depth = 64, .receive_queue = &*receives});
  ASSERT_TRUE(pair);
  char memory[64] = {};
  const std::vector<WorkRequest> requests(40, {.signaled = true, .local = memory, .length = 8});
  const std::vector<ReceiveBuffer> buffers(40, {memory, 8, 11, 0});
  script().completions.assign(40, ibv_wc{});
  std::array<Completion, 16> out;
  record().requests.reserve(100);  // the fake's own notes
  record().receives.reserve(100);
  record().receive_addresses.reserve(100);
  record().chain_lengths.reserve(100);

  const int before = count_allocations();
  const bool is_posted =
      static_cast<bool>(pair->post(requests)) && static_cast<bool>(receives->post(buffers));
  int polled = 0;
  while (const int count = completions->poll(out)) {
    for (int i = 0; i < count; ++i) pair->retire();
    polled += count;
  }
  const int during = count_allocations() - before;

  EXPECT_TRUE(is_posted);
  EXPECT_EQ(polled, 40);
  EXPECT_EQ(pair->free_slots(), 64U);
  EXPECT_EQ(during, 0);
  EXPECT_GT(before, 0) << "the counter does not count";
}

}  // namespace
}  // namespace verbena::verbs
