// Data in peers' memory: every scope, lengths and alignments, seen behind its signal.
#include <gtest/gtest.h>

#include <numeric>

#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/random.h"
#include "device/symm/fleet.h"
#include "verbena/device/symm.cuh"

namespace verbena::device_test {
namespace {

using emulator::require;
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
    require(device::symm_put_signal_async(fleet.context(0), fleet.data(0, offset_bytes), source.data(),
                                          length_bytes, 1, 7, 3, SymmSignalOperation::kAdd,
                                          Group{}) == SymmStatus::kDone,
            "put");
  });
  world.add_grid(1, 1, threads, [&] {
    require(device::symm_signal_wait_until<int64_t>(fleet.context(1), 7, SymmCompare::kEqual, 3, nullptr,
                                                    Group{}) == SymmStatus::kDone,
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
  World world;
  world.add_grid(0, 1, 64, [&] {
    require(device::symm_get(fleet.context(0), got.data(), fleet.data(0, 64), GetParam(), 1,
                             device::BlockGroup{}) == SymmStatus::kDone,
            "get");
  });
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(got.compare({bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(GetParam())}), "");
}

TEST(SymmPut, RefusesWhatIsNotSymmetric) {
  Fleet fleet(3, 2);
  uint8_t other[16] = {};
  World world;
  world.add_grid(0, 1, 1, [&] {
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
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(*fleet.data(1), 0) << "nothing was written";
}

TEST(SymmPut, PeersUpdateAWordTogether) {
  Fleet fleet(4);
  World world(5);
  for (int32_t rank = 0; rank < 4; ++rank) {
    world.add_grid(static_cast<uint32_t>(rank), 1, 32, [&, rank] {
      auto* const word = fleet.data<uint64_t>(rank);
      device::symm_lsa_update<device::Operation::kAdd>(fleet.context(rank), word, 1, 2);
      device::symm_lsa_update<device::Operation::kMax>(fleet.context(rank), word + 1,
                                                       uint64_t{device::thread_index()}, 2);
    });
  }
  EXPECT_EQ(world.run(), "");
  EXPECT_EQ(fleet.data<uint64_t>(2)[0], 4U * 32U);
  EXPECT_EQ(fleet.data<uint64_t>(2)[1], 31U);
}

}  // namespace
}  // namespace verbena::device_test
