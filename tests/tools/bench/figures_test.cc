// The reports of several ranks, joined.
#include "verbena-bench/shared/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace verbena::tools::bench {
namespace {

using testing::ElementsAre;

TEST(BenchFigures, TheFastestOrTheSlowestRankCounts) {
  for (const auto join : {Figures::Join::kFastest, Figures::Join::kSlowest}) {
    Figures figures(2, join);
    EXPECT_TRUE(figures.take("figure barrier/32 3 1 2"));
    EXPECT_TRUE(figures.take("figure barrier/32 2 4 2.5"));
    if (join == Figures::Join::kFastest)
      EXPECT_THAT(figures.find("barrier/32"), ElementsAre(2, 1, 2));
    else
      EXPECT_THAT(figures.find("barrier/32"), ElementsAre(3, 4, 2.5));
    EXPECT_TRUE(figures.find("barrier/64").empty());
  }
}

TEST(BenchFigures, ACheckIsFinishedWhenAllRanksHaveFinishedIt) {
  Figures figures(2, Figures::Join::kSlowest);
  EXPECT_TRUE(figures.take("checked 0 100 random calls, in 12 ms"));
  EXPECT_TRUE(figures.take("checked 3 sums"));
  EXPECT_EQ(figures.take_finished_checks(), "");
  EXPECT_TRUE(figures.take("checked 0 100 random calls, in 13 ms"));
  EXPECT_EQ(figures.take_finished_checks(), "ok: 100 random calls, in 12 ms\n");
  EXPECT_TRUE(figures.take("checked 4 sums"));
  EXPECT_EQ(figures.take_finished_checks(), "WRONG (7 elements): sums\n");
  EXPECT_EQ(figures.wrong(), 7U);
}

TEST(BenchFigures, TheCheckOfAMeasurementIsShownOnlyIfItIsWrong) {
  Figures figures(1, Figures::Join::kSlowest);
  for (const char* line : {"figure put/16 1", "checked 0 put/16", "figure put/32 1", "checked 1 put/32"})
    EXPECT_TRUE(figures.take(line));
  EXPECT_EQ(figures.take_finished_checks(), "WRONG (1 elements): put/32\n");
}

TEST(BenchFigures, DifferentBitsOfTwoRanksAreWrong) {
  Figures figures(2, Figures::Join::kSlowest);
  for (const char* line : {"bits ab first", "bits cd second", "bits ab first"})
    EXPECT_TRUE(figures.take(line));
  EXPECT_EQ(figures.wrong(), 0U);
  EXPECT_TRUE(figures.take("bits ce second"));
  EXPECT_EQ(figures.wrong(), 1U);
}

TEST(BenchFigures, OtherLinesAreNotes) {
  Figures figures(1, Figures::Join::kSlowest);
  EXPECT_TRUE(figures.take("gpu Some GPU"));
  EXPECT_EQ(figures.gpu(), "Some GPU");
  EXPECT_FALSE(figures.take("PyTorch 1.2.3"));
}

}  // namespace
}  // namespace verbena::tools::bench
