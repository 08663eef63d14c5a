#include "observe/registry.h"

#include <gtest/gtest.h>

namespace verbena::observe {
namespace {

void send_one(Connection& connection) {
  connection.note_post(0, 10, 0);
  connection.note_chunk(0, Path::kDirect, 0, 0, 10);
  connection.note_done(0, 10);
}

uint64_t count_messages(Registry& registry) {
  uint64_t messages = 0;
  for (const auto& [key, path] : registry.read_totals().messages) messages += path.messages;
  return messages;
}

TEST(Registry, ClosedConnectionsStillCount) {
  Registry registry;
  const auto one = registry.open({Direction::kSend, "one", {"a:1"}}, 8);
  const auto two = registry.open({Direction::kSend, "two", {"a:1"}}, 8);
  send_one(*one);
  send_one(*two);
  EXPECT_EQ(count_messages(registry), 2U);
  EXPECT_EQ(registry.close(one), 1U);
  EXPECT_EQ(count_messages(registry), 2U);
  EXPECT_EQ(registry.read_totals().ends.at({Direction::kSend, "one"}).connections, 0U);
  EXPECT_EQ(registry.read_totals().ends.at({Direction::kSend, "two"}).connections, 1U);
  EXPECT_EQ(registry.close(one), 1U) << "once is enough";
  EXPECT_EQ(count_messages(registry), 2U);
  EXPECT_EQ(registry.close(two), 0U);
  const auto all = registry.list();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]->labels().peer, "one");
}

// A process that makes and closes connections for ever needs no more and no more memory, and loses no count.
TEST(Registry, ClosedConnectionsAreBounded) {
  Registry registry;
  for (int i = 0; i < 3000; ++i) {
    const auto connection = registry.open({Direction::kSend, "peer" + std::to_string(i), {"a:1"}}, 8);
    send_one(*connection);
    registry.close(connection);
  }
  EXPECT_EQ(count_messages(registry), 3000U);
  EXPECT_EQ(registry.read_totals().ends.size(), 1025U);
  EXPECT_EQ(
      registry.read_totals().messages.at({{{Direction::kSend, "others"}, "a:1"}, Path::kDirect}).messages,
      3000U - 1024U);
  EXPECT_EQ(registry.list().size(), 64U);
  EXPECT_EQ(registry.list().back()->labels().peer, "peer2999");
}

}  // namespace
}  // namespace verbena::observe
