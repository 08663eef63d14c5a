#include "protocol/datagram/packet_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "protocol/random.h"

namespace verbena::protocol::datagram {
namespace {

using Arrival = ReceiveWindow::Arrival;
using Slice = std::array<uint64_t, kSlicePackets / 64>;

TEST(ReceiveWindowTest, AnyOrderIsTakenOnce) {
  Random random(3);
  ReceiveWindow window;
  uint32_t sent = 0;
  std::vector<uint32_t> under_way;
  while (sent < 200'000) {
    while (under_way.size() < 600 && sent - window.cumulative() < kSpan) under_way.push_back(sent++);
    const size_t at = random.happens(70) ? 0 : random.next() % under_way.size();
    const uint32_t psn = under_way[at];
    under_way.erase(under_way.begin() + static_cast<int64_t>(at));
    ASSERT_EQ(window.judge(psn), Arrival::kNew) << psn;
    window.record(psn);
    ASSERT_EQ(window.judge(psn), Arrival::kDuplicate) << psn;
    const uint32_t oldest = under_way.empty() ? sent : *std::min_element(under_way.begin(), under_way.end());
    ASSERT_EQ(window.cumulative(), oldest);
  }
  EXPECT_EQ(window.judge(window.cumulative() + kSpan), Arrival::kBeyond);
  EXPECT_EQ(window.judge(window.cumulative() - 1), Arrival::kDuplicate);
}

// As where a host was away: no packet of a burst waits for its turn among all.
TEST(ReceiveWindowTest, ABurstBehindAHoleIsToldAtOnce) {
  ReceiveWindow window;
  window.record(0);
  static_cast<void>(window.choose_slice());
  constexpr uint32_t kBurst = 900;
  std::set<uint32_t> untold;
  for (uint32_t psn = 2; psn < kBurst; ++psn) {  // 1 is missing
    window.record(psn);
    untold.insert(psn);
  }
  int acks = 0;
  do {
    Slice slice;
    const uint32_t base = window.choose_slice();
    window.read_slice(base, slice);
    for (uint32_t i = 0; i < kSlicePackets; ++i)
      if ((slice[i / 64] >> i % 64 & 1) != 0) untold.erase(base + i);
    ++acks;
  } while (window.has_untold() && acks < 100);
  EXPECT_TRUE(untold.empty()) << untold.size();
  EXPECT_LE(acks, 8);
}

// Whatever arrives is told before long, however far apart old and new ones are.
TEST(ReceiveWindowTest, SlicesTellOfEveryArrival) {
  Random random(4);
  ReceiveWindow window;
  std::set<uint32_t> untold;
  const auto absorb = [&] {
    Slice slice;
    const uint32_t base = window.choose_slice();
    ASSERT_EQ(base % 64, 0U);
    window.read_slice(base, slice);
    for (uint32_t i = 0; i < kSlicePackets; ++i) {
      const uint32_t psn = base + i;
      const bool has = (slice[i / 64] >> i % 64 & 1) != 0;
      if (has) {
        ASSERT_EQ(window.judge(psn), Arrival::kDuplicate) << "tells of what is not here: " << psn;
        untold.erase(psn);
      }
    }
    std::erase_if(untold, [&](uint32_t psn) { return psn < window.cumulative(); });
  };
  for (int round = 0; round < 2'000; ++round) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t psn = window.cumulative() + random.between(0, kSpan - 1);
      if (window.judge(psn) != Arrival::kNew || (psn == window.cumulative() && random.happens(90))) continue;
      window.record(psn);
      if (psn >= window.cumulative()) untold.insert(psn);
    }
    absorb();
  }
  for (uint32_t i = 0; i < 2 * (kSpan / kSlicePackets + 2); ++i) absorb();
  EXPECT_TRUE(untold.empty()) << untold.size() << " are not told";
}

TEST(ReceiveWindowTest, ASliceBeyondWhatIsThereIsEmpty) {
  ReceiveWindow window;
  for (uint32_t psn = 0; psn < 100; ++psn) window.record(psn);
  Slice slice;
  window.read_slice(64 * 20, slice);
  EXPECT_EQ(slice, Slice{});
  window.read_slice(0, slice);
  EXPECT_EQ(slice, Slice{}) << "the cumulative number tells of these";
  window.record(110);
  window.read_slice(64, slice);
  EXPECT_EQ(slice[0], uint64_t{1} << 46);
}

TEST(EagerWindowTest, NumbersWrapAndAreTakenOnce) {
  EagerWindow window;
  Random random(5);
  uint32_t sent = 0;
  std::vector<uint32_t> under_way;
  for (int i = 0; i < 100'000; ++i) {
    while (sent - window.cumulative() < kEagerSpan) under_way.push_back(sent++);
    const size_t at = random.next() % under_way.size();
    const uint32_t number = under_way[at];
    under_way.erase(under_way.begin() + static_cast<int64_t>(at));
    ASSERT_EQ(window.judge(number), Arrival::kNew);
    window.record(number);
    ASSERT_EQ(window.judge(number), Arrival::kDuplicate);
    ASSERT_EQ(window.bits() & 1, 0U);
  }
  EXPECT_EQ(window.judge(window.cumulative() + kEagerSpan), Arrival::kBeyond);
}

}  // namespace
}  // namespace verbena::protocol::datagram
