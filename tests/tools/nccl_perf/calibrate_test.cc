// Which runs a calibration makes, what it makes of their rows, and the tool end to end on an NCCL of the
// tests' own.
#include "nccl-perf/calibrate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/scratch_path.h"
#include "common/error.h"
#include "tools/run_tool.h"
#include "tuner/calibration_file.h"

namespace verbena::tools::nccl {
namespace {

using tuner::Algorithm;
using tuner::Protocol;

std::string find_setting(const Variant& variant, const std::string& name) {
  for (const auto& [key, value] : variant.settings) {
    if (key == name) return value;
  }
  return "(unset)";
}

class CalibrateTest : public testing::Test {
 protected:
  CalibrateTest() {
    options_.operations.assign(std::begin(kAllOperations), std::end(kAllOperations));
    options_.sizes_bytes = {8, 1024, 64 << 20};
    options_.calibrate = path_;
  }

  // A run in which the wanted variant is fast.
  StepResult run(const Variant& variant) {
    variants_.push_back(variant);
    StepResult result;
    result.log.network = "Verbena";
    result.log.channels = 8;
    result.gpu = "Fake GPU";
    for (const Operation operation : {Operation::kAllReduce, Operation::kSendRecv, Operation::kAllGather}) {
      for (const uint64_t bytes : options_.sizes_bytes) {
        double us = variant.unpack == "1" ? unpack_us_ : 100;
        if (find_setting(variant, "NCCL_MIN_NCHANNELS") == "16") us *= collective_factor_;
        if (find_setting(variant, "NCCL_NCHANNELS_PER_NET_PEER") == "4" && operation == Operation::kSendRecv)
          us = peer_us_;
        if (find_setting(variant, "NCCL_P2P_NET_CHUNKSIZE") == "524288" && operation == Operation::kSendRecv)
          us = chunk_us_;
        result.rows.push_back({describe_operation(operation), bytes, us, 0});
      }
    }
    return result;
  }
  int calibrate() {
    return run_calibration(options_, 2, "2.28.9", [this](const Variant& variant) { return run(variant); });
  }
  tuner::Calibration read() {
    auto parsed = tuner::read_calibration_file(path_);
    EXPECT_TRUE(parsed.calibration) << parsed.problem;
    return parsed.calibration.value_or(tuner::Calibration{});
  }

  const verbena::tests::ScratchPath scratch_{"calibrate_test.json"};
  const std::string& path_ = scratch_.get();
  NcclPerfOptions options_;
  std::vector<Variant> variants_;
  double unpack_us_ = 103;
  double collective_factor_ = 1;
  double peer_us_ = 100, chunk_us_ = 100;
};

TEST_F(CalibrateTest, PlansEveryWayOnce) {
  std::set<std::tuple<Algorithm, Protocol, int>> ways;
  for (const CalibrationStep& step : list_steps(options_, "0", 8, 0)) {
    EXPECT_TRUE(ways.emplace(step.algorithm, step.protocol, step.channels).second);
    EXPECT_FALSE(step.operations.empty());
    for (const Operation operation : step.operations) {
      EXPECT_TRUE(operation != Operation::kSendRecv && operation != Operation::kAllToAll);
      EXPECT_TRUE(step.algorithm != Algorithm::kTree || operation == Operation::kAllReduce);
      EXPECT_TRUE(step.algorithm != Algorithm::kPat || operation != Operation::kAllReduce);
    }
    EXPECT_EQ(step.largest_bytes < (64u << 20), step.protocol == Protocol::kLl);
  }
  EXPECT_EQ(ways.size(), 3u + 3u + 1u + 2u * 9u);
  EXPECT_TRUE(ways.contains({Algorithm::kRing, Protocol::kSimple, 4}));
  EXPECT_TRUE(ways.contains({Algorithm::kRing, Protocol::kLl, 1}));
}

TEST_F(CalibrateTest, PlansNoFewerChannelsThanOne) {
  EXPECT_EQ(list_steps(options_, "0", 0, 0).size(), 7u);
  EXPECT_EQ(list_steps(options_, "0", 1, 0).size(), 7u);
  EXPECT_EQ(list_steps(options_, "0", 2, 0).size(), 13u);
  options_.operations = {Operation::kSendRecv};
  EXPECT_TRUE(list_steps(options_, "0", 8, 0).empty());
}

TEST_F(CalibrateTest, VariantsSayWhatNcclIsToDo) {
  const Variant own =
      make_variant({Algorithm::kTree, Protocol::kLl128, 0, "0", {Operation::kAllReduce}, 4096});
  EXPECT_EQ(find_setting(own, "NCCL_ALGO"), "Tree");
  EXPECT_EQ(find_setting(own, "NCCL_PROTO"), "LL128");
  EXPECT_EQ(find_setting(own, "NCCL_MAX_NCHANNELS"), "(unset)");
  EXPECT_EQ(find_setting(own, "VERBENA_TUNING_FILE"), "none");
  EXPECT_EQ(own.arguments, (std::vector<std::string>{"--child-op=all_reduce", "--child-end=4096"}));
  const Variant few = make_variant({Algorithm::kPat, Protocol::kSimple, 2, "1", {}, 8});
  EXPECT_EQ(find_setting(few, "NCCL_ALGO"), "PAT");
  EXPECT_EQ(find_setting(few, "NCCL_MAX_NCHANNELS"), "2");
  EXPECT_EQ(find_setting(few, "NCCL_MIN_NCHANNELS"), "2");
  EXPECT_NE(own.name, few.name);
}

TEST_F(CalibrateTest, RowsBecomeCurves) {
  const CalibrationStep step{
      Algorithm::kRing, Protocol::kSimple, 0, "0", {Operation::kAllReduce, Operation::kSendRecv}, 1 << 20};
  const std::vector<Row> rows{{"all_reduce", 1024, 30, 0}, {"all_reduce", 8, 20, 0},
                              {"all_reduce", 1024, 50, 0}, {"all_reduce", 1024, 40, 0},
                              {"all_reduce", 4096, 1, 7},  {"send_recv", 8, 5, 0}};
  const auto measurements = make_measurements(step, rows, 4);
  ASSERT_EQ(measurements.size(), 1u);
  EXPECT_EQ(measurements[0].function, tuner::Function::kAllReduce);
  EXPECT_EQ(measurements[0].ranks, 4u);
  EXPECT_EQ(measurements[0].nodes, 4u);
  // Ascending, medians, and nothing of a row with wrong elements.
  EXPECT_EQ(measurements[0].points, (std::vector<tuner::Point>{{8, 20}, {1024, 40}}));
}

TEST_F(CalibrateTest, UnpackIsOnOnlyWhereItWins) {
  EXPECT_EQ(calibrate(), 0);
  EXPECT_EQ(read().transport.unpack, false);
  EXPECT_EQ(variants_.back().unpack, "0");
  unpack_us_ = 80;
  EXPECT_EQ(calibrate(), 0);
  EXPECT_EQ(read().transport.unpack, true);
  EXPECT_EQ(variants_.back().unpack, "1");
}

TEST_F(CalibrateTest, MoreChannelsOnlyWhereTheyClearlyWin) {
  EXPECT_EQ(calibrate(), 0);
  EXPECT_EQ(read().transport.min_channels, std::nullopt);
  EXPECT_EQ(read().transport.net_peer_channels, std::nullopt);
  variants_.clear();
  collective_factor_ = 0.8;
  peer_us_ = 50;
  EXPECT_EQ(calibrate(), 0);
  EXPECT_EQ(read().transport.min_channels, 16);
  EXPECT_EQ(read().transport.net_peer_channels, 4);
  EXPECT_EQ(read().transport.net_chunk_bytes, std::nullopt);
  // What follows is measured with it, and with a half of it.
  std::set<std::string> most;
  for (const Variant& variant : variants_) most.insert(find_setting(variant, "NCCL_MAX_NCHANNELS"));
  EXPECT_EQ(find_setting(variants_[8], "NCCL_MIN_NCHANNELS"), "16");
  EXPECT_TRUE(most.contains("8") && most.contains("4"));
}

TEST_F(CalibrateTest, LongerPiecesOnlyWhereTheyClearlyWin) {
  peer_us_ = 50;
  chunk_us_ = 30;
  EXPECT_EQ(calibrate(), 0);
  EXPECT_EQ(read().transport.net_peer_channels, 2);
  EXPECT_EQ(read().transport.net_chunk_bytes, 512 << 10);
}

TEST_F(CalibrateTest, TheUsersSettingsAreNotDecided) {
  tuner::Calibration before;
  before.transport.min_channels = 8;
  before.transport.net_peer_channels = 4;
  ASSERT_EQ(tuner::write_calibration_file(path_, before), "");
  setenv("NCCL_MIN_NCHANNELS", "8", 1);
  setenv("NCCL_NCHANNELS_PER_NET_PEER", "4", 1);
  collective_factor_ = 0.5;
  peer_us_ = 10;
  EXPECT_EQ(calibrate(), 0);
  unsetenv("NCCL_MIN_NCHANNELS");
  unsetenv("NCCL_NCHANNELS_PER_NET_PEER");
  EXPECT_EQ(read().transport.min_channels, 8);
  EXPECT_EQ(read().transport.net_peer_channels, 4);
  EXPECT_EQ(read().transport.net_chunk_bytes, std::nullopt);
}

// Short collectives take fewer channels by the measured costs.
TEST_F(CalibrateTest, ChannelsOfCollectivesAreForTheLongest) {
  const std::vector<Row> base{
      {"all_reduce", 8, 20, 0}, {"all_reduce", 8 << 20, 200, 0}, {"all_reduce", 64 << 20, 900, 0}};
  const auto is_worthwhile = [&](double very_long_us) {
    return are_channels_worthwhile(base,
                                   {{"all_reduce", 8, 60, 0},
                                    {"all_reduce", 8 << 20, 400, 0},
                                    {"all_reduce", 64 << 20, very_long_us, 0}},
                                   {Operation::kAllReduce}, true);
  };
  EXPECT_TRUE(is_worthwhile(600));
  EXPECT_FALSE(is_worthwhile(850));
}

TEST_F(CalibrateTest, ChannelsThatHurtShortMessagesAreNotWorthwhile) {
  const std::vector<Row> base{{"all_reduce", 8, 20, 0}, {"all_reduce", 8 << 20, 200, 0}};
  const auto is_worthwhile = [&](double short_us, double long_us) {
    return are_channels_worthwhile(base,
                                   {{"all_reduce", 8, short_us, 0}, {"all_reduce", 8 << 20, long_us, 0}},
                                   {Operation::kAllReduce}, false);
  };
  EXPECT_TRUE(is_worthwhile(20, 150));
  EXPECT_FALSE(is_worthwhile(25, 150));
  EXPECT_FALSE(is_worthwhile(10, 190));
  EXPECT_FALSE(are_channels_worthwhile(base, {}, {Operation::kAllReduce}, false));
}

TEST_F(CalibrateTest, MergesIntoTheFile) {
  tuner::Calibration before;
  before.transport.min_stripe_bytes = 12345;
  before.collectives = {{tuner::Function::kReduce, Algorithm::kRing, Protocol::kLl, 0, 2, 2, {{8, 1}}},
                        {tuner::Function::kAllReduce, Algorithm::kRing, Protocol::kLl, 0, 2, 2, {{8, 1}}}};
  ASSERT_EQ(write_calibration_file(path_, before), "");
  EXPECT_EQ(calibrate(), 0);
  const tuner::Calibration after = read();
  EXPECT_EQ(after.transport.min_stripe_bytes, 12345);
  EXPECT_EQ(after.collectives[0], before.collectives[0]);
  EXPECT_EQ(after.collectives[1].points.back(), (tuner::Point{64 << 20, 100}));
  EXPECT_NE(after.notes.at("collectives").find("2.28.9"), std::string::npos);
}

TEST_F(CalibrateTest, RefusesAForeignFileAndAForeignNetwork) {
  std::ofstream(path_) << "{}";
  EXPECT_THROW(calibrate(), ToolError);
  EXPECT_TRUE(variants_.empty());
  std::filesystem::remove(path_);
  EXPECT_THROW(run_calibration(options_, 2, "2.28.9",
                               [](const Variant&) {
                                 StepResult result;
                                 result.log.network = "IB";
                                 return result;
                               }),
               ToolError);
}

TEST_F(CalibrateTest, KeepsToItsBudgetAndGoesOnAfterAFailure) {
  options_.budget_s = 0;
  EXPECT_EQ(calibrate(), 0);
  EXPECT_TRUE(variants_.empty());
  EXPECT_EQ(read().transport, tuner::TransportEntries{});
  options_.budget_s = 60;
  const int status = run_calibration(options_, 2, "2.28.9", [this](const Variant& variant) {
    StepResult result = run(variant);
    if (find_setting(variant, "NCCL_ALGO") == "PAT") result.status = kExitFailed;
    return result;
  });
  EXPECT_EQ(status, kExitFailed);
  bool has_pat = false;
  const tuner::Calibration written = read();
  for (const auto& m : written.collectives) has_pat = has_pat || m.algorithm == Algorithm::kPat;
  EXPECT_FALSE(has_pat);
  EXPECT_GT(written.collectives.size(), 10u);
}

TEST_F(CalibrateTest, ToolEndToEnd) {
  const std::string fakes = FAKE_FOLDER;
  expect_run(run_tool("LD_LIBRARY_PATH=" + fakes + " FAKE_GPUS=2 NCCL_NET=Verbena timeout -s KILL 240 " +
                      NCCL_PERF + " --nccl " + fakes + " --calibrate " + path_ +
                      " --op all_reduce,all_gather --sizes 8:4k --factor 16 -n 2 -w 1"),
             0, {"curves measured, 0 runs left out"});
  const tuner::Calibration written = read();
  EXPECT_TRUE(written.transport.unpack.has_value());
  // Own, half and a quarter of 4 channels. Ring: 2 collectives, 3 protocols. Tree: 1 collective. PAT: 1.
  EXPECT_EQ(written.collectives.size(), 18u + 9u + 1u);
  for (const auto& m : written.collectives) EXPECT_EQ(m.points.size(), 4u);
}

}  // namespace
}  // namespace verbena::tools::nccl
