// VERBENA_TRANSPORT=datagram through NCCL's tables, over softverbs: whole messages whatever the network does
// to their packets, and by name what this transport does not do.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "nccl/datagram_peer.h"
#include "protocol/datagram/packet.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class DatagramTest : public LiveTest<V> {
 protected:
  void SetUp() override {
    DatagramEnvironment::set(this->environment_);
    LiveTest<V>::SetUp();
  }
};
TYPED_TEST_SUITE(DatagramTest, AllVersions, VersionNames);

TYPED_TEST(DatagramTest, OneMessageArrives) {
  ASSERT_EQ(this->start(), 2);
  auto* connection = this->establish(0, HandleShape::kNull);
  EXPECT_EQ(connection->transfer(100'000, 64, 4096), nullptr);
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

TYPED_TEST(DatagramTest, OnlyWhatItCanDoIsOffered) {
  for (const bool unpacks : {true, false}) {
    this->environment_.set("VERBENA_UNPACK", unpacks ? "1" : "0");
    ASSERT_EQ(this->start(), 2);
    typename TypeParam::Properties properties;
    ASSERT_EQ((*this->net_)->get_properties(0, &properties), abi::kSuccess);
    EXPECT_EQ(properties.ptr_support, abi::kPtrHost | abi::kPtrCuda);
    EXPECT_EQ(properties.max_recvs, 1);
    if constexpr (requires { properties.net_device_type; }) {
      EXPECT_EQ(properties.net_device_type, unpacks ? abi::kDeviceUnpack : abi::kDeviceHost);
    }
    ASSERT_EQ(this->net_->finalize(this->context_), abi::kSuccess);
    this->is_up_ = false;
  }
}

// The test plays the kernel.
TYPED_TEST(DatagramTest, AKernelUnpacksMessages) {
  ASSERT_EQ(this->start(), 2);
  auto* connection = this->establish();
  ASSERT_TRUE(connection->unpacks());
  for (const size_t length : {0, 1, 3967, 3968, 3969, 100'000, 1'000'003}) {
    ASSERT_EQ(connection->transfer(length, length % 61, length % 53), nullptr) << length;
    EXPECT_EQ(connection->last_unpacked.descriptor_count, (length + 3967) / 3968);
    EXPECT_EQ(connection->last_unpacked.bytes, length);
  }
  for (int i = 0; i < 40; ++i) {  // through all slots, with receives that take none between them
    ASSERT_EQ(connection->transfer(static_cast<size_t>(i) * 5'000, 0, 0), nullptr) << i;
    ASSERT_EQ(connection->transfer(20'000, 0, 0, Protocol::kLl), nullptr) << i;
  }
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

using NewestTest = DatagramTest<NewestVersion>;

class DatagramNewestTest : public NewestTest {
 protected:
  LiveConnection<NewestVersion>* start_connected() {
    return LiveTest<NewestVersion>::start_connected(0, HandleShape::kNull);
  }
  static void expect_remote_error(LiveConnection<NewestVersion>& connection, void* request) {
    EXPECT_FALSE(connection.wait(request));
    EXPECT_EQ(connection.result, abi::kRemoteError);
  }
  // Accepts a caller that has not looked for the welcome yet: `sending` stays null.
  void accept_unseen(void* listening, char* handle, void** sending, void** receiving) {
    abi::NetDeviceHandle* none = nullptr;
    for (int i = 0; i < 20; ++i) {  // a call may find the engine at work, and say nothing
      ASSERT_EQ((*net_).connect(context_, 0, abi::kUndefined, handle, sending, &none), abi::kSuccess);
      ASSERT_EQ(*sending, nullptr) << "the listener has not been polled";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(poll_until([&] {
      return (*net_)->accept(listening, receiving, &none) != abi::kSuccess || *receiving != nullptr;
    }));
    ASSERT_NE(*receiving, nullptr);
  }
  // As many messages at a time as fit, of lengths by seed.
  void exchange(LiveConnection<NewestVersion>& connection, int messages, size_t most_bytes) {
    constexpr size_t kPlaces = 8;
    const size_t place_bytes = LiveConnection<NewestVersion>::kBufferBytes / kPlaces;
    struct Open {
      void *send = nullptr, *receive = nullptr;
      std::span<std::byte> room;
      uint64_t seed = 0;
    };
    std::array<Open, kPlaces> open;
    std::mt19937 random{7};
    for (int i = 0; i < messages + static_cast<int>(kPlaces); ++i) {
      const size_t place = static_cast<size_t>(i) % kPlaces;
      Open& at = open[place];
      if (at.receive != nullptr) {
        int sizes[abi::kMaxTestSizes] = {};
        ASSERT_TRUE(connection.wait(at.receive, sizes)) << i;
        ASSERT_TRUE(connection.wait(at.send)) << i;
        ASSERT_EQ(sizes[0], static_cast<int>(at.room.size()));
        ASSERT_EQ(tools::check_pattern(at.room, at.seed).wrong_bytes, 0U) << i;
        ASSERT_EQ((*net_)->irecv_consumed(connection.recv_comm, 1, at.receive), abi::kSuccess);
        at = {};
      }
      if (i >= messages) continue;
      const size_t length = random() % (std::min(most_bytes, place_bytes) + 1);
      const auto message = connection.sent.bytes.subspan(place * place_bytes, length);
      at.room = connection.received.bytes.subspan(place * place_bytes, length);
      at.seed = static_cast<uint64_t>(i);
      tools::fill_pattern(message, at.seed);
      std::fill(at.room.begin(), at.room.end(), std::byte{0xcc});
      // Before or after each other.
      const bool sends_first = random() % 2 == 0;
      if (sends_first) at.send = connection.send(message, connection.sent.mhandle);
      at.receive = connection.receive(at.room, connection.received.mhandle);
      if (!sends_first) at.send = connection.send(message, connection.sent.mhandle);
      ASSERT_NE(at.send, nullptr);
      ASSERT_NE(at.receive, nullptr);
    }
  }
};

TEST_F(DatagramNewestTest, EveryLengthAndPlace) {
  auto* connection = start_connected();
  for (const size_t length : {0, 1, 15, 16, 17, 3967, 3968, 3969, 7936, 7937, 65536, 1'000'003, 4'000'000}) {
    EXPECT_EQ(connection->transfer(length, length % 61, length % 53), nullptr) << length;
  }
}

TEST_F(DatagramNewestTest, ManyMessagesAtATime) {
  auto* connection = start_connected();
  exchange(*connection, 2000, 20'000);
}

// All of one peer: they share packet numbers, paths and acknowledgements.
TEST_F(DatagramNewestTest, ManyChannels) {
  ASSERT_EQ(start(), 2);
  for (int i = 0; i < 20; ++i) ASSERT_NE(establish(0, HandleShape::kNull), nullptr) << i;
  for (int round = 0; round < 5; ++round) {
    for (auto& connection : connections_) EXPECT_EQ(connection->transfer(30'000, 0, 0), nullptr);
    connections_.erase(connections_.begin());  // the others go on
    ASSERT_NE(establish(0, HandleShape::kNull), nullptr);
  }
}

// The kernels of a GPU know one base, whatever they receive over.
TEST_F(DatagramNewestTest, AllChannelsHaveOneBase) {
  ASSERT_EQ(start(), 2);
  auto *first = establish(0), *second = establish(1), *third = establish(0);
  EXPECT_EQ(first->unpack().bounce_buf, second->unpack().bounce_buf);
  EXPECT_EQ(first->unpack().bounce_buf, third->unpack().bounce_buf);
  for (int i = 0; i < 20; ++i)
    for (auto* connection : {first, second, third}) ASSERT_EQ(connection->transfer(90'000, 0, 0), nullptr);
}

TEST_F(DatagramNewestTest, LongMessagesAreCopied) {
  environment_.set("VERBENA_UNPACK_THRESHOLD", "64k");
  ASSERT_EQ(start(), 2);
  auto* connection = establish();
  for (const size_t length : {60'000, 65'536, 70'000, 4'000'000}) {
    ASSERT_EQ(connection->transfer(length, 0, 0), nullptr) << length;
    EXPECT_EQ(connection->last_unpacked.bytes, length <= 65'536 ? length : 0) << length;
  }
}

// What kernels keep is bounded: the rest is copied, and all of it goes on.
TEST_F(DatagramNewestTest, KernelsThatKeepPagesStopNobody) {
  environment_.set("VERBENA_BOUNCE_BYTES", "1m");
  ASSERT_EQ(start(), 2);
  auto *keeper = establish(), *other = establish();
  constexpr size_t kKept = 8, kLength = 60'000;  // 16 of 126 pages each
  std::array<void*, kKept> kept;
  const auto message = keeper->sent.bytes.first(kLength);
  tools::fill_pattern(message, 11);
  for (size_t i = 0; i < kKept; ++i) {
    void* const send = keeper->send(message, keeper->sent.mhandle);
    kept[i] = keeper->receive(keeper->received.bytes.subspan(i * kLength, kLength), keeper->received.mhandle);
    ASSERT_NE(kept[i], nullptr);
    ASSERT_TRUE(keeper->wait(kept[i])) << i;
    ASSERT_TRUE(keeper->wait(send)) << i;
  }
  for (int i = 0; i < 10; ++i) ASSERT_EQ(other->transfer(1'000'000, 0, 0), nullptr) << i;
  size_t unpacked = 0;
  for (size_t i = 0; i < kKept; ++i) {
    const auto room = keeper->received.bytes.subspan(i * kLength, kLength);
    unpacked += keeper->place(room).bytes;
    EXPECT_EQ(tools::check_pattern(room, 11).wrong_bytes, 0U) << i;
    EXPECT_EQ((*net_)->irecv_consumed(keeper->recv_comm, 1, kept[i]), abi::kSuccess);
  }
  EXPECT_GT(unpacked, 0U);
  EXPECT_LT(unpacked, kKept * kLength) << "there are not so many pages";
  EXPECT_TRUE(keeper->all_slots_are_empty());
  for (int i = 0; i < 50; ++i) {  // all pages are back
    ASSERT_EQ(keeper->transfer(kLength, 0, 0), nullptr) << i;
    EXPECT_EQ(keeper->last_unpacked.bytes, kLength) << i;
  }
}

TEST_F(DatagramNewestTest, ClosesWithPagesLent) {
  environment_.set("VERBENA_BOUNCE_BYTES", "1m");
  ASSERT_EQ(start(), 2);
  for (int round = 0; round < 10; ++round) {
    auto* connection = establish();
    EXPECT_TRUE(connection->all_slots_are_empty());
    void* const send = connection->send(150'000);
    void* const receive = connection->receive(150'000);
    ASSERT_TRUE(connection->wait(receive));
    ASSERT_TRUE(connection->wait(send));
    EXPECT_FALSE(connection->all_slots_are_empty());
    EXPECT_NE((*net_)->irecv_consumed(connection->send_comm, 1, receive), abi::kSuccess);
    connections_.clear();
    LogCapture::get().take_lines();
  }
}

TEST_F(DatagramNewestTest, AMessageThatIsTooLongIsAnError) {
  auto* connection = start_connected();
  void* const receive = connection->receive(1000);
  ASSERT_NE(receive, nullptr);
  void* const send = connection->send(1001);
  ASSERT_NE(send, nullptr);
  EXPECT_FALSE(connection->wait(receive));
  EXPECT_EQ(connection->result, abi::kInvalidUsage);
  EXPECT_FALSE(connection->wait(send));
  EXPECT_EQ(connection->result, abi::kInvalidUsage);
  // It is sent again until the sender knows, and each end says so once.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < end) EXPECT_FALSE(connection->wait(receive));
  const auto warnings = LogCapture::get().take_warnings();
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_NE(warnings[0].find("longer than the receive buffer, which has 1000 bytes"), std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[1].find("the peer reports that a message is longer than the peer's receive buffer"),
            std::string::npos)
      << warnings[1];
}

TEST_F(DatagramNewestTest, AMessageThatWaitsAndIsTooLongIsNotCopied) {
  auto* connection = start_connected();
  tools::fill_pattern(connection->sent.bytes.first(9000), 1);
  std::fill(connection->received.bytes.begin(), connection->received.bytes.end(), std::byte{0xcc});
  void* const send = connection->send(9000);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(connection->wait(send)) << "it is parked";
  EXPECT_EQ(connection->receive(5000), nullptr);
  EXPECT_EQ(connection->receive(5000), nullptr) << "it stays an error";
  EXPECT_TRUE(poll_until([&] { return connection->send(0) == nullptr; }));
  EXPECT_EQ(connection->result, abi::kInvalidUsage) << "the sender is told";
  EXPECT_TRUE(std::all_of(connection->received.bytes.begin(), connection->received.bytes.end(),
                          [](std::byte byte) { return byte == std::byte{0xcc}; }));
  const auto warnings = LogCapture::get().take_warnings();
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("longer than the receive buffer"), std::string::npos) << warnings[0];
}

TEST_F(DatagramNewestTest, APeerThatHasClosedIsNoticed) {
  auto* connection = start_connected();
  void* const receive = connection->receive(1000);
  ASSERT_NE(receive, nullptr);
  ASSERT_TRUE(connection->close_send());
  expect_remote_error(*connection, receive);
}

// A hello opens one channel, however often its listener is polled.
TEST_F(DatagramNewestTest, AListenerAcceptsEachCallerOnce) {
  ASSERT_EQ(start(), 2);
  char handle[abi::kHandleBytes] = {};
  void *listening = nullptr, *sending = nullptr, *receiving = nullptr, *again = nullptr;
  abi::NetDeviceHandle* none = nullptr;
  ASSERT_EQ((*net_).listen(context_, 0, handle, &listening), abi::kSuccess);
  ASSERT_TRUE(poll_until([&] {
    return (*net_).connect(context_, 0, abi::kUndefined, handle, &sending, &none) != abi::kSuccess ||
           (*net_)->accept(listening, &receiving, &none) != abi::kSuccess || receiving != nullptr;
  }));
  ASSERT_NE(receiving, nullptr);
  ASSERT_TRUE(poll_until([&] {
    return (*net_).connect(context_, 0, abi::kUndefined, handle, &sending, &none) != abi::kSuccess ||
           sending != nullptr;
  }));
  ASSERT_NE(sending, nullptr);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ((*net_)->accept(listening, &again, &none), abi::kSuccess);
    ASSERT_EQ(again, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ((*net_)->close_send(sending), abi::kSuccess);
  EXPECT_EQ((*net_)->close_recv(receiving), abi::kSuccess);
  EXPECT_EQ((*net_)->close_listen(listening), abi::kSuccess);
}

// Its caller never looks for the welcome, as it has given up for another reason.
TEST_F(DatagramNewestTest, ACallerThatNeverComesBackIsNoticed) {
  environment_.set("VERBENA_CONNECT_TIMEOUT_MS", "1000");
  ASSERT_EQ(start(), 2);
  LiveConnection<NewestVersion>& connection = add_connection();
  char handle[abi::kHandleBytes] = {};
  void *listening = nullptr, *sending = nullptr, *receiving = nullptr, *mhandle = nullptr, *request = nullptr;
  ASSERT_EQ((*net_).listen(context_, 0, handle, &listening), abi::kSuccess);
  ASSERT_NO_FATAL_FAILURE(accept_unseen(listening, handle, &sending, &receiving));
  ASSERT_EQ((*net_).reg_mr(receiving, connection.received.bytes.data(), 1000, abi::kPtrHost, &mhandle),
            abi::kSuccess);
  void* data = connection.received.bytes.data();
  size_t size = 1000;
  int tag = 0;
  ASSERT_TRUE(poll_until([&] {
    return (*net_).irecv(receiving, 1, &data, &size, &tag, &mhandle, &request) != abi::kSuccess ||
           request != nullptr;
  }));
  ASSERT_NE(request, nullptr);
  abi::Result result = abi::kSuccess;
  EXPECT_TRUE(poll_until([&] {
    int done = 0, sizes[abi::kMaxTestSizes] = {};
    result = (*net_)->test(request, &done, sizes);
    return result != abi::kSuccess;
  }));
  EXPECT_EQ(result, abi::kRemoteError);
  EXPECT_EQ((*net_)->dereg_mr(receiving, mhandle), abi::kSuccess);
  EXPECT_EQ((*net_)->close_recv(receiving), abi::kSuccess);
  EXPECT_EQ((*net_)->close_listen(listening), abi::kSuccess);
}

// What is sent needs grants, which nobody gives any more.
TEST_F(DatagramNewestTest, AReceiverThatHasClosedIsNoticed) {
  auto* connection = start_connected();
  void* const send = connection->send(1'000'000);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(connection->close_recv());
  expect_remote_error(*connection, send);
  const auto warnings = LogCapture::get().take_warnings();
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("a send is still open"), std::string::npos) << warnings[0];
}

// Before the caller has looked for the welcome.
TEST_F(DatagramNewestTest, AnAcceptedChannelThatIsClosedAtOnceIsNoticed) {
  constexpr size_t kBytes = 1'000'000;  // needs grants
  ASSERT_EQ(start(), 2);
  for (int round = 0; round < 3; ++round) {
    char handle[abi::kHandleBytes] = {};
    void *listening = nullptr, *sending = nullptr, *receiving = nullptr;
    abi::NetDeviceHandle* none = nullptr;
    ASSERT_EQ((*net_).listen(context_, 0, handle, &listening), abi::kSuccess);
    ASSERT_NO_FATAL_FAILURE(accept_unseen(listening, handle, &sending, &receiving));
    ASSERT_EQ((*net_)->close_recv(receiving), abi::kSuccess);
    ASSERT_TRUE(poll_until([&] {
      return (*net_).connect(context_, 0, abi::kUndefined, handle, &sending, &none) != abi::kSuccess ||
             sending != nullptr;
    }));
    ASSERT_NE(sending, nullptr);
    LiveBuffer buffer(kBytes);
    ASSERT_EQ((*net_).reg_mr(sending, buffer.bytes.data(), kBytes, abi::kPtrHost, &buffer.mhandle),
              abi::kSuccess);
    // At once, or as late as the farewell is here.
    abi::Result result = abi::kSuccess;
    void* request = nullptr;
    EXPECT_TRUE(poll_until([&] {
      int done = 0, size = 0;
      result = request == nullptr
                   ? (*net_).isend(sending, buffer.bytes.data(), kBytes, 0, buffer.mhandle, &request)
                   : (*net_)->test(request, &done, &size);
      return result != abi::kSuccess || done != 0;
    }));
    EXPECT_EQ(result, abi::kRemoteError) << round;
    EXPECT_EQ((*net_)->dereg_mr(sending, buffer.mhandle), abi::kSuccess);
    EXPECT_EQ((*net_)->close_send(sending), abi::kSuccess);
    EXPECT_EQ((*net_)->close_listen(listening), abi::kSuccess);
  }
}

// With traffic open, as NCCL aborts.
TEST_F(DatagramNewestTest, ClosesWithMessagesOpen) {
  ASSERT_EQ(start(), 2);
  for (int round = 0; round < 20; ++round) {
    auto* connection = establish(0, HandleShape::kNull);
    for (int i = 0; i < round; ++i) {
      void* const here = connection;
      void *receive = here, *send = here;
      if (round % 3 != 0)
        receive = connection->receive(connection->received.bytes, connection->received.mhandle);
      if (round % 3 != 1) send = connection->send(connection->sent.bytes, connection->sent.mhandle);
      ASSERT_NE(receive, nullptr);
      ASSERT_NE(send, nullptr);
    }
    if (round % 2 == 0) {
      ASSERT_TRUE(connection->close_recv());
    }
    connections_.clear();
  }
  auto* connection = establish(0, HandleShape::kNull);
  EXPECT_EQ(connection->transfer(1'000'000, 0, 0), nullptr);
}

// What the network does, by softverbs' plan of faults, and what the engine must have noticed of it.
struct Plan {
  const char *name, *faults;
  const char* counted;  // in the line at its end: not 0
  bool has_data = true;
};
class DatagramFaultTest : public DatagramNewestTest, public ::testing::WithParamInterface<Plan> {
 protected:
  void SetUp() override {
    static const Plan* first = nullptr;  // softverbs reads its plan once in a process
    if (first == nullptr) first = &GetParam();
    if (std::strcmp(first->name, GetParam().name) != 0) GTEST_SKIP() << "needs a process of its own";
    environment_.set("SOFTVERBS_FAULTS", std::string("seed 3; ") + GetParam().faults);
    DatagramNewestTest::SetUp();
  }
};

TEST_P(DatagramFaultTest, EveryMessageArrivesWhole) {
  auto* connection = start_connected();
  if (GetParam().has_data) {
    exchange(*connection, 300, 500'000);
    EXPECT_EQ(connection->transfer(4'000'000, 0, 0), nullptr);
  } else {
    exchange(*connection, 2000, 0);
  }
  LogCapture::get().take_lines();
  connections_.clear();
  uint64_t count = 0;
  std::string lines;
  for (const LogLine& line : LogCapture::get().take_lines()) {
    lines += line.text;
    const size_t place = line.text.find(GetParam().counted);
    if (place != std::string::npos)
      count = std::strtoull(line.text.c_str() + place + std::strlen(GetParam().counted), nullptr, 10);
  }
  EXPECT_NE(count, 0U) << lines;
}

INSTANTIATE_TEST_SUITE_P(
    Plans, DatagramFaultTest,
    ::testing::Values(
        Plan{"FewLost", "lose chance=0.001", "retransmitted "},
        Plan{"SomeLost", "lose chance=0.01", "retransmitted "},
        Plan{"ManyLost", "lose chance=0.1", "retransmitted "},
        Plan{"HalfLost", "lose chance=0.5", "retransmitted "},
        Plan{"Reordered", "reorder by=64 chance=0.25", "received "},
        Plan{"LostAndReordered", "lose chance=0.01; reorder by=64 chance=0.25", "retransmitted "},
        Plan{"Doubled", "duplicate chance=0.05", "duplicates "},
        Plan{"All", "lose chance=0.03; reorder by=16 chance=0.1; duplicate chance=0.03", "duplicates "},
        Plan{"DeadPaths", "lose path=3; lose path=9; lose path=20", "paths quarantined "},
        // Of empty messages all that is damaged is what a tag or a MAC covers. Data has the
        // network's own checksum, which softverbs' plan goes round.
        Plan{"Damaged", "corrupt bytes=2 chance=0.1", "unmatched ", false},
        Plan{"Late", "delay by=1ms chance=0.01", "received "}),
    [](const auto& plan) { return plan.param.name; });

// A rail that goes down and comes back, of two: a dead rail is dead paths.
TEST_F(DatagramNewestTest, ARailGoesDownAndComesBack) {
  const RailSwitch rails(environment_);
  const int joined = start_joined();
  ASSERT_FALSE(HasFailure());
  auto* connection = establish(joined, HandleShape::kNull);
  for (const char* state : {"down", "up", "down", "up"}) {
    std::future<bool> told = std::async(std::launch::async, [&] { return rails.set(1, state); });
    do {
      ASSERT_NO_FATAL_FAILURE(exchange(*connection, 50, 300'000));
    } while (told.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
    EXPECT_TRUE(told.get()) << state;
    ASSERT_NO_FATAL_FAILURE(exchange(*connection, 50, 300'000));
  }
}

// Nothing of it leaves, so that no answer is owed.
TEST_F(DatagramNewestTest, ASendFailsWhileAllPortsAreDown) {
  const RailSwitch rails(environment_);
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "600");
  auto* connection = start_connected();
  ASSERT_TRUE(rails.set(0, "down"));
  void* const send = connection->send(1000);
  ASSERT_NE(send, nullptr);
  expect_remote_error(*connection, send);
}

// Every other path is dead, so that taking them in turns might lose every answer.
TEST_F(DatagramNewestTest, APeerThatHasClosedIsNoticedOverTheOtherPaths) {
  std::string plan;
  for (uint32_t path = 1; path < protocol::datagram::kPaths; path += 2)
    plan += "lose path=" + std::to_string(path) + ";";
  environment_.set("SOFTVERBS_FAULTS", plan.c_str());
  auto* connection = start_connected();
  void* const receive = connection->receive(connection->received.bytes, connection->received.mhandle);
  ASSERT_NE(receive, nullptr);
  ASSERT_TRUE(connection->close_send());
  expect_remote_error(*connection, receive);
}

// The farewell is lost with the port; who has something to send asks.
TEST_F(DatagramNewestTest, AReceiverThatClosesUnheardIsNoticed) {
  const RailSwitch rails(environment_);
  auto* connection = start_connected();
  void* const send = connection->send(1'000'000);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(rails.set(0, "down"));
  ASSERT_TRUE(connection->close_recv());
  ASSERT_TRUE(rails.set(0, "up"));
  expect_remote_error(*connection, send);
}

TEST_F(DatagramPeerTest, AKilledPeerIsNamed) {
  const pid_t child = start_peer_that_dies();
  End end;
  void* const in_vain = receive_and_ask_for_more(end);
  ASSERT_NO_FATAL_FAILURE(await_kill(end, in_vain, child));
  expect_failure(end, in_vain, "the peer's process has ended. See");
  finish(end);
}

TEST_F(DatagramPeerTest, AKilledPeerOfAnotherHostIsNamed) {
  const pid_t child = start_peer_that_dies("another");
  End end;
  void* const in_vain = receive_and_ask_for_more(end);
  ASSERT_NO_FATAL_FAILURE(await_kill(end, in_vain, child));
  expect_failure(end, in_vain, "has not answered for 600 ms");
  finish(end);
}

// Its successor, of the same host as it was, says so: nobody waits for the dead one's answers.
TEST_F(DatagramPeerTest, ARestartedPeerIsNamedByItsSuccessor) {
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "600000");
  int later[2];
  ASSERT_EQ(pipe(later), 0);
  const pid_t first = start_peer_that_dies("another");
  const pid_t second = fork();
  if (second == 0) {
    setenv("VERBENA_HOSTID", "another", 1);
    char go = 0;
    if (read(later[0], &go, 1) != 1) _exit(1);
    End end;
    const bool is_right = send_one(end, later[0]);
    if (read(later[0], &go, 1) != 1) _exit(2);  // its engine answers until then
    _exit(is_right ? 0 : 1);
  }
  End end;
  void* const in_vain = receive_and_ask_for_more(end);
  ASSERT_NO_FATAL_FAILURE(await_kill(end, in_vain, first));
  ASSERT_EQ(write(later[1], "", 1), 1);
  ASSERT_EQ(write(later[1], handle_, sizeof(handle_)), static_cast<ssize_t>(sizeof(handle_)));
  void* const dead = std::exchange(end.comm, nullptr);
  accept(end);
  receive_one(end);
  expect_failure(end, in_vain, "the peer's process has ended, as engine");
  EXPECT_EQ(end.net->close_recv(dead), abi::kSuccess);
  ASSERT_EQ(write(later[1], "", 1), 1);
  int status = 0;
  await_child(end, nullptr, second, 0, status);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  finish(end);
  close(later[0]);
  close(later[1]);
}

// Given up while it was stopped, it does not wait for answers that nobody owes it.
TEST_F(DatagramPeerTest, APeerThatWasGivenUpIsTold) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("VERBENA_FAILOVER_TIMEOUT_MS", "600000", 1);
    End end;
    if (!send_one(end, channel_[0])) _exit(1);
    raise(SIGSTOP);
    void* const send = end.begin(true);  // null: the service thread has heard of it already
    if ((send != nullptr && end.wait(send)) || end.result != abi::kRemoteError) _exit(2);
    const auto warnings = LogCapture::get().take_warnings();
    const bool is_told = std::any_of(warnings.begin(), warnings.end(), [](const auto& line) {
      return line.find("closed the connection, because the peer received nothing") != std::string::npos;
    });
    _exit(is_told ? 0 : 3);
  }
  End end;
  void* const in_vain = receive_and_ask_for_more(end);
  int status = 0;
  await_child(end, in_vain, child, WUNTRACED, status);
  ASSERT_TRUE(WIFSTOPPED(status)) << "the peer could not send";
  expect_failure(end, in_vain, "has not answered for 600 ms");
  ASSERT_EQ(kill(child, SIGCONT), 0);
  await_child(end, nullptr, child, 0, status);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  finish(end);
}

// Address handles are shared by all communicators.
TEST_F(DatagramNewestTest, ACommunicatorsTrafficClassIsIgnoredByName) {
  for (const int traffic_class : {abi::kUndefined, 7}) {
    ASSERT_EQ(net_->init(&context_, 0x5eed, traffic_class, &LogCapture::write), abi::kSuccess);
    const auto warnings = LogCapture::get().take_warnings();
    const bool is_told = std::ranges::any_of(warnings, [](const std::string& line) {
      return line.find("traffic class 7 is ignored") != line.npos;
    });
    EXPECT_EQ(is_told, traffic_class == 7);
    ASSERT_EQ(net_->finalize(context_), abi::kSuccess);
  }
}

TEST_F(DatagramNewestTest, BothEndsMustAgree) {
  environment_.set("VERBENA_TRANSPORT", "connected");
  ASSERT_EQ(start(), 2);
  char handle[abi::kHandleBytes] = {};
  void *listening = nullptr, *sending = nullptr;
  abi::NetDeviceHandle* none = nullptr;
  ASSERT_EQ((*net_).listen(context_, 0, handle, &listening), abi::kSuccess);
  ASSERT_EQ((*net_)->close_listen(listening), abi::kSuccess);
  ASSERT_EQ(net_->finalize(context_), abi::kSuccess);
  environment_.set("VERBENA_TRANSPORT", "datagram");
  ASSERT_EQ(start(), 2);
  EXPECT_EQ((*net_).connect(context_, 0, abi::kUndefined, handle, &sending, &none), abi::kInvalidUsage);
  const auto warnings = LogCapture::get().take_warnings();
  ASSERT_FALSE(warnings.empty());
  EXPECT_NE(warnings[0].find("datagram on this rank but connected on the peer"), std::string::npos)
      << warnings[0];
}

}  // namespace
}  // namespace verbena::nccl::testing
