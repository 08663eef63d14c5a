// How the ranks of a group meet: late ones, missing ones, ones of another plugin, groups beside each other.
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "nccl/rma/group.h"

namespace verbena::nccl::testing {
namespace {

class RmaMeetingTest : public RmaTest {
 protected:
  ~RmaMeetingTest() override {
    for (void* listen_comm : listen_comms_)
      if (listen_comm != nullptr) plugin().close_listen(listen_comm);
    for (void* communicator : communicators_)
      if (communicator != nullptr) plugin().close(communicator);
    if (context_ != nullptr) {
      EXPECT_EQ(plugin().finalize(context_), abi::kSuccess);
    }
  }

  void listen(uint32_t ranks) {
    ASSERT_EQ(plugin().init(&context_, 1, &LogCapture::write), abi::kSuccess);
    handles_.resize(ranks);
    listen_comms_.resize(ranks);
    communicators_.resize(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(plugin().listen(context_, 0, handles_[rank].data(), &listen_comms_[rank]), abi::kSuccess);
      pointers_.push_back(handles_[rank].data());
    }
  }

  abi::Result connect(uint32_t rank) {
    return plugin().connect(context_, pointers_.data(), static_cast<int>(pointers_.size()),
                            static_cast<int>(rank), listen_comms_[rank], &communicators_[rank]);
  }

  void* context_ = nullptr;
  std::vector<std::array<char, abi::kHandleBytes>> handles_;
  std::vector<void*> pointers_, listen_comms_, communicators_;
};
INSTANTIATE_TEST_SUITE_P(Tables, RmaMeetingTest, every_table(), name_table);

TEST_P(RmaMeetingTest, ARankMeetsItself) {
  RmaGroup group(plugin(), {.ranks = 1});
  void* request = nullptr;
  std::memcpy(group[0].memory.data(), "verbena", 8);
  request = group.put_signal(group[0].target(), {0, group[0].region, 8, 4096, group[0].region, 0},
                             {64, group[0].region, 3});
  ASSERT_TRUE(group.finish(group[0], request));
  EXPECT_STREQ(reinterpret_cast<const char*>(&group[0].memory[4096]), "verbena");
  EXPECT_EQ(group[0].word(64).load(), 3U);
}

TEST_P(RmaMeetingTest, ALateRankIsWaitedFor) {
  listen(3);
  for_each_rank(3, [&](uint32_t rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_EQ(connect(rank), abi::kSuccess);
  });
}

TEST_P(RmaMeetingTest, AMissingRankIsNamed) {
  set("VERBENA_CONNECT_TIMEOUT_MS", "700");
  listen(4);
  for_each_rank(4, [&](uint32_t rank) {
    if (rank == 2) return;
    EXPECT_NE(connect(rank), abi::kSuccess);
    EXPECT_EQ(communicators_[rank], nullptr);
  });
  EXPECT_TRUE(is_logged("rank 2"));
}

TEST_P(RmaMeetingTest, WithoutTheFirstRankTheOthersSaySo) {
  set("VERBENA_CONNECT_TIMEOUT_MS", "700");
  listen(3);
  EXPECT_EQ(plugin().close_listen(std::exchange(listen_comms_[0], nullptr)), abi::kSuccess);
  for_each_rank(3, [&](uint32_t rank) {
    if (rank == 0) return;
    EXPECT_NE(connect(rank), abi::kSuccess);
  });
}

// A handle of another plugin, or of another version of this one.
TEST_P(RmaMeetingTest, AForeignRankIsRefusedByNameAtOnce) {
  listen(3);
  const auto whole = handles_[1];
  for (const int kind : {0, 1, 2}) {
    handles_[1] = whole;
    if (kind == 0) handles_[1].fill(0);
    if (kind == 1) handles_[1].fill(0x5a);
    if (kind == 2) handles_[1][9] = static_cast<char>(handles_[1][9] ^ 1);
    for_each_rank(3, [&](uint32_t rank) { EXPECT_EQ(connect(rank), abi::kRemoteError) << kind; });
    EXPECT_TRUE(is_logged("the handle of rank 1 of 3 was not created by this plugin")) << kind;
  }
}

TEST_P(RmaMeetingTest, RanksThatCannotBeAreRefused) {
  listen(1);
  EXPECT_EQ(plugin().connect(context_, pointers_.data(), 0, 0, listen_comms_[0], &communicators_[0]),
            abi::kInvalidArgument);
  EXPECT_EQ(plugin().connect(context_, pointers_.data(), 1, 1, listen_comms_[0], &communicators_[0]),
            abi::kInvalidArgument);
  EXPECT_EQ(plugin().connect(context_, pointers_.data(), 1, -1, listen_comms_[0], &communicators_[0]),
            abi::kInvalidArgument);
  char handle[abi::kHandleBytes];
  void* listen_comm = handle;
  EXPECT_NE(plugin().listen(context_, 17, handle, &listen_comm), abi::kSuccess);
  EXPECT_EQ(listen_comm, nullptr);
}

// Rails: ranks are those of the group, and what one group does no other sees.
TEST_P(RmaMeetingTest, GroupsBesideEachOtherDoNotMeet) {
  RmaGroup rails[] = {{plugin(), {}}, {plugin(), {}}};
  for (uint64_t value : {1, 2}) {
    RmaGroup& rail = rails[value - 1];
    void* request = rail.signal(rail[0].target(), 1, {0, rail[1].region, value});
    ASSERT_TRUE(rail.finish(rail[0], request));
  }
  EXPECT_EQ(rails[0][1].word(0).load(), 1U);
  EXPECT_EQ(rails[1][1].word(0).load(), 2U);
}

// NCCL says which peers a context addresses; the others cost nothing until another context does.
TEST_P(RmaMeetingTest, AContextReachesThePeersOfItsStride) {
  RmaGroup group(plugin(), {.ranks = 4, .rank_stride = 2});
  void* request = nullptr;
  const auto signal = [&](uint32_t from, uint32_t to, size_t context = 0) {
    return plugin().put_signal(group[from].target(0, context), {0, nullptr, 0, 0, nullptr, to},
                               {0, group[to].region, 1}, &request);
  };
  ASSERT_EQ(signal(1, 3), abi::kSuccess);
  ASSERT_TRUE(group.finish(group[1], request));
  if (!plugin().has_rank_stride()) GTEST_SKIP() << "this table knows no stride";
  EXPECT_NE(signal(1, 2), abi::kSuccess);
  EXPECT_TRUE(is_logged("rank 2"));
  for_each_rank(4, [&](uint32_t rank) {
    void* context = nullptr;
    EXPECT_EQ(plugin().create_context(group[rank].communicator, 1, 1, &context), abi::kSuccess);
    group[rank].contexts.push_back(context);
  });
  ASSERT_EQ(signal(1, 2, 1), abi::kSuccess);
  ASSERT_TRUE(group.finish(group[1], request));
  EXPECT_EQ(group[2].word(0).load(), 1U);
}

}  // namespace
}  // namespace verbena::nccl::testing
