// Puts of encoded elements, by NICs and by loads and stores, in groups of several sizes.
#include "verbena/device/collectives/encoded_put.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <type_traits>
#include <vector>

#include "device/proxy/support/rdma_fleet.h"

namespace verbena::device_test {
namespace {

using device::BlockGroup;
using device::WarpGroup;
using emulator::require;
using emulator::require_done;

constexpr uint32_t kThreads = 64, kSignal = 3, kFreed = 4;
// Places in each rank's data.
constexpr uint64_t kSlot = 0, kStaging = 64 << 10, kElsewhere = 128 << 10;
constexpr uint8_t kUntouched = 0xa5;
constexpr uint32_t kMaxElements = 20'000;

std::vector<uint16_t> draw(uint32_t elements, uint32_t seed, bool is_random) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> drawn(elements);
  for (uint16_t& one : drawn)
    one = is_random ? static_cast<uint16_t>(random())
                    : static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  return drawn;
}

// Rank 0 sends the same slot again and again, longer and shorter messages in turn, and rank 1 decodes each
// before it says that the slot is free.
template <typename Group>
void send_all(RdmaFleet& fleet, const std::vector<std::vector<uint16_t>>& messages,
              std::vector<std::vector<uint16_t>>& got) {
  const auto sender = [&](const SymmContext& mine, const Group& group) {
    for (size_t i = 0; i < messages.size(); ++i) {
      require_done(
          device::symm_put_encoded_signal_async(mine, fleet.data(0, kSlot), fleet.data(0, kStaging),
                                                messages[i].data(), static_cast<uint32_t>(messages[i].size()),
                                                1, kSignal, 1, SymmSignalOperation::kAdd, group),
          "a put");
      require_done(device::symm_signal_wait_until<int64_t>(mine, kFreed, SymmCompare::kGreaterEqual,
                                                           static_cast<int64_t>(i) + 1, nullptr, group),
                   "a slot that is free");
      require_done(device::symm_flush(mine, group), "a staging buffer that is free");
    }
  };
  const auto receiver = [&](const SymmContext& mine, const Group& group) {
    for (size_t i = 0; i < messages.size(); ++i) {
      require_done(device::symm_signal_wait_until<int64_t>(mine, kSignal, SymmCompare::kGreaterEqual,
                                                           static_cast<int64_t>(i) + 1, nullptr, group),
                   "a message");
      device::symm_decode(got[i].data(), fleet.data(1, kSlot), static_cast<uint32_t>(got[i].size()), group);
      require_done(device::symm_signal(mine, kFreed, 0, 1, SymmSignalOperation::kAdd, group), "a reply");
    }
  };
  const uint32_t threads = std::is_same_v<Group, WarpGroup> ? 32 : kThreads;
  run_on_all(fleet, 1, 1, threads, [&](int32_t rank) {
    const SymmContext& mine = fleet.context(rank);
    rank == 0 ? sender(mine, Group{}) : receiver(mine, Group{});
  });
  for (int32_t rank = 0; rank < fleet.size(); ++rank) EXPECT_EQ(fleet.proxy(rank).error(), "");
}

template <typename Group>
void check_bits(int32_t domain_ranks) {
  RdmaFleet fleet(make_shape(2, domain_ranks));
  std::vector<std::vector<uint16_t>> messages, got;
  for (const uint32_t elements : {1U, 7U, 8U, 1024U, kMaxElements, 1025U, 0U, 3001U})
    for (const bool is_random : {false, true}) messages.push_back(draw(elements, elements, is_random));
  messages.push_back(std::vector<uint16_t>(5000, 0));
  for (const auto& one : messages) got.emplace_back(one.size(), 0x1234);
  send_all<Group>(fleet, messages, got);
  for (size_t i = 0; i < messages.size(); ++i)
    EXPECT_TRUE(got[i] == messages[i]) << "message " << i << " of " << messages[i].size() << " elements";
}

TEST(EncodedPut, KeepsEveryBitThroughANic) {
  check_bits<BlockGroup>(1);
  check_bits<WarpGroup>(1);
}
TEST(EncodedPut, KeepsEveryBitThroughStores) {
  check_bits<BlockGroup>(2);
}

// Bytes of the slot that a NIC has not written are as they were.
TEST(EncodedPut, SendsFewerBytes) {
  for (const bool is_random : {false, true}) {
    RdmaFleet fleet(make_shape(2));
    const uint64_t room = device::symm_encoded_bytes(kMaxElements);
    std::memset(fleet.data(1, kSlot), kUntouched, room);
    std::vector<std::vector<uint16_t>> messages = {draw(kMaxElements, 5, is_random)}, got = messages;
    send_all<BlockGroup>(fleet, messages, got);
    uint64_t length = room;
    while (length != 0 && fleet.data(1, kSlot)[length - 1] == kUntouched) --length;
    const double ratio = 2.0 * kMaxElements / static_cast<double>(length);
    EXPECT_GT(ratio, is_random ? 0.99 : 1.3) << length << " bytes";
    EXPECT_LT(ratio, is_random ? 1.0 : 1.34) << length << " bytes";
  }
}

TEST(EncodedPut, RefusesWrongPlaces) {
  RdmaFleet fleet(make_shape(2));
  std::vector<std::byte> outside(1 << 12);
  const std::vector<uint16_t> message = draw(100, 1, false);
  std::memset(fleet.data(1, kSlot), kUntouched, kElsewhere);
  run_on_all(fleet, 1, 1, kThreads, [&](int32_t rank) {
    if (rank != 0) return;
    const SymmContext& mine = fleet.context(0);
    const auto refuse = [&](const char* what, void* slot, void* staging, uint32_t elements, int32_t peer,
                            uint32_t signal) {
      require(device::symm_put_encoded_signal_async(mine, slot, staging, message.data(), elements, peer,
                                                    signal, 1, SymmSignalOperation::kAdd,
                                                    BlockGroup{}) == SymmStatus::kInvalid,
              what);
    };
    uint8_t *const slot = fleet.data(0, kSlot), *const staging = fleet.data(0, kStaging);
    auto* const away =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(outside.data()) + 15) / 16 * 16);
    refuse("a slot that is not aligned", slot + 8, staging, 100, 1, kSignal);
    refuse("staging that is not aligned", slot, staging + 2, 100, 1, kSignal);
    refuse("a slot outside of windows", away, staging, 100, 1, kSignal);
    refuse("staging outside of windows", slot, away, 100, 1, kSignal);
    // The message itself would fit.
    uint8_t* const late = fleet.data(0, RdmaFleet::kDataBytes - 192);
    refuse("a slot that ends too early", late, staging, 100, 1, kSignal);
    refuse("staging that ends too early", slot, late, 100, 1, kSignal);
    refuse("a rank that is none", slot, staging, 100, 2, kSignal);
    refuse("a signal that is none", slot, staging, 100, 1, kSymmSignals);
    refuse("too many elements", slot, staging, device::kSymmMaxEncodedElements + 1, 1, kSignal);
  });
  for (uint64_t i = 0; i < kElsewhere; ++i) ASSERT_EQ(fleet.data(1, kSlot)[i], kUntouched) << i;
}

}  // namespace
}  // namespace verbena::device_test
