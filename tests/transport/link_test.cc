// A link over a queue pair that is connected to itself: which queue pair gets which completions.
#include <gtest/gtest.h>

#include "transport/link/link.h"
#include "transport/support/connection.h"
#include "transport/support/faulty_devices.h"

namespace verbena::transport {
namespace {

class LinkTest : public testing::Test {
 protected:
  // The faulty devices hold back the completions of requests with this cookie.
  static constexpr uint64_t kHeldCookie = uint64_t{1} << 63;

  LinkTest() {
    Link::Options options;
    options.rails = nic_.rails;
    options.operations = {.send_imm = false, .write = true, .write_imm = false, .read = false};
    link_ = take(Link::create(options), "a link");
    protocol::RailRecord rail;
    protocol::QueuePairRecord pair;
    link_.describe({&rail, 1}, {&pair, 1});
    EXPECT_TRUE(link_.connect({&rail, 1}, {&pair, 1}, {{0}}));
  }
  ~LinkTest() override { hooks_.holds_receives = false; }

  void write(uint64_t cookie = 0) {
    const verbs::RegionLease& region = memory_.registration()->regions[0];
    EXPECT_TRUE(link_.pair(0).post(verbs::WorkRequest{
        .opcode = verbs::Opcode::kWrite,
        .signaled = true,
        .cookie = cookie,
        .local = memory_.bytes().data(),
        .local_key = region.local_key(),
        .length = 1,
        .remote_key = region.remote_key(),
        .remote = reinterpret_cast<uintptr_t>(memory_.bytes().data()) + 1,
    }));
  }
  void renew() {
    link_.stop();
    protocol::QueuePairRecord pair;
    protocol::RailRecord rail;
    ASSERT_TRUE(link_.renew(0, &pair, &rail));
    ASSERT_TRUE(link_.connect_one(0, rail, pair));
  }
  // Returns once a completion was polled.
  void poll() {
    EXPECT_TRUE(poll_until([&] {
      const int before = current_ + stale_;
      EXPECT_TRUE(link_.poll([&](const verbs::Completion&, uint32_t) { ++current_; },
                             [&](const verbs::Completion&, uint32_t) { ++stale_; }));
      return current_ + stale_ != before;
    }));
  }

  verbs::faulty::Hooks& hooks_ = find_hooks();
  Host host_{choose_faulty_devices()};
  const Nic& nic_ = host_.nic();
  Memory memory_{nic_, 4096};
  Link link_;
  int current_ = 0, stale_ = 0;  // number of completions
};

// As on a device that does not remove the completions of a queue pair when it destroys the queue pair.
TEST_F(LinkTest, CompletionsOfAReplacedQueuePairAreStale) {
  hooks_.holds_receives = true;
  write(kHeldCookie);
  write();
  poll();
  EXPECT_EQ(current_, 1);
  renew();
  hooks_.holds_receives = false;
  poll();
  EXPECT_EQ(current_, 1) << "the new queue pair got a completion of the old one";
  EXPECT_EQ(stale_, 1);
  write();
  poll();
  EXPECT_EQ(current_, 2);
  EXPECT_EQ(stale_, 1);
}

}  // namespace
}  // namespace verbena::transport
