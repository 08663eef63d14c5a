// Ranks with the same job key, with another, and without: processes, as the key is a process's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "base/job_key.h"
#include "base/parameters.h"
#include "bootstrap/frame_link.h"
#include "bootstrap/support/ranks.h"
#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"
#include "tests/base/scratch_path.h"

namespace verbena::bootstrap {
namespace {

constexpr int kJoined = 0, kRefused = 10, kOther = 11;

class BootstrapKeyTest : public testing::Test {
 protected:
  BootstrapKeyTest() {
    write_key(path_, "a secret of sixteen bytes");
    write_key(other_path_, "quite another secret, longer");
  }
  ~BootstrapKeyTest() override { load(""); }

  static void write_key(const tests::ScratchPath& path, const char* secret) {
    std::ofstream(path.get()) << secret;
    chmod(path.get().c_str(), 0600);
  }
  static void load(const std::string& key_file, const char* encryption = "0") {
    base::ScopedEnvironment environment;
    environment.set("VERBENA_JOB_KEY_FILE", key_file);
    environment.set("VERBENA_ENCRYPTION", encryption);
    ASSERT_TRUE(base::load_parameters());
    ASSERT_TRUE(base::load_job_key());
  }
  // Three ranks and their rendezvous, all with these settings.
  std::vector<int> meet(const std::string& key, const char* encryption = "0") {
    load(key, encryption);
    const UniqueId id = take(make_unique_id(), "id");
    Processes ranks(3, [&](uint32_t rank) {
      auto bootstrap = Bootstrap::join(id, rank, 3, {.timeout_ms = kPatienceMs, .fan_out = 1});
      const auto all = bootstrap ? bootstrap->gather(rank * 7) : bootstrap.error();
      return all && *all == std::vector<uint32_t>{0, 7, 14} && bootstrap->barrier() ? kJoined : kOther;
    });
    return ranks.await(kPatienceMs);
  }
  // Rank 1 comes to a rendezvous that has other settings. Its last line gives the reason; before it there may
  // be one about another process of this machine that called at our port.
  int come(const std::string& key, const std::string& key_of_rank_1, const char* reason,
           const char* encryption = "0", const char* encryption_of_rank_1 = "0") {
    load(key, encryption);
    const UniqueId id = take(make_unique_id(), "id");
    Processes rank_1(1, [&](uint32_t) {
      load(key_of_rank_1, encryption_of_rank_1);
      base::LogCapture log;
      // A rank that is not even answered tries again until its deadline.
      if (Bootstrap::join(id, 1, 3, {.timeout_ms = 5'000, .fan_out = 1})) return kJoined;
      const auto warnings = log.warnings();
      for (const auto& line : warnings) std::cerr << line << "\n";
      return !warnings.empty() && warnings.back().find(reason) != std::string::npos ? kRefused : kOther;
    });
    return rank_1.await(kPatienceMs)[0];
  }

  tests::ScratchPath path_{"key"}, other_path_{"other_key"};
};

TEST_F(BootstrapKeyTest, ACommonKeyJoins) {
  EXPECT_THAT(meet(path_.get()), testing::Each(kJoined));
}

TEST_F(BootstrapKeyTest, AnotherKeyIsRefused) {
  base::LogCapture log;
  EXPECT_EQ(come(path_.get(), other_path_.get(), "the peer has a different job key"), kRefused);
  EXPECT_THAT(log.warnings(),
              testing::Contains(testing::HasSubstr("refused: the peer has a different job key")));
}

TEST_F(BootstrapKeyTest, ARankWithoutAKeyIsRefused) {
  base::LogCapture log;
  EXPECT_EQ(come(path_.get(), "", "the peer has a job key but this rank has none"), kRefused);
}

TEST_F(BootstrapKeyTest, ARankAloneWithAKeyIsRefused) {
  base::LogCapture log;
  EXPECT_EQ(come("", path_.get(), "the peer has no job key but this rank has one"), kRefused);
}

TEST_F(BootstrapKeyTest, RanksThatEncryptJoin) {
  EXPECT_THAT(meet(path_.get(), "1"), testing::Each(kJoined));
}

TEST_F(BootstrapKeyTest, ARankAloneThatEncryptsIsToldWhy) {
  base::LogCapture log;
  EXPECT_EQ(come(path_.get(), path_.get(), "VERBENA_ENCRYPTION", "0", "1"), kRefused);
}

TEST_F(BootstrapKeyTest, ARankAloneThatDoesNotEncryptStaysOutside) {
  base::LogCapture log;
  EXPECT_NE(come(path_.get(), path_.get(), "", "1", "0"), kJoined);
}

// Of an earlier connection, by who recorded it: the listener's challenge is another one each time.
TEST_F(BootstrapKeyTest, AHelloThatIsSaidAgainIsRefused) {
  load(path_.get());
  const auto proof = take(Proof::create(), "proof");
  Challenge first, second;
  first.random[0] = 1;
  second.random[0] = 2;
  Hello hello{.count_ranks = 2};
  ASSERT_TRUE(proof.sign(first, hello));
  EXPECT_EQ(proof.judge(first, hello), Refusal::kNone);
  EXPECT_EQ(proof.judge(second, hello), Refusal::kKeyWrong);
  // And the listeners' challenges are.
  auto listener = take(base::Listener::open(), "listener");
  Nonce seen[2];
  for (Nonce& random : seen) {
    auto caller = take(base::Socket::try_connect(listener.address()), "caller");
    auto accepted = take(listener.accept(), "accepted");
    while (!accepted) accepted = take(listener.accept(), "accepted");
    auto link = FrameLink::accept(std::move(*accepted), proof);
    Challenge challenge;
    size_t received = 0;
    for (; received < sizeof(challenge); usleep(100)) {
      link.advance();
      received +=
          caller.receive_some(reinterpret_cast<char*>(&challenge) + received, sizeof(challenge) - received);
    }
    random = challenge.random;
  }
  EXPECT_NE(seen[0], seen[1]);
}

TEST_F(BootstrapKeyTest, AFrameThatSomebodyElseSendsIsNoticed) {
  load(path_.get());
  base::LogCapture log;
  auto listener = take(base::Listener::open(), "listener");
  auto sender = take(FrameLink::connect(listener.address(), Hello{.count_ranks = 2}), "link");
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  auto accepted = take(listener.accept(), "caller");
  while (!accepted && !deadline.has_passed()) accepted = take(listener.accept(), "caller");
  ASSERT_TRUE(accepted);
  const int raw = dup(sender.poll_entry().fd);
  auto receiver = FrameLink::accept(std::move(*accepted), take(Proof::create(), "proof"));
  while (!receiver.is_standing() && !deadline.has_passed()) {
    sender.advance();
    receiver.advance();
    if (receiver.asking() != nullptr) receiver.answer(Refusal::kNone);
    usleep(1000);
  }
  ASSERT_TRUE(receiver.is_standing());
  // A frame that does not come from the peer: well-formed, with an invalid MAC.
  const Record forged = make_record({.kind = FrameKind::kGoodbye, .rank = 0});
  std::vector<uint8_t> bytes(*forged);
  bytes.resize(bytes.size() + base::kMacBytes);
  ASSERT_EQ(write(raw, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  close(raw);
  while (!receiver.is_closed() && !deadline.has_passed()) {
    receiver.advance();
    usleep(1000);
  }
  EXPECT_EQ(receiver.take(), nullptr);
  EXPECT_THAT(receiver.problem(), testing::HasSubstr("VERBENA_JOB_KEY_FILE"));
}

}  // namespace
}  // namespace verbena::bootstrap
