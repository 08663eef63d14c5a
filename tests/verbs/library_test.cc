#include "verbs/library.h"

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

using testing::HasSubstr;

ibv_port_attr read_first_port(const Library& library) {
  int count = 0;
  ibv_device** list = library.get_device_list(&count);
  ibv_context* context = library.open_device(list[0]);
  ibv_port_attr port{};
  EXPECT_EQ(library.read_port(context, 1, &port), 0);
  library.close_device(context);
  library.free_device_list(list);
  return port;
}

class LibraryTest : public FakeTest {};

TEST_F(LibraryTest, ReportsAFileThatIsNotThere) {
  std::string problem;
  EXPECT_EQ(Library::open("/nonexistent/libibverbs.so.1", &problem), nullptr);
  EXPECT_THAT(problem, HasSubstr("/nonexistent/libibverbs.so.1"));
}

TEST_F(LibraryTest, NamesWhatALibraryLacks) {
  std::string problem;
  EXPECT_EQ(Library::open(FAKE_WITHOUT_SRQ_LIBRARY, &problem), nullptr);
  EXPECT_THAT(problem, HasSubstr("ibv_create_srq"));
  EXPECT_THAT(problem, testing::Not(HasSubstr("ibv_create_cq")));
}

TEST_F(LibraryTest, PreparesForFork) {
  std::string problem;
  ASSERT_NE(Library::open(FAKE_LIBRARY, &problem), nullptr) << problem;
  EXPECT_EQ(record().fork_inits, 1);
}

TEST_F(LibraryTest, ReadsPortsThroughTheProvider) {
  std::string problem;
  const auto library = Library::open(FAKE_LIBRARY, &problem);
  ASSERT_NE(library, nullptr) << problem;
  const ibv_port_attr port = read_first_port(*library);
  EXPECT_EQ(port.state, IBV_PORT_ACTIVE);
  EXPECT_EQ(port.port_cap_flags2, 0x5a5a);
}

TEST_F(LibraryTest, ReadsPortsOfAnOldProviderThroughTheSymbol) {
  fake::Hooks& old_hooks = fake_hooks(FAKE_OLD_LIBRARY);
  old_hooks.script.devices = {make_card("mthca0")};
  std::string problem;
  const auto library = Library::open(FAKE_OLD_LIBRARY, &problem);
  ASSERT_NE(library, nullptr) << problem;
  EXPECT_EQ(library->reg_mr_iova2, nullptr);
  EXPECT_EQ(library->query_gid_ex, nullptr);
  const ibv_port_attr port = read_first_port(*library);
  EXPECT_EQ(port.link_layer, IBV_LINK_LAYER_ETHERNET);
  EXPECT_EQ(port.port_cap_flags2, 0);
  old_hooks.script = {};
}

TEST_F(LibraryTest, KnowsWhetherThereAreDevices) {
  std::string problem;
  const auto library = Library::open(FAKE_LIBRARY, &problem);
  ASSERT_NE(library, nullptr) << problem;
  EXPECT_TRUE(library->lists_devices());
  script().devices.clear();
  EXPECT_FALSE(library->lists_devices());
  script().list_errno = ENOSYS;
  EXPECT_FALSE(library->lists_devices());
}

}  // namespace
}  // namespace verbena::verbs
