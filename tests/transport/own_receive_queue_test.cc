// Devices without shared receive queues: each queue pair has its own, with the entries that its connection
// was promised and, where messages are staged, with pages that are its alone while it lives. What else such
// connections do is in the tests that run over them once more (CMakeLists.txt).
#include <gtest/gtest.h>

#include "transport/setup/page_choice.h"
#include "transport/support/faulty_devices.h"
#include "transport/support/pool_probe.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kPages = 512;

class OwnReceiveQueueTest : public testing::Test {
 protected:
  OwnReceiveQueueTest() {
    hooks_.most_srq_entries = 0;
    hooks_.made_shared_queues = 0;
    Settings settings = choose_faulty_devices();
    settings.insert(settings.end(), {{"VERBENA_PAGE_BYTES", "16k"},
                                     {"VERBENA_BOUNCE_BYTES", std::to_string(kPages * 16384)}});
    host_ = std::make_unique<Host>(settings);
  }
  ~OwnReceiveQueueTest() override {
    EXPECT_EQ(hooks_.made_shared_queues, 0);
    hooks_.most_srq_entries = INT32_MAX;
  }

  verbs::faulty::Hooks& hooks_ = find_hooks();
  std::unique_ptr<Host> host_;
};

TEST_F(OwnReceiveQueueTest, PagesAreNobodyElsesUntilTheyComeBack) {
  const Nic& nic = host_->nic(2);
  const auto pool = take(BouncePool::acquire(BouncePool::Kind::kHostPages), "a pool");
  std::vector<BouncePool::Reservation> reservations;
  std::vector<bool> is_taken(kPages);
  for (uint32_t i = 0; i < kPages / 32; ++i) {
    reservations.push_back(take(pool->reserve(*nic.rails[i % 2], {16, 16, 16}, 2), "pages"));
    ASSERT_EQ(reservations.back().entries, 16U);
    ASSERT_EQ(reservations.back().pages.size(), 32U);
    for (const uint32_t page : reservations.back().pages) {
      EXPECT_FALSE(is_taken[page]) << page;
      is_taken[page] = true;
    }
  }
  EXPECT_EQ(take(pool->reserve(*nic.rails[0], {16, 16, 4}), "pages").entries, 0U) << "all are taken";
  EXPECT_NE(pool->describe().find("512 of 512 in use"), std::string::npos) << pool->describe();
  EXPECT_NE(pool->describe().find("256 in queue pairs' own queues"), std::string::npos);
  pool->release(*reservations[3].queue, 32);
  pool->free(reservations[3].pages);
  auto again = take(pool->reserve(*nic.rails[0], {16, 16, 16}, 2), "pages");
  std::ranges::sort(again.pages);
  std::ranges::sort(reservations[3].pages);
  EXPECT_EQ(again.pages, reservations[3].pages) << "of whichever rail they were";
}

TEST_F(OwnReceiveQueueTest, BareEntriesAreBoundedByAQueuePairAlone) {
  const Nic& nic = host_->nic();
  const auto pool = take(BouncePool::acquire(BouncePool::Kind::kBareEntries), "a pool");
  const uint32_t most = nic.rails[0]->max_qp_entries();
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(take(pool->reserve(*nic.rails[0], {32768, 32768, 12}, 8), "entries").entries,
              std::min(most, 32768U));
  EXPECT_EQ(take(pool->reserve(*nic.rails[0], {most + 1, most + 1, 12}), "entries").entries, most);
}

// Direct and staged, over several queue pairs a rail, one after another and many at once.
TEST_F(OwnReceiveQueueTest, ManyConnectionsTakeAndGiveBack) {
  apply_settings({{"VERBENA_IBVERBS_LIB", FAULTY_LIBRARY},
                  {"VERBENA_PAGE_BYTES", "16k"},
                  {"VERBENA_BOUNCE_BYTES", std::to_string(kPages * 16384)},
                  {"VERBENA_QPS_PER_CONNECTION", "2"}});
  const Nic& nic = host_->nic(2);
  const auto pages = take(BouncePool::acquire(BouncePool::Kind::kHostPages), "a pool");
  Transfer transfer;
  for (uint32_t i = 0; i < 60; ++i)
    transfer.messages.push_back({.length_bytes = i % 5 == 0 ? 300'000U : 977 * i});
  transfer.sends_ahead = 12;
  transfer.receives_ahead = 8;
  for (int round = 0; round < 3; ++round) {
    std::vector<ConnectedPair> connections;
    for (int i = 0; i < 6; ++i) {
      connections.push_back(connect_here(nic, nic, i % 2 == 0));
      expect_transfer_here(connections.back(), nic, nic, transfer);
    }
    EXPECT_NE(connections[0].sender->statistics().sent_staged().messages, 0U);
    EXPECT_EQ(pages->describe().find(" 0 of 512 in use"), std::string::npos);
    connections.clear();
    EXPECT_NE(pages->describe().find(" 0 of 512 in use"), std::string::npos) << pages->describe();
  }
  EXPECT_EQ(hooks_.live_pairs, 0);
}

// Whether the connection after one whose shared receive queue could not be made has a shared one again. The
// first has its own in any case.
bool makes_shared_queue_after(int errno_value) {
  verbs::faulty::Hooks& hooks = find_hooks();
  auto [host, nic] = OwnNic(1, choose_faulty_devices());
  const auto pool = take(BouncePool::acquire(BouncePool::Kind::kBareEntries), "a pool");
  hooks.calls = 0;
  hooks.failing_errno = errno_value;
  hooks.failing_call = 1;
  const auto first = take(pool->reserve(*nic.rails[0], {16, 16, 16}), "entries");
  hooks.failing_call = 0;
  hooks.failing_errno = ENOMEM;
  EXPECT_STREQ(hooks.failed, "create_srq");
  EXPECT_FALSE(first.queue->is_shared());
  return take(pool->reserve(*nic.rails[0], {16, 16, 16}), "entries").queue->is_shared();
}

TEST(SharedReceiveQueueTest, ADeviceWithoutAnyIsNotAskedAgain) {
  EXPECT_FALSE(makes_shared_queue_after(EOPNOTSUPP));
  EXPECT_FALSE(makes_shared_queue_after(ENOSYS));
  EXPECT_FALSE(makes_shared_queue_after(EINVAL));
}

TEST(SharedReceiveQueueTest, OneThatIsShortOfMemoryIsAskedAgain) {
  EXPECT_TRUE(makes_shared_queue_after(ENOMEM));
  EXPECT_TRUE(makes_shared_queue_after(EAGAIN));
}

// Queue pairs out of order have receive queues of their own, whatever else the device has.
class OutOfOrderTest : public testing::Test {
 protected:
  OutOfOrderTest() {
    hooks_.most_out_of_order = 64;
    hooks_.out_of_order_pairs = hooks_.made_shared_queues = 0;
    Settings settings = choose_faulty_devices();
    settings.emplace_back("VERBENA_OOO_RQ", "1");
    host_ = std::make_unique<Host>(settings);
  }
  ~OutOfOrderTest() override {
    hooks_.most_out_of_order = 0;
    apply_settings({{"VERBENA_OOO_RQ", ""}});
  }
  void expect_traffic(const Nic& sending, const Nic& receiving, bool unpacks, int expected_pairs) {
    hooks_.out_of_order_pairs = 0;
    ConnectedPair connection = connect_here(sending, receiving, unpacks);
    EXPECT_EQ(hooks_.out_of_order_pairs, expected_pairs);
    Transfer transfer;
    for (uint32_t i = 0; i < 200; ++i)
      transfer.messages.push_back({.length_bytes = i % 5 == 0 ? 300'000U : 977 * i});
    expect_transfer_here(connection, sending, receiving, transfer);
  }

  verbs::faulty::Hooks& hooks_ = find_hooks();
  std::unique_ptr<Host> host_;
};

TEST_F(OutOfOrderTest, IsUsedWhereBothEndsCan) {
  const Nic& nic = host_->nic(2);
  ASSERT_TRUE(nic.takes_out_of_order);
  for (const bool unpacks : {false, true}) expect_traffic(nic, nic, unpacks, 4);
  EXPECT_EQ(hooks_.made_shared_queues, 0);
  Nic other = nic;
  other.takes_out_of_order = false;
  expect_traffic(nic, other, true, 0);
  expect_traffic(other, nic, true, 0);
  EXPECT_NE(hooks_.made_shared_queues, 0);
}

TEST_F(OutOfOrderTest, AWindowIsNoLongerThanTheDeviceTakes) {
  const Nic& nic = host_->nic();
  apply_settings({{"VERBENA_IBVERBS_LIB", FAULTY_LIBRARY}, {"VERBENA_WINDOW_PAGES", "200"}});
  expect_traffic(nic, nic, true, 2);  // the stand-in makes no queue pair that has more
}

TEST_F(OutOfOrderTest, DevicesThatTakeTooFewAreInOrder) {
  hooks_.most_out_of_order = 16;
  Settings settings = choose_faulty_devices();
  settings.emplace_back("VERBENA_OOO_RQ", "1");
  Host host(settings);
  EXPECT_FALSE(host.nic().takes_out_of_order);
  expect_traffic(host.nic(), host.nic(), true, 0);
}

}  // namespace
}  // namespace verbena::transport
