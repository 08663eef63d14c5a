// Data in peers' memory: every scope, lengths and alignments, seen behind its signal.
#include <gtest/gtest.h>

#include <cstring>

#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::require;
using emulator::require_done;
using emulator::World;

std::vector<uint8_t> make_bytes(size_t length_bytes) {
  Random random(length_bytes);
  std::vector<uint8_t> bytes(length_bytes + 64);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
  return bytes;
}

// Rank 0 puts, rank 1 waits and looks.
template <typename Group>
void put_and_look(uint32_t threads, uint64_t length_bytes, uint64_t offset_bytes, uint64_t seed) {
  Fleet fleet(2);
  const std::vector<uint8_t> source = make_bytes(length_bytes);
  World world(seed);
  world.add_grid(0, 1, threads, [&] {
    require_done(device::symm_put_signal_async(fleet.context(0), fleet.data(0, offset_bytes), source.data(),
                                               length_bytes, 1, 7, 3, SymmSignalOperation::kAdd, Group{}),
                 "put");
  });
  world.add_grid(1, 1, threads, [&] {
    require_done(device::symm_signal_wait_until<int64_t>(fleet.context(1), 7, SymmCompare::kEqual, 3, nullptr,
                                                         Group{}),
                 "wait");
    const Group group{};
    for (uint64_t i = group.rank(); i < length_bytes; i += group.size())
      require(device::load<device::Order::kWeak, device::Scope::kThreads>(fleet.data(1, offset_bytes + i)) ==
                  source[i],
              "data");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(*fleet.data(1, offset_bytes + length_bytes), 0) << "not a byte more";
  EXPECT_EQ(*fleet.data(1, offset_bytes - 1), 0);
}

class SymmPutTest : public testing::TestWithParam<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Lengths, SymmPutTest, testing::Values(0, 1, 7, 8, 16, 33, 4096, 9001),
                         testing::PrintToStringParamName());

TEST_P(SymmPutTest, ByAThread) {
  put_and_look<device::ThreadGroup>(1, GetParam(), 64, 1);
}
TEST_P(SymmPutTest, ByAWarp) {
  put_and_look<device::WarpGroup>(32, GetParam(), 64 + 5, 2);
}
TEST_P(SymmPutTest, ByABlock) {
  put_and_look<device::BlockGroup>(96, GetParam(), 64 + 9, 3);
}

TEST_P(SymmPutTest, AndGotBack) {
  Fleet fleet(2);
  const std::vector<uint8_t> bytes = make_bytes(GetParam());
  std::copy_n(bytes.begin(), GetParam(), fleet.data(1, 64));
  GuardedBuffer got(GetParam(), 3);
  emulator::run_kernel(0, 1, 64, [&] {
    require_done(device::symm_get(fleet.context(0), got.data(), fleet.data(0, 64), GetParam(), 1,
                                  device::BlockGroup{}),
                 "get");
  });
  EXPECT_EQ(got.compare({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(GetParam())}), "");
}

// Messages of other lengths and addresses from each rank to each other one, with a signal for each pair, on
// ranks that begin at other times.
TEST(SymmPut, EveryRankToEveryOther) {
  for (const int32_t ranks : {2, 3, 5, 6, 7, 8, 16}) {
    Fleet fleet(ranks);
    World world(static_cast<uint64_t>(ranks));
    const auto length_of = [](int32_t from, int32_t to) {
      return static_cast<uint64_t>(17 * from + 5 * to) % 120;
    };
    const auto byte_of = [](int32_t from, int32_t to, uint64_t i) {
      return static_cast<uint8_t>(static_cast<uint64_t>(from * 41 + to * 7) + i);
    };
    const auto place_of = [](int32_t from) { return static_cast<uint64_t>(256 * from + 64 + from); };
    std::vector<std::vector<std::vector<uint8_t>>> sources(static_cast<size_t>(ranks));
    for (int32_t from = 0; from < ranks; ++from) {
      for (int32_t to = 0; to < ranks; ++to) {
        std::vector<uint8_t>& source = sources[static_cast<size_t>(from)].emplace_back(128);
        for (uint64_t i = 0; i < source.size(); ++i) source[i] = byte_of(from, to, i);
      }
    }
    for (int32_t rank = 0; rank < ranks; ++rank) {
      world.add_grid(static_cast<uint32_t>(rank), 1, 32, [&, rank] {
        if (rank % 3 == 0) device::pause(500'000);
        const SymmContext& mine = fleet.context(rank);
        for (int32_t step = 1; step < ranks; ++step) {
          const int32_t to = (rank + step) % ranks;
          require_done(
              device::symm_put_signal_async(
                  mine, fleet.data(rank, place_of(rank)),
                  sources[static_cast<size_t>(rank)][static_cast<size_t>(to)].data(), length_of(rank, to), to,
                  static_cast<uint32_t>(rank), 1, SymmSignalOperation::kAdd, device::BlockGroup{}),
              "put");
        }
        for (int32_t from = 0; from < ranks; ++from) {
          if (from == rank) continue;
          require_done(
              device::symm_signal_wait_until<int64_t>(mine, static_cast<uint32_t>(from), SymmCompare::kEqual,
                                                      1, nullptr, device::BlockGroup{}),
              "wait");
          for (uint64_t i = device::thread_index(); i < length_of(from, rank);
               i += device::threads_per_block())
            require(device::load<device::Order::kWeak, device::Scope::kThreads>(
                        fleet.data(rank, place_of(from) + i)) == byte_of(from, rank, i),
                    "data");
        }
      });
    }
    EXPECT_EQ(world.run(), "") << ranks << " ranks";
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (int32_t from = 0; from < ranks; ++from) {
        const uint64_t length = from == rank ? 0 : length_of(from, rank);
        EXPECT_EQ(*fleet.data(rank, place_of(from) + length), 0) << "not a byte more";
        EXPECT_EQ(*fleet.data(rank, place_of(from) - 1), 0);
      }
    }
  }
}

TEST(SymmPut, RefusesWhatIsNotSymmetric) {
  Fleet fleet(3, 2);
  uint8_t other[16] = {};
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    const uint64_t whole = Fleet::kDataBytes;
    require(device::symm_put_async(mine, other, other, 1, 1) == SymmStatus::kInvalid, "not in the heap");
    require(device::symm_put_async(mine, fleet.data(0, 1), other, whole, 1) == SymmStatus::kInvalid,
            "too long");
    require(device::symm_put_async(mine, fleet.data(0), other, UINT64_MAX, 1) == SymmStatus::kInvalid,
            "wraps");
    require(device::symm_put_async(mine, fleet.data(0), other, 1, 2) == SymmStatus::kUnreachable, "far");
    require(device::symm_put_signal_async(mine, fleet.data(0), other, 1, 1, kSymmSignals, 1) ==
                SymmStatus::kInvalid,
            "no such signal");
    require(device::symm_lsa_ptr(mine, other, 1) == nullptr, "no pointer");
    require(device::symm_lsa_multicast_ptr(mine, fleet.data(0)) == nullptr, "no multicast");
  });
  EXPECT_EQ(*fleet.data(1), 0) << "nothing was written";
}

TEST(SymmPut, PeersUpdateAWordTogether) {
  Fleet fleet(4);
  emulator::run_on_ranks(5, 4, 1, 32, [&](int32_t rank) {
    auto* const word = fleet.data<uint64_t>(rank);
    uint64_t before = 4 * 32;
    require(device::symm_lsa_update<device::Operation::kAdd>(fleet.context(rank), word, 1, 2, &before) ==
                    SymmStatus::kDone &&
                before < 4 * 32,
            "add");
    require_done(device::symm_lsa_update<device::Operation::kMax>(fleet.context(rank), word + 1,
                                                                  uint64_t{device::thread_index()}, 2),
                 "maximum");
  });
  EXPECT_EQ(fleet.data<uint64_t>(2)[0], 4U * 32U);
  EXPECT_EQ(fleet.data<uint64_t>(2)[1], 31U);
}

// Each thread overwrites what another one has copied, as soon as its own call has returned.
template <typename Group>
void overwrite_behind_a_put(bool has_signal, uint64_t length_bytes, uint64_t seed) {
  Fleet fleet(2);
  std::vector<uint8_t> source(length_bytes, 7);
  emulator::run_kernel(seed, 1, 96, [&] {
    const Group group{};
    if (device::thread_index() >= group.size()) return;
    const SymmContext& mine = fleet.context(0);
    const SymmStatus status =
        has_signal ? device::symm_put_signal_async(mine, fleet.data(0, 64), source.data(), length_bytes, 1, 7,
                                                   1, SymmSignalOperation::kAdd, group)
                   : device::symm_put_async(mine, fleet.data(0, 64), source.data(), length_bytes, 1, group);
    require(status == SymmStatus::kDone, "put");
    for (uint64_t i = group.size() - 1 - group.rank(); i < length_bytes; i += group.size())
      device::store<device::Order::kWeak, device::Scope::kThreads>(source.data() + i, uint8_t{9});
  });
  for (uint64_t i = 0; i < length_bytes; ++i)
    ASSERT_EQ(*fleet.data(1, 64 + i), 7) << "byte " << i << " of " << length_bytes << ", seed " << seed;
}

TEST(SymmPut, TheSourceMayBeReusedAtOnce) {
  for (uint64_t seed = 1; seed < 9; ++seed) {
    for (const uint64_t length_bytes : {uint64_t{8}, uint64_t{6000}}) {
      for (const bool has_signal : {false, true}) {
        overwrite_behind_a_put<device::WarpGroup>(has_signal, length_bytes, seed);
        overwrite_behind_a_put<device::BlockGroup>(has_signal, length_bytes, seed);
      }
    }
  }
}

// The peer polls a word that it knows to be put: it never sees a part of it.
template <typename Word, typename Group>
void poll_words(uint32_t threads, uint64_t source_shift, uint64_t seed) {
  constexpr Word kOne = static_cast<Word>(0x0101010101010101), kLast = 12;
  Fleet fleet(2);
  std::vector<uint8_t> bytes(64 * kLast);
  for (Word round = 1; round <= kLast; ++round) {
    const Word word = round * kOne;
    std::memcpy(bytes.data() + 32 * round + source_shift, &word, sizeof(word));
  }
  World world(seed);
  world.add_grid(0, 1, threads, [&] {
    for (Word round = 1; round <= kLast; ++round)
      require_done(device::symm_put_async(fleet.context(0), fleet.data<Word>(0, 40),
                                          bytes.data() + 32 * round + source_shift, sizeof(Word), 1, Group{}),
                   "put");
  });
  world.add_grid(1, 1, 1, [&] {
    for (Word seen = 0; seen != kLast * kOne;) {
      seen = device::load_relaxed<device::Scope::kSystem>(fleet.data<Word>(1, 40));
      require(seen % kOne == 0, "torn");
    }
  });
  EXPECT_EQ(world.run(), "");
}

TEST(SymmPut, AWordIsThereAsAWhole) {
  for (uint64_t seed = 1; seed < 7; ++seed) {
    for (const uint64_t source_shift : {0, 3}) {
      poll_words<uint64_t, device::ThreadGroup>(1, source_shift, seed);
      poll_words<uint64_t, device::WarpGroup>(32, source_shift, seed);
      poll_words<uint64_t, device::BlockGroup>(64, source_shift, seed);
      poll_words<uint32_t, device::ThreadGroup>(1, source_shift, seed);
      poll_words<uint32_t, device::BlockGroup>(64, source_shift, seed);
    }
  }
}

TEST(SymmPut, UpdatesNoWordThatThereIsNot) {
  Fleet fleet(12, 10);  // more than have their deltas in the context
  alignas(8) uint64_t outside = 0;
  emulator::run_kernel(0, 1, 1, [&] {
    const SymmContext& mine = fleet.context(0);
    const auto add = [&](uint64_t* word, int32_t peer) {
      return device::symm_lsa_update<device::Operation::kAdd>(mine, word, 1, peer);
    };
    require(add(fleet.data<uint64_t>(0), 12) == SymmStatus::kInvalid, "no such rank");
    require(add(fleet.data<uint64_t>(0), -1) == SymmStatus::kInvalid, "nor that");
    require(add(fleet.data<uint64_t>(0), 11) == SymmStatus::kUnreachable, "out of reach");
    require(add(&outside, 1) == SymmStatus::kInvalid, "not in the heap");
    require(add(fleet.data<uint64_t>(0, Fleet::kDataBytes), 1) == SymmStatus::kInvalid, "behind it");
    require_done(add(fleet.data<uint64_t>(0), 9), "in reach");
  });
  EXPECT_EQ(*fleet.data<uint64_t>(9), 1U);
  EXPECT_EQ(outside, 0U);
}

// Memory that is registered: by its own address, while the host changes the table.
TEST(SymmPut, RegisteredMemoryIsFoundByItsOwnAddress) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Fleet fleet(2);
    auto aliases = std::make_unique<SymmAliases>();
    alignas(8) static uint8_t mine[64], other[64];
    const auto add = [&](uint64_t entry, const uint8_t* begin, uint64_t at) {
      SymmAlias& alias = aliases->entries[entry];
      const auto first = reinterpret_cast<uint64_t>(begin);
      __atomic_store_n(&alias.begin, first, __ATOMIC_RELAXED);
      __atomic_store_n(&alias.delta, reinterpret_cast<uint64_t>(fleet.data(0, at)) - first, __ATOMIC_RELAXED);
      __atomic_store_n(&alias.end, first + sizeof(mine), __ATOMIC_RELEASE);
      __atomic_store_n(&aliases->count, entry + 1, __ATOMIC_RELAXED);
    };
    add(0, mine, 512);
    SymmContext& context = fleet.context(0);
    context.aliases = aliases.get();
    const auto host = [&] {
      for (int i = 0; i < 20; ++i) emulator::yield();
      add(1, other, 1024);
      emulator::wait_until_step(2000);
      __atomic_store_n(&aliases->entries[0].end, 0, __ATOMIC_RELAXED);
    };
    emulator::run_beside(host, seed, 1, 1, [&] {
      const uint64_t value = 77;
      uint8_t back[8];
      require(device::symm_lsa_ptr(context, mine + 8, 1) == fleet.data(1, 520), "pointer");
      require_done(device::symm_put_async(context, mine + 8, &value, 8, 1), "put");
      require(device::symm_get(context, back, mine + 8, 8, 1) == SymmStatus::kDone && back[0] == 77, "get");
      require(device::symm_put_async(context, mine + 60, &value, 8, 1) == SymmStatus::kInvalid, "behind it");
      require_done(device::symm_put_rows(context, mine, 16, &value, 0, 8, 4, 1), "rows");
      require(device::symm_put_rows(context, mine, 16, &value, 0, 8, 5, 1) == SymmStatus::kInvalid,
              "too many");
      auto* const word = reinterpret_cast<uint64_t*>(mine);
      require_done(device::symm_add(context, word, 1, 1), "word");
      require_done(device::symm_lsa_update<device::Operation::kAdd>(context, word, 1, 1), "update");
      while (device::symm_lsa_ptr(context, other, 1) == nullptr) emulator::yield();
      while (device::symm_lsa_ptr(context, mine, 1) != nullptr) emulator::yield();
    });
    EXPECT_EQ(fleet.data<uint64_t>(1, 512)[0], 79U);
    context.aliases = nullptr;
  }
}

}  // namespace
}  // namespace verbena::device_test
