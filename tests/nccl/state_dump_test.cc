// The plugin writes the state of its connections on the configured signal, and handles no other.
#include <atomic>
#include <csignal>
#include <thread>

#include "base/scratch_path.h"
#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

using Handler = void (*)(int);

std::vector<Handler> read_handlers() {
  std::vector<Handler> handlers;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    handlers.push_back(sigaction(signal, nullptr, &action) == 0 ? action.sa_handler : SIG_ERR);
  }
  return handlers;
}
void handle_otherwise(int) {}

class StateDumpTest : public LiveTest<NewestVersion> {
 protected:
  StateDumpTest() {
    environment_.set("VERBENA_DUMP", file_.get());
    environment_.unset("VERBENA_DUMP_SIGNAL");
  }
  // What the process writes on the signal, and nothing of before.
  std::string ask() {
    std::remove(file_.get().c_str());
    std::raise(SIGUSR1);
    EXPECT_TRUE(poll_until([&] { return file_.read().find("end of the state\n") != std::string::npos; }));
    return file_.read();
  }
  void finalize() {
    connections_.clear();
    is_up_ = false;
    EXPECT_EQ(net_->finalize(context_), abi::kSuccess);
  }

  tests::ScratchPath file_{"dump"};
};

TEST_F(StateDumpTest, NoSignalIsTouchedUnasked) {
  const auto before = read_handlers();
  ASSERT_EQ(start(), 2);
  ASSERT_NE(establish(), nullptr);
  EXPECT_EQ(read_handlers(), before);
  finalize();
  EXPECT_EQ(read_handlers(), before);
}

TEST_F(StateDumpTest, TheSignalTellsBothEnds) {
  const auto before = read_handlers();
  environment_.set("VERBENA_DUMP_SIGNAL", "usr1");
  LiveConnection<NewestVersion>* connection = start_connected();
  EXPECT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  const std::string text = ask();
  EXPECT_NE(text.find("requested by a signal\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\nsend to 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find("\nreceive from 127.0.0.1:"), std::string::npos) << text;
  EXPECT_NE(text.find(", communicator 0x5eed, open for "), std::string::npos) << text;
  EXPECT_NE(text.find("complete: staged 0 messages 0 bytes, direct 1 messages 100000 bytes"),
            std::string::npos)
      << text;
  finalize();
  EXPECT_EQ(read_handlers(), before);
}

// NCCL's thread has an engine of datagrams nearly all the time while it waits.
TEST_F(StateDumpTest, AnEngineThatIsPolledAnswers) {
  environment_.set("VERBENA_DUMP_SIGNAL", "usr1");
  environment_.set("VERBENA_TRANSPORT", "datagram");
  ASSERT_GT(start(), 0);
  LiveConnection<NewestVersion>* connection = establish();
  void* const request = connection->receive(connection->received.bytes, connection->received.mhandle);
  ASSERT_NE(request, nullptr);
  std::atomic<bool> is_over{false};
  std::thread poller([&] {
    for (int done = 0, size = 0; !is_over && done == 0;)
      EXPECT_EQ((*net_)->test(request, &done, &size), abi::kSuccess);
  });
  for (int round = 0; round < 5; ++round) {
    const std::string text = ask();
    EXPECT_NE(text.find(", 1 receives open\n"), std::string::npos) << text;
    EXPECT_NE(text.find("  rail 0: "), std::string::npos) << text;
  }
  is_over = true;
  poller.join();
  finalize();
}

// A switch marks packets whose traffic class lets it: here the sender has marked them itself.
TEST_F(StateDumpTest, MarksOfSwitchesAreCounted) {
  environment_.set("VERBENA_DUMP_SIGNAL", "usr1");
  environment_.set("VERBENA_TRANSPORT", "datagram");
  environment_.set("VERBENA_TC", "3");
  ASSERT_GT(start(), 0);
  LiveConnection<NewestVersion>* connection = establish();
  EXPECT_EQ(connection->transfer(100'000, 0, 0), nullptr);
  const std::string text = ask();
  const auto count = [&](const std::string& label) {
    const size_t at = text.find(label);
    return at == std::string::npos ? 0 : std::stoul(text.substr(at + label.size()));
  };
  EXPECT_GE(count(", received "), 26U) << text;
  EXPECT_EQ(count(", delayed or ECN-marked "), count(", received ")) << text;
  finalize();
}

// What NCCL says before accept decides how many receive entries a connection gets.
TEST_F(StateDumpTest, WindowsFollowThePeersThatNcclExpects) {
  environment_.set("VERBENA_DUMP_SIGNAL", "usr1");
  environment_.set("VERBENA_UNPACK", "0");
  ASSERT_EQ(start(), 2);
  const auto count_entries = [&](int peers, int flows) {
    const abi::CommAttr side{peers, 1, flows, 1};
    abi::NetAttr attributes{side, side, abi::kAttrAny, abi::kAttrAny, abi::kAttrAny};
    EXPECT_EQ((*net_)->set_net_attr(context_, &attributes), abi::kSuccess);
    EXPECT_NE(establish(), nullptr);
    const std::string text = ask(), label = "receive entries reserved ";
    const size_t at = text.rfind(label);
    return at == std::string::npos ? 0 : std::stoi(text.substr(at + label.size()));
  };
  EXPECT_EQ(count_entries(abi::kUndefined, abi::kUndefined), 32);
  EXPECT_EQ(count_entries(9'999, 2), 12);
  EXPECT_EQ(count_entries(1'024, 2), 16);
  finalize();
}

TEST_F(StateDumpTest, ASignalOfSomebodyElseStaysHis) {
  std::signal(SIGUSR1, handle_otherwise);
  const auto before = read_handlers();
  environment_.set("VERBENA_DUMP_SIGNAL", "USR1");
  ASSERT_EQ(start(), 2);
  EXPECT_EQ(read_handlers(), before);
  const auto warnings = LogCapture::get().take_warnings();
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("signal SIGUSR1: the application already handles this signal"),
            std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[1].find("VERBENA_DUMP_SIGNAL"), std::string::npos) << warnings[1];
  std::signal(SIGUSR1, SIG_DFL);
}

// Its threads are gone before their code is.
TEST_F(StateDumpTest, UnloadedWithAConnectionThatNobodyCloses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (start() != 2) std::_Exit(1);
        auto* forgotten = new LiveConnection<NewestVersion>(*net_, context_);
        if (!forgotten->establish(0, HandleShape::kFilled)) std::_Exit(2);
        forgotten->close_recv();  // the sender's end is attended to
        if (!poll_until([] { return count_own_threads() != 0; })) std::_Exit(4);
        is_up_ = false;
        plugin_.reset();
        const bool are_gone = poll_until([] { return count_own_threads() == 0; });
        std::_Exit(LoadedPlugin::is_in_memory() || !are_gone ? 3 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

// With a table without finalize the plugin does not learn of the end: static destructors clean up, each
// possibly after the objects that it used.
using DumpAtExitTest = LiveTest<Version<10, abi::ncclNet_v10_t>>;

TEST_F(DumpAtExitTest, TheProcessEndsAfterAReport) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const tests::ScratchPath file("dump_at_exit");
  environment_.set("VERBENA_DUMP", file.get());
  environment_.set("VERBENA_DUMP_SIGNAL", "usr1");
  EXPECT_EXIT(
      {
        if (start() != 2 || establish() == nullptr) std::_Exit(1);
        std::raise(SIGUSR1);
        const bool is_told =
            poll_until([&] { return file.read().find("end of the state\n") != std::string::npos; });
        connections_.clear();
        std::exit(is_told ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace verbena::nccl::testing
