#include "nccl-perf/soak.h"

#include <gtest/gtest.h>

namespace verbena::tools::nccl {
namespace {

TEST(Soak, CountsByPowersOfTwo) {
  const Soak soak = summarize({0.2, 1.0, 1.9, 2.0, 1000.0, 1e15});
  EXPECT_EQ(soak.counts[0], 1U);
  EXPECT_EQ(soak.counts[1], 2U);
  EXPECT_EQ(soak.counts[2], 1U);
  EXPECT_EQ(soak.counts[10], 1U);
  EXPECT_EQ(soak.counts[Soak::kBuckets - 1], 1U);
  EXPECT_EQ(soak.count(), 6U);
  EXPECT_DOUBLE_EQ(soak.longest_us, 1e15);
}

TEST(Soak, AddsUpAndTravels) {
  Soak all = summarize({3, 3, 3});
  merge(all, parse_soak(describe(summarize({5, 700}))));
  EXPECT_EQ(all.count(), 5U);
  EXPECT_EQ(all.counts[2], 3U);
  EXPECT_EQ(all.counts[3], 1U);
  EXPECT_DOUBLE_EQ(all.longest_us, 700);
  const std::string text = format(all);
  EXPECT_NE(text.find("5 iterations"), std::string::npos) << text;
  EXPECT_NE(text.find("< 4 "), std::string::npos) << text;
  EXPECT_NE(text.find("< 1024"), std::string::npos) << text;
  EXPECT_EQ(text.find("< 2048"), std::string::npos) << text;
}

TEST(Soak, OfNothingIsEmpty) {
  EXPECT_TRUE(summarize({}).is_empty());
  EXPECT_NE(format({}).find("0 iterations"), std::string::npos);
}

}  // namespace
}  // namespace verbena::tools::nccl
