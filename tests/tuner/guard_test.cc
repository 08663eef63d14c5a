// Which entries the guard rules out, for every shape and offer.
#include "tuner/guard.h"

#include "tuner/cost_array.h"

namespace verbena::tuner {
namespace {

constexpr Offer kUnpack{.is_in_use = true, .unpack = true, .tells_pat = true};
constexpr Offer kUnpackOld{.is_in_use = true, .unpack = true, .tells_pat = false};

// The number of entries that are ruled out, and that they are Simple's.
int count_forbidden(Shape shape, Offer offer) {
  CostArray costs;
  costs.fill(5.0f);
  Guard(shape, offer).apply(costs.table());
  int count = 0;
  for (int a = 0; a < kAlgorithmCount; ++a) {
    for (int p = 0; p < kProtocolCount; ++p) {
      if (costs.entries[a][p] == 5.0f) continue;
      EXPECT_EQ(costs.entries[a][p], kIgnored);
      EXPECT_EQ(p, number_of(Protocol::kSimple)) << "LL and LL128 never unpack";
      ++count;
    }
  }
  return count;
}

TEST(GuardTest, ForbidsNothingUnlessOurNetworkOffersUnpack) {
  for (const Offer offer : {Offer{}, Offer{.is_in_use = true}, Offer{.is_in_use = true, .tells_pat = true},
                            Offer{.unpack = true}}) {
    EXPECT_FALSE(Guard({16, 4}, offer).is_active());
    EXPECT_EQ(count_forbidden({16, 4}, offer), 0);
  }
}

TEST(GuardTest, ForbidsNothingWithinOneNode) {
  EXPECT_EQ(count_forbidden({8, 1}, kUnpackOld), 0);
  EXPECT_EQ(count_forbidden({1, 1}, kUnpackOld), 0);
}

TEST(GuardTest, NvlsTreeNever) {
  for (const Shape shape : {Shape{2, 2}, Shape{4, 4}, Shape{16, 2}, Shape{32, 4}}) {
    EXPECT_TRUE(Guard(shape, kUnpack).forbids(Algorithm::kNvlsTree, Protocol::kSimple));
  }
}

TEST(GuardTest, TreeOnlyWithThreeChildren) {
  const auto forbids = [](Shape shape) {
    return Guard(shape, kUnpack).forbids(Algorithm::kTree, Protocol::kSimple);
  };
  EXPECT_FALSE(forbids({2, 2}));
  EXPECT_FALSE(forbids({64, 64}));  // no local child
  EXPECT_FALSE(forbids({16, 2}));   // one network child
  EXPECT_TRUE(forbids({6, 3}));
  EXPECT_TRUE(forbids({4, 3}));  // one node of two ranks is enough
  EXPECT_TRUE(forbids({1024, 128}));
}

TEST(GuardTest, PatOnlyWhereItsReceivesAreTold) {
  EXPECT_FALSE(Guard({4, 4}, kUnpack).forbids(Algorithm::kPat, Protocol::kSimple));
  EXPECT_TRUE(Guard({4, 4}, kUnpackOld).forbids(Algorithm::kPat, Protocol::kSimple));
}

TEST(GuardTest, RingCollnetAndNvlsStay) {
  const Guard guard({32, 4}, kUnpackOld);
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kCollnetDirect, Algorithm::kCollnetChain, Algorithm::kNvls}) {
    EXPECT_FALSE(guard.forbids(algorithm, Protocol::kSimple)) << algorithm;
  }
  EXPECT_EQ(count_forbidden({32, 4}, kUnpackOld), 3);
  EXPECT_EQ(count_forbidden({4, 4}, kUnpack), 1);
}

// NCCL 2.22 has six algorithms; a later one may have eight, and a fourth protocol.
TEST(GuardTest, TouchesNothingThatItDoesNotKnow) {
  float six[6 * kProtocolCount], eight[8 * 4 + 1];
  std::fill(std::begin(six), std::end(six), 5.0f);
  std::fill(std::begin(eight), std::end(eight), 5.0f);
  const Guard guard({32, 4}, kUnpackOld);
  guard.apply({six, 6, kProtocolCount});
  EXPECT_EQ(std::count(std::begin(six), std::end(six), kIgnored), 2);
  guard.apply({eight, 8, 4});
  EXPECT_EQ(std::count(std::begin(eight), std::end(eight), kIgnored), 3);
  EXPECT_EQ(eight[number_of(Algorithm::kNvlsTree) * 4 + number_of(Protocol::kSimple)], kIgnored);
  EXPECT_EQ(eight[8 * 4], 5.0f);
}

TEST(GuardTest, SaysWhy) {
  EXPECT_NE(Guard({4, 4}, Offer{}).describe().find("NCCL does not use this plugin"), std::string::npos);
  EXPECT_NE(Guard({4, 4}, Offer{.is_in_use = true}).describe().find("not offered"), std::string::npos);
  EXPECT_NE(Guard({4, 1}, kUnpack).describe().find("one node"), std::string::npos);
  EXPECT_EQ(Guard({4, 4}, kUnpack).describe().find("pat"), std::string::npos);
  EXPECT_NE(Guard({4, 4}, kUnpackOld).describe().find(", pat ("), std::string::npos);
  EXPECT_NE(Guard({8, 4}, kUnpack).describe().find("three children"), std::string::npos);
}

}  // namespace
}  // namespace verbena::tuner
