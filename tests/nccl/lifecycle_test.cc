// NCCL loads, initialises, finalizes and unloads the plugin as often as it likes.
#include <cstdlib>
#include <utility>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class LifecycleTest : public LiveTest<V> {};
TYPED_TEST_SUITE(LifecycleTest, AllVersions, VersionNames);

TYPED_TEST(LifecycleTest, UnloadedAndLoadedAgain) {
  size_t files = 0, threads = 0;
  for (int round = 0; round < 4; ++round) {
    if (round > 0) {
      this->SetUp();
    }
    ASSERT_EQ(this->start(), 2) << round;
    auto* connection = this->establish();
    ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr) << round;
    ASSERT_EQ(connection->transfer(1 << 20, 0, 0), nullptr) << round;
    this->TearDown();
    if (round == 0) {
      files = count_open_files();
      threads = count_threads();
    }
    EXPECT_LE(count_open_files(), files) << round;
    // One that was joined may be seen for a moment longer.
    EXPECT_TRUE(poll_until([&] { return count_threads() <= threads; })) << round << ": " << count_threads();
  }
}

TYPED_TEST(LifecycleTest, LoadedAndUnloadedWithoutInit) {
  ASSERT_TRUE(LoadedPlugin::is_in_memory());
  this->TearDown();
  EXPECT_FALSE(LoadedPlugin::is_in_memory());
}

TYPED_TEST(LifecycleTest, InitTwice) {
  ASSERT_EQ(this->start(), 2);
  void* const first = this->context_;
  void* second = nullptr;
  ASSERT_EQ(this->net_->init(&second, 2, abi::kUndefined, &LogCapture::write), abi::kSuccess);
  int count = 0;
  EXPECT_EQ((*this->net_)->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 2);
  {
    LiveConnection<TypeParam> connection(*this->net_, second);
    ASSERT_TRUE(connection.establish(0, HandleShape::kFilled));
    EXPECT_EQ(connection.transfer(4096, 0, 0), nullptr);
    // One communicator's end is nothing to the other's connections.
    this->context_ = second;
    EXPECT_EQ(this->net_->finalize(first), abi::kSuccess);
    EXPECT_EQ(connection.transfer(4096, 0, 0), nullptr);
  }
}

// From NCCL 2.24 (table 9) to 2.27 (table 10) nothing else keeps PAT away from receives that are to be
// unpacked.
TYPED_TEST(LifecycleTest, OnlyReleasesThatDoNotTellPatAreAskedToDoWithoutIt) {
  constexpr bool kIsSilent = TypeParam::kVersion == 9 || TypeParam::kVersion == 10;
  for (const bool unpacks : {false, true}) {
    this->environment_.unset("NCCL_PAT_ENABLE");
    this->environment_.set("VERBENA_UNPACK", unpacks ? "1" : "0");
    ASSERT_EQ(this->start(), 2);
    EXPECT_EQ(std::getenv("NCCL_PAT_ENABLE") != nullptr, kIsSilent && unpacks);
    ASSERT_EQ(this->net_->finalize(this->context_), abi::kSuccess);
    this->is_up_ = false;
  }
}

TYPED_TEST(LifecycleTest, FinalizeOfNothing) {
  EXPECT_EQ(this->net_->finalize(nullptr), abi::kSuccess);
  ASSERT_EQ(this->start(), 2);
  EXPECT_EQ(this->net_->finalize(nullptr), abi::kSuccess);
  auto* connection = this->establish();
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
}

// NCCL closes before it finalizes. After an error a caller may not do so, which must not crash.
TYPED_TEST(LifecycleTest, FinalizeBeforeClose) {
  auto* connection = this->start_connected();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  LogCapture::get().take_lines();
  EXPECT_EQ(this->net_->finalize(this->context_), abi::kSuccess);
  if constexpr (TypeParam::kHasContext) {
    this->is_up_ = false;
    const auto warnings = LogCapture::get().take_warnings();
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_NE(warnings[0].find("finalized while 2 connection ends are open"), std::string::npos)
        << warnings[0];
  }
  for (const size_t size : {4096, 1 << 20}) EXPECT_EQ(connection->transfer(size, 0, 0), nullptr);
  connection->deregister();
  EXPECT_TRUE(connection->close_send());
  // A new communicator may begin meanwhile, and has nothing to do with the old one.
  void* const old = this->context_;
  auto* other = this->start_connected();
  EXPECT_EQ(other->transfer(4096, 0, 0), nullptr);
  if constexpr (TypeParam::kHasContext) {
    EXPECT_NE(this->context_, old);
  }
  EXPECT_TRUE(connection->close_listen());
  EXPECT_TRUE(connection->close_recv());
  EXPECT_EQ(other->transfer(4096, 0, 0), nullptr);
}

// Programs return from main without destroying their communicators, with messages under way and threads
// polling.
TYPED_TEST(LifecycleTest, ProcessThatExitsInTheMiddleOfThings) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto leave = [this] {
    if (this->start() != 2) std::exit(3);
    auto* connection = this->establish();
    if (connection == nullptr || connection->transfer(4096, 0, 0) != nullptr) std::exit(4);
    if (connection->receive(connection->received.bytes, connection->received.mhandle) == nullptr)
      std::exit(5);
    if (connection->send(connection->sent.bytes, connection->sent.mhandle) == nullptr) std::exit(6);
    std::exit(0);
  };
  EXPECT_EXIT(leave(), ::testing::ExitedWithCode(0), "");
}

using NewestLifecycleTest = LiveTest<NewestVersion>;

TEST_F(NewestLifecycleTest, UnloadingLeavesNothingMapped) {
  ASSERT_EQ(start(), 2);
  ASSERT_NE(establish(), nullptr);
  TearDown();
  EXPECT_FALSE(LoadedPlugin::is_in_memory());
}

TEST_F(NewestLifecycleTest, FinalizePrintsTheCounters) {
  auto* connection = start_connected();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  ASSERT_EQ(connection->transfer(1 << 20, 0, 0), nullptr);
  connections_.clear();
  LogCapture::get().take_lines();
  EXPECT_EQ(net_->finalize(context_), abi::kSuccess);
  is_up_ = false;
  std::string text;
  for (const LogLine& line : LogCapture::get().take_lines()) {
    EXPECT_EQ(line.level, abi::kLogInfo);
    text += line.text + '\n';
  }
  for (const char* part : {"staged", "direct", "descriptors", "4096", "1048576"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST_F(NewestLifecycleTest, NothingIsOfferedUnasked) {
  for (const char* setting : {"", "auto", "0"}) {
    environment_.set("VERBENA_UNPACK", setting);
    ASSERT_EQ(start(), 2);
    abi::ncclNetProperties_v12_t properties{};
    ASSERT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
    EXPECT_EQ(properties.net_device_type, abi::kDeviceHost) << setting;
    EXPECT_EQ(properties.net_device_version, abi::kDeviceInvalidVersion) << setting;
    ASSERT_EQ(net_->finalize(std::exchange(context_, nullptr)), abi::kSuccess);
    is_up_ = false;
  }
}

TEST_F(NewestLifecycleTest, UnpackOffIsAPlainDevice) {
  environment_.set("VERBENA_UNPACK", "0");
  ASSERT_EQ(start(), 2);
  abi::ncclNetProperties_v12_t properties{};
  ASSERT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.net_device_type, abi::kDeviceHost);
  auto* connection = establish(0, HandleShape::kPointsToNull);
  for (const size_t size : {0, 1, 4096, 1 << 20}) EXPECT_EQ(connection->transfer(size, 0, 0), nullptr);
}

}  // namespace
}  // namespace verbena::nccl::testing
