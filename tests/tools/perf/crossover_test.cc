// Where one way of sending begins or ends to be as good as another.
#include "verbena-perf/crossover.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/scratch_path.h"
#include "tools/run_tool.h"
#include "tuner/calibration_file.h"

namespace verbena::tools::perf {
namespace {

using Points = std::vector<tuner::Point>;

TEST(Crossover, ThresholdIsTheLastSizeBeforeStagedLoses) {
  const Points direct{{8, 10}, {1024, 10}, {8192, 12}, {65536, 20}};
  EXPECT_EQ(find_unpack_threshold({{8, 5}, {1024, 6}, {8192, 11}, {65536, 40}}, direct), 8192);
  EXPECT_EQ(find_unpack_threshold({{8, 5}, {1024, 16}, {8192, 11}, {65536, 19}}, direct), 8);
  EXPECT_EQ(find_unpack_threshold({{8, 15}, {1024, 6}, {8192, 11}, {65536, 19}}, direct), 0);
  EXPECT_EQ(find_unpack_threshold({{8, 10.4}, {1024, 10.4}, {8192, 12.4}, {65536, 20.4}}, direct), 65536);
  EXPECT_EQ(find_unpack_threshold({{8, 5}, {4096, 1}}, direct), 8);
  EXPECT_EQ(find_unpack_threshold({}, direct), 0);
}

TEST(Crossover, StripeIsHalfOfTheSizeFromWhichPiecesPay) {
  const Points whole{{8192, 5}, {65536, 10}, {262144, 20}, {1048576, 80}};
  EXPECT_EQ(find_min_stripe({{8192, 9}, {65536, 12}, {262144, 15}, {1048576, 45}}, whole), 131072);
  EXPECT_EQ(find_min_stripe({{8192, 4}, {65536, 12}, {262144, 15}, {1048576, 45}}, whole), 131072);
  EXPECT_EQ(find_min_stripe({{8192, 4}, {65536, 8}, {262144, 15}, {1048576, 45}}, whole), 4096);
  EXPECT_EQ(find_min_stripe({{8192, 9}, {65536, 12}, {262144, 30}, {1048576, 90}}, whole), 1048576);
  EXPECT_EQ(find_min_stripe({}, whole), 4096);
}

TEST(Crossover, ToolWritesTheTransportEntries) {
  const verbena::tests::ScratchPath scratch("crossover_test.json");
  const std::string& path = scratch.get();
  tuner::Calibration before;
  before.transport.unpack = false;
  before.transport.min_stripe_bytes = 8192;
  ASSERT_EQ(tuner::write_calibration_file(path, before), "");
  const std::string command = std::string("timeout -s KILL 240 ") + VERBENA_PERF + " --plugin " +
                              SAMPLE_PLUGIN + " --calibrate " + path;
  expect_run(run_tool(command + " --sizes 8:4k --factor 8 --iters 20 --repeats 2"), 0);
  const auto read = tuner::read_calibration_file(path);
  ASSERT_TRUE(read.calibration) << read.problem;
  const tuner::TransportEntries& transport = read.calibration->transport;
  EXPECT_EQ(transport.staged.size(), 4u);
  EXPECT_EQ(transport.direct.size(), 4u);
  EXPECT_TRUE(transport.unpack_threshold_bytes.has_value());
  EXPECT_EQ(transport.unpack, false);           // nccl-perf's to say
  EXPECT_EQ(transport.min_stripe_bytes, 8192);  // needs several rails
  EXPECT_EQ(run_tool(command + " --threshold 4k").status, 2);
  EXPECT_EQ(run_tool(command + " --server").status, 2);
  std::filesystem::resize_file(path, 20);
  expect_run(run_tool(command), 1, {"is not JSON"});
}

}  // namespace
}  // namespace verbena::tools::perf
