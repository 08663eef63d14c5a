#include "common/table.h"

#include <gtest/gtest.h>

namespace verbena::tools {
namespace {

TEST(Table, AlignsFiguresUnderNames) {
  const Table table({{"size", "B", 6}, {"time", "us", 8}, {"wrong", "", 6}});
  EXPECT_EQ(table.format_header() + table.format_row({"8", "12.50", "0"}),
            "#  size     time  wrong\n"
            "#   (B)     (us)       \n"
            "      8    12.50      0\n");
}

TEST(Table, FormatsFiguresByMagnitude) {
  EXPECT_EQ(format_figure(3.14159), "3.14");
  EXPECT_EQ(format_figure(0), "0.00");
  EXPECT_EQ(format_figure(0.00314), "0.0031");
  EXPECT_EQ(format_figure(0.0000314), "3.1e-05");
  EXPECT_EQ(format_figure(314.159), "314.2");
  EXPECT_EQ(format_figure(31415.9), "31416");
}

TEST(Samples, PercentilesAreMeasuredValues) {
  EXPECT_EQ(compute_median({}), 0);
  EXPECT_EQ(compute_median({3, 1, 2}), 2);
  EXPECT_EQ(compute_percentile({4, 1, 3, 2}, 50), 2);
  std::vector<double> hundred;
  for (int value = 1; value <= 100; ++value) hundred.push_back(value);
  EXPECT_EQ(compute_percentile(hundred, 99), 99);
  EXPECT_EQ(compute_percentile(hundred, 100), 100);
}

}  // namespace
}  // namespace verbena::tools
