// One channel fails, or one peer: all others go on, and so does a communicator that is made afterwards. The
// rows of docs/fault-matrix.md, for both transports. This process has channels both ways to two others; what
// happens to one of these is a test's.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "nccl/actor.h"

namespace verbena::nccl::testing {
namespace {

constexpr uint64_t kBytes = 300'000;
constexpr uint64_t kEagerBytes = 1'000;
constexpr uint64_t kLongBytes = 8 << 20;  // over all rails

class SharedFateTest : public LiveEnvironment, public ::testing::WithParamInterface<const char*> {
 protected:
  using Act = Command::Act;

  // A channel from one to another, by the number that both have of it.
  struct Channel {
    Actor *sender = nullptr, *receiver = nullptr;
    uint32_t number = 0;
  };

  bool is_datagram() const { return GetParam() == std::string("datagram"); }

  void SetUp() override {
    environment_.set("VERBENA_TRANSPORT", GetParam());
    environment_.set("VERBENA_UNPACK", "0");
    environment_.set("SOFTVERBS_DEVICES", "1");
    environment_.set("VERBENA_BOUNCE_BYTES", "16m");
    environment_.set("VERBENA_PEER_GRACE_MS", "200");
    environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "60000");
    environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "8000");
  }
  // Of this process alone: a plan of faults, and how soon it gives up who does not answer.
  void start(const std::string& plan = "", const std::string& timeout_ms = "") {
    environment_.set("SOFTVERBS_RAILS", peers_rails_.path());
    peer_ = std::make_unique<RemoteActor>();
    environment_.unset("SOFTVERBS_RAILS");
    for (auto* actor : {&other_, &spare_}) *actor = std::make_unique<RemoteActor>();
    if (!plan.empty()) environment_.set("SOFTVERBS_FAULTS", plan);
    if (!timeout_ms.empty()) environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", timeout_ms);
    here_ = std::make_unique<LocalActor>();
    ASSERT_TRUE(here_->is_up());
    for (RemoteActor* actor : {peer_.get(), other_.get()}) {
      for (const bool sends : {true, false}) {
        channels_.push_back(
            join(sends ? static_cast<Actor&>(*here_) : *actor, sends ? *actor : static_cast<Actor&>(*here_)));
      }
    }
    ASSERT_FALSE(HasFailure());
  }
  Channel join(Actor& sender, Actor& receiver) {
    const Channel channel{&sender, &receiver, next_++};
    Command command{Act::kListen, channel.number};
    const Reply listened = receiver.run(command);
    EXPECT_TRUE(listened.is_right());
    std::memcpy(command.text, listened.text, sizeof(command.text));
    const auto [sent, received] = run_both(channel, Act::kConnect, Act::kAccept, 0, 0, listened.text);
    EXPECT_TRUE(sent.is_right()) << sent.result;
    EXPECT_TRUE(received.is_right()) << received.result;
    return channel;
  }
  std::pair<Reply, Reply> run_both(const Channel& channel, Act sender, Act receiver, uint64_t sent,
                                   uint64_t room, const char* handle = nullptr) {
    Command of_sender{sender, channel.number, sent}, of_receiver{receiver, channel.number, room};
    if (handle != nullptr) std::memcpy(of_sender.text, handle, sizeof(of_sender.text));
    // The other process first: this one works when its reply is asked for.
    const bool is_local_sender = channel.sender == here_.get();
    channel.sender->begin(of_sender);
    channel.receiver->begin(of_receiver);
    Reply replies[2];
    replies[is_local_sender ? 0 : 1] = (is_local_sender ? channel.sender : channel.receiver)->finish();
    replies[is_local_sender ? 1 : 0] = (is_local_sender ? channel.receiver : channel.sender)->finish();
    return {replies[0], replies[1]};
  }
  // A connected sender takes nothing before its receive. Datagrams are announced first, and nothing is
  // granted yet.
  void begin_both(const Channel& channel, uint64_t bytes) {
    for (const bool sends : {is_datagram(), !is_datagram()}) {
      Actor& actor = sends ? *channel.sender : *channel.receiver;
      ASSERT_TRUE(actor.run({Act::kBegin, channel.number, bytes}).is_right());
    }
  }
  void expect_transfer(const Channel& channel, const std::string& which, uint64_t bytes = kBytes) {
    const auto [sent, received] = run_both(channel, Act::kTransfer, Act::kTransfer, bytes, bytes);
    EXPECT_TRUE(sent.is_right()) << which << ": the sender: " << sent.result;
    EXPECT_TRUE(received.is_right()) << which << ": the receiver: " << received.result;
  }

  const Channel& to_peer() const { return channels_[0]; }
  const Channel& from_peer() const { return channels_[1]; }
  // All channels but the one that has failed, and new ones, both ways.
  void expect_others_go_on(const Channel* failed, bool is_peer_well = true) {
    static constexpr const char* kNames[] = {"to the peer", "from the peer", "to the other",
                                             "from the other"};
    for (size_t i = is_peer_well ? 0 : 2; i < channels_.size(); ++i)
      if (&channels_[i] != failed) expect_transfer(channels_[i], kNames[i]);
    expect_new_ones_work(*other_, "the other");
    if (is_peer_well) expect_new_ones_work(*peer_, "the peer");
  }
  void expect_new_ones_work(Actor& actor, const std::string& which) {
    for (const bool sends : {true, false}) {
      Actor &from = sends ? static_cast<Actor&>(*here_) : actor, &to = sends ? actor : *here_;
      const Channel channel = join(from, to);
      if (!HasFailure()) expect_transfer(channel, "a new one, " + which);
    }
  }
  // One after the other with the peer, both ways: `fewest` at least.
  template <typename Done>
  void connect_until(int fewest, const Done& done) {
    for (int i = 0; (i < fewest || !done()) && !HasFailure(); ++i) {
      const Channel channel = i % 2 == 0 ? join(*here_, *peer_) : join(*peer_, *here_);
      if (!HasFailure()) expect_transfer(channel, "one of those that connected meanwhile");
      for (Actor* actor : {channel.sender, channel.receiver})
        EXPECT_TRUE(actor->run({Act::kClose, channel.number}).is_right());
      for (Actor* actor : {channel.sender, channel.receiver})
        actor->run({Act::kCloseListener, channel.number});
      next_ = channel.number;
    }
  }
  void expect_failure(Actor& actor, const Channel& channel, const char* which) {
    const Reply reply = actor.run({Act::kWait, channel.number});
    EXPECT_TRUE(reply.has_failed()) << which << " took " << reply.took_s << " s";
  }
  // A listener's handle outlives it.
  template <typename End>
  void expect_nobody_there(const End& end) {
    expect_nobody_there(end, *spare_);
  }
  template <typename End>
  void expect_nobody_there(const End& end, RemoteActor& actor) {
    const uint32_t number = next_++;
    const Reply listened = actor.run({Act::kListen, number});
    ASSERT_TRUE(listened.is_right());
    end(number);
    Command command{Act::kConnect, number};
    std::memcpy(command.text, listened.text, sizeof(command.text));
    const Reply reply = here_->run(command);
    EXPECT_TRUE(reply.has_failed()) << "took " << reply.took_s << " s";
  }
  // The peer, as with its host.
  void vanish() {
    peers_rails_.write("* down\n");
    ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "softverbs0:1: port is down"); }));
    peer_->kill(SIGSTOP);
  }
  // A device of this process fails by a request that it gets; the channel to the other has it.
  void start_with_failure(int rail) {
    ASSERT_NO_FATAL_FAILURE(start("event type=DEVICE_FATAL rail=" + std::to_string(rail) +
                                  " nth=" + (is_datagram() ? "1000" : "1")));
    if (!is_datagram()) begin_both(channels_[2], kLongBytes);
    ASSERT_TRUE(poll_until([&] {
      if (is_datagram()) run_both(channels_[2], Act::kTransfer, Act::kTransfer, kLongBytes, kLongBytes);
      return has_warned(*here_, ("softverbs" + std::to_string(rail) + ":1 has failed").c_str());
    }));
  }
  void finish_long_one() {
    if (is_datagram()) return;
    const auto [sent, received] = run_both(channels_[2], Act::kWait, Act::kWait, 0, 0);
    EXPECT_TRUE(sent.is_right() && received.is_right());
  }
  void close_to_peer() {
    for (const Channel* channel : {&to_peer(), &from_peer()})
      for (Actor* actor : {channel->sender, channel->receiver})
        EXPECT_TRUE(actor->run({Act::kClose, channel->number}).is_right());
  }
  bool has_warned(Actor& actor, const char* words) {
    Command command{Act::kFindWarning};
    std::strncpy(command.text, words, sizeof(command.text) - 1);
    return actor.run(command).is_done;
  }

  tests::RailsFile peers_rails_;
  std::unique_ptr<RemoteActor> peer_, other_, spare_;
  std::unique_ptr<LocalActor> here_;
  std::vector<Channel> channels_;  // to the peer, from it, to the other, from it
  uint32_t next_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Transports, SharedFateTest, ::testing::Values("connected", "datagram"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST_P(SharedFateTest, AMessageThatIsTooLongEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Channel& channel = from_peer();
  run_both(channel, Act::kBegin, Act::kBegin, kBytes, 1'000);
  expect_failure(*channel.sender, channel, "the sender");
  if (is_datagram()) expect_failure(*channel.receiver, channel, "the receiver");
  expect_others_go_on(&channel);
}

// It is sent eagerly, and waits for its receive.
TEST_P(SharedFateTest, AParkedMessageThatIsTooLongEndsItsChannel) {
  if (!is_datagram()) GTEST_SKIP() << "nothing is sent before its receive";
  ASSERT_NO_FATAL_FAILURE(start());
  const Channel& channel = from_peer();
  ASSERT_TRUE(channel.sender->run({Act::kBegin, channel.number, kBytes}).is_right());
  const Reply refused = channel.receiver->run({Act::kTransfer, channel.number, 1'000});
  EXPECT_TRUE(refused.has_failed());
  expect_failure(*channel.sender, channel, "the sender");
  expect_others_go_on(&channel);
}

TEST_P(SharedFateTest, AReceiverThatClosesEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Channel& channel = from_peer();
  ASSERT_TRUE(channel.receiver->run({Act::kBegin, channel.number, kBytes}).is_right());
  ASSERT_TRUE(channel.sender->run({Act::kBegin, channel.number, 2 * kBytes + 1}).is_done);
  ASSERT_TRUE(channel.receiver->run({Act::kClose, channel.number}).is_right());
  expect_failure(*channel.sender, channel, "the sender");
  expect_others_go_on(&channel);
}

TEST_P(SharedFateTest, ASenderThatClosesEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Channel& channel = to_peer();
  ASSERT_TRUE(channel.receiver->run({Act::kBegin, channel.number, kBytes}).is_right());
  ASSERT_TRUE(channel.sender->run({Act::kClose, channel.number}).is_right());
  expect_failure(*channel.receiver, channel, "the receiver");
  expect_others_go_on(&channel);
}

// With an open request, which NCCL does when it aborts.
TEST_P(SharedFateTest, MemoryThatIsDeregisteredEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const Channel* channel : {&to_peer(), &from_peer()}) {
    begin_both(*channel, kBytes);
    ASSERT_TRUE(here_->run({Act::kDeregister, channel->number}).is_done);
    ASSERT_TRUE(here_->run({Act::kClose, channel->number}).is_right());
  }
  for (size_t i = 2; i < channels_.size(); ++i) expect_transfer(channels_[i], "the other's");
  expect_new_ones_work(*peer_, "the peer");
  expect_new_ones_work(*other_, "the other");
}

// Its port is paused, for one, and a datagram still reads the memory that is deregistered.
TEST_P(SharedFateTest, ALateDatagramHoldsUpNobody) {
  if (!is_datagram()) GTEST_SKIP() << "needs datagrams";
  ASSERT_NO_FATAL_FAILURE(start("delay qp=3 by=3s nth=1"));
  const Channel& channel = to_peer();
  ASSERT_TRUE(channel.sender->run({Act::kBegin, channel.number, kEagerBytes}).is_right());
  EXPECT_TRUE(channel.sender->run({Act::kDeregister, channel.number}).is_done);
  EXPECT_TRUE(channel.sender->run({Act::kClose, channel.number}).is_right());
  expect_others_go_on(&channel);
}

// As of a request whose memory is not what it was.
TEST_P(SharedFateTest, ABadCompletionEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start(is_datagram() ? "fail qp=3 status=LOC_PROT nth=1"
                                              : "fail status=LOC_PROT nth=1 opcode=RDMA_WRITE_WITH_IMM"));
  const Channel& channel = to_peer();
  ASSERT_TRUE(channel.receiver->run({Act::kBegin, channel.number, kEagerBytes}).is_right());
  const Reply sent = channel.sender->run({Act::kTransfer, channel.number, kEagerBytes});
  EXPECT_TRUE(sent.has_failed());
  expect_others_go_on(&channel);
}

// A request that fails though nothing is wrong with it, as a device's queue pair may.
TEST_P(SharedFateTest, ABrokenQueuePairIsMended) {
  if (!is_datagram()) GTEST_SKIP() << "failover_test has them";
  ASSERT_NO_FATAL_FAILURE(start("error every=50"));
  for (int i = 0; i < 20; ++i) expect_transfer(to_peer(), "to the peer");
  expect_others_go_on(nullptr);
}

// Memory that is gone though it is registered.
TEST_P(SharedFateTest, UnmappedMemoryEndsItsChannel) {
  ASSERT_NO_FATAL_FAILURE(start("", "3000"));
  const Channel& channel = to_peer();
  ASSERT_TRUE(channel.receiver->run({Act::kBegin, channel.number, kBytes}).is_right());
  ASSERT_TRUE(channel.sender->run({Act::kUnmap, channel.number}).is_right());
  Command begin{Act::kBegin, channel.number, kBytes};
  if (channel.sender->run(begin).is_right()) expect_failure(*channel.sender, channel, "the sender");
  expect_others_go_on(&channel);
}

TEST_P(SharedFateTest, APeerThatIsKilledTakesNoOtherWithIt) {
  ASSERT_NO_FATAL_FAILURE(start());
  const Channel& channel = from_peer();
  ASSERT_TRUE(channel.receiver->run({Act::kBegin, channel.number, kBytes}).is_right());
  peer_->kill(SIGKILL);
  expect_failure(*here_, channel, "the receiver");
  EXPECT_TRUE(here_->run({Act::kTransfer, to_peer().number, kBytes}).has_failed());
  expect_others_go_on(&channel, false);
  expect_new_ones_work(*spare_, "another process in its place");
}

// For less than VERBENA_FAILOVER_TIMEOUT_MS. It has announced far more than all grants.
TEST_P(SharedFateTest, APeerThatStopsForAWhileHoldsUpNobody) {
  ASSERT_NO_FATAL_FAILURE(start());
  std::vector<Channel> many;
  for (int i = 0; i < 8; ++i) many.push_back(join(*peer_, *here_));
  for (const Channel& channel : many) begin_both(channel, kLongBytes);
  peer_->kill(SIGSTOP);
  for (int i = 0; i < 10; ++i) expect_transfer(channels_[3], "from the other", 4 << 20);
  expect_others_go_on(nullptr, false);
  peer_->kill(SIGCONT);
  for (const Channel& channel : many) {
    channel.sender->begin({Act::kWait, channel.number});
    EXPECT_TRUE(channel.receiver->run({Act::kWait, channel.number}).is_right());
    EXPECT_TRUE(channel.sender->finish().is_right());
  }
  expect_others_go_on(nullptr);
}

// For longer than this process waits. Old ends stay failed, and open.
TEST_P(SharedFateTest, APeerThatWasGivenUpIsMetAgain) {
  if (!is_datagram()) GTEST_SKIP() << "a connection is between two ends";
  ASSERT_NO_FATAL_FAILURE(start("", "600"));
  for (const bool is_peer_first : {true, false}) {
    const Channel old = join(*peer_, *here_);
    ASSERT_TRUE(here_->run({Act::kBegin, old.number, kBytes}).is_right());
    peer_->kill(SIGSTOP);
    expect_failure(*here_, old, "the receiver");
    peer_->kill(SIGCONT);
    const Channel there = is_peer_first ? join(*peer_, *here_) : join(*here_, *peer_);
    const Channel back = is_peer_first ? join(*here_, *peer_) : join(*peer_, *here_);
    for (const Channel& channel : {there, back, there}) expect_transfer(channel, "a new one");
    EXPECT_TRUE(here_->run({Act::kTransfer, to_peer().number, kBytes}).has_failed());
    EXPECT_TRUE(peer_->run({Act::kTransfer, from_peer().number, kBytes}).has_failed());
    expect_others_go_on(nullptr, false);
    ASSERT_TRUE(here_->run({Act::kClose, old.number}).is_right());
    ASSERT_TRUE(peer_->run({Act::kClose, old.number}).is_right());
    for (const Channel& channel : {there, back})
      expect_transfer(channel, "a new one, once an old one is closed");
  }
}

// An engine that has never met this process.
TEST_P(SharedFateTest, AListenerThatIsGoneIsNoticed) {
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "600000");
  ASSERT_NO_FATAL_FAILURE(start());
  const uint32_t open = next_++;
  ASSERT_TRUE(spare_->run({Act::kListen, open}).is_right());
  expect_nobody_there([&](uint32_t closed) {
    EXPECT_TRUE(spare_->run({Act::kCloseListener, closed}).is_right());
  });
  EXPECT_TRUE(!is_datagram() || has_warned(*here_, "the peer's listener is closed"));
  expect_others_go_on(nullptr);
  expect_new_ones_work(*spare_, "the one that refused");
}

TEST_P(SharedFateTest, AListenersProcessThatIsKilledIsNoticed) {
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "600000");
  ASSERT_NO_FATAL_FAILURE(start());
  expect_nobody_there([&](uint32_t) { spare_->kill(SIGKILL); });
  EXPECT_TRUE(!is_datagram() || has_warned(*here_, "the peer's process has ended"));
  expect_nobody_there([&](uint32_t) { peer_->kill(SIGKILL); }, *peer_);
  expect_others_go_on(nullptr, false);
}

TEST_P(SharedFateTest, WithoutFailoverAListenerThatIsGoneIsNoticed) {
  environment_.set("VERBENA_FAILOVER", "0");
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "3000");
  ASSERT_NO_FATAL_FAILURE(start());
  expect_nobody_there([&](uint32_t closed) {
    EXPECT_TRUE(spare_->run({Act::kCloseListener, closed}).is_right());
  });
  expect_nobody_there([&](uint32_t) { spare_->kill(SIGKILL); });
  expect_others_go_on(nullptr);
}

TEST_P(SharedFateTest, APeerThatStopsWhileItConnectsIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(start());
  const uint32_t number = next_++;
  const Reply listened = here_->run({Act::kListen, number});
  ASSERT_TRUE(listened.is_right());
  Command connect{Act::kConnect, number};
  std::memcpy(connect.text, listened.text, sizeof(connect.text));
  peer_->begin(connect);
  peer_->kill(SIGSTOP);
  expect_others_go_on(nullptr, false);
  peer_->kill(SIGCONT);
  EXPECT_TRUE(here_->run({Act::kAccept, number}).is_right());
  EXPECT_TRUE(peer_->finish().is_right());
  expect_transfer({peer_.get(), here_.get(), number}, "the one that waited");
  expect_others_go_on(nullptr);
}

TEST_P(SharedFateTest, APeerThatIsStoppedHoldsUpNoClose) {
  ASSERT_NO_FATAL_FAILURE(start());
  for (const Channel* channel : {&to_peer(), &from_peer()}) {
    peer_->begin({Act::kClose, channel->number});
    peer_->kill(SIGSTOP);
    EXPECT_TRUE(here_->run({Act::kClose, channel->number}).is_right());
    expect_others_go_on(nullptr, false);
    peer_->kill(SIGCONT);
    EXPECT_TRUE(peer_->finish().is_right());
  }
  expect_new_ones_work(*peer_, "the peer");
}

// One of two, again and again.
TEST_P(SharedFateTest, ARailThatFlapsWhileOthersConnectHoldsUpNobody) {
  constexpr int kFewest = 40;
  constexpr std::chrono::milliseconds kPause{20};
  environment_.set("SOFTVERBS_DEVICES", "2");
  environment_.set("VERBENA_ACK_TIMEOUT", "8");  // requests fail after 8 ms
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "60000");
  ASSERT_NO_FATAL_FAILURE(start());
  for (const std::string rail : {"0", "1"}) {
    std::atomic<bool> is_over{false};
    std::thread flaps([&] {
      while (!is_over) {
        for (const char* state : {" down\n", " up\n"}) {
          peers_rails_.write(rail + state);
          std::this_thread::sleep_for(kPause);
        }
      }
    });
    const auto has_flapped = [&] {
      return has_warned(*peer_, ("softverbs" + rail + ":1: port is down").c_str()) &&
             has_warned(*peer_, ("softverbs" + rail + ":1: port is up again").c_str());
    };
    connect_until(kFewest, has_flapped);
    is_over = true;
    flaps.join();
    ASSERT_FALSE(HasFailure()) << "rail " << rail;
  }
  expect_others_go_on(nullptr);
}

// One of two, of this process: those that are there go on over the other, and new ones begin there.
TEST_P(SharedFateTest, ADeviceThatHasFailedIsNotUsedByNewOnes) {
  environment_.set("SOFTVERBS_DEVICES", "2");
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "60000");
  ASSERT_NO_FATAL_FAILURE(start_with_failure(1));
  connect_until(10, [] { return true; });
  finish_long_one();
  expect_others_go_on(nullptr);
}

TEST_P(SharedFateTest, ADeviceThatHasFailedHoldsUpNoClose) {
  environment_.set("SOFTVERBS_DEVICES", "2");
  ASSERT_NO_FATAL_FAILURE(start_with_failure(0));
  close_to_peer();
  finish_long_one();
  expect_others_go_on(nullptr, false);
}

TEST_P(SharedFateTest, TheOnlyDeviceHasFailedAndHoldsUpNoClose) {
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "600");
  ASSERT_NO_FATAL_FAILURE(start_with_failure(0));
  close_to_peer();
}

// This process's only one.
TEST_P(SharedFateTest, TheOnlyDeviceHasFailedAndNobodyConnects) {
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "600");
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "600000");
  ASSERT_NO_FATAL_FAILURE(start_with_failure(0));
  for (const bool sends : {true, false}) {
    Actor &from = sends ? static_cast<Actor&>(*here_) : *peer_,
          &to = sends ? *peer_ : static_cast<Actor&>(*here_);
    const uint32_t number = next_++;
    Command connect{Act::kConnect, number};
    const Reply listened = to.run({Act::kListen, number});
    if (listened.has_failed()) continue;
    std::memcpy(connect.text, listened.text, sizeof(connect.text));
    if (!sends) from.begin(connect);
    EXPECT_TRUE(here_->run(sends ? connect : Command{Act::kAccept, number}).has_failed());
    if (!sends) {
      EXPECT_TRUE(from.finish().has_failed());
    }
  }
  EXPECT_TRUE(here_->run({Act::kTransfer, from_peer().number, kBytes}).has_failed());
}

// One of two rails of the peer is down.
TEST_P(SharedFateTest, APeerThatStopsWhileARailIsDownIsWaitedFor) {
  environment_.set("SOFTVERBS_DEVICES", "2");
  environment_.set("VERBENA_ACK_TIMEOUT", "8");  // requests fail after 8 ms
  ASSERT_NO_FATAL_FAILURE(start());
  std::vector<Channel> many{to_peer(), from_peer()};
  for (const Channel& channel : many) begin_both(channel, kLongBytes);
  peers_rails_.write("1 down\n");
  ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "softverbs1:1: port is down"); }));
  peer_->kill(SIGSTOP);
  expect_others_go_on(nullptr, false);
  peer_->kill(SIGCONT);
  for (const Channel& channel : many) {
    Actor& there = channel.sender == here_.get() ? *channel.receiver : *channel.sender;
    there.begin({Act::kWait, channel.number});
    EXPECT_TRUE(here_->run({Act::kWait, channel.number}).is_right());
    EXPECT_TRUE(there.finish().is_right());
  }
  peers_rails_.write("1 up\n");
  ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "softverbs1:1: port is up again"); }));
  expect_others_go_on(nullptr);
}

// Its host: no rail answers any more, nor the process.
TEST_P(SharedFateTest, APeerThatVanishesWhileARailIsDownIsGivenUp) {
  if (!is_datagram()) GTEST_SKIP() << "only the control network tells it: tests/vm takes that away too";
  environment_.set("SOFTVERBS_DEVICES", "2");
  environment_.set("VERBENA_ACK_TIMEOUT", "8");  // requests fail after 8 ms
  ASSERT_NO_FATAL_FAILURE(start("", "600"));
  peers_rails_.write("1 down\n");
  ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "softverbs1:1: port is down"); }));
  for (const Channel* channel : {&to_peer(), &from_peer()}) begin_both(*channel, kLongBytes);
  vanish();
  for (const Channel* channel : {&to_peer(), &from_peer()}) expect_failure(*here_, *channel, "this end");
  expect_others_go_on(nullptr, false);
}

TEST_P(SharedFateTest, APeerThatVanishesHoldsUpNoClose) {
  ASSERT_NO_FATAL_FAILURE(start());
  peer_->begin({Act::kClose, to_peer().number});
  vanish();
  for (const Channel* channel : {&to_peer(), &from_peer()})
    EXPECT_TRUE(here_->run({Act::kClose, channel->number}).is_right());
  expect_others_go_on(nullptr, false);
}

// Of this process's requests. A connected end posts none before it stands.
TEST_P(SharedFateTest, ACompletionThatNeverArrivesHoldsUpNoConnect) {
  ASSERT_NO_FATAL_FAILURE(start(is_datagram() ? "drop nth=1 per=qp" : "drop every=1"));
  for (const bool sends : {true, false}) sends ? join(*here_, *spare_) : join(*spare_, *here_);
  if (is_datagram()) expect_others_go_on(nullptr);
}

// The first request on the new queue pair, which is tried again.
TEST_P(SharedFateTest, ACompletionThatNeverArrivesEndsNoRecovery) {
  if (is_datagram()) GTEST_SKIP() << "a queue pair of datagrams begins anew without a trial";
  environment_.set("VERBENA_RAIL_RETRY_MS", "20");
  start("fail status=RETRY_EXC nth=3 opcode=RDMA_WRITE_WITH_IMM; drop nth=1 opcode=RDMA_WRITE");
  ASSERT_FALSE(HasFailure());
  double longest_s = 0;
  for (int i = 0; i < 5; ++i) {
    const auto [sent, received] = run_both(to_peer(), Act::kTransfer, Act::kTransfer, kBytes, kBytes);
    EXPECT_TRUE(sent.is_right() && received.is_right());
    longest_s = std::max(longest_s, received.took_s);
  }
  EXPECT_GE(longest_s, 1) << "the second trial comes when the first has had its second";
  expect_others_go_on(nullptr);
}

// For good, and no end hears that the other one closes.
TEST_P(SharedFateTest, APeerWithoutARailHoldsUpNoClose) {
  ASSERT_NO_FATAL_FAILURE(start());
  peers_rails_.write("0 down\n");
  ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "port is down"); }));
  close_to_peer();
  expect_others_go_on(nullptr, false);
}

TEST_P(SharedFateTest, APeerWithoutARailIsNotReached) {
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "3000");
  ASSERT_NO_FATAL_FAILURE(start());
  expect_nobody_there(
      [&](uint32_t) {
        peers_rails_.write("0 down\n");
        ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "port is down"); }));
      },
      *peer_);
  expect_others_go_on(nullptr, false);
  peers_rails_.write("0 up\n");
  ASSERT_TRUE(poll_until([&] { return has_warned(*peer_, "port is up again"); }));
  expect_new_ones_work(*peer_, "the peer");
}

}  // namespace
}  // namespace verbena::nccl::testing
