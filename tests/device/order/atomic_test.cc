#include "verbena/device/atomic.cuh"

#include <limits>

#include "device/support/run_kernel.h"
#include "schedules.h"

namespace verbena::device {
namespace {

constexpr Order kOrder = Order::kAcquireRelease;
constexpr Scope kGpu = Scope::kGpu;

template <typename T, typename Update>
void expect_update(T start, T after, const Update& update) {
  T word = start, before{};
  emulator::run_kernel(0, 1, 1, [&] { before = update(&word); });
  EXPECT_EQ(before, start);
  EXPECT_EQ(word, after);
}

template <typename T>
class Words : public testing::Test {};
using Types = testing::Types<uint32_t, int32_t, uint64_t, int64_t>;
TYPED_TEST_SUITE(Words, Types);

TYPED_TEST(Words, EveryOperationReturnsTheValueBefore) {
  using T = TypeParam;
  const T low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  expect_update<T>(5, 8, [](T* word) { return fetch_add<kOrder, kGpu>(word, 3); });
  expect_update<T>(high, low, [](T* word) { return fetch_add<kOrder, kGpu>(word, 1); });
  expect_update<T>(high, low, [&](T* word) { return fetch_min<kOrder, kGpu>(word, low); });
  expect_update<T>(low, low, [&](T* word) { return fetch_min<kOrder, kGpu>(word, high); });
  expect_update<T>(low, high, [&](T* word) { return fetch_max<kOrder, kGpu>(word, high); });
  expect_update<T>(high, high, [&](T* word) { return fetch_max<kOrder, kGpu>(word, low); });
  expect_update<T>(12, 8, [](T* word) { return fetch_and<kOrder, kGpu>(word, 10); });
  expect_update<T>(12, 14, [](T* word) { return fetch_or<kOrder, kGpu>(word, 10); });
  expect_update<T>(12, 6, [](T* word) { return fetch_xor<kOrder, kGpu>(word, 10); });
  expect_update<T>(12, high, [&](T* word) { return exchange<kOrder, kGpu>(word, high); });
  expect_update<T>(12, 3, [](T* word) { return compare_exchange<kOrder, kGpu>(word, 12, 3); });
  expect_update<T>(12, 12, [](T* word) { return compare_exchange<kOrder, kGpu>(word, 11, 3); });
}

TYPED_TEST(Words, ReductionsDoTheSameAndReturnNothing) {
  using T = TypeParam;
  T words[6] = {5, 5, 5, 12, 12, 12};
  emulator::run_kernel(0, 1, 1, [&] {
    reduce_add<Order::kRelease, kGpu>(words, 3);
    reduce_min<Order::kRelaxed, kGpu>(words + 1, 3);
    reduce_max<Order::kRelaxed, kGpu>(words + 2, 9);
    reduce_and<Order::kRelaxed, kGpu>(words + 3, 10);
    reduce_or<Order::kRelaxed, kGpu>(words + 4, 10);
    reduce_xor<Order::kRelaxed, kGpu>(words + 5, 10);
  });
  EXPECT_EQ(std::vector<T>(words, words + 6), (std::vector<T>{8, 3, 9, 8, 14, 6}));
}

TEST(Atomic, ExchangesOtherTypesBitForBit) {
  expect_update<float>(1.5f, -2.0f, [](float* word) { return exchange<kOrder, kGpu>(word, -2.0f); });
  expect_update<double>(1.5, 2.5,
                        [](double* word) { return compare_exchange<kOrder, kGpu>(word, 1.5, 2.5); });
}

class Together : public EverySchedule {};
INSTANTIATE_TEST_SUITE_P(Seeds, Together, kSchedules);

TEST_P(Together, NoUpdateOfManyThreadsIsLost) {
  uint32_t sum = 0;
  int32_t least = 0, most = 0;
  uint64_t tickets = 0;
  std::vector<int> taken(96);
  emulator::run_kernel(GetParam(), 3, 32, [&] {
    const auto rank = static_cast<int32_t>(block_index() * 32 + thread_index());
    reduce_add<Order::kRelaxed, kGpu>(&sum, 2);
    reduce_min<Order::kRelaxed, kGpu>(&least, -rank);
    reduce_max<Order::kRelaxed, kGpu>(&most, rank);
    const uint64_t ticket = fetch_add<Order::kRelaxed, kGpu>(&tickets, 1);
    ++taken[ticket];
  });
  EXPECT_EQ(sum, 192u);
  EXPECT_EQ(least, -95);
  EXPECT_EQ(most, 95);
  EXPECT_EQ(taken, std::vector<int>(96, 1));
}

// A lock made of two atomic updates: accesses under it need no order themselves.
TEST_P(Together, AcquireAndReleaseMakeALock) {
  uint32_t lock = 0, plain = 0;
  emulator::run_kernel(GetParam(), 16, 1, [&] {
    while (compare_exchange<Order::kAcquire, kGpu>(&lock, 0, 1) != 0) pause(50);
    store<Order::kWeak, Scope::kThreads>(&plain, load<Order::kWeak, Scope::kThreads>(&plain) + 1);
    exchange<Order::kRelease, kGpu>(&lock, 0);
  });
  EXPECT_EQ(plain, 16u);
}

}  // namespace
}  // namespace verbena::device
