// Every primitive on teams of every shape: all by NICs, all by loads and stores, both mixed; by a thread, a
// warp, a block.
#include <gtest/gtest.h>

#include "device/emulator/sanitizer.h"
#include "device/proxy/support/rdma_fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using device::Order;
using device::Scope;
using emulator::require;
using emulator::require_done;

constexpr auto kSet = SymmSignalOperation::kSet, kAdd = SymmSignalOperation::kAdd;
constexpr auto kIncrement = SymmSignalOperation::kIncrement;

enum class By { kThread, kWarp, kBlock };

struct Case {
  int32_t ranks, domain_ranks;
  By by;
};

uint32_t count_threads(By by) {
  return by == By::kThread ? 1 : by == By::kWarp ? 32 : 64;
}

// What the thread sanitizer follows well: see the emulator's README.
std::vector<Case> list_cases() {
  std::vector<Case> cases = {
      {1, 1, By::kBlock},  {2, 1, By::kThread}, {2, 1, By::kWarp},  {2, 1, By::kBlock},  {2, 2, By::kBlock},
      {3, 1, By::kBlock},  {4, 2, By::kThread}, {4, 2, By::kWarp},  {5, 2, By::kThread}, {5, 2, By::kBlock},
      {8, 1, By::kThread}, {8, 1, By::kWarp},   {8, 4, By::kBlock}, {9, 3, By::kWarp}};
  if (VERBENA_EMULATOR_TSAN != 0) {
    std::erase_if(cases, [](const Case& one) {
      return static_cast<uint32_t>(one.ranks) * count_threads(one.by) > 192;
    });
  }
  return cases;
}
constexpr uint64_t kSeeds = emulator::kSanitizer ? 1 : 3;

template <typename Body>
void as_group(By by, const Body& body) {
  switch (by) {
    case By::kThread:
      return body(device::ThreadGroup{});
    case By::kWarp:
      return body(device::WarpGroup{});
    case By::kBlock:
      return body(device::BlockGroup{});
  }
}

// What `from` writes for `to`, byte `i`, in a round.
uint8_t byte_of(int32_t from, int32_t to, uint64_t i, uint64_t round) {
  return static_cast<uint8_t>(31 * from + 7 * to + static_cast<int32_t>(3 * i + 11 * round) + 1);
}

template <typename Group>
void fill(uint8_t* data, uint64_t bytes, int32_t from, int32_t to, uint64_t round, const Group& group) {
  for (uint64_t i = group.rank(); i < bytes; i += group.size())
    device::store<Order::kWeak, Scope::kThreads>(data + i, byte_of(from, to, i, round));
  group.sync();
}

template <typename Group>
void expect_bytes(const uint8_t* data, uint64_t bytes, int32_t from, int32_t to, uint64_t round,
                  const Group& group, const char* text) {
  for (uint64_t i = group.rank(); i < bytes; i += group.size())
    require(device::load<Order::kWeak, Scope::kThreads>(data + i) == byte_of(from, to, i, round), text);
  group.sync();
}

constexpr uint64_t kLineBytes = 1024;  // of what one rank puts for another

class SymmPathTest : public testing::TestWithParam<Case> {
 protected:
  SymmPathTest() : fleet_(make_shape(GetParam().ranks, GetParam().domain_ranks)) {}

  // `kernel(rank, group)` on every rank.
  template <typename Kernel>
  void run(const Kernel& kernel) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const By by = GetParam().by;
      run_on_all(fleet_, seed, 1, count_threads(by),
                 [&](int32_t rank) { as_group(by, [&](const auto& group) { kernel(rank, group, seed); }); });
      for (int32_t rank = 0; rank < fleet_.size(); ++rank) EXPECT_EQ(fleet_.proxy(rank).error(), "");
    }
  }

  // In the memory of `rank`.
  uint8_t* line_of(int32_t rank, int32_t number) {
    return fleet_.data(rank, static_cast<uint64_t>(number) * kLineBytes);
  }

  RdmaFleet fleet_;
};

std::string name_case(const testing::TestParamInfo<Case>& one) {
  const char* const groups[] = {"Thread", "Warp", "Block"};
  return std::to_string(one.param.ranks) + "By" + std::to_string(one.param.domain_ranks) +
         groups[static_cast<int>(one.param.by)];
}

INSTANTIATE_TEST_SUITE_P(Teams, SymmPathTest, testing::ValuesIn(list_cases()), name_case);

// All put to all and to themselves, signal, and wait for all.
TEST_P(SymmPathTest, PutWithSignal) {
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    const SymmContext& mine = fleet_.context(rank);
    const auto size = static_cast<uint64_t>(fleet_.size());
    for (uint64_t lap = 0; lap < 3; ++lap) {
      const uint64_t round = 3 * seed + lap, length = 1 + 61 * lap;
      for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
        uint8_t* const source = line_of(rank, fleet_.size() + peer);
        fill(source, length, rank, peer, round, group);
        require_done(
            device::symm_put_signal_async(mine, line_of(rank, rank), source, length, peer, 5, 1, kAdd, group),
            "put");
      }
      require_done(
          device::symm_signal_wait_until<int64_t>(mine, 5, SymmCompare::kGreaterEqual,
                                                  static_cast<int64_t>((round + 1) * size), nullptr, group),
          "wait");
      for (int32_t peer = 0; peer < fleet_.size(); ++peer)
        expect_bytes(line_of(rank, peer), length, peer, rank, round, group, "what came");
      require_done(device::symm_flush(mine, group), "flush");
      require_done(device::symm_barrier(mine, 0, group), "all have read");
    }
  });
}

// Pieces of many lengths (none and odd ones among them), more of them than a queue has positions, at places
// that are not in their order. One signal is behind all of them.
TEST_P(SymmPathTest, PutPieces) {
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    constexpr uint32_t kPieces = 21;
    constexpr uint64_t kPieceBytes = 48;
    const SymmContext& mine = fleet_.context(rank);
    const auto size = static_cast<uint64_t>(fleet_.size());
    const auto length_of = [](uint32_t i, uint64_t round) { return (i * 7 + round) % kPieceBytes; };
    for (uint64_t lap = 0; lap < 2; ++lap) {
      const uint64_t round = 2 * seed + lap;
      for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
        uint8_t* const source = line_of(rank, fleet_.size() + peer);
        fill(source, kPieces * kPieceBytes, rank, peer, round, group);
        uint8_t* const line = line_of(rank, rank);
        SymmPiece pieces[kPieces];
        for (uint32_t i = 0; i < kPieces; ++i)
          pieces[i] = {line + (kPieces - 1 - i) * kPieceBytes, source + i * kPieceBytes, length_of(i, round)};
        require_done(device::symm_put_pieces_signal(mine, pieces, kPieces - 1, peer, 5, 1, kAdd, group),
                     "pieces");
        require_done(device::symm_put_pieces(mine, pieces + kPieces - 1, 1, peer, group), "the last piece");
        require_done(device::symm_put_pieces_signal(mine, pieces, 0, peer, 6, 1, kIncrement, group),
                     "no piece");
        SymmPiece wrong[] = {pieces[1], {fleet_.heap(rank) + RdmaFleet::kHeapBytes - 8, source, 9}};
        require(device::symm_put_pieces(mine, wrong, 2, peer, group) == SymmStatus::kInvalid,
                "past the heap");
        require(device::symm_put_pieces(mine, pieces, 1, fleet_.size(), group) == SymmStatus::kInvalid,
                "who");
      }
      for (const uint32_t signal : {5, 6})
        require_done(
            device::symm_signal_wait_until<int64_t>(mine, signal, SymmCompare::kGreaterEqual,
                                                    static_cast<int64_t>((round + 1) * size), nullptr, group),
            "wait");
      for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
        const uint8_t* const line = line_of(rank, peer);
        for (uint32_t i = 0; i < kPieces - 1; ++i) {
          for (uint64_t at = group.rank(); at < length_of(i, round); at += group.size())
            require(
                device::load<Order::kWeak, Scope::kThreads>(line + (kPieces - 1 - i) * kPieceBytes + at) ==
                    byte_of(peer, rank, i * kPieceBytes + at, round),
                "what came");
        }
      }
      require_done(device::symm_quiet(mine, group), "quiet");
      require_done(device::symm_barrier(mine, 0, group), "all have read");
    }
  });
}

TEST_P(SymmPathTest, PutThenBarrier) {
  run([&](int32_t rank, const auto& group, uint64_t round) {
    const SymmContext& mine = fleet_.context(rank);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      uint8_t* const source = line_of(rank, fleet_.size() + peer);
      fill(source, 333, rank, peer, round, group);
      require_done(device::symm_put_async(mine, line_of(rank, rank), source, 333, peer, group), "put");
    }
    require_done(device::symm_barrier(mine, 1, group), "barrier");
    for (int32_t peer = 0; peer < fleet_.size(); ++peer)
      expect_bytes(line_of(rank, peer), 333, peer, rank, round, group, "what came");
    require_done(device::symm_barrier_arrive(mine, 2, group), "arrive");
    require_done(device::symm_barrier_wait(mine, 2, group), "wait");
  });
}

// As where GPUs see in order only what NICs write to themselves: a neighbour's memory is read behind a second
// meeting.
TEST_P(SymmPathTest, BarriersThatMeetTwice) {
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    SymmContext mine = fleet_.context(rank);
    mine.meets_twice = 1;
    for (uint64_t lap = 0; lap < 4; ++lap) {
      const uint64_t round = 4 * seed + lap;
      uint8_t* const source = line_of(rank, fleet_.size());
      fill(source, 100, rank, 0, round, group);
      for (int32_t peer = 0; peer < fleet_.size(); ++peer)
        require_done(device::symm_put_async(mine, line_of(rank, rank), source, 100, peer, group), "put");
      require_done(device::symm_barrier(mine, 6, group), "barrier");
      for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
        for (int32_t owner = 0; owner < fleet_.size(); ++owner) {
          const uint8_t* const there = device::symm_lsa_ptr(mine, line_of(rank, peer), owner);
          if (there != nullptr) expect_bytes(there, 100, peer, 0, round, group, "at a neighbour");
        }
      }
      require_done(device::symm_barrier_arrive(mine, 6, group), "arrive");
      require_done(device::symm_barrier_wait(mine, 6, group), "wait");
    }
  });
}

// From each root in turn, to another place and in its own; then every rank's to all, of odd lengths.
TEST_P(SymmPathTest, BroadcastAndCollect) {
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    const SymmContext& mine = fleet_.context(rank);
    for (int32_t root = 0; root < fleet_.size(); root += 2) {
      const uint64_t round = 8 * seed + static_cast<uint64_t>(root);
      uint8_t* const place = line_of(rank, root);
      uint8_t* const source = root % 4 == 0 ? place : line_of(rank, fleet_.size());
      if (rank == root) fill(source, 77, root, root, round, group);
      require_done(device::symm_broadcast(mine, place, source, 77, root, 3, group), "broadcast");
      expect_bytes(place, 77, root, root, round, group, "the root's");
    }
    for (uint64_t lap = 0; lap < 2; ++lap) {
      const uint64_t length = 50 + 11 * lap;
      uint8_t* const all = fleet_.data(rank);
      uint8_t* const source =
          lap == 0 ? line_of(rank, fleet_.size()) : all + static_cast<uint64_t>(rank) * length;
      require_done(device::symm_sync(mine, 5, group), "all have looked");
      fill(source, length, rank, rank, seed + lap, group);
      require_done(device::symm_fcollect(mine, all, source, length, 4, group), "collect");
      for (int32_t peer = 0; peer < fleet_.size(); ++peer)
        expect_bytes(all + static_cast<uint64_t>(peer) * length, length, peer, peer, seed + lap, group,
                     "what came");
    }
    require_done(device::symm_barrier(mine, 5, group), "all have looked");
  });
}

TEST_P(SymmPathTest, Get) {
  run([&](int32_t rank, const auto& group, uint64_t round) {
    const SymmContext& mine = fleet_.context(rank);
    uint8_t *const told = fleet_.data(rank), *const got = line_of(rank, 1);
    fill(told, 500, rank, rank, round, group);
    require_done(device::symm_barrier(mine, 3, group), "told");
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      require_done(device::symm_get(mine, got, told, 500, peer, group), "get");
      expect_bytes(got, 500, peer, peer, round, group, "what was got");
    }
    require_done(device::symm_barrier(mine, 3, group), "all have read");
  });
}

// Each rank sets, adds to and increments its own signal at every peer.
TEST_P(SymmPathTest, SignalsAreSetAddedToAndReset) {
  run([&](int32_t rank, const auto& group, uint64_t) {
    const SymmContext& mine = fleet_.context(rank);
    const auto signal = static_cast<uint32_t>(20 + rank);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      require_done(device::symm_signal(mine, signal, peer, uint64_t{1} << 40, kAdd, group), "add");
      require_done(device::symm_signal(mine, signal, peer, uint64_t(-5), kSet, group), "set");
      require_done(device::symm_signal(mine, signal, peer, 77, kIncrement, group), "increment");
      require_done(device::symm_signal(mine, signal, peer, uint64_t{3} << 33, kAdd, group), "add");
    }
    for (int32_t peer = 0; peer < fleet_.size(); ++peer)
      require_done(
          device::symm_signal_wait_until<int64_t>(mine, static_cast<uint32_t>(20 + peer), SymmCompare::kEqual,
                                                  (int64_t{3} << 33) - 4, nullptr, group),
          "all four");
    require_done(device::symm_barrier(mine, 4, group), "nobody signals");
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      require_done(device::symm_signal_reset(mine, static_cast<uint32_t>(20 + peer), group), "reset");
      group.sync();
      require(device::symm_signal_read(mine, static_cast<uint32_t>(20 + peer)) == 0, "is 0");
    }
    require_done(device::symm_barrier(mine, 4, group), "all are reset");
  });
}

// Ranks in reach and ranks out of it add to one signal at the same time.
TEST_P(SymmPathTest, SignalsOfBothPathsSumUp) {
  constexpr uint64_t kTimes = 20;
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    const SymmContext& mine = fleet_.context(rank);
    for (uint64_t i = 0; i < kTimes; ++i)
      for (int32_t peer = 0; peer < fleet_.size(); ++peer)
        require_done(device::symm_signal(mine, 9, peer, 1 + static_cast<uint64_t>(rank), kAdd, group), "add");
    const auto size = static_cast<uint64_t>(fleet_.size());
    const uint64_t sum = (seed + 1) * kTimes * size * (size + 1) / 2;
    require_done(device::symm_signal_wait_until<int64_t>(mine, 9, SymmCompare::kGreaterEqual,
                                                         static_cast<int64_t>(sum), nullptr, group),
                 "sum");
    require_done(device::symm_barrier(mine, 5, group), "barrier");
    require(device::symm_signal_read(mine, 9) == sum, "no more than that");
    require_done(device::symm_barrier(mine, 5, group), "barrier");
  });
}

// After quiet, puts are complete at the peer without its help: a get reads them back at once.
TEST_P(SymmPathTest, QuietIsRemoteCompletion) {
  run([&](int32_t rank, const auto& group, uint64_t round) {
    const SymmContext& mine = fleet_.context(rank);
    uint8_t *const source = line_of(rank, 32), *const back = line_of(rank, 33);
    uint8_t* const place = line_of(rank, rank);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      fill(source, 200, rank, peer, round, group);
      require_done(device::symm_put_async(mine, place, source, 200, peer, group), "put");
      require_done(peer % 2 == 0 ? device::symm_quiet(mine, group) : device::symm_quiet(mine, peer, group),
                   "quiet");
      for (uint64_t i = group.rank(); i < 200; i += group.size())
        require(reinterpret_cast<std::atomic<uint8_t>*>(line_of(peer, rank) + i)
                        ->load(std::memory_order_relaxed) == byte_of(rank, peer, i, round),
                "is there");
      group.sync();
      require_done(device::symm_get(mine, back, place, 200, peer, group), "get");
      expect_bytes(back, 200, rank, peer, round, group, "got back");
    }
  });
}

// Each draws numbers from the counter of every rank, its own too: nobody gets one twice, whoever adds
// besides.
TEST_P(SymmPathTest, FetchedNumbersAreDrawnOnce) {
  constexpr uint64_t kTimes = 3;
  const auto size = static_cast<uint64_t>(fleet_.size());
  std::vector<std::atomic<uint32_t>> drawn(kSeeds * size * size * kTimes * 3);
  run([&](int32_t rank, const auto& group, uint64_t seed) {
    const SymmContext& mine = fleet_.context(rank);
    uint64_t* const counter = fleet_.data<uint64_t>(rank, 40 * kLineBytes);
    for (uint64_t i = 0; i < kTimes; ++i) {
      for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
        uint64_t before = 0;
        require_done(device::symm_add(mine, counter, 2, peer, group), "add");
        require_done(device::symm_fetch_add(mine, counter, 1, peer, &before, group), "draw");
        if (group.rank() != 0) continue;
        const uint64_t number = static_cast<uint64_t>(peer) * kSeeds * size * kTimes * 3 + before;
        require(number < drawn.size() && drawn[number].fetch_add(1) == 0, "once");
      }
    }
    require_done(device::symm_quiet(mine, group), "quiet");
    require_done(device::symm_barrier(mine, 7, group), "all have drawn");
    require(std::atomic_ref(*counter).load() == (seed + 1) * size * kTimes * 3, "the sum");
    require_done(device::symm_barrier(mine, 7, group), "all have looked");
  });
}

// A word of one's own as a signal: behind the data, for any and for all of several.
TEST_P(SymmPathTest, WordsAreSignals) {
  run([&](int32_t rank, const auto& group, uint64_t round) {
    const SymmContext& mine = fleet_.context(rank);
    const auto size = static_cast<uint32_t>(fleet_.size());
    uint64_t* const words = fleet_.data<uint64_t>(rank, 41 * kLineBytes);
    const auto wanted = static_cast<int64_t>(round + 1);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      uint8_t* const source = line_of(rank, fleet_.size() + peer);
      fill(source, 333, rank, peer, round, group);
      require_done(device::symm_put_async(mine, line_of(rank, rank), source, 333, peer, group), "put");
      require_done(device::symm_put_value(mine, words + rank, round + 1, peer, group), "tell");
    }
    uint32_t which = size;
    require_done(
        device::symm_wait_until_any(mine, words, size, SymmCompare::kEqual, wanted, nullptr, &which, group),
        "any");
    expect_bytes(fleet_.data(rank, which * kLineBytes), 333, static_cast<int32_t>(which), rank, round, group,
                 "its data");
    require_done(device::symm_wait_until_all(mine, words, size, SymmCompare::kEqual, wanted, group), "all");
    for (int32_t peer = 0; peer < fleet_.size(); ++peer)
      expect_bytes(line_of(rank, peer), 333, peer, rank, round, group, "what came");
    require_done(device::symm_barrier(mine, 8, group), "all have read");
  });
}

// Gets of all peers under way at once; a column of a matrix there and back.
TEST_P(SymmPathTest, GetsWithoutAWaitAndRows) {
  constexpr uint64_t kRows = 9, kStride = 112;
  run([&](int32_t rank, const auto& group, uint64_t round) {
    const SymmContext& mine = fleet_.context(rank);
    uint8_t *const told = line_of(rank, 42), *const got = line_of(rank, 50);
    fill(told, 500, rank, rank, round, group);
    require_done(device::symm_barrier(mine, 9, group), "told");
    std::vector<device::SymmRequest> asked(static_cast<size_t>(fleet_.size()));
    for (int32_t peer = 0; peer < fleet_.size(); ++peer)
      require_done(
          device::symm_get_async(mine, got + static_cast<uint64_t>(peer) * kLineBytes, told, 500, peer,
                                 &asked[static_cast<size_t>(peer)], group, device::SymmQueue{3}),
          "ask");
    for (int32_t peer = fleet_.size() - 1; peer >= 0; --peer) {
      require_done(device::symm_request_wait(mine, asked[static_cast<size_t>(peer)], group), "wait");
      expect_bytes(got + static_cast<uint64_t>(peer) * kLineBytes, 500, peer, peer, round, group,
                   "what was got");
    }
    uint8_t* const rows = line_of(rank, 60 + rank);
    for (int32_t peer = 0; peer < fleet_.size(); ++peer) {
      require_done(device::symm_put_rows(mine, rows, kStride, told, 40, 40, kRows, peer, group), "put");
      require_done(device::symm_quiet(mine, peer, group), "quiet");
      require_done(device::symm_get_rows(mine, got, 40, rows, kStride, 40, kRows, peer, group), "get");
      expect_bytes(got, 40 * kRows, rank, rank, round, group, "there and back");
    }
    require_done(device::symm_barrier(mine, 9, group), "all have read");
  });
}

}  // namespace
}  // namespace verbena::device_test
