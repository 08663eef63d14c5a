#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace verbena::base {
namespace {

TEST(Result, HoldsAValueOrAnError) {
  const Result<int> good = 7;
  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 7);
  const Result<int> bad = Error{Status::kTimeout, 5};
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().status, Status::kTimeout);
  EXPECT_EQ(bad.error().errno_value, 5);
}

TEST(Result, MovesAValueOut) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 3);
}

TEST(Result, HoldsFalseAsAValue) {
  const Result<bool> not_now = false;
  ASSERT_TRUE(not_now);
  EXPECT_FALSE(*not_now);
}

TEST(Outcome, IsGoodUntilItHasAnError) {
  EXPECT_EQ(Outcome().status(), Status::kOk);
  EXPECT_TRUE(Outcome());
  EXPECT_TRUE(Outcome().is_ok());
  EXPECT_FALSE(Outcome().has_failed());
  const Outcome bad = Error{Status::kRemote, 0};
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.status(), Status::kRemote);
}

}  // namespace
}  // namespace verbena::base
