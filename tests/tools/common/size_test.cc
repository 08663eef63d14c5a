#include "common/size.h"

#include <gtest/gtest.h>

namespace verbena::tools {
namespace {

TEST(Size, ParsesSuffixes) {
  EXPECT_EQ(parse_size_bytes("0"), 0U);
  EXPECT_EQ(parse_size_bytes("8"), 8U);
  EXPECT_EQ(parse_size_bytes("4k"), 4096U);
  EXPECT_EQ(parse_size_bytes("64M"), 64ULL << 20);
  EXPECT_EQ(parse_size_bytes("1GiB"), 1ULL << 30);
  EXPECT_EQ(parse_size_bytes("2MB"), 2ULL << 20);
  EXPECT_EQ(parse_size_bytes("16b"), 16U);
}

TEST(Size, RefusesOthers) {
  for (const char* text :
       {"", "k", "-1", "1x", "1kk", "1.5M", " 8", "8 ", "99999999999999999999", "17179869184g"}) {
    EXPECT_FALSE(parse_size_bytes(text).has_value()) << text;
  }
}

TEST(Size, ParsesLists) {
  EXPECT_EQ(parse_size_list("8:64", 4), (std::vector<uint64_t>{8, 32, 64}));
  EXPECT_EQ(parse_size_list("4K,1:2,1M", 2), (std::vector<uint64_t>{4096, 1, 2, 1 << 20}));
  for (const char* text : {"", ",", "8,", "8:4", "8;16"}) EXPECT_FALSE(parse_size_list(text, 2)) << text;
}

TEST(Size, ParsesRanges) {
  const auto range = parse_size_range("8:64M");
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->begin_bytes, 8U);
  EXPECT_EQ(range->end_bytes, 64ULL << 20);
  EXPECT_EQ(parse_size_range("4k")->end_bytes, 4096U);
  EXPECT_FALSE(parse_size_range("64:8").has_value());
  EXPECT_FALSE(parse_size_range("8:").has_value());
  EXPECT_FALSE(parse_size_range("8:16:32").has_value());
}

TEST(Size, ListsUpToTheEnd) {
  EXPECT_EQ(list_sizes({8, 64}, 2), (std::vector<uint64_t>{8, 16, 32, 64}));
  EXPECT_EQ(list_sizes({8, 100}, 4), (std::vector<uint64_t>{8, 32, 100}));
  EXPECT_EQ(list_sizes({0, 4}, 2), (std::vector<uint64_t>{0, 1, 2, 4}));
  EXPECT_EQ(list_sizes({7, 7}, 2), (std::vector<uint64_t>{7}));
  EXPECT_EQ(list_sizes({1, ~0ULL}, 1ULL << 32), (std::vector<uint64_t>{1, 1ULL << 32, ~0ULL}));
}

TEST(Size, ParsesThresholds) {
  EXPECT_EQ(parse_threshold("64k"), "65536");
  EXPECT_EQ(parse_threshold("0"), "0");
  EXPECT_EQ(parse_threshold("unlimited"), "unlimited");
  EXPECT_FALSE(parse_threshold("many").has_value());
}

TEST(Size, FormatsExactly) {
  EXPECT_EQ(format_size(0), "0");
  EXPECT_EQ(format_size(8), "8");
  EXPECT_EQ(format_size(4096), "4K");
  EXPECT_EQ(format_size(4097), "4097");
  EXPECT_EQ(format_size(64ULL << 20), "64M");
  EXPECT_EQ(format_size(3ULL << 30), "3G");
}

}  // namespace
}  // namespace verbena::tools
