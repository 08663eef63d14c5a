#include <sched.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "wire_caller.h"

// With a job key, only peers that prove that they have it are accepted.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

class WireKeyTest : public WireHostileTest {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() / ("softverbs-key-" + std::to_string(getpid()));
    std::ofstream(path_) << "a secret of this test\n";
    ASSERT_EQ(chmod(path_.c_str(), 0600), 0);
    setenv("VERBENA_JOB_KEY_FILE", path_.c_str(), 1);
    ASSERT_TRUE(load_key());
    WireHostileTest::SetUp();
  }
  void TearDown() override {
    WireHostileTest::TearDown();
    std::filesystem::remove(path_);
  }
  // What a stranger would want to be taken up: a write that the queue pair's own peer might send.
  Header make_forged() { return make_write(64); }
  void expect_not_heard(Caller& caller) {
    caller.say_frame(make_forged());
    EXPECT_TRUE(caller.has_ended());
  }
  std::filesystem::path path_;
};

TEST_F(WireKeyTest, WhoHasTheKeyIsHeard) {
  const auto caller = welcome_with_key();
  expect_acknowledgement(*caller, make_write());
}

TEST_F(WireKeyTest, WhoHasNoneIsRefused) {
  Caller caller(slot_);
  caller.say(make_hello(victim_, ++links_));
  caller.say_frame(make_forged());
  Hello answer{};
  ASSERT_TRUE(caller.hear(answer));
  EXPECT_EQ(answer.refusal, kKeyMissing);
  EXPECT_TRUE(caller.has_ended());
}

TEST_F(WireKeyTest, ClaimsAreNotEnough) {
  Caller silent(slot_), guessing(slot_);
  Hello hello = make_hello(victim_, ++links_);
  hello.protection = softverbs::wire::get_protection();
  silent.say(hello);
  expect_not_heard(silent);
  const Ready guess{};
  guessing.say(hello);
  guessing.say(guess);
  expect_not_heard(guessing);
}

// An attacker can replay a recorded peer, without success.
TEST_F(WireKeyTest, WhatAPeerSaidDoesNotServeTwice) {
  welcome_with_key();  // and leaves
  for (int i = 0; i < 3; ++i) {
    Caller caller(slot_);
    caller.say(said_);
    expect_not_heard(caller);
  }
}

// A process that calls gives nothing to a listener that cannot prove itself.
TEST_F(WireKeyTest, AnImpostorThatListensHearsNothing) {
  for (const bool is_keyed : {false, true}) {
    Child requester(call_peer);
    TakenCall call(requester);
    auto& [listener, fd, hello] = call;
    EXPECT_EQ(hello.protection, kKeyed);
    hello.protection = is_keyed ? kKeyed : kOpen;
    tell(fd, hello);
    pollfd ready{fd, POLLIN, 0};
    ASSERT_EQ(poll(&ready, 1, 10000), 1);
    char word = 0;
    EXPECT_LE(recv(fd, &word, 1, 0), 0) << "it goes on talking";
  }
}

TEST(WireWithoutKeyTest, NobodyListensWhereStrangersAre) {
  Child child([](int socket) {
    const bool is_alone = unshare(CLONE_NEWNET) == 0 && system("ip link set lo up") == 0 &&
                          system("ip addr add 10.99.0.1/32 dev lo") == 0;
    tell(socket, is_alone);
    if (!is_alone) return;
    setenv("SOFTVERBS_NETDEVS", "10.99.0.1", 1);
    setenv("SOFTVERBS_PORT", std::to_string(kPort).c_str(), 1);
    ::testing::internal::CaptureStderr();
    { const Node node; }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("VERBENA_JOB_KEY_FILE"), std::string::npos) << said;
    EXPECT_NE(said.find("SOFTVERBS_INSECURE=1"), std::string::npos) << said;
    std::ifstream listeners("/proc/self/net/tcp");
    std::string text(std::istreambuf_iterator<char>(listeners), {});
    EXPECT_EQ(text.find("0100630A:"), std::string::npos) << "it listens: " << text;
  });
  if (!hear<bool>(child.socket())) GTEST_SKIP() << "no right to make a network namespace";
}

TEST(WireWithoutKeyTest, AKeyThatCannotBeUsedIsNotDoneWithout) {
  setenv("SOFTVERBS_NETDEVS", "127.0.0.1", 1);
  setenv("SOFTVERBS_KEY_FILE", "/nowhere/at/all", 1);
  expect_unopened();
}

}  // namespace
}  // namespace verbena::softverbs_test
