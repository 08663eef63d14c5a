#include "base/movable.h"

#include <gtest/gtest.h>

namespace verbena::base {
namespace {

TEST(Movable, AMoveLeavesNothingBehind) {
  Movable<int> from = 3;
  const Movable<int> to = std::move(from);
  EXPECT_EQ(to.get(), 3);
  EXPECT_EQ(from.get(), 0);  // NOLINT(bugprone-use-after-move)
}

TEST(Movable, AnAssignmentLeavesTheSourceWhatItsTargetOwned) {
  Movable<int> from = 3, to = 5;
  to = std::move(from);
  EXPECT_EQ(to.get(), 3);
  EXPECT_EQ(from.get(), 5);  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace verbena::base
