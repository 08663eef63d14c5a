#include "nccl-perf/nccl_log.h"

#include <gtest/gtest.h>

#include "common/nccl_library.h"

namespace verbena::tools::nccl {
namespace {

constexpr const char* kLog =
    "node:100:100 [0] NCCL INFO NET/Plugin: Loaded net plugin Verbena (v11)\n"
    "node:100:100 [0] NCCL INFO Successfully loaded external network plugin /x/libnccl-net.so\n"
    "node:100:120 [0] NCCL INFO Initialized NET plugin Verbena\n"
    "node:100:120 [0] NCCL INFO Using NCCL_NET_DEVICE_UNPACK net plugin version 7\n"
    "node:100:120 [0] NCCL INFO Assigned NET plugin Verbena to comm\n"
    "node:100:120 [0] NCCL INFO Using network Verbena\n"
    "node:100:120 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Verbena/0/GDRDMA\n"
    "node:100:120 [0] NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/Verbena/1/GDRDMA\n"
    "node:100:121 [0] transport.cc:3 NCCL WARN verbena: rail 0: port down\n"
    "node:100:120 [0] NCCL INFO verbena: totals: 5 messages staged, 7 direct\n"
    "node:100:120 [0] NCCL INFO verbena: tuner: 2 ranks on 2 nodes: guard off: one node\n"
    "node:100:120 [0] NCCL INFO 16 coll channels, 0 collnet channels, 0 nvls channels, 2 p2p channels\n"
    "unfinished line";

TEST(NcclLog, TellsTheNetwork) {
  const NcclLog log = parse_nccl_log(kLog);
  EXPECT_EQ(log.loaded, "Verbena (v11)");
  EXPECT_EQ(log.assigned, "Verbena");
  EXPECT_EQ(log.network, "Verbena");
  EXPECT_EQ(log.route, "NET/Verbena/0/GDRDMA");
  EXPECT_TRUE(log.unpack_accepted);
  EXPECT_EQ(log.channels, 16);
  EXPECT_EQ(log.tuner, "2 ranks on 2 nodes: guard off: one node");
  EXPECT_EQ(log.counters, (std::vector<std::string>{"verbena: totals: 5 messages staged, 7 direct"}));
  EXPECT_EQ(log.warnings, (std::vector<std::string>{"verbena: rail 0: port down"}));
}

TEST(NcclLog, OtherTextTellsNothing) {
  const NcclLog log = parse_nccl_log("nothing\n\nNCCL INFO Bootstrap: Using lo:127.0.0.1<0>\n");
  EXPECT_TRUE(log.assigned.empty());
  EXPECT_TRUE(log.network.empty());
  EXPECT_FALSE(log.unpack_accepted);
  EXPECT_TRUE(parse_nccl_log("").warnings.empty());
}

TEST(NcclLog, TakesTheLastLines) {
  EXPECT_EQ(take_last_lines("a\nb\nc\n", 2), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(take_last_lines("a\nb", 5), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(take_last_lines("", 5).empty());
}

TEST(NcclLibrary, FormatsVersions) {
  EXPECT_EQ(format_nccl_version(22809), "2.28.9");
  EXPECT_EQ(format_nccl_version(2708), "2.7.8");
}

}  // namespace
}  // namespace verbena::tools::nccl
