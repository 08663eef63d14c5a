#include "observe/counter.h"

#include <gtest/gtest.h>

namespace verbena::observe {
namespace {

TEST(Histogram, BucketsArePowersOfTwo) {
  EXPECT_EQ(find_bucket(-5), 0U);
  EXPECT_EQ(find_bucket(0), 0U);
  EXPECT_EQ(find_bucket(1024), 0U);
  EXPECT_EQ(find_bucket(1025), 1U);
  EXPECT_EQ(find_bucket(2048), 1U);
  EXPECT_EQ(find_bucket(2049), 2U);
  EXPECT_EQ(find_bucket(INT64_MAX), kBuckets - 1);
  // Each but the last counts what is at most its limit and more than the one before.
  for (size_t b = 0; b + 1 < kBuckets; ++b) {
    EXPECT_EQ(find_bucket(bucket_limit_ns(b)), b);
    EXPECT_EQ(find_bucket(bucket_limit_ns(b) + 1), b + 1);
  }
}

TEST(Histogram, AddsUp) {
  Histogram histogram;
  histogram.add(500);
  histogram.add(3000);
  histogram.add(3001);
  EXPECT_EQ(histogram.counts[0].read(), 1U);
  EXPECT_EQ(histogram.counts[2].read(), 2U);
  EXPECT_EQ(histogram.sum_ns.read(), 6501U);
}

}  // namespace
}  // namespace verbena::observe
