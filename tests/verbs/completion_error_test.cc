#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <set>
#include <string>

#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

TEST(CompletionError, DescribesEveryStatusDifferently) {
  const std::string unknown = describe_completion_error(-1);
  std::set<std::string> texts;
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    const std::string text = describe_completion_error(status);
    EXPECT_NE(text, unknown) << status;
    EXPECT_TRUE(texts.insert(text).second) << text;
  }
  EXPECT_EQ(describe_completion_error(IBV_WC_TM_RNDV_INCOMPLETE + 1), unknown);
}

TEST(CompletionError, SaysWhatToTryWhenThePeerIsSilent) {
  const std::string text = describe_completion_error(IBV_WC_RETRY_EXC_ERR);
  EXPECT_NE(text.find("VERBENA_GID_INDEX"), std::string::npos);
  EXPECT_NE(text.find("VERBENA_ACK_TIMEOUT"), std::string::npos);
}

}  // namespace
}  // namespace verbena::verbs
