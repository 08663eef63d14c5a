// Every tuner table over a double of the network: what it offers and what was measured are the test's.
#include "nccl/log_capture.h"
#include "nccl/logger_adapter.h"
#include "nccl/tuner_tables.h"
#include "nccl/tuning.h"

extern "C" {
extern verbena::abi::ncclTuner_v2_t ncclTunerPlugin_v2;
extern verbena::abi::ncclTuner_v3_t ncclTunerPlugin_v3;
extern verbena::abi::ncclTuner_v4_t ncclTunerPlugin_v4;
extern verbena::abi::ncclTuner_v5_t ncclTunerPlugin_v5;
extern verbena::abi::ncclTuner_v6_t ncclTunerPlugin_v6;
}

namespace verbena::nccl {
namespace {

tuner::Offer g_offer;
std::shared_ptr<const tuner::Calibration> g_tuning;

}  // namespace

std::shared_ptr<const tuner::Calibration> tuning() {
  return g_tuning;
}
tuner::Offer describe_offer() {
  return g_offer;
}

namespace testing {
namespace {

template <typename V>
const typename V::Table& linked_tuner() {
  if constexpr (V::kVersion == 2) return ncclTunerPlugin_v2;
  if constexpr (V::kVersion == 3) return ncclTunerPlugin_v3;
  if constexpr (V::kVersion == 4) return ncclTunerPlugin_v4;
  if constexpr (V::kVersion == 5) return ncclTunerPlugin_v5;
  if constexpr (V::kVersion == 6) return ncclTunerPlugin_v6;
}

constexpr int kTree = 0, kRing = 1, kNvlsTree = 5, kPat = 6;
constexpr int kLl = 0, kSimple = 2;

template <typename V>
class TunerEntriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    g_offer = {.is_in_use = true, .unpack = true, .tells_pat = true};
    g_tuning = nullptr;
    LogCapture::get().take_lines();
  }
  void TearDown() override { attach_logger(nullptr); }
  void* start(size_t ranks, size_t nodes) {
    void* context = nullptr;
    EXPECT_EQ(tuner_.init(ranks, nodes, &LogCapture::write, &context), abi::kSuccess);
    EXPECT_NE(context, nullptr);
    return context;
  }

  TunerCaller<V> tuner_{linked_tuner<V>()};
};
TYPED_TEST_SUITE(TunerEntriesTest, AllTuners);

TYPED_TEST(TunerEntriesTest, GuardsWhereUnpackIsOffered) {
  void* const context = this->start(8, 4);
  TunerCall call(50);
  ASSERT_EQ(this->tuner_.get_coll_info(context, call), abi::kSuccess);
  if constexpr (TypeParam::kVersion == 2) {
    EXPECT_EQ(call.algorithm, kRing);
    EXPECT_EQ(call.protocol, kSimple);
  } else {
    EXPECT_EQ(call.count_ruled_out(), 2);
    EXPECT_EQ(call.costs[kTree][kSimple], -1.0f);
    EXPECT_EQ(call.costs[kNvlsTree][kSimple], -1.0f);
    EXPECT_EQ(call.costs[kPat][kSimple], 50.0f);
    EXPECT_EQ(call.algorithm, abi::kTunerUndefined);
  }
  EXPECT_EQ(call.channels, 0);
  EXPECT_EQ(this->tuner_.finish(context), abi::kSuccess);
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

TYPED_TEST(TunerEntriesTest, LeavesAllAloneWhereItIsNot) {
  g_offer.unpack = false;
  void* const context = this->start(8, 4);
  TunerCall call(50);
  ASSERT_EQ(this->tuner_.get_coll_info(context, call), abi::kSuccess);
  EXPECT_EQ(call.count_ruled_out(), 0);
  EXPECT_EQ(call.algorithm, abi::kTunerUndefined);
  EXPECT_EQ(call.protocol, abi::kTunerUndefined);
  EXPECT_EQ(this->tuner_.finish(context), abi::kSuccess);
}

TYPED_TEST(TunerEntriesTest, AppliesWhatWasMeasured) {
  auto measured = std::make_shared<tuner::Calibration>();
  for (const auto& [protocol, channels, us] :
       {std::tuple(tuner::Protocol::kLl, 0, 497.0), std::tuple(tuner::Protocol::kSimple, 0, 151.0),
        std::tuple(tuner::Protocol::kSimple, 4, 120.0)}) {
    measured->collectives.push_back(
        {tuner::Function::kAllReduce, tuner::Algorithm::kRing, protocol, channels, 2, 2, {{1 << 20, us}}});
  }
  g_tuning = measured;
  void* const context = this->start(2, 2);
  TunerCall call(-1);
  call.costs[kRing][kLl] = 50;
  call.costs[kRing][kSimple] = 60;
  ASSERT_EQ(this->tuner_.get_coll_info(context, call), abi::kSuccess);
  if constexpr (TypeParam::kVersion == 2) {
    EXPECT_EQ(call.protocol, kSimple);
    EXPECT_EQ(call.channels, 0);
  } else {
    EXPECT_LT(call.costs[kRing][kSimple], call.costs[kRing][kLl]);
    EXPECT_EQ(call.channels, 4);
  }
  EXPECT_EQ(this->tuner_.finish(context), abi::kSuccess);
}

TYPED_TEST(TunerEntriesTest, RefusesWhatOnlyUnpackCannotServe) {
  if constexpr (TypeParam::kVersion >= 3) {
    void* const context = this->start(8, 4);
    TunerCall call(-1);
    call.costs[kNvlsTree][kSimple] = 5;
    EXPECT_EQ(this->tuner_.get_coll_info(context, call), abi::kInvalidUsage);
    const auto warnings = LogCapture::get().take_warnings();
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("NCCL_ALGO and NCCL_PROTO allow only"), std::string::npos);
    EXPECT_EQ(this->tuner_.finish(context), abi::kSuccess);
  }
}

TYPED_TEST(TunerEntriesTest, SaysOnceWhatItDoes) {
  void* const context = this->start(8, 4);
  const auto lines = LogCapture::get().take_lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].level, abi::kLogInfo);
  EXPECT_EQ(lines[0].text,
            "verbena: tuner: 8 ranks on 4 nodes: UNPACK guard on, because UNPACK is offered. NCCL may not "
            "use nvls_tree, tree with simple (three children); costs: NCCL's own");
  EXPECT_EQ(this->tuner_.finish(context), abi::kSuccess);
}

TYPED_TEST(TunerEntriesTest, NullArguments) {
  TunerCall call(5);
  EXPECT_EQ(this->tuner_.init(2, 2, &LogCapture::write, nullptr), abi::kInvalidArgument);
  EXPECT_EQ(this->tuner_.get_coll_info(nullptr, call), abi::kInvalidArgument);
  EXPECT_EQ(this->tuner_.finish(nullptr), abi::kSuccess);
  EXPECT_EQ(call.count_ruled_out(), 0);
}

TEST(TunerTablesTest, NamesAndOptionalMembers) {
  EXPECT_STREQ(ncclTunerPlugin_v2.name, "Verbena");
  EXPECT_STREQ(ncclTunerPlugin_v6.name, "Verbena");
  EXPECT_EQ(ncclTunerPlugin_v6.get_chunk_size, nullptr);
}

}  // namespace
}  // namespace testing
}  // namespace verbena::nccl
