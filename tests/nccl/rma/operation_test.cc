// What each call of the tables does, as NCCL's proxy makes it: every rule of the contract.
#include <sys/mman.h>

#include <algorithm>
#include <random>

#include "nccl/rma/group.h"

namespace verbena::nccl::testing {
namespace {

using tools::RmaCopy;

class RmaOperationTest : public RmaTest {};
INSTANTIATE_TEST_SUITE_P(Tables, RmaOperationTest, every_table(), name_table);

std::byte pattern(uint64_t seed, size_t i) {
  return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15 + i * 0x2545f4914f6cdd1d) >> 40);
}
void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
}
bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != pattern(seed, i)) return false;
  return true;
}

TEST_P(RmaOperationTest, DevicesAreThoseOfMessagesAndSayWhatNcclAsksFor) {
  int count = -1;
  EXPECT_EQ(plugin().devices(&count), abi::kInvalidUsage) << "before init";
  void* contexts[3] = {};
  for (void*& context : contexts) ASSERT_EQ(plugin().init(&context, 1, &LogCapture::write), abi::kSuccess);
  ASSERT_EQ(plugin().devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 2);
  for (int device = 0; device < count; ++device) {
    abi::ncclNetProperties_v12_t properties{};
    ASSERT_EQ(plugin().get_properties(device, &properties), abi::kSuccess);
    EXPECT_EQ(std::string(properties.name), "verbena_softverbs" + std::to_string(device));
    EXPECT_EQ(properties.net_device_type, abi::kDeviceGinProxy);
    EXPECT_EQ(properties.net_device_version, 0);
    EXPECT_EQ(properties.max_recvs, 8);
    EXPECT_EQ(properties.reg_is_global, 0);
    EXPECT_EQ(properties.force_flush, 0);
    EXPECT_EQ(properties.vprops.ndevs, 1);
    EXPECT_EQ(properties.vprops.devs[0], device);
    EXPECT_NE(properties.ptr_support & abi::kPtrHost, 0);
  }
  abi::ncclNetProperties_v12_t none{};
  EXPECT_NE(plugin().get_properties(2, &none), abi::kSuccess);
  std::shuffle(std::begin(contexts), std::end(contexts), std::minstd_rand(5));
  for (void* context : contexts) EXPECT_EQ(plugin().finalize(context), abi::kSuccess);
  EXPECT_EQ(plugin().finalize(nullptr), abi::kSuccess);
}

TEST_P(RmaOperationTest, PutsOfEveryLengthAndAlignmentArriveWholeAndTouchNothingElse) {
  RmaGroup group(plugin(), {.ranks = 3});
  constexpr size_t kSource = 1 << 18, kTarget = 1 << 19;
  std::vector<size_t> lengths;
  for (size_t length = 0; length <= 257; ++length) lengths.push_back(length);
  for (const size_t length : {4095, 4096, 4097, 65536, 100'001}) lengths.push_back(length);
  uint64_t seed = 0;
  for (const size_t length : lengths) {
    for (uint32_t to = 0; to < group.size(); ++to) {
      ++seed;
      RmaRank &from = group[static_cast<uint32_t>(seed % 3)], &there = group[to];
      const size_t source = kSource + seed % 16, target = kTarget + seed * 5 % 16;
      fill(std::span(there.memory).subspan(kTarget - 64, length + 256), 99);
      fill(std::span(from.memory).subspan(source, length), seed);
      void* request = group.put(from.target(), {source, from.region, length, target, there.region, to});
      ASSERT_NE(request, nullptr);
      ASSERT_TRUE(group.finish(from, request)) << length;
      const auto all = std::span(there.memory).subspan(kTarget - 64, length + 256);
      const size_t begin = target - (kTarget - 64);
      ASSERT_TRUE(holds(all.subspan(begin, length), seed))
          << length << " bytes are there when the put is done";
      for (size_t i = 0; i < all.size(); ++i) {
        if (i < begin || i >= begin + length) {
          ASSERT_EQ(all[i], pattern(99, i)) << i;
        }
      }
    }
  }
}

TEST_P(RmaOperationTest, NothingIsPutWithoutHandlesAndIsDoneSoon) {
  RmaGroup group(plugin(), {});
  void* request = group.put(group[0].target(), {0, nullptr, 0, 0, nullptr, 1});
  ASSERT_NE(request, nullptr);
  int is_done = 0;
  EXPECT_EQ(plugin().test(group[0].target(), request, &is_done), abi::kSuccess);
  EXPECT_EQ(is_done, 1);
}

// INC ignores its value, ADD wraps, every rank adds to one word, the own rank too.
TEST_P(RmaOperationTest, SignalsAddExactly) {
  RmaGroup group(plugin(), {.ranks = 4});
  constexpr size_t kWord = 512;
  constexpr int kRounds = 500;
  const uint64_t start = ~uint64_t{0} - 1000;
  group[2].word(kWord).store(start);
  uint64_t sum = start;
  std::vector<std::pair<uint32_t, void*>> open;
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t from = 0; from < group.size(); ++from) {
      const bool increments = (round + from) % 3 == 0;
      const uint64_t value = uint64_t{0x9e3779b97f4a7c15} * static_cast<uint64_t>(round);
      sum += increments ? 1 : value;
      void* request =
          group.signal(group[from].target(round % 4), 2,
                       {kWord, group[2].region, value, increments ? abi::kSignalIncrement : abi::kSignalAdd});
      ASSERT_NE(request, nullptr);
      open.emplace_back(from, request);
    }
    if (open.size() < 128) continue;
    for (const auto& [from, request] : open) ASSERT_TRUE(group.finish(group[from], request));
    open.clear();
  }
  for (const auto& [from, request] : open) ASSERT_TRUE(group.finish(group[from], request));
  EXPECT_EQ(group[2].word(kWord).load(), sum);
}

// A signal, strong or not, in one call with its put or in the next: whoever sees it sees every put before it
// of the same context to that peer, those of other sizes too.
TEST_P(RmaOperationTest, WhoeverSeesASignalSeesEveryPutBeforeIt) {
  RmaGroup group(plugin(), {.ranks = 2, .spreads = true});
  constexpr size_t kWord = 0, kSource = 4096, kTarget = 1 << 19;
  RmaRank &from = group[0], &to = group[1];
  std::vector<void*> open;
  for (uint64_t round = 1; round <= 400; ++round) {
    const size_t puts = round % 4, length = 1 + round * 37 % 2000;
    const int index = static_cast<int>(round % 4);
    for (size_t put = 0; put < puts + 1; ++put) {
      const size_t source = kSource + put * 4096;
      fill(std::span(from.memory).subspan(source, length), round * 8 + put);
      void* request = nullptr;
      const RmaCopy copy{source, from.region, length, kTarget + put * 4096, to.region, 1, put + 1 < puts};
      if (put < puts) {
        request = group.put(from.target(index), copy);
      } else if (round % 2 == 0) {
        request = group.put_signal(from.target(index), copy, {kWord, to.region, 1});
      } else {  // a signal of its own, as NCCL makes it for a word in the user's window
        request = group.put(from.target(index), copy);
        open.push_back(request);
        request = group.signal(from.target(index), 1, {kWord, to.region, 1, abi::kSignalAdd, false});
      }
      open.push_back(request);
    }
    ASSERT_TRUE(group.poll_until([&] { return to.word(kWord).load(std::memory_order_acquire) == round; }))
        << round;
    for (size_t put = 0; put < puts + 1; ++put)
      ASSERT_TRUE(holds(std::span(to.memory).subspan(kTarget + put * 4096, length), round * 8 + put))
          << round;
    for (void* request : open) ASSERT_TRUE(group.finish(from, request));
    open.clear();
  }
}

// Address space for a whole test, of pages that are there once they are written.
class Sparse {
 public:
  explicit Sparse(size_t bytes)
      : bytes_(bytes),
        start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                    0)) {}
  ~Sparse() { munmap(start_, bytes_); }
  Sparse(const Sparse&) = delete;
  Sparse& operator=(const Sparse&) = delete;
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(start_), bytes_}; }

 private:
  const size_t bytes_;
  void* const start_;
};

// NCCL cuts what is longer than 1 GiB: several puts, and a signal with the last one, which covers them all.
TEST_P(RmaOperationTest, ASignalBehindMoreThanAGibibyteIsSeenAfterAllOfIt) {
  if (VERBENA_IS_SANITIZED || GetParam() != tools::list_rma_symbols().back())
    GTEST_SKIP() << "once is enough of so much memory";
  constexpr size_t kGibibyte = size_t{1} << 30, kRest = 12'345'678, kBytes = kGibibyte + kRest;
  constexpr size_t kMark = 64, kMarkEvery = size_t{97} << 20;
  const Sparse source(kBytes), target(kBytes);
  RmaGroup group(plugin(), {});
  std::vector<void*> regions(2);
  for_each_rank(2, [&](uint32_t rank) {
    const auto memory = (rank == 0 ? source : target).bytes();
    const auto registered =
        plugin().register_memory(group[rank].communicator, memory.data(), memory.size(), abi::kPtrHost);
    EXPECT_EQ(registered.result, abi::kSuccess);
    regions[rank] = registered.mhandle;
  });
  std::vector<size_t> marks = {kGibibyte - kMark, kGibibyte, kBytes - kMark};
  for (size_t at = 0; at + kMark < kGibibyte; at += kMarkEvery) marks.push_back(at);
  for (const size_t at : marks) fill(source.bytes().subspan(at, kMark), at);
  RmaRank &from = group[0], &to = group[1];
  void* const first = group.put(from.target(), {0, regions[0], kGibibyte, 0, regions[0], 1});
  void* const last = group.put_signal(from.target(), {kGibibyte, regions[0], kRest, kGibibyte, regions[0], 1},
                                      {0, to.region, 1, abi::kSignalAdd, true});
  ASSERT_TRUE(group.poll_until([&] { return to.word(0).load(std::memory_order_acquire) == 1; }));
  for (const size_t at : marks) EXPECT_TRUE(holds(target.bytes().subspan(at, kMark), at)) << at;
  ASSERT_TRUE(group.finish(from, first));
  ASSERT_TRUE(group.finish(from, last));
  for_each_rank(2, [&](uint32_t rank) {
    EXPECT_EQ(plugin().deregister(group[rank].communicator, regions[rank]), abi::kSuccess);
  });
}

// DeepEP's barrier: puts of other contexts that are done are there when a signal of context 0 is.
TEST_P(RmaOperationTest, DoneMeansArrivedWhateverTheContext) {
  RmaGroup group(plugin(), {});
  RmaRank &from = group[0], &to = group[1];
  for (uint64_t round = 1; round <= 200; ++round) {
    void* requests[3] = {};
    for (int index = 1; index < 4; ++index) {
      fill(std::span(from.memory).subspan(8192 * index, 3000), round * 4 + index);
      requests[index - 1] = group.put(from.target(index), {size_t{8192} * index, from.region, 3000,
                                                           (size_t{1} << 19) + 8192 * index, to.region, 1});
    }
    for (void* request : requests) ASSERT_TRUE(group.finish(from, request));
    void* signal = group.signal(from.target(0), 1, {0, to.region, 1});
    ASSERT_TRUE(group.poll_until([&] { return to.word(0).load(std::memory_order_acquire) == round; }));
    for (int index = 1; index < 4; ++index)
      ASSERT_TRUE(
          holds(std::span(to.memory).subspan((size_t{1} << 19) + 8192 * index, 3000), round * 4 + index));
    ASSERT_TRUE(group.finish(from, signal));
  }
}

// As many as NCCL may have under way: none is answered with "later", none is lost; tested in any order, and
// by testing alone.
TEST_P(RmaOperationTest, AFullQueueIsAbsorbedAndEverythingEndsInAnyOrder) {
  RmaGroup group(plugin(), {.ranks = 3, .contexts = 130});
  constexpr uint32_t kDepth = 32 * 8;
  constexpr size_t kWord = 64;
  std::vector<void*> open;
  RmaRank& from = group[0];
  const int contexts = plugin().has_contexts() ? 20 : 1;
  for (int index = 0; index < contexts; ++index) {
    for (uint32_t i = 0; i < kDepth; ++i) {
      for (uint32_t to = 0; to < group.size(); ++to) {
        void* request = group.put_signal(from.target(index),
                                         {0, from.region, 700, (size_t{1} << 19), group[to].region, to},
                                         {kWord, group[to].region, 1});
        ASSERT_NE(request, nullptr);
        open.push_back(request);
      }
    }
  }
  std::shuffle(open.begin(), open.end(), std::mt19937(7));
  size_t done = 0;
  for (uint64_t looks = 0; done < open.size() && looks < 50'000'000; ++looks) {
    void*& request = open[looks % open.size()];
    if (looks % 4096 == 0) group.progress(&from);
    if (request == nullptr) continue;
    int is_done = 0;
    ASSERT_EQ(plugin().test(from.target(), request, &is_done), abi::kSuccess);
    if (is_done == 0) continue;
    request = nullptr;
    ++done;
  }
  EXPECT_EQ(done, open.size());
  for (uint32_t to = 0; to < group.size(); ++to)
    EXPECT_EQ(group[to].word(kWord).load(), uint64_t{kDepth} * static_cast<uint64_t>(contexts)) << to;
}

TEST_P(RmaOperationTest, GetsBringWhatIsThereAndAFlushIsDone) {
  RmaGroup group(plugin(), {.ranks = 3});
  if (!plugin().has_contexts()) GTEST_SKIP() << "this table has no gets";
  for (uint64_t round = 1; round <= 100; ++round) {
    const size_t length = round * round * 7 % 60'000;
    const auto from = static_cast<uint32_t>(round % 3), to = static_cast<uint32_t>(round % 2);
    fill(std::span(group[from].memory).subspan(1 << 18, length), round);
    void *request = nullptr, *flush = &request;
    ASSERT_EQ(
        plugin().get(group[to].target(static_cast<int>(round % 4)),
                     {(size_t{1} << 19) + round, group[to].region, length, 1 << 18, group[from].region, from},
                     &request),
        abi::kSuccess);
    ASSERT_NE(request, nullptr);
    ASSERT_TRUE(group.finish(group[to], request));
    ASSERT_EQ(plugin().flush(group[to].target(), nullptr, to, &flush), abi::kSuccess) << "no memory handle";
    EXPECT_EQ(flush, nullptr) << "nothing to wait for";
    ASSERT_TRUE(holds(std::span(group[to].memory).subspan((1 << 19) + round, length), round));
  }
}

// So many signals that later operations wait, then bytes from or to a word behind a signal on it, also
// through another region with the same memory.
TEST_P(RmaOperationTest, APutOrAGetOfAWordComesAfterTheSignalsBeforeItOnIt) {
  RmaGroup group(plugin(), {});
  constexpr size_t kOther = 512, kPut = 1024, kGot = 2048, kZeros = 4096, kHere = 8192;
  RmaRank &from = group[0], &to = group[1];
  std::vector<void*> open, again(2);
  for_each_rank(2, [&](uint32_t rank) {
    const auto made =
        plugin().register_memory(group[rank].communicator, group[rank].memory.data(), 16384, abi::kPtrHost);
    ASSERT_EQ(made.result, abi::kSuccess);
    again[rank] = made.mhandle;
  });
  const auto add = [&](size_t word) { open.push_back(group.signal(from.target(), 1, {word, to.region, 1})); };
  for (uint64_t round = 1; round <= 20; ++round) {
    open.clear();
    void* const region = round % 2 == 0 ? to.region : again[to.rank];
    for (int i = 0; i < 12; ++i) add(kOther);
    add(kPut);
    open.push_back(group.put(from.target(), {kZeros, from.region, 12, kPut - 4, region, 1}));
    add(kGot);
    if (plugin().has_contexts()) {
      ASSERT_EQ(plugin().get(from.target(), {kHere, from.region, 8, kGot, region, 1}, &open.emplace_back()),
                abi::kSuccess);
    }
    for (void* request : open) ASSERT_TRUE(group.finish(from, request));
    ASSERT_EQ(to.word(kPut).load(), 0U) << round;
    ASSERT_EQ(to.word(kGot).load(), round);
    if (plugin().has_contexts()) {
      ASSERT_EQ(from.word(kHere).load(), round);
    }
  }
}

// A hinted run goes out with what ends it, and at the latest with progress.
TEST_P(RmaOperationTest, HintedOperationsLeaveWithTheNextOnesAndWithProgress) {
  RmaGroup group(plugin(), {});
  RmaRank &from = group[0], &to = group[1];
  void* requests[6] = {};
  for (int i = 0; i < 5; ++i) {
    requests[i] = group.put_signal(from.target(), {0, nullptr, 0, 0, nullptr, 1, true}, {8, to.region, 1});
  }
  requests[5] = group.signal(from.target(), 1, {8, to.region, 1});
  for (void* request : requests) ASSERT_TRUE(group.finish(from, request));
  EXPECT_EQ(to.word(8).load(), 6U);
  requests[0] = group.put_signal(from.target(), {0, nullptr, 0, 0, nullptr, 1, true}, {8, to.region, 1});
  EXPECT_TRUE(group.poll_until([&] { return to.word(8).load() == 7; })) << "progress is enough";
  ASSERT_TRUE(group.finish(from, requests[0]));
}

TEST_P(RmaOperationTest, WhatCannotBeIsRefusedWithAReason) {
  RmaGroup group(plugin(), {});
  RmaRank &from = group[0], &to = group[1];
  void* request = nullptr;
  const size_t end = from.memory.size();
  const auto expect_refused = [&](abi::Result result, const char* why) {
    EXPECT_EQ(result, abi::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    EXPECT_TRUE(is_logged(why)) << why;
  };
  expect_refused(plugin().put(from.target(), {0, from.region, 8, end - 7, to.region, 1}, &request),
                 "exceeds its region");
  expect_refused(plugin().put(from.target(), {end, from.region, 1, 0, to.region, 1}, &request),
                 "exceeds its region");
  expect_refused(plugin().put(from.target(), {0, from.region, 8, 0, to.region, 2}, &request),
                 "does not exist");
  expect_refused(plugin().put(from.target(), {0, nullptr, 8, 0, to.region, 1}, &request), "bytes is NULL");
  expect_refused(
      plugin().put_signal(from.target(), {0, nullptr, 0, 0, nullptr, 1}, {4, to.region, 1}, &request),
      "the word is outside the region");
  expect_refused(
      plugin().put_signal(from.target(), {0, nullptr, 0, 0, nullptr, 1}, {0, nullptr, 1}, &request), "NULL");
  expect_refused(
      plugin().put_signal(from.target(), {0, nullptr, 0, 0, nullptr, 1}, {0, to.region, 1, 3}, &request),
      "operation 3");
  // Nothing of that has done any harm.
  request = group.put(from.target(), {0, from.region, 8, 0, to.region, 1});
  EXPECT_TRUE(group.finish(from, request));
}

}  // namespace
}  // namespace verbena::nccl::testing
