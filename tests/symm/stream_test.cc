// Calls in the order of streams, over a stand-in for CUDA's driver that runs their kernel on emulated GPUs.
#include <gmock/gmock.h>

#include <cstring>

#include "base/log.h"
#include "symm/support/contexts.h"
#include "symm/support/kernels.h"

// LeakSanitizer of gcc 12 fails on thread-local memory of libraries that were loaded later, such as the
// stand-in for CUDA's driver.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return 1;
}

namespace verbena::symm {
namespace {

using base::Status;
using base::SymmPath;
using testing::HasSubstr;
using enum StreamCall::Kind;

constexpr auto kAdd = static_cast<uint32_t>(SymmSignalOperation::kAdd);
constexpr auto kAtLeast = static_cast<uint32_t>(SymmCompare::kGreaterEqual);

void* use_gpu(uint32_t rank) {
  void *context = nullptr, *stream = nullptr;
  call_driver("cuDevicePrimaryCtxRetain", &context, static_cast<int>(rank % 2));
  call_driver("cuCtxSetCurrent", context);
  call_driver("cuStreamCreateWithPriority", &stream, 0U, 0);
  return stream;
}

class StreamTest : public testing::TestWithParam<SymmPath> {
 protected:
  static void SetUpTestSuite() {
    static const bool once = (run_kernels_by_emulator(), true);
    static_cast<void>(once);
  }
  // `body(context, stream)` on each rank.
  void run(uint32_t ranks, const std::function<void(Context&, void*)>& body) {
    run_contexts(
        ranks, make_settings(GetParam()),
        [&](Context& context) {
          void* const stream = use_gpu(context.rank());
          body(context, stream);
          call_driver("cuStreamSynchronize", stream);
          EXPECT_EQ(context.error(), "");
          EXPECT_EQ(context.find_failures()->text, "");
        },
        [](uint32_t rank) { use_gpu(rank); });
  }
};
INSTANTIATE_TEST_SUITE_P(Paths, StreamTest, testing::Values(SymmPath::kLsa, SymmPath::kRdma), name_path);

StreamCall copy(StreamCall::Kind kind, uint32_t peer, void* destination, const void* source,
                uint64_t length_bytes) {
  return {.kind = kind,
          .peer = static_cast<int32_t>(peer),
          .destination = reinterpret_cast<uint64_t>(destination),
          .source = reinterpret_cast<uint64_t>(source),
          .length_bytes = length_bytes};
}

// Rounds of put, signal and wait around a ring, a barrier behind each; a get at the end.
TEST_P(StreamTest, WorkIsInTheOrderOfTheStream) {
  constexpr uint32_t kRanks = 2, kRounds = 2;
  constexpr uint64_t kBytes = 70'000;
  run(kRanks, [&](Context& context, void* stream) {
    const auto made = context.allocate_window(4 * kBytes);
    ASSERT_TRUE(made);
    auto* const source = reinterpret_cast<uint8_t*>((*made)->address);
    uint8_t *const came = source + kBytes, *const got = came + kBytes, *const back = got + kBytes;
    const uint32_t next = (context.rank() + 1) % kRanks;
    const auto enqueue = [&](const StreamCall& call) {
      ASSERT_TRUE(context.enqueue(context.world(), call, stream)) << base::last_failure();
    };
    for (uint32_t round = 1; round <= kRounds; ++round) {
      call_driver("cuStreamSynchronize", stream);
      for (uint64_t i = 0; i < kBytes; ++i)
        source[i] = static_cast<uint8_t>(i * 7 + round + 31 * context.rank());
      enqueue(copy(kPut, next, came, source, kBytes));
      enqueue(
          {.kind = kSignal, .number = 9, .peer = static_cast<int32_t>(next), .operation = kAdd, .value = 1});
      enqueue({.kind = kWait, .number = 9, .operation = kAtLeast, .value = round});
      // What has come goes on.
      enqueue(copy(kPut, next, got, came, kBytes));
      enqueue({.kind = kBarrier, .number = 3});
      enqueue(copy(kGet, next, back, got, kBytes));
      enqueue({.kind = kQuiet});
      call_driver("cuStreamSynchronize", stream);
      const uint32_t before = (context.rank() + kRanks - 1) % kRanks;
      for (uint64_t i = 0; i < kBytes; ++i) {
        ASSERT_EQ(came[i], static_cast<uint8_t>(i * 7 + round + 31 * before)) << i;
        ASSERT_EQ(got[i], source[i]) << "once around, of two ranks";
        ASSERT_EQ(back[i], came[i]) << "what the next has got is what it has told us";
      }
      ASSERT_TRUE(context.barrier());
    }
  });
}

// More pieces than a kernel takes, with a signal behind them; and a list with a piece that cannot be, of
// which nothing is put.
TEST_P(StreamTest, PiecesComeBeforeTheSignalBehindThem) {
  constexpr uint32_t kRanks = 2, kPieces = 37;
  constexpr uint64_t kBytes = 1000;
  run(kRanks, [&](Context& context, void* stream) {
    const auto made = context.allocate_window(4 * kPieces * kBytes);
    ASSERT_TRUE(made);
    auto* const source = reinterpret_cast<uint8_t*>((*made)->address);
    uint8_t* const came = source + 2 * kPieces * kBytes;
    const uint32_t peer = 1 - context.rank();
    for (uint64_t i = 0; i < kPieces * kBytes; ++i)
      source[i] = static_cast<uint8_t>(i * 7 + 31 * context.rank() + 1);
    std::vector<SymmPiece> pieces;
    for (uint32_t i = 0; i < kPieces; ++i)
      pieces.push_back({came + i * kBytes, source + (kPieces - 1 - i) * kBytes, kBytes - i});
    std::vector<SymmPiece> wrong = pieces;
    wrong.back().length_bytes = UINT64_MAX;
    EXPECT_EQ(context.enqueue_pieces(context.world(), wrong, peer, stream).status(),
              Status::kInvalidArgument);
    EXPECT_THAT(base::last_failure(), HasSubstr("is not inside a window"));
    EXPECT_EQ(context.enqueue_pieces(context.world(), pieces, kRanks, stream).status(),
              Status::kInvalidArgument);
    EXPECT_TRUE(context.enqueue_pieces(context.world(), {}, peer, stream));
    ASSERT_TRUE(context.enqueue(context.world(), {.kind = kBarrier, .number = 3}, stream));
    call_driver("cuStreamSynchronize", stream);
    for (uint64_t i = 0; i < kPieces * kBytes; ++i) ASSERT_EQ(came[i], 0) << i;
    ASSERT_TRUE(context.barrier());
    ASSERT_TRUE(context.enqueue_pieces(context.world(), pieces, peer, stream)) << base::last_failure();
    const auto to = static_cast<int32_t>(peer);
    ASSERT_TRUE(context.enqueue(
        context.world(), {.kind = kSignal, .number = 9, .peer = to, .operation = kAdd, .value = 1}, stream));
    ASSERT_TRUE(context.enqueue(context.world(),
                                {.kind = kWait, .number = 9, .operation = kAtLeast, .value = 1}, stream));
    call_driver("cuStreamSynchronize", stream);
    for (uint32_t i = 0; i < kPieces; ++i) {
      for (uint64_t k = 0; k < kBytes; ++k) {
        const auto sent = static_cast<uint8_t>(((kPieces - 1 - i) * kBytes + k) * 7 + 31 * peer + 1);
        ASSERT_EQ(came[i * kBytes + k], k < kBytes - i ? sent : 0) << i << " " << k;
      }
    }
    ASSERT_TRUE(context.barrier());
  });
}

// A stream of its own for each workspace: barriers and signals of one number do not meet.
TEST_P(StreamTest, WorkspacesOfStreamsAreApart) {
  run(2, [&](Context& context, void* stream) {
    const auto first = context.make_workspace(&context.world(), {.slots_bytes = 0, .blocks = 1});
    const auto second = context.make_workspace(&context.world(), {.slots_bytes = 0, .blocks = 1});
    ASSERT_TRUE(first && second);
    void* const other = use_gpu(context.rank());
    const auto peer = static_cast<int32_t>(1 - context.rank());
    // Rank 1 uses the streams the other way round.
    Team& mine = *(context.rank() == 0 ? *first : *second)->team;
    Team& theirs = *(context.rank() == 0 ? *second : *first)->team;
    for (const auto& [team, on] : {std::pair(&mine, stream), std::pair(&theirs, other)}) {
      ASSERT_TRUE(context.enqueue(*team, {.kind = kBarrier, .number = 0}, on));
      ASSERT_TRUE(context.enqueue(
          *team, {.kind = kSignal, .number = 0, .peer = peer, .operation = kAdd, .value = 5}, on));
      ASSERT_TRUE(
          context.enqueue(*team, {.kind = kWait, .number = 0, .operation = kAtLeast, .value = 5}, on));
    }
    call_driver("cuStreamSynchronize", other);
  });
}

// By the application's own addresses.
TEST_P(StreamTest, RegisteredMemoryIsPutByItsOwnAddress) {
  run(2, [&](Context& context, void* stream) {
    constexpr uint64_t kBytes = 2 << 20;
    auto piece = base::MemoryPiece::allocate({context.gpu()}, kBytes);
    auto range = base::AddressRange::reserve({context.gpu()}, kBytes);
    ASSERT_TRUE(piece && range);
    const auto mapped = base::MappedPiece::map(*piece, piece->owner(), range->begin());
    ASSERT_TRUE(mapped);
    auto* const own = reinterpret_cast<uint8_t*>(range->begin());
    std::memset(own, 40 + static_cast<int>(context.rank()), 1000);
    const auto window = context.register_window(own, kBytes);
    ASSERT_TRUE(window);
    const uint32_t peer = 1 - context.rank();
    ASSERT_TRUE(context.enqueue(context.world(), copy(kPut, peer, own + 5000, own, 1000), stream))
        << base::last_failure();
    ASSERT_TRUE(context.enqueue(context.world(), {.kind = kBarrier}, stream));
    call_driver("cuStreamSynchronize", stream);
    EXPECT_EQ(own[5000], 40 + peer);
    EXPECT_EQ(own[5999], 40 + peer);
    EXPECT_EQ(own[6000], 0);
    ASSERT_TRUE(context.free_window(**window));
  });
}

TEST_P(StreamTest, WhatCannotBeIsToldAtOnce) {
  run(2, [&](Context& context, void* stream) {
    const auto made = context.allocate_window(4096);
    ASSERT_TRUE(made);
    std::byte* const place = (*made)->address;
    uint8_t other[8];
    const auto refuse = [&](const StreamCall& call, const char* why) {
      const auto outcome = context.enqueue(context.world(), call, stream);
      EXPECT_EQ(outcome.status(), Status::kInvalidArgument);
      EXPECT_THAT(base::last_failure(), HasSubstr(why));
    };
    refuse({.kind = kBarrier, .number = kSymmBarriers}, "barrier 512 does not exist");
    refuse({.kind = kSignal, .number = kSymmSignals}, "signal 256 does not exist");
    refuse({.kind = kWait, .number = kSymmSignals, .operation = 1}, "signal 256 does not exist");
    refuse({.kind = kSignal, .peer = 2}, "rank 2 does not exist");
    refuse({.kind = kSignal, .peer = -1}, "rank -1 does not exist");
    refuse({.kind = kSignal, .operation = 3}, "operation 3 does not exist");
    refuse({.kind = kWait, .operation = 0}, "comparison 0 does not exist");
    refuse({.kind = kWait, .operation = 7}, "comparison 7 does not exist");
    refuse(copy(kPut, 1 - context.rank(), other, place, 8), "is not inside a window");
    refuse(copy(kGet, 1 - context.rank(), place, other, 8), "is not inside a window");
    refuse(copy(kPut, 1 - context.rank(), place, place, UINT64_MAX), "is not inside a window");
    const bool is_reached = GetParam() == SymmPath::kLsa;
    if (!is_reached) refuse(copy(kPut, 1 - context.rank(), place, other, 8), "is not inside a window");
    call_driver("cuCtxSetCurrent", static_cast<void*>(nullptr));
    EXPECT_EQ(context.enqueue(context.world(), {.kind = kQuiet}, stream).status(), Status::kInvalidUsage);
    use_gpu(context.rank());
  });
}

// A wait on a stream that ends by time is told as one of a kernel of the application's.
TEST(StreamTimeTest, AWaitInVainIsTold) {
  run_kernels_by_emulator();
  ContextSettings settings = make_settings(SymmPath::kLsa);
  settings.timeout_ns = 50'000'000;
  run_contexts(
      1, settings,
      [&](Context& context) {
        void* const stream = use_gpu(0);
        ASSERT_TRUE(context.enqueue(context.world(), {.kind = kWait, .number = 7, .operation = 1, .value = 1},
                                    stream));
        call_driver("cuStreamSynchronize", stream);
        EXPECT_THAT(context.find_failures()->text, HasSubstr("for signal 7"));
        EXPECT_TRUE(context.reset_team(&context.world()));
      },
      [](uint32_t rank) { use_gpu(rank); });
}

}  // namespace
}  // namespace verbena::symm
