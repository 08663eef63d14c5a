// What is to be seen of the connections of NCCL's device API: counters, the state on a signal, the log at the
// end.
#include <unistd.h>

#include <csignal>

#include "base/scratch_path.h"
#include "nccl/rma/group.h"

namespace verbena::nccl::testing {
namespace {

class RmaObservationTest : public RmaTest {
 protected:
  void put(RmaGroup& group, int puts) {
    for (int i = 0; i < puts; ++i) {
      void* request =
          group.put_signal(group[0].target(i % 4), {0, group[0].region, 100, 4096, group[1].region, 1},
                           {0, group[1].region, 1});
      ASSERT_TRUE(group.finish(group[0], request));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Tables, RmaObservationTest, every_table(), name_table);

TEST_P(RmaObservationTest, CountersAndTheLogKnowEveryOperation) {
  const tests::ScratchPath stats("stats");
  set("VERBENA_STATS", stats.get());
  {
    RmaGroup group(plugin(), {});
    put(group, 40);
  }
  const std::string text = stats.read();
  // A put and its signal are two operations.
  EXPECT_NE(
      text.find("verbena_messages_total{pid=\"" + std::to_string(getpid()) +
                "\",direction=\"one-sided\",peer=\"rank 1\",rail=\"softverbs0:1\",path=\"direct\"} 80\n"),
      std::string::npos)
      << text;
  EXPECT_TRUE(
      is_logged("rank 0 of 2 on verbena_softverbs0: closed: 40 puts and 0 gets of 4000 bytes, 40 signals"));
}

TEST_P(RmaObservationTest, TheTraceHasEveryOperation) {
  const tests::ScratchPath trace("trace");
  set("VERBENA_TRACE", trace.get());
  {
    RmaGroup group(plugin(), {});
    put(group, 3);
  }
  const std::string text = trace.read();
  EXPECT_NE(text.find("one-sided to rank 1"), std::string::npos) << text;
  // A put and its signal each, on the first of the lanes.
  for (const char* message : {"\"message 0\"", "\"message 1\""})
    EXPECT_NE(text.find(message), std::string::npos) << message;
}

TEST_P(RmaObservationTest, TheStateOnASignalNamesEveryPeer) {
  const tests::ScratchPath dump("dump");
  set("VERBENA_DUMP", dump.get());
  set("VERBENA_DUMP_SIGNAL", "usr1");
  RmaGroup group(plugin(), {});
  put(group, 3);
  ASSERT_EQ(raise(SIGUSR1), 0);
  std::string text;
  EXPECT_TRUE(group.poll_until([&] {
    text = dump.read();
    return text.find("rank 1") != std::string::npos && text.find("end of the state") != std::string::npos;
  })) << text;
}

}  // namespace
}  // namespace verbena::nccl::testing
