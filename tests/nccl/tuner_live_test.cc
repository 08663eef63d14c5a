// The tuner of the built plugin beside its network, in the pairs of versions that NCCL's releases take.
#include <fstream>
#include <utility>

#include "base/scratch_path.h"
#include "nccl/live_fixture.h"
#include "nccl/tuner_tables.h"

namespace verbena::nccl::testing {
namespace {

template <typename NetT, typename TunerT>
struct Release {
  using Net = NetT;
  using Tuner = TunerT;
};
using Releases =
    ::testing::Types<Release<Version<8, abi::ncclNet_v8_t>, TunerVersion<2, abi::ncclTuner_v2_t>>,
                     Release<Version<8, abi::ncclNet_v8_t>, TunerVersion<3, abi::ncclTuner_v3_t>>,
                     Release<Version<9, abi::ncclNet_v9_t>, TunerVersion<4, abi::ncclTuner_v4_t>>,
                     Release<Version<10, abi::ncclNet_v10_t>, TunerVersion<4, abi::ncclTuner_v4_t>>,
                     Release<Version<11, abi::ncclNet_v11_t>, TunerVersion<5, abi::ncclTuner_v5_t>>,
                     Release<Version<12, abi::ncclNet_v12_t>, TunerVersion<6, abi::ncclTuner_v6_t>>>;

constexpr int kRing = 1, kPat = 6, kLl = 0, kSimple = 2;

template <typename R>
class TunerLiveTest : public LiveTest<typename R::Net> {
 protected:
  using Tuner = typename R::Tuner;
  TunerLiveTest() {
    this->environment_.unset("NCCL_PAT_ENABLE");  // which init may set for the whole process
    this->environment_.unset("NCCL_ALGO");
    this->environment_.unset("NCCL_PROTO");
    this->environment_.unset("NCCL_MIN_NCHANNELS");
    this->environment_.unset("NCCL_NCHANNELS_PER_NET_PEER");
  }
  // What the tuner answers for an all-reduce of 1 MiB on 8 ranks of 4 nodes; all entries cost 50.
  TunerCall ask(size_t ranks = 8, size_t nodes = 4) {
    const auto* const table = this->plugin_->template table<Tuner>();
    EXPECT_NE(table, nullptr);
    const TunerCaller<Tuner> tuner(*table);
    TunerCall call(50);
    void* context = nullptr;
    EXPECT_EQ(tuner.init(ranks, nodes, &LogCapture::write, &context), abi::kSuccess);
    EXPECT_EQ(tuner.get_coll_info(context, call), abi::kSuccess);
    EXPECT_EQ(tuner.finish(context), abi::kSuccess);
    return call;
  }
  void write_tuning_file(const std::string& text) {
    std::ofstream(scratch_.get()) << text;
    this->environment_.set("VERBENA_TUNING_FILE", scratch_.get());
  }
  std::string take_log() {
    std::string text;
    for (const LogLine& line : LogCapture::get().take_lines()) text += line.text + '\n';
    return text;
  }

 private:
  const verbena::tests::ScratchPath scratch_{"tuner_live_test.json"};
};
TYPED_TEST_SUITE(TunerLiveTest, Releases);

TYPED_TEST(TunerLiveTest, GuardsWhatTheNetworkOffers) {
  ASSERT_EQ(this->start(), 2);
  const TunerCall call = this->ask();
  if constexpr (TypeParam::Tuner::kVersion == 2) {
    EXPECT_EQ(call.algorithm, kRing);
  } else {
    const bool tells_pat = TypeParam::Net::kVersion >= 11;
    EXPECT_EQ(call.count_ruled_out(), tells_pat ? 2 : 3);
    EXPECT_EQ(call.costs[kPat][kSimple], tells_pat ? 50.0f : -1.0f);
  }
}

TYPED_TEST(TunerLiveTest, ForbidsNothingWithoutUnpack) {
  for (const char* setting : {"0", "auto"}) {
    this->environment_.set("VERBENA_UNPACK", setting);
    if (!this->is_up_) {
      ASSERT_EQ(this->start(), 2);
    }
    const TunerCall call = this->ask();
    EXPECT_EQ(call.count_ruled_out(), 0);
    EXPECT_EQ(call.algorithm, abi::kTunerUndefined);
    this->TearDown();
    this->SetUp();
  }
}

TYPED_TEST(TunerLiveTest, DoesNothingWhereNcclUsesAnotherNetwork) {
  const TunerCall call = this->ask();  // init of the network was never called
  EXPECT_EQ(call.count_ruled_out(), 0);
  EXPECT_NE(this->take_log().find("NCCL does not use this plugin"), std::string::npos);
}

TYPED_TEST(TunerLiveTest, UsesTheTuningFile) {
  this->environment_.set("VERBENA_UNPACK", "auto");
  this->write_tuning_file(R"({"format": "verbena-tuning", "version": 1,
    "transport": {"unpack": true, "unpack_threshold_bytes": 4096, "min_stripe_bytes": 8192,
                  "min_channels": 6, "net_peer_channels": 4, "net_chunk_bytes": 65536},
    "collectives": [
      {"function": "all_reduce", "algorithm": "tree", "protocol": "ll", "channels": 0, "ranks": 8, "nodes": 4,
       "points": [[1048576, 500]]},
      {"function": "all_reduce", "algorithm": "ring", "protocol": "ll", "channels": 2, "ranks": 8, "nodes": 4,
       "points": [[1048576, 100]]}]})");
  ASSERT_EQ(this->start(), 2);
  EXPECT_STREQ(std::getenv("NCCL_MIN_NCHANNELS"), "6");
  EXPECT_STREQ(std::getenv("NCCL_NCHANNELS_PER_NET_PEER"), "4");
  EXPECT_STREQ(std::getenv("NCCL_P2P_NET_CHUNKSIZE"), "65536");
  typename TypeParam::Net::Properties properties;
  ASSERT_EQ((*this->net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.net_device_type, abi::kDeviceUnpack);
  const TunerCall call = this->ask();
  if constexpr (TypeParam::Tuner::kVersion > 2) {
    EXPECT_EQ(call.channels, 2);
    EXPECT_LT(call.costs[kRing][kLl], call.costs[kRing][kSimple]);
  }
  const std::string log = this->take_log();
  EXPECT_NE(log.find("2 of 2 curves"), std::string::npos) << log;
  // Its threshold counts.
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  EXPECT_EQ(connection->last_unpacked.bytes, 4096u);
  ASSERT_EQ(connection->transfer(4097, 0, 0), nullptr);
  EXPECT_EQ(connection->last_unpacked.descriptor_count, 0u);
}

// plugin/softverbs/tuning.json: measured on 2 and 4 ranks, a node each.
TYPED_TEST(TunerLiveTest, SoftverbsBringsItsOwnUnlessItIsNotWanted) {
  for (const char* setting : {"", "auto"}) {
    this->environment_.set("VERBENA_TUNING_FILE", setting);
    ASSERT_EQ(this->start(), 2);
    this->take_log();
    this->ask(2, 2);
    std::string log = this->take_log();
    EXPECT_NE(log.find("curves are for this shape"), std::string::npos) << log;
    this->ask(16, 16);
    log = this->take_log();
    EXPECT_NE(log.find("only the number of channels"), std::string::npos) << log;
    ASSERT_EQ(this->net_->finalize(std::exchange(this->context_, nullptr)), abi::kSuccess);
    this->is_up_ = false;
  }
  this->environment_.set("VERBENA_TUNING_FILE", "none");
  ASSERT_EQ(this->start(), 2);
  this->take_log();
  this->ask(2, 2);
  EXPECT_NE(this->take_log().find("NCCL's own"), std::string::npos);
}

TYPED_TEST(TunerLiveTest, SettingsWinOverTheTuningFile) {
  this->environment_.set("VERBENA_UNPACK", "0");
  this->environment_.set("NCCL_MIN_NCHANNELS", "3");
  this->write_tuning_file(
      R"({"format": "verbena-tuning", "version": 1, "transport": {"unpack": true, "min_channels": 6}})");
  ASSERT_EQ(this->start(), 2);
  EXPECT_STREQ(std::getenv("NCCL_MIN_NCHANNELS"), "3");
  typename TypeParam::Net::Properties properties;
  ASSERT_EQ((*this->net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.net_device_type, abi::kDeviceHost);
}

TYPED_TEST(TunerLiveTest, AFileThatCannotBeUsedGivesOneWarningAndTheGuard) {
  this->write_tuning_file("{\"format\": \"verbena-tuning\"");
  ASSERT_EQ(this->start(), 2);
  const std::vector<std::string> warnings = LogCapture::get().take_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("tuner_live_test.json is not used: the file is not JSON"), std::string::npos)
      << warnings[0];
  const TunerCall call = this->ask();
  EXPECT_TRUE(call.count_ruled_out() > 0 || call.algorithm == kRing);
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

}  // namespace
}  // namespace verbena::nccl::testing
