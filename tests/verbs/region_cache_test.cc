// Who shares with whom, counted at the fake library.
#include "verbs/region_cache.h"

#include <random>
#include <set>

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

constexpr size_t kUnitBytes = 64;
constexpr MemoryIdentity kOneAllocation{{7, 0, 0}, true};
constexpr MemoryIdentity kTwoAllocations{{7, 0, 0}, false};
constexpr MemoryIdentity kOther{{8, 0, 0}, true};

class RegionCacheTest : public FakeDeviceTest {
 protected:
  // Units [first, end) of the memory.
  RegionRequest ask(size_t first, size_t end, MemoryKind kind = MemoryKind::kHost,
                    const MemoryIdentity& identity = {}) {
    RegionRequest request;
    request.address = memory_ + first * kUnitBytes;
    request.length_bytes = (end - first) * kUnitBytes;
    request.kind = kind;
    request.identity = identity;
    request.access.remote_write = true;
    request.fd = kind == MemoryKind::kDmabuf ? 3 : -1;
    return request;
  }
  RegionLease take(const RegionRequest& request) {
    auto lease = device().regions().take(request);
    EXPECT_TRUE(lease);
    return lease ? std::move(*lease) : RegionLease();
  }
  RegionLease take(size_t first, size_t end) { return take(ask(first, end)); }
  int regions() { return record().live_objects - objects_before_; }
  // Regions of two requests that live at the same time.
  int count(const RegionRequest& first, const RegionRequest& second) {
    const RegionLease held = take(first), asked = take(second);
    return regions();
  }

  char memory_[16 * kUnitBytes] = {};
  int objects_before_ = record().live_objects;
};

TEST_F(RegionCacheTest, CoveredRequestsShare) {
  const RegionLease whole = take(2, 6);
  const RegionLease same = take(2, 6), start = take(2, 3), middle = take(3, 5), end = take(5, 6);
  EXPECT_EQ(regions(), 1);
  for (const RegionLease* lease : {&same, &start, &middle, &end}) {
    EXPECT_EQ(lease->local_key(), whole.local_key());
    EXPECT_EQ(lease->remote_key(), whole.remote_key());
  }
}

TEST_F(RegionCacheTest, OthersHaveTheirOwn) {
  const RegionLease middle = take(4, 8);
  const RegionLease before = take(2, 4), after = take(8, 9);  // adjacent
  EXPECT_EQ(regions(), 3);
  const RegionLease low = take(3, 5), high = take(7, 9), larger = take(3, 9);  // overlapping
  EXPECT_EQ(regions(), 6);
}

TEST_F(RegionCacheTest, KeysDifferWhereRegionsDo) {
  const RegionLease left = take(0, 1), right = take(1, 2);
  EXPECT_NE(left.local_key(), right.local_key());
  EXPECT_NE(left.remote_key(), right.remote_key());
}

TEST_F(RegionCacheTest, TheLastOneDeregisters) {
  RegionLease first = take(0, 4), second = take(1, 2), third = take(0, 4);
  first = {};
  third = {};
  EXPECT_EQ(regions(), 1);
  second = {};
  EXPECT_EQ(regions(), 0);
  first = take(0, 4);
  EXPECT_EQ(regions(), 1);
}

// Units 0 and 3 may have been freed, and be other memory by now, although the region holds them still.
TEST_F(RegionCacheTest, OnlyWhatSomebodyHasRegisteredIsShared) {
  RegionLease whole = take(0, 4);
  const RegionLease part = take(1, 3);
  whole = {};
  ASSERT_EQ(regions(), 1);
  const RegionLease inside = take(1, 2);
  EXPECT_EQ(regions(), 1);
  const RegionLease beyond = take(0, 2);
  EXPECT_EQ(regions(), 2);
  const RegionLease again = take(0, 4);
  EXPECT_EQ(regions(), 3);
}

TEST_F(RegionCacheTest, AccessTellsApart) {
  RegionRequest plain = ask(0, 4), readable = plain, relaxed = plain;
  readable.access.remote_read = true;
  relaxed.access.relaxed_ordering = true;
  EXPECT_EQ(count(plain, plain), 1);
  EXPECT_EQ(count(plain, readable), 2);
  EXPECT_EQ(count(plain, relaxed), 2);
  EXPECT_EQ(count(relaxed, relaxed), 1);
}

TEST_F(RegionCacheTest, KindTellsApart) {
  const auto host = ask(0, 4), pointer = ask(0, 4, MemoryKind::kGpuPointer, kOneAllocation),
             dmabuf = ask(0, 4, MemoryKind::kDmabuf, kOneAllocation);
  EXPECT_EQ(count(host, pointer), 2);
  EXPECT_EQ(count(pointer, dmabuf), 2);
  EXPECT_EQ(count(pointer, pointer), 1);
  EXPECT_EQ(count(dmabuf, dmabuf), 1);
}

TEST_F(RegionCacheTest, MemoryOfAGpuIsSharedWithinOneAllocation) {
  for (const MemoryKind kind : {MemoryKind::kGpuPointer, MemoryKind::kDmabuf}) {
    const auto whole = ask(0, 4, kind, kOneAllocation);
    EXPECT_EQ(count(whole, ask(1, 2, kind, kOneAllocation)), 1);
    EXPECT_EQ(count(whole, ask(1, 2, kind, kOther)), 2);
    EXPECT_EQ(count(whole, ask(0, 4, kind, kOther)), 2) << "the same addresses, another memory";
    const auto spanning = ask(0, 4, kind, kTwoAllocations);
    EXPECT_EQ(count(spanning, ask(0, 1, kind, kOneAllocation)), 2);
    EXPECT_EQ(count(spanning, spanning), 1);
  }
}

TEST_F(RegionCacheTest, UnnamedMemoryOfAGpuIsSharedAsAWholeByPointer) {
  EXPECT_EQ(count(ask(0, 4, MemoryKind::kGpuPointer), ask(0, 4, MemoryKind::kGpuPointer)), 1);
  EXPECT_EQ(count(ask(0, 4, MemoryKind::kGpuPointer), ask(0, 2, MemoryKind::kGpuPointer)), 2);
  EXPECT_EQ(count(ask(0, 4, MemoryKind::kDmabuf), ask(0, 4, MemoryKind::kDmabuf)), 2);
}

// A model that looks at all living requests says which region each must have.
TEST_F(RegionCacheTest, AgreesWithALookAtAllThatLive) {
  struct Held {
    size_t first, end;
    RegionLease lease;
  };
  std::mt19937 random(11);
  std::vector<Held> held;
  for (int step = 0; step < 5000; ++step) {
    if (held.empty() || random() % 100 < (step % 500 < 250 ? 60U : 40U)) {
      const size_t first = random() % 16, end = first + 1 + random() % (16 - first);
      std::set<uint32_t> shareable;
      for (const Held& each : held) {
        if (each.first <= first && end <= each.end) shareable.insert(each.lease.local_key());
      }
      const int before = regions();
      held.push_back({first, end, take(first, end)});
      ASSERT_EQ(regions(), before + (shareable.empty() ? 1 : 0)) << step;
      ASSERT_TRUE(shareable.empty() || shareable.contains(held.back().lease.local_key())) << step;
    } else {
      std::swap(held[random() % held.size()], held.back());
      held.pop_back();
    }
    std::set<uint32_t> keys;
    for (const Held& each : held) keys.insert(each.lease.local_key());
    ASSERT_EQ(regions(), static_cast<int>(keys.size())) << step;
  }
}

TEST_F(RegionCacheTest, AFailureLeavesNothing) {
  script().failing_call = record().fallible_calls + 1;
  auto refused = device().regions().take(ask(0, 4));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().errno_value, ENOMEM);
  EXPECT_THAT(log_.warnings(),
              ElementsAre(AllOf(HasSubstr("mlx5_0:1"), HasSubstr("ulimit -l"), HasSubstr("256 bytes"))));
  EXPECT_EQ(regions(), 0);
  const RegionLease lease = take(1, 2);
  EXPECT_EQ(regions(), 1);
}

TEST_F(RegionCacheTest, RefusesWhatIsNoRange) {
  for (const size_t length_bytes : {size_t{0}, SIZE_MAX}) {
    RegionRequest request = ask(0, 1);
    request.length_bytes = length_bytes;
    const auto refused = device().regions().take(request);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, base::Status::kInvalidArgument);
  }
  EXPECT_EQ(regions(), 0);
}

}  // namespace
}  // namespace verbena::verbs
