// The guard and the costs together, and the release that shows no costs.
#include "tuner/tuner.h"

#include "tuner/cost_array.h"

namespace verbena::tuner {
namespace {

using enum Algorithm;
using enum Protocol;

constexpr Offer kHost{.is_in_use = true, .unpack = false, .tells_pat = true};
constexpr Offer kUnpack{.is_in_use = true, .unpack = true, .tells_pat = true};
constexpr int kAllReduce = number_of(Function::kAllReduce);

std::shared_ptr<const Calibration> make_calibration() {
  const auto curve = [](Algorithm algorithm, Protocol protocol, double us) {
    return Measurement{Function::kAllReduce, algorithm, protocol, 0, 8, 4, {{1 << 20, us}}};
  };
  return std::make_shared<Calibration>(
      Calibration{{}, {}, {curve(kTree, kSimple, 50), curve(kRing, kSimple, 100), curve(kRing, kLl, 300)}});
}

TEST(TunerTest, GuardGoesBeforeTheCosts) {
  for (const bool unpack : {false, true}) {
    const Tuner tuner({8, 4}, unpack ? kUnpack : kHost, make_calibration());
    CostArray costs;
    costs.at(kTree, kSimple) = 90;
    costs.at(kRing, kSimple) = 80;
    costs.at(kRing, kLl) = 20;
    int channels = 0;
    EXPECT_TRUE(tuner.adjust(kAllReduce, 1 << 20, costs.table(), &channels));
    EXPECT_EQ(costs.choose(), std::make_pair(unpack ? kRing : kTree, kSimple));
    EXPECT_EQ(costs.table().is_allowed(kTree, kSimple), !unpack);
  }
}

TEST(TunerTest, SaysWhenNothingIsLeft) {
  const Tuner tuner({8, 4}, kUnpack, nullptr);
  CostArray costs;
  int channels = 0;
  EXPECT_TRUE(tuner.adjust(kAllReduce, 8, costs.table(), &channels));  // nothing was there
  costs.at(kNvlsTree, kSimple) = 10;
  EXPECT_FALSE(tuner.adjust(kAllReduce, 8, costs.table(), &channels));
}

TEST(TunerTest, LeavesUnknownCollectivesButGuardsThem) {
  const Tuner tuner({8, 4}, kUnpack, make_calibration());
  for (const int function : {-1, kFunctionCount, 1000}) {
    CostArray costs;
    costs.fill(7);
    int channels = 0;
    EXPECT_TRUE(tuner.adjust(function, 8, costs.table(), &channels));
    EXPECT_EQ(costs.at(kNvlsTree, kSimple), kIgnored);
    EXPECT_EQ(costs.at(kRing, kLl), 7);
  }
}

TEST(TunerTest, DoesNothingForAnotherNetwork) {
  const Tuner tuner({8, 4}, Offer{}, make_calibration());
  CostArray costs;
  costs.fill(7);
  const CostArray before = costs;
  int channels = 0;
  EXPECT_TRUE(tuner.adjust(kAllReduce, 1 << 20, costs.table(), &channels));
  EXPECT_EQ(costs, before);
  EXPECT_FALSE(tuner.choose_without_costs(kAllReduce, 1 << 20, {}));
}

TEST(TunerTest, WithoutCostsAllReduceTakesTheRing) {
  const Tuner tuner({8, 4}, kUnpack, nullptr);
  const auto choose = [&](uint64_t bytes, const UserChoice& user) {
    const auto choice = tuner.choose_without_costs(kAllReduce, bytes, user);
    EXPECT_TRUE(choice.has_value());
    EXPECT_EQ(choice->algorithm, kRing);
    return choice->protocol;
  };
  EXPECT_EQ(choose(1024, {}), kLl);
  EXPECT_EQ(choose(1 << 20, {}), kSimple);
  EXPECT_EQ(choose(1024, {"", "simple"}), kSimple);
  EXPECT_EQ(choose(1 << 20, {"", "LL128"}), kLl128);
  EXPECT_EQ(choose(1024, {"", "^LL"}), kSimple);                          // always served
  EXPECT_FALSE(tuner.choose_without_costs(kAllReduce, 8, {"Tree", ""}));  // the user's word
  EXPECT_FALSE(tuner.choose_without_costs(number_of(Function::kAllGather), 8, {}));
  EXPECT_FALSE(Tuner({8, 4}, kHost, nullptr).choose_without_costs(kAllReduce, 8, {}));
  EXPECT_FALSE(Tuner({8, 1}, kUnpack, nullptr).choose_without_costs(kAllReduce, 8, {}));
  const Tuner measured({8, 4}, kUnpack, make_calibration());
  EXPECT_EQ(measured.choose_without_costs(kAllReduce, 1024, {})->protocol, kSimple);
}

TEST(TunerTest, SaysWhatItHas) {
  EXPECT_NE(Tuner({8, 4}, kHost, nullptr).describe().find("8 ranks on 4 nodes: UNPACK guard off"),
            std::string::npos);
  const std::string with = Tuner({8, 4}, kUnpack, make_calibration()).describe();
  EXPECT_NE(with.find("UNPACK guard on"), std::string::npos) << with;
  EXPECT_NE(with.find("3 of 3 curves"), std::string::npos) << with;
  EXPECT_NE(Tuner({2, 2}, kUnpack, make_calibration()).describe().find("only the number of channels"),
            std::string::npos);
  EXPECT_NE(Tuner({2, 1}, kUnpack, make_calibration()).describe().find("0 of 3 curves"), std::string::npos);
}

}  // namespace
}  // namespace verbena::tuner
