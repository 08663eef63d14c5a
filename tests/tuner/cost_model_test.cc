// When measured costs may change what NCCL would choose, and that they never do otherwise.
#include "tuner/cost_model.h"

#include "tuner/cost_array.h"

namespace verbena::tuner {
namespace {

using enum Algorithm;
using enum Protocol;

class CostModelTest : public ::testing::Test {
 protected:
  void measure(Algorithm algorithm, Protocol protocol, int channels, double us, Shape shape = {2, 2}) {
    calibration_.collectives.push_back({Function::kAllReduce,
                                        algorithm,
                                        protocol,
                                        channels,
                                        static_cast<uint32_t>(shape.ranks),
                                        static_cast<uint32_t>(shape.nodes),
                                        {{1 << 20, us}}});
  }
  // Applies what was measured for two ranks on two nodes to a call of 1 MiB.
  void apply(Function function = Function::kAllReduce) {
    CostModel(calibration_, {2, 2}).apply(function, 1 << 20, costs_.table(), &channels_);
  }
  // Rings of which NCCL would choose LL's.
  void offer_rings(double ll_us, double simple_us, int ll_channels = 0, Shape shape = {2, 2}) {
    costs_.at(kRing, kLl) = 30;
    costs_.at(kRing, kSimple) = 90;
    measure(kRing, kLl, ll_channels, ll_us, shape);
    measure(kRing, kSimple, 0, simple_us, shape);
  }
  void expect_untouched(Function function = Function::kAllReduce) {
    const CostArray before = costs_;
    apply(function);
    EXPECT_EQ(costs_, before);
    EXPECT_EQ(channels_, 0);
  }

  Calibration calibration_;
  CostArray costs_;
  int channels_ = 0;
};

TEST_F(CostModelTest, TakesWhatWasMeasuredFaster) {
  offer_rings(497, 151);
  apply();
  EXPECT_EQ(costs_.choose(), std::make_pair(kRing, kSimple));
  EXPECT_FLOAT_EQ(costs_.at(kRing, kSimple), 151);
  EXPECT_FLOAT_EQ(costs_.at(kRing, kLl), 497);
  EXPECT_EQ(channels_, 0);
}

TEST_F(CostModelTest, LeavesAllAloneWithoutMeasurementsForTheShape) {
  for (const Shape& shape : {Shape{4, 2}, Shape{4, 4}, Shape{2, 1}}) offer_rings(497, 151, 0, shape);
  expect_untouched();
}

// Of another shape only the number of channels counts, and only for what NCCL would choose anyway.
TEST_F(CostModelTest, BorrowsTheChannelsOfTheNearestShape) {
  costs_.at(kRing, kLl) = 90;
  costs_.at(kRing, kSimple) = 30;
  measure(kRing, kSimple, 0, 400, {4, 4});
  measure(kRing, kSimple, 2, 100, {4, 4});
  measure(kRing, kLl, 0, 1, {4, 4});
  measure(kRing, kSimple, 0, 400, {16, 16});
  measure(kRing, kSimple, 8, 100, {16, 16});
  const CostArray before = costs_;
  apply();
  EXPECT_EQ(costs_, before);
  EXPECT_EQ(channels_, 2);
}

TEST_F(CostModelTest, BorrowsNothingWithinANode) {
  costs_.at(kRing, kSimple) = 30;
  measure(kRing, kSimple, 0, 400, {4, 4});
  measure(kRing, kSimple, 2, 100, {4, 4});
  CostModel(calibration_, {8, 1}).apply(Function::kAllReduce, 1 << 20, costs_.table(), &channels_);
  EXPECT_EQ(channels_, 0);
}

TEST_F(CostModelTest, LeavesOtherCollectivesAlone) {
  offer_rings(497, 151);
  expect_untouched(Function::kBroadcast);
}

TEST_F(CostModelTest, LeavesNcclsChoiceThatWasNotMeasured) {
  costs_.at(kTree, kLl) = 20;
  offer_rings(497, 1);
  expect_untouched();
}

TEST_F(CostModelTest, LeavesNcclsChoiceThatWasMeasuredWithFewerChannelsOnly) {
  offer_rings(497, 151, 1);
  expect_untouched();
}

TEST_F(CostModelTest, LeavesNcclsChoiceThatWasMeasuredBestOrNearlySo) {
  offer_rings(100, 91);  // within what measurements differ by
  expect_untouched();
}

TEST_F(CostModelTest, NeverTakesWhatIsRuledOut) {
  costs_.at(kRing, kLl) = 30;  // the user said NCCL_PROTO=LL
  measure(kRing, kLl, 0, 497);
  measure(kRing, kSimple, 0, 151);
  expect_untouched();
}

TEST_F(CostModelTest, NeverTakesNcclsLastResort) {
  costs_.at(kTree, kSimple) = 90;
  costs_.at(kRing, kSimple) = 80.0f * 1024;  // fp8 over a long ring
  measure(kTree, kSimple, 0, 400);
  measure(kRing, kSimple, 0, 100);
  expect_untouched();
}

TEST_F(CostModelTest, LimitsChannelsWhereFewerWereFaster) {
  costs_.at(kRing, kSimple) = 90;
  measure(kRing, kSimple, 0, 100);
  measure(kRing, kSimple, 2, 70);
  measure(kRing, kSimple, 1, 80);
  apply();
  EXPECT_EQ(channels_, 2);
  EXPECT_EQ(costs_.choose(), std::make_pair(kRing, kSimple));
}

TEST_F(CostModelTest, ScalesWhatWasNotMeasuredSoThatItStaysBehind) {
  costs_.at(kTree, kLl) = 31;  // almost as good by NCCL's model, but not measured
  offer_rings(300, 200);
  apply();
  EXPECT_EQ(costs_.choose(), std::make_pair(kRing, kSimple));
  EXPECT_FLOAT_EQ(costs_.at(kTree, kLl), 310);
}

TEST_F(CostModelTest, IgnoresATableWithoutChoice) {
  measure(kRing, kLl, 0, 300);
  expect_untouched();
}

TEST_F(CostModelTest, FindsTheFastestProtocolOfAnAlgorithm) {
  measure(kRing, kLl, 0, 300);
  measure(kRing, kSimple, 0, 200);
  measure(kRing, kLl128, 2, 100);  // with fewer channels only
  const CostModel model(calibration_, {2, 2});
  EXPECT_EQ(model.find_fastest(Function::kAllReduce, kRing, 1 << 20), kSimple);
  EXPECT_EQ(model.find_fastest(Function::kAllReduce, kTree, 1 << 20), std::nullopt);
}

}  // namespace
}  // namespace verbena::tuner
