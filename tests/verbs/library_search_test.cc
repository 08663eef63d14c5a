// Each test runs in a separate process with the environment from tests/verbs/CMakeLists.txt.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fake/fake_ibverbs.h"
#include "tests/base/log_capture.h"
#include "verbs/library.h"

namespace verbena::verbs {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(LibrarySearch, UsesTheSystemLibraryThatListsADevice) {
  base::LogCapture log;
  const auto library = Library::load("");
  ASSERT_TRUE(library);
  // By its file: a name without a folder would not tell whose it is.
  EXPECT_THAT((*library)->path(), AllOf(StartsWith("/"), EndsWith("libibverbs.so.1")));
  EXPECT_TRUE((*library)->lists_devices());
  EXPECT_TRUE(log.warnings().empty());
}

// With softverbs built it is used and says why; without it the error names both.
TEST(LibrarySearch, PassesOverASystemLibraryWithoutDevices) {
  base::LogCapture log;
  const auto library = Library::load("");
  if (library) {
    EXPECT_THAT((*library)->path(), HasSubstr("/softverbs/libibverbs.so.1"));
    EXPECT_THAT(log.lines_of(base::LogLevel::kInfo),
                ElementsAre(HasSubstr("the system's libibverbs lists no device")));
  } else {
    EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("libibverbs.so.1 lists no RDMA device"),
                                                  HasSubstr("softverbs/libibverbs.so.1"))));
  }
}

TEST(LibrarySearch, NamesWhatWasTriedForAPath) {
  base::LogCapture log;
  const auto library = Library::load("/nonexistent/verbs.so");
  ASSERT_FALSE(library);
  EXPECT_EQ(library.error().status, base::Status::kSystem);
  EXPECT_THAT(log.warnings(), ElementsAre(AllOf(HasSubstr("VERBENA_IBVERBS_LIB /nonexistent/verbs.so"),
                                                HasSubstr("install"))));
}

TEST(LibrarySearch, LeavesTheSystemsNameToTheSystem) {
  ASSERT_TRUE(Library::load("softverbs"));
  void* by_name = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(by_name, nullptr);
  EXPECT_NE(dlsym(by_name, fake::kGetHooks), nullptr) << "another program's dlopen would get softverbs";
}

}  // namespace
}  // namespace verbena::verbs
