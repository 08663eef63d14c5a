// Memory that every rank reaches: registered together, given back by each when it likes, also while others
// put.
#include <unistd.h>

#include <algorithm>
#include <random>
#include <thread>

#include "nccl/rma/group.h"

namespace verbena::nccl::testing {
namespace {

class RmaRegistrationTest : public RmaTest {};
INSTANTIATE_TEST_SUITE_P(Tables, RmaRegistrationTest, every_table(), name_table);

// One handle for each rank.
std::vector<void*> register_together(RmaGroup& group,
                                     const std::function<std::span<std::byte>(uint32_t)>& memory_of) {
  std::vector<void*> made(group.size());
  for_each_rank(group.size(), [&](uint32_t rank) {
    const auto memory = memory_of(rank);
    const auto registered =
        group.plugin().register_memory(group[rank].communicator, memory.data(), memory.size(), abi::kPtrHost);
    EXPECT_EQ(registered.result, abi::kSuccess);
    made[rank] = registered.mhandle;
  });
  return made;
}

TEST_P(RmaRegistrationTest, EachRankHasItsOwnLength) {
  RmaGroup group(plugin(), {.ranks = 3});
  const auto regions = register_together(
      group, [&](uint32_t rank) { return std::span(group[rank].memory).first((rank + 1) * 5000); });
  RmaRank& from = group[2];
  LogCapture::get().take_lines();
  for (uint32_t to = 0; to < 3; ++to) {
    const uint64_t bytes = (to + 1) * 5000;
    void* request = group.put(from.target(), {0, regions[2], 100, bytes - 100, regions[2], to});
    ASSERT_TRUE(group.finish(from, request));
    EXPECT_EQ(plugin().put(from.target(), {0, regions[2], 100, bytes - 99, regions[2], to}, &request),
              abi::kInvalidArgument);
    EXPECT_TRUE(is_logged("exceeds its region")) << to;
    EXPECT_EQ(
        plugin().put_signal(from.target(), {0, nullptr, 0, 0, nullptr, to}, {bytes, regions[2], 1}, &request),
        abi::kInvalidArgument);
    EXPECT_TRUE(is_logged("the word is outside the region")) << to;
  }
  for_each_rank(3, [&](uint32_t rank) {
    EXPECT_EQ(plugin().deregister(group[rank].communicator, regions[rank]), abi::kSuccess);
  });
}

// What a rank has given back is not reached any more, what it registers next is.
TEST_P(RmaRegistrationTest, RegistersAndGivesBackInAnyOrder) {
  constexpr size_t kBytes = 8192;
  const int rounds = VERBENA_IS_SANITIZED ? 60 : 600;
  RmaGroup group(plugin(), {.ranks = 3});
  std::vector<std::vector<void*>> live;  // by registration, rank
  std::vector<size_t> offsets;
  std::vector<std::minstd_rand> dice;
  for (uint32_t rank = 0; rank < 3; ++rank) dice.emplace_back(rank + 1);
  const size_t files = count_open_files();
  for (int round = 0; round < rounds; ++round) {
    live.clear();
    offsets.clear();
    for (size_t i = 0; i < 4; ++i) {
      const size_t offset = (static_cast<size_t>(round) * 4 + i) % 100 * kBytes;
      live.push_back(register_together(
          group, [&](uint32_t rank) { return std::span(group[rank].memory).subspan(offset, kBytes); }));
      offsets.push_back(offset);
    }
    const auto from = static_cast<uint32_t>(round % 3), to = static_cast<uint32_t>((round + 1) % 3);
    for (size_t i = 0; i < 4; ++i) {
      void* request = nullptr;
      auto& word = *reinterpret_cast<uint64_t*>(&group[to].memory[offsets[i] + 64]);
      std::atomic_ref(word).store(0);
      request = group.put_signal(group[from].target(), {0, live[i][from], 64, 0, live[i][from], to},
                                 {64, live[i][from], i + 1});
      ASSERT_TRUE(group.finish(group[from], request));
      ASSERT_EQ(std::atomic_ref(word).load(), i + 1) << round;
    }
    for (uint32_t rank = 0; rank < 3; ++rank) {
      std::vector<size_t> order{0, 1, 2, 3};
      std::shuffle(order.begin(), order.end(), dice[rank]);
      for (const size_t i : order)
        ASSERT_EQ(plugin().deregister(group[rank].communicator, live[i][rank]), abi::kSuccess);
    }
  }
  EXPECT_EQ(count_open_files(), files);
}

// NCCL registers again without a dma-buf if one rank cannot with one: all have to know.
TEST_P(RmaRegistrationTest, WhereOneRankCannotNoneDoes) {
  RmaGroup group(plugin(), {.ranks = 3});
  for (uint32_t unlucky = 0; unlucky < 3; ++unlucky) {
    LogCapture::get().take_lines();
    for_each_rank(3, [&](uint32_t rank) {
      std::byte* const memory = group[rank].memory.data();
      const size_t bytes = rank == unlucky ? SIZE_MAX : 4096;
      const auto made =
          plugin().register_dmabuf(group[rank].communicator, memory, bytes, abi::kPtrCuda, 0, STDIN_FILENO);
      EXPECT_NE(made.result, abi::kSuccess) << rank;
      EXPECT_EQ(made.mhandle, nullptr);
    });
    EXPECT_TRUE(is_logged("rank " + std::to_string(unlucky)));
    const auto regions =
        register_together(group, [&](uint32_t rank) { return std::span(group[rank].memory).first(4096); });
    void* request = group.put(group[0].target(), {0, regions[0], 64, 64, regions[0], 2});
    ASSERT_TRUE(group.finish(group[0], request));
    for_each_rank(3, [&](uint32_t rank) { plugin().deregister(group[rank].communicator, regions[rank]); });
  }
}

// What is under way when its memory is given back still ends.
TEST_P(RmaRegistrationTest, MemoryIsGivenBackUnderRequestsThatAreUnderWay) {
  RmaGroup group(plugin(), {});
  for (int round = 0; round < 20; ++round) {
    const auto regions =
        register_together(group, [&](uint32_t rank) { return std::span(group[rank].memory).first(1 << 18); });
    std::vector<void*> open(300);
    for (void*& request : open) {
      request = group.put(group[0].target(), {0, regions[0], 3000, 4096, regions[0], 1});
    }
    EXPECT_EQ(plugin().deregister(group[0].communicator, regions[0]), abi::kSuccess);
    for (void* request : open) ASSERT_TRUE(group.finish(group[0], request));
    EXPECT_EQ(plugin().deregister(group[1].communicator, regions[1]), abi::kSuccess);
  }
}

// So do the bytes of a put whose signal is refused: NCCL is told at once, and gives the memory back.
TEST_P(RmaRegistrationTest, MemoryIsGivenBackBehindASignalThatIsRefused) {
  RmaGroup group(plugin(), {});
  const auto regions =
      register_together(group, [&](uint32_t rank) { return std::span(group[rank].memory).first(1 << 18); });
  group[0].memory[2999] = std::byte{7};
  void* request = nullptr;
  EXPECT_EQ(plugin().put_signal(group[0].target(), {0, regions[0], 3000, 4096, regions[0], 1},
                                {4, regions[0], 1}, &request),
            abi::kInvalidArgument)
      << "a word at an odd place";
  EXPECT_EQ(plugin().deregister(group[0].communicator, regions[0]), abi::kSuccess);
  request = group.put(group[0].target(), {0, group[0].region, 8, 0, group[1].region, 1});
  EXPECT_TRUE(group.finish(group[0], request));
  EXPECT_EQ(group[1].memory[4096 + 2999], std::byte{7});
  EXPECT_EQ(plugin().deregister(group[1].communicator, regions[1]), abi::kSuccess);
}

// Threads of applications register, give back and ask for errors while NCCL's thread puts.
TEST_P(RmaRegistrationTest, RegistersBesideAThreadThatPuts) {
  constexpr size_t kPart = 1 << 18;
  RmaGroup group(plugin(), {});
  std::atomic<bool> ends{false};
  std::thread data([&] {
    for (uint64_t round = 1; !ends; ++round) {
      void* request = group.put_signal(group[0].target(static_cast<int>(round % 4)),
                                       {kPart, group[0].region, 1000, kPart, group[1].region, 1},
                                       {0, group[1].region, 1});
      ASSERT_TRUE(group.finish(group[0], request));
      ASSERT_EQ(group[1].word(0).load(), round);
    }
  });
  for (int round = 0; round < 100; ++round) {
    const auto regions = register_together(
        group, [&](uint32_t rank) { return std::span(group[rank].memory).subspan(2 * kPart, kPart); });
    std::vector<void*> contexts(2);
    for_each_rank(2, [&](uint32_t rank) {
      bool has_error = true;
      EXPECT_EQ(plugin().query_last_error(group[rank].target(), &has_error), abi::kSuccess);
      EXPECT_FALSE(has_error);
      EXPECT_EQ(plugin().create_context(group[rank].communicator, 2, 1, &contexts[rank]), abi::kSuccess);
      EXPECT_EQ(plugin().destroy_context(contexts[rank]), abi::kSuccess);
      EXPECT_EQ(plugin().deregister(group[rank].communicator, regions[rank]), abi::kSuccess);
    });
  }
  ends = true;
  data.join();
}

}  // namespace
}  // namespace verbena::nccl::testing
