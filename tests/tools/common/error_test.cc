#include "common/error.h"

#include <gtest/gtest.h>

namespace verbena::tools {
namespace {

template <typename Error>
int end_by() {
  return report_errors("tool", []() -> int { throw Error("no luck"); });
}

TEST(ReportErrors, AnExceptionIsALineAndItsStatus) {
  EXPECT_EQ(report_errors("tool", [] { return 17; }), 17);
  testing::internal::CaptureStderr();
  EXPECT_EQ(end_by<HangError>(), kExitHung);
  EXPECT_EQ(end_by<UsageError>(), kExitUsage);
  EXPECT_EQ(end_by<ToolError>(), kExitFailed);
  EXPECT_EQ(end_by<std::runtime_error>(), kExitFailed);
  const std::string line = "tool: no luck\n";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), line + line + line + line);
}

}  // namespace
}  // namespace verbena::tools
