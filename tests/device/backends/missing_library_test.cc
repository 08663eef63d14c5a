#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "verbena/backends.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;

int gather_nothing(void*, const void*, void*, size_t) {
  return 0;
}

TEST(MissingLibraryTest, NvshmemIsNamedWithWhatIsMissing) {
  verbena_context* context = nullptr;
  EXPECT_EQ(verbena_nvshmem_context_create(1 << 20, &context), VERBENA_INVALID_USAGE);
  EXPECT_THAT(verbena_last_error(), AllOf(HasSubstr("libnvshmem_host.so.3"), HasSubstr("not loaded")));
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(verbena_nvshmem_init(&gather_nothing, nullptr, 0, 1), VERBENA_INVALID_USAGE);
  EXPECT_EQ(verbena_nvshmem_prepare_module(&context), VERBENA_INVALID_USAGE);
}

TEST(MissingLibraryTest, ArgumentsComeFirst) {
  EXPECT_EQ(verbena_nvshmem_context_create(1, nullptr), VERBENA_INVALID_ARGUMENT);
  EXPECT_EQ(verbena_nvshmem_init(nullptr, nullptr, 0, 1), VERBENA_INVALID_ARGUMENT);
  EXPECT_EQ(verbena_nvshmem_init(&gather_nothing, nullptr, 2, 2), VERBENA_INVALID_ARGUMENT);
  EXPECT_THAT(verbena_last_error(), HasSubstr("not less than the number of ranks"));
}

#ifdef VERBENA_HAVE_NCCL
TEST(MissingLibraryTest, NcclIsNamedWithWhatIsMissing) {
  verbena_context* context = nullptr;
  auto* const no_communicator = reinterpret_cast<ncclComm*>(&context);
  EXPECT_EQ(verbena_nccl_context_create(no_communicator, 1 << 20, &context), VERBENA_INVALID_USAGE);
  EXPECT_THAT(verbena_last_error(), AllOf(HasSubstr("libnccl.so.2"), HasSubstr("not loaded")));
  EXPECT_EQ(verbena_nccl_context_create(nullptr, 1, &context), VERBENA_INVALID_ARGUMENT);
}
#endif

TEST(FailTest, SaysWhatAnotherLibrarySays) {
  EXPECT_EQ(verbena_fail(VERBENA_TIMEOUT, "100 % of %s"), VERBENA_TIMEOUT);
  EXPECT_STREQ(verbena_last_error(), "100 % of %s");
}

}  // namespace
