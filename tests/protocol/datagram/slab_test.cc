#include "protocol/datagram/slab.h"

#include <gtest/gtest.h>

#include <list>
#include <vector>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

TEST(SlabsTest, ObjectsStayWhereTheyAreAndAreUsedAgain) {
  Slabs<int, 4> slabs;
  std::vector<uint32_t> ids;
  for (int i = 0; i < 10; ++i) ids.push_back(slabs.take());
  int* const fifth = &slabs[ids[5]];
  for (int i = 0; i < 100; ++i) slabs.take();
  EXPECT_EQ(fifth, &slabs[ids[5]]);
  slabs.give_back(ids[5]);
  EXPECT_EQ(slabs.take(), ids[5]);
  EXPECT_EQ(slabs.used(), 110U);
}

struct Node {
  ListLink link;
};
struct NodeLink {
  static ListLink& of(Node& node) { return node.link; }
};

TEST(LinkedListTest, IsAListBesideAList) {
  std::vector<Node> nodes(50);
  LinkedList<NodeLink> list;
  std::list<uint32_t> other;
  std::vector<bool> is_in(nodes.size());
  Random random(2);
  for (int i = 0; i < 10'000; ++i) {
    const uint32_t id = random.between(0, 49);
    if (is_in[id]) {
      list.remove(nodes, id);
      other.remove(id);
    } else {
      list.append(nodes, id);
      other.push_back(id);
    }
    is_in[id] = !is_in[id];
    ASSERT_EQ(list.is_empty(), other.empty());
    uint32_t at = list.first();
    for (const uint32_t expected : other) {
      ASSERT_EQ(at, expected);
      at = nodes[at].link.next;
    }
    ASSERT_EQ(at, kNoObject);
    if (!other.empty()) {
      ASSERT_EQ(list.last(), other.back());
    }
  }
}

}  // namespace
}  // namespace verbena::protocol::datagram
