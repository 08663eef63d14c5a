#include "verbs/port_filter.h"

#include <gtest/gtest.h>

namespace verbena::verbs {
namespace {

PortFilter parse(const char* text) {
  PortFilter filter;
  std::string problem;
  EXPECT_TRUE(PortFilter::parse(text, &filter, &problem)) << problem;
  return filter;
}

struct Case {
  const char* text;
  const char* name;
  int port_number;
  bool is_selected;
};

class PortFilterTest : public testing::TestWithParam<Case> {};

TEST_P(PortFilterTest, Selects) {
  const Case& given = GetParam();
  EXPECT_EQ(parse(given.text).selects(given.name, given.port_number), given.is_selected)
      << "'" << given.text << "' on " << given.name << ":" << given.port_number;
}

INSTANTIATE_TEST_SUITE_P(
    Syntax, PortFilterTest,
    testing::Values(Case{"", "mlx5_0", 1, true}, Case{"mlx5", "mlx5_0", 1, true},
                    Case{"mlx5", "mlx4_0", 1, false}, Case{"mlx5_1", "mlx5_10", 1, true},
                    Case{"=mlx5_1", "mlx5_10", 1, false}, Case{"=mlx5_1", "mlx5_1", 2, true},
                    Case{"mlx5_0:2", "mlx5_0", 1, false}, Case{"mlx5_0:2", "mlx5_0", 2, true},
                    Case{"^mlx5_1", "mlx5_0", 1, true}, Case{"^mlx5_1", "mlx5_1", 1, false},
                    Case{"^mlx5_1", "mlx5_12", 1, false}, Case{"^=mlx5_1", "mlx5_12", 1, true},
                    Case{"^mlx5_1:2", "mlx5_1", 1, true}, Case{"^mlx5_1:2", "mlx5_1", 2, false},
                    Case{"mlx5_3,rxe:1", "rxe0", 1, true}, Case{"mlx5_3,rxe:1", "rxe0", 2, false},
                    Case{",mlx5_3,,", "mlx5_3", 1, true}, Case{",mlx5_3,,", "rxe0", 1, false},
                    Case{"^", "mlx5_0", 1, true}, Case{"=", "mlx5_0", 1, true}));

TEST(PortFilter, KnowsWhichDevicesNeedNotBeOpened) {
  EXPECT_FALSE(parse("mlx5_1:2").may_select("mlx5_0"));
  EXPECT_TRUE(parse("mlx5_1:2").may_select("mlx5_1"));
  EXPECT_FALSE(parse("^mlx5_1").may_select("mlx5_1"));
  EXPECT_TRUE(parse("^mlx5_1:2").may_select("mlx5_1"));
  EXPECT_TRUE(parse("").may_select("anything"));
}

TEST(PortFilter, RejectsPortsThatAreNoPorts) {
  for (const char* text : {"mlx5_0:", "mlx5_0:0", "mlx5_0:256", "mlx5_0:1x", "mlx5_0:-1", "a,mlx5_0:x"}) {
    PortFilter filter;
    std::string problem;
    EXPECT_FALSE(PortFilter::parse(text, &filter, &problem)) << text;
    EXPECT_NE(problem.find("mlx5_0:"), std::string::npos) << problem;
  }
}

}  // namespace
}  // namespace verbena::verbs
