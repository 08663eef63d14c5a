// Where engines' pages lie that kernels unpack: one range for those of all engines.
#include <gtest/gtest.h>

#include "transport/datagram/page_pool.h"
#include "transport/support/host.h"

namespace verbena::transport::datagram {
namespace {

constexpr size_t kBytes = size_t{1} << 20;

TEST(PageSpace, AnEngineThatEndsAndItsSuccessorBothHavePages) {
  const Host host{{{"VERBENA_BOUNCE_BYTES", "1m"}}};
  const auto space = take(PageSpace::acquire(false), "a space");
  const auto ending = take(space->take(kBytes), "pages"), next = take(space->take(kBytes), "pages");
  ASSERT_TRUE(ending);
  ASSERT_TRUE(next);
  EXPECT_GE(next->offset_bytes, ending->offset_bytes + kBytes);
  EXPECT_FALSE(take(space->take(kBytes), "no pages"));
  space->give_back(*ending);
  const auto again = take(space->take(kBytes), "pages");
  ASSERT_TRUE(again);
  EXPECT_EQ(again->offset_bytes, ending->offset_bytes);
}

}  // namespace
}  // namespace verbena::transport::datagram
