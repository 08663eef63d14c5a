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
  const char* title;
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

INSTANTIATE_TEST_SUITE_P(Syntax, PortFilterTest,
                         testing::Values(Case{"EmptyIsAll", "", "mlx5_0", 1, true},
                                         Case{"Prefix", "mlx5", "mlx5_0", 1, true},
                                         Case{"OtherPrefix", "mlx5", "mlx4_0", 1, false},
                                         Case{"PrefixOfALongerName", "mlx5_1", "mlx5_10", 1, true},
                                         Case{"ExactIsNoPrefix", "=mlx5_1", "mlx5_10", 1, false},
                                         Case{"ExactName", "=mlx5_1", "mlx5_1", 2, true},
                                         Case{"OtherPort", "mlx5_0:2", "mlx5_0", 1, false},
                                         Case{"ThisPort", "mlx5_0:2", "mlx5_0", 2, true},
                                         Case{"AllButAnother", "^mlx5_1", "mlx5_0", 1, true},
                                         Case{"AllButThis", "^mlx5_1", "mlx5_1", 1, false},
                                         Case{"AllButThisPrefix", "^mlx5_1", "mlx5_12", 1, false},
                                         Case{"AllButExactlyAnother", "^=mlx5_1", "mlx5_12", 1, true},
                                         Case{"AllButAnotherPort", "^mlx5_1:2", "mlx5_1", 1, true},
                                         Case{"AllButThisPort", "^mlx5_1:2", "mlx5_1", 2, false},
                                         Case{"SecondOfAList", "mlx5_3,rxe:1", "rxe0", 1, true},
                                         Case{"SecondOfAListOtherPort", "mlx5_3,rxe:1", "rxe0", 2, false},
                                         Case{"EmptyEntries", ",mlx5_3,,", "mlx5_3", 1, true},
                                         Case{"EmptyEntriesSelectNothing", ",mlx5_3,,", "rxe0", 1, false},
                                         Case{"AllButNothing", "^", "mlx5_0", 1, true},
                                         Case{"ExactlyNothingIsAll", "=", "mlx5_0", 1, true}),
                         [](const auto& given) { return std::string(given.param.title); });

TEST(PortFilter, KnowsWhichDevicesNeedNotBeOpened) {
  EXPECT_FALSE(parse("mlx5_1:2").may_select("mlx5_0"));
  EXPECT_TRUE(parse("mlx5_1:2").may_select("mlx5_1"));
  EXPECT_FALSE(parse("^mlx5_1").may_select("mlx5_1"));
  EXPECT_TRUE(parse("^mlx5_1:2").may_select("mlx5_1"));
  EXPECT_TRUE(parse("").may_select("anything"));
}

TEST(PortFilter, ReadsRailAndPlane) {
  const PortFilter filter = parse("mlx5_0:1:3:2,mlx5_1:2:5,mlx5_2::7,mlx5_3:1::4,mlx5_4");
  EXPECT_EQ(filter.find_place("mlx5_0", 1), (PortPlace{3, 2}));
  EXPECT_EQ(filter.find_place("mlx5_0", 2), PortPlace());
  EXPECT_EQ(filter.find_place("mlx5_1", 2), (PortPlace{5, PortPlace::kUnknown}));
  EXPECT_EQ(filter.find_place("mlx5_2", 9), (PortPlace{7, PortPlace::kUnknown}));
  EXPECT_EQ(filter.find_place("mlx5_3", 1), (PortPlace{PortPlace::kUnknown, 4}));
  EXPECT_EQ(filter.find_place("mlx5_4", 1), PortPlace());
  EXPECT_TRUE(filter.selects("mlx5_0", 1));
  EXPECT_FALSE(filter.selects("mlx5_0", 2));
  EXPECT_EQ(parse("^mlx5_0:1:3:2").find_place("mlx5_1", 1), PortPlace());
}

TEST(PortFilter, RejectsPlacesThatAreNoPlaces) {
  for (const char* text : {"a:1:x", "a:1:-1", "a:1:32768", "a:1:2:3:4", "a:1:2:3x"}) {
    PortFilter filter;
    std::string problem;
    EXPECT_FALSE(PortFilter::parse(text, &filter, &problem)) << text;
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  }
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
