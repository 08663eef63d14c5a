#include "common/clock.h"

#include <gtest/gtest.h>

namespace verbena::tools {
namespace {

TEST(Duration, ParsesUnits) {
  EXPECT_EQ(parse_duration_s("30"), 30);
  EXPECT_EQ(parse_duration_s("0.5"), 0.5);
  EXPECT_EQ(parse_duration_s("30s"), 30);
  EXPECT_EQ(parse_duration_s("250ms"), 0.25);
  EXPECT_EQ(parse_duration_s("2m"), 120);
  EXPECT_EQ(parse_duration_s("1.5h"), 5400);
  for (const char* text : {"", "s", "-1", "30x", "1e3", "nan", "30 s", "1m30s"})
    EXPECT_FALSE(parse_duration_s(text).has_value()) << text;
}

TEST(Duration, IsReadBack) {
  for (const double seconds : {0.0, 0.3, 0.5, 1.0, 30.0, 60.0, 90.0, 120.0, 600.0, 3600.0, 86400.0}) {
    const std::string text = format_duration(seconds);
    EXPECT_DOUBLE_EQ(parse_duration_s(text).value_or(-1), seconds) << text;
  }
  EXPECT_EQ(format_duration(600), "10m");
  EXPECT_EQ(format_duration(0.3), "300ms");
}

}  // namespace
}  // namespace verbena::tools
