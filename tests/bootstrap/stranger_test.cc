// Callers that are no ranks of this job: they are sent away, and the ranks meet all the same.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/socket.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/support/ranks.h"
#include "bootstrap/tree_carrier.h"
#include "tests/base/log_capture.h"

namespace verbena::bootstrap {
namespace {

using testing::HasSubstr;

// Connects and says `text`, if anything.
base::Socket call(const base::SocketAddress& address, std::string_view text) {
  auto socket = take(base::Socket::start_connect(address), "a connection");
  const auto deadline = base::Deadline::after_ms(5'000);
  while (!take(socket.finish_connect(), "a connection") && !deadline.has_passed()) usleep(100);
  EXPECT_EQ(socket.send_some(text.data(), text.size()), text.size());
  return socket;
}

std::string_view as_text(const Hello& hello) {
  return {reinterpret_cast<const char*>(&hello), sizeof(hello)};
}

// Whether the other end closes within the time.
bool is_sent_away(const base::Socket& socket) {
  const auto deadline = base::Deadline::after_ms(5'000);
  while (!socket.is_peer_closed() && !deadline.has_passed()) usleep(1000);
  return socket.is_peer_closed();
}

void expect_ranks_meet(const UniqueId& id) {
  run_as_threads(3, [&](uint32_t rank) {
    auto bootstrap = Bootstrap::join(id, rank, 3, {.timeout_ms = 20'000});
    ASSERT_TRUE(bootstrap);
    EXPECT_TRUE(bootstrap->barrier());
  });
}

TEST(Strangers, DoNotKeepTheRanksApart) {
  base::LogCapture log;
  const UniqueId id = take(make_unique_id(), "id");
  const auto address = take(parse(id), "its content").address;
  std::vector<base::Socket> strangers;
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\xff'), std::string("ve"),
        std::string(as_text(Hello{})).substr(0, 60)}) {
    strangers.push_back(call(address, text));
  }
  expect_ranks_meet(id);
  EXPECT_TRUE(is_sent_away(strangers[1])) << "garbage";
  EXPECT_TRUE(is_sent_away(strangers[2])) << "more garbage";
  EXPECT_THAT(log.warnings(), testing::IsEmpty());
}

// With the few descriptors that a process usually has. The tests of this program each have a process.
TEST(Strangers, WhoSayNothingLeaveDescriptors) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const bool is_whole = getenv("WHOLE_ATTACKS") != nullptr;  // as in tests/softverbs
  const rlim_t callers_wanted = is_whole ? 2041 : 300, ours = is_whole ? 1024 : 256;
  if (is_whole) printf("attack: 2041 idle callers of a job that starts with 1024 descriptors a process\n");
  fflush(stdout);
  rlimit many = limit;
  many.rlim_cur = std::max<rlim_t>(limit.rlim_cur, callers_wanted + 2 * ours);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &many), 0);
  base::LogCapture log;
  Processes ranks(1, [&](uint32_t) {
    const rlimit few{ours, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) return 3;
    const auto rendezvous = take(Rendezvous::open({}, 60'000), "rendezvous");  // ends with this function
    const UniqueId id = rendezvous->id();
    const auto address = take(parse(id), "its content").address;
    int told[2];
    if (pipe(told) != 0) return 2;
    const pid_t stranger = fork();
    if (stranger == 0) {
      const rlimit more{callers_wanted + ours, limit.rlim_max};
      if (setrlimit(RLIMIT_NOFILE, &more) != 0) _exit(4);
      std::vector<base::Socket> callers;
      for (rlim_t i = 0; i < callers_wanted; ++i) callers.push_back(call(address, ""));
      while (write(told[1], "", 1) != 1) continue;
      pause();
      _exit(0);
    }
    char word = 0;
    if (read(told[0], &word, 1) != 1) return 5;
    expect_ranks_meet(id);
    const base::FileDescriptor free(open("/dev/null", O_RDONLY | O_CLOEXEC));
    kill(stranger, SIGKILL);
    waitpid(stranger, nullptr, 0);
    return free && !testing::Test::HasFailure() && log.warnings().empty() ? 0 : 1;
  });
  EXPECT_THAT(ranks.await(kPatienceMs), testing::ElementsAre(0));
}

TEST(Strangers, OfAnotherJobAreRefused) {
  base::LogCapture log;
  const UniqueId id = take(make_unique_id(), "id");
  Meeting other = take(parse(id), "its content");
  other.nonce[31] ^= 1;
  const auto refused = Bootstrap::join(make_id(other), 0, 3, {.timeout_ms = 10'000});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, base::Status::kRemote);
  EXPECT_THAT(log.warnings(),
              testing::UnorderedElementsAre(HasSubstr("refused: the peer belongs to another job"),
                                            HasSubstr("the peer belongs to another job")));
  expect_ranks_meet(id);
}

// The nonce crosses the network in the clear; the id's secret does not.
TEST(Strangers, WhoKnowTheNonceAloneAreRefused) {
  base::LogCapture log;
  const UniqueId id = take(make_unique_id(), "id");
  const Meeting meeting = take(parse(id), "its content");
  for (const uint8_t change : {uint8_t{0}, uint8_t{1}}) {
    Meeting overheard = meeting;
    overheard.secret[0] ^= change;
    if (change == 0) overheard.secret = {};
    const auto refused = Bootstrap::join(make_id(overheard), 0, 3, {.timeout_ms = 10'000});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, base::Status::kRemote);
  }
  EXPECT_THAT(log.warnings(), testing::Contains(HasSubstr("refused: the peer belongs to another job")));
  expect_ranks_meet(id);
}

TEST(Strangers, WhoBreakOffAreBounded) {
  base::LogCapture log;
  const TreeLinks::Place root{{2, 64}, 0, {1, 2, 3}, {}};
  TreeLinks parent(root);
  ASSERT_TRUE(parent.listen());
  const Hello hello{.purpose = Purpose::kTree, .rank = 1, .count_ranks = 2, .nonce = root.nonce};
  std::vector<base::Socket> callers;
  for (size_t i = 0; i < 2 * Callers::find_limit(); ++i) {
    callers.push_back(call(parent.address(), as_text(hello)));
    parent.advance();
  }
  for (int i = 0; i < 20; ++i) {
    parent.advance();
    usleep(1000);
  }
  const auto kept = std::count_if(callers.begin(), callers.end(),
                                  [](const base::Socket& caller) { return !caller.is_peer_closed(); });
  EXPECT_LE(static_cast<size_t>(kept), Callers::find_limit());
  EXPECT_FALSE(parent.has_come(0));
}

TEST(Strangers, ARankThatIsTakenForOneComesAgain) {
  base::LogCapture log;
  auto listener =
      take(base::Listener::open_at({.family = base::IpFamily::kV4, .bytes = {127, 0, 0, 1}}), "listener");
  const Meeting meeting{listener.address(), {1, 2, 3}, {}};
  std::thread rank([&] { EXPECT_TRUE(Bootstrap::join(meeting, 0, 1, {.timeout_ms = 60'000})); });
  for (auto caller = take(listener.accept(), "caller"); !caller; usleep(1000))
    caller = take(listener.accept(), "caller");  // and closes it
  const auto rendezvous = take(Rendezvous::open_at(std::move(listener), meeting, 60'000), "rendezvous");
  rank.join();
}

TEST(Strangers, WithImpossibleNumbersAreRefused) {
  base::LogCapture log;
  const auto rendezvous =
      take(Rendezvous::open({}, 60'000), "rendezvous");  // no secret: who knows the nonce gets on
  const UniqueId id = rendezvous->id();
  const Meeting meeting = take(parse(id), "its content");
  Hello hello;
  hello.nonce = meeting.nonce;
  for (const auto& [rank, count] : {std::pair(7U, 3U), {0U, 0U}, {0U, ~0U}, {3U, 3U}}) {
    hello.rank = rank;
    hello.count_ranks = count;
    EXPECT_TRUE(is_sent_away(call(meeting.address, as_text(hello))));
  }
  hello.version = 99;
  EXPECT_TRUE(is_sent_away(call(meeting.address, as_text(hello))));
  // Ours, but then says what no rank says; nothing of it is awaited, or kept.
  hello = {.rank = 1, .count_ranks = 3, .nonce = meeting.nonce};
  for (const uint64_t length_bytes : {~uint64_t{0}, uint64_t{1} << 29, uint64_t{1}}) {
    FrameHeader frame{.kind = FrameKind::kReady, .length_bytes = length_bytes};
    auto socket = call(meeting.address, std::string(as_text(hello)) +
                                            std::string(reinterpret_cast<char*>(&frame), sizeof(frame)));
    EXPECT_TRUE(is_sent_away(socket)) << length_bytes;
  }
  expect_ranks_meet(id);
}

// However many there are.
TEST(Strangers, OnlyTheFirstRefusalIsAWarning) {
  base::LogCapture log;
  const UniqueId id = take(make_unique_id(), "id");
  const auto address = take(parse(id), "its content").address;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(is_sent_away(call(address, as_text(Hello{.count_ranks = 3}))));
  expect_ranks_meet(id);
  EXPECT_THAT(log.warnings(), testing::ElementsAre(HasSubstr("refused: the peer belongs to another job")));
}

// A listener that stays readable, because it cannot take the next caller, does not keep its owner busy.
TEST(Strangers, ALackOfDescriptorsIsWaitedOut) {
  base::LogCapture log;
  const TreeLinks::Place root{{2, 64}, 0, {1, 2, 3}, {}};
  TreeLinks parent(root);
  ASSERT_TRUE(parent.listen());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto silent = call(parent.address(), "");
  const auto child_address = parent.address();
  const base::FileDescriptor next(dup(0));  // the number that the caller would get
  const rlimit none{static_cast<rlim_t>(next.get()), limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  int steps = 0;
  const auto deadline = base::Deadline::after_ms(500);
  for (; !deadline.has_passed(); ++steps) {
    parent.advance();
    parent.wait(1000);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_LT(steps, 50);  // 5, where each waits as long as it may
  TreeLinks child({{2, 64}, 1, {1, 2, 3}, {}});
  ASSERT_TRUE(child.connect_parent(child_address));
  const auto patience = base::Deadline::after_ms(kPatienceMs);
  while (!parent.has_come(0) && !patience.has_passed()) {
    parent.advance();
    child.advance();
    parent.wait(1);
  }
  EXPECT_TRUE(parent.has_come(0));
}

// Where the tree's links meet, the same holds: only a child that is expected, once, and of this job, gets its
// place.
TEST(Strangers, DoNotTakeAChildsPlace) {
  base::LogCapture log;
  const TreeLinks::Place root{{2, 64}, 0, {1, 2, 3}, {}}, leaf{{2, 64}, 1, {1, 2, 3}, {}};
  TreeLinks parent(root);
  ASSERT_TRUE(parent.listen());
  const base::SocketAddress address = parent.address();
  Hello hello{.purpose = Purpose::kTree, .rank = 1, .count_ranks = 2, .nonce = {9, 9, 9}};
  const auto other_job = call(address, as_text(hello));
  hello.nonce = root.nonce;
  hello.rank = 2;
  const auto other_rank = call(address, as_text(hello));
  hello.rank = 1;
  hello.purpose = Purpose::kRegister;
  const auto other_purpose = call(address, as_text(hello));
  const auto silent = call(address, "");
  const auto garbage = call(address, "garbage!!");
  hello.purpose = Purpose::kTree;
  const auto unready = call(address, as_text(hello));  // the right hello, and nothing after it
  for (int i = 0; i < 50; ++i) {
    parent.advance();
    usleep(1000);
  }
  EXPECT_TRUE(other_job.is_peer_closed());
  EXPECT_TRUE(other_rank.is_peer_closed());
  EXPECT_TRUE(other_purpose.is_peer_closed());
  EXPECT_TRUE(garbage.is_peer_closed());
  EXPECT_FALSE(parent.has_come(0));
  TreeLinks child(leaf);
  ASSERT_TRUE(child.connect_parent(address));
  const auto deadline = base::Deadline::after_ms(5'000);
  while (!parent.has_come(0) && !deadline.has_passed()) {
    parent.advance();
    child.advance();
    parent.wait(1);
  }
  EXPECT_TRUE(parent.has_come(0));
  EXPECT_TRUE(unready.is_peer_closed()) << "nobody else is expected";
}

}  // namespace
}  // namespace verbena::bootstrap
