// One request in some hundreds fails, on any rail and of any kind: of data, of grants and credits, of what
// tries a new queue pair. Everything arrives all the same, once. softverbs draws the same faults each time.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "base/log_capture.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

// Before softverbs reads its environment, once. A failed request may have been carried out all the same.
const bool is_environment_set =
    setenv("SOFTVERBS_FAULTS",
           "seed 5; fail chance=0.002 status=RETRY_EXC; fail chance=0.001 status=RETRY_EXC work=done; "
           "fail chance=0.001 status=GENERAL peer=error; fail chance=0.001 status=REM_INV_REQ peer=keep; "
           "error chance=0.001 peer=error",
           1) == 0;

struct Shape {
  int rails;
  const char* threshold;
  const char* pairs;
};

class ReplayTest : public testing::TestWithParam<Shape> {};

TEST_P(ReplayTest, NothingIsLostAndNothingComesTwice) {
  auto [host, nic] = OwnNic(GetParam().rails, {{"VERBENA_UNPACK", "1"},
                                               {"VERBENA_UNPACK_THRESHOLD", GetParam().threshold},
                                               {"VERBENA_QPS_PER_CONNECTION", GetParam().pairs},
                                               {"VERBENA_MIN_STRIPE_BYTES", "4096"},
                                               {"VERBENA_RAIL_RETRY_MS", "10"},
                                               {"VERBENA_FAILOVER_TIMEOUT_MS", "20000"}});
  ConnectedPair connection = connect_here(nic, nic, true);
  const base::LogCapture log;
  Transfer transfer;
  protocol::Random random(11);
  for (uint32_t i = 0; i < 2000; ++i)
    transfer.messages.push_back(
        {.length_bytes = random.next() >> random.between(46, 63),
         .may_stage = random.happens(70),
         .receive_class = random.happens(70) ? ReceiveClass::kUnpacked : ReceiveClass::kSlotOnly});
  expect_transfer_here(connection, nic, nic, transfer);
  if (HasFailure())
    for (const auto& line : log.warnings()) std::printf("%s\n", line.c_str());
  const Statistics& sent = connection.sender->statistics();
  EXPECT_GE(sent.failed_queue_pairs, 3U);
  EXPECT_GE(sent.revived_queue_pairs, 3U);
  EXPECT_GE(sent.replayed_chunks, 3U);
}

INSTANTIATE_TEST_SUITE_P(Shapes, ReplayTest,
                         testing::Values(Shape{1, "0", "1"}, Shape{1, "unlimited", "1"}, Shape{2, "0", "1"},
                                         Shape{2, "unlimited", "1"}, Shape{2, "unlimited", "4"},
                                         Shape{4, "32k", "1"}),
                         [](const auto& param) {
                           return "Rails" + std::to_string(param.param.rails) + "Pairs" + param.param.pairs +
                                  "To" + param.param.threshold;
                         });

}  // namespace
}  // namespace verbena::transport
