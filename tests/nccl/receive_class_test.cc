// Which receives a kernel unpacks, by every mark that NCCL gives and by those that it leaves out.
#include "nccl/receive_class.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/parameters.h"
#include "base/scoped_environment.h"
#include "nccl/abi.h"

namespace verbena::nccl {
namespace {

using Family = RegistrationOrder::Family;
using transport::ReceiveClass;

// NCCL's own buffers, by default and as users change them.
constexpr size_t kLlBytes = 524'288, kLl128Bytes = 4'915'200, kSimpleBytes = 4'194'304;
constexpr size_t kPointToPointBytes = 8 * 16 * 131'072;
constexpr size_t kUserBytes = 12'345'678;

uint32_t find_simple(const std::vector<size_t>& lengths, Family family) {
  RegistrationOrder order;
  for (uint32_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(order.add(lengths[i]), i);
  return order.find_simple(family);
}

class RegistrationOrderTest : public testing::Test {
 protected:
  RegistrationOrderTest() {
    for (const char* name : {"NCCL_ALLOC_P2P_NET_LL_BUFFERS", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"})
      set(name, "");
  }

  void set(const char* name, const char* value) {
    environment_.set(name, value);
    ASSERT_TRUE(base::load_parameters());
  }

 private:
  base::ScopedEnvironment environment_;
};

TEST_F(RegistrationOrderTest, CollectivesRegisterTheirSimpleBufferThird) {
  for (const auto family : {Family::kCollective, Family::kUnknown}) {
    EXPECT_EQ(find_simple({kLlBytes, kLl128Bytes, kSimpleBytes}, family), 2U);
    EXPECT_EQ(find_simple({kLlBytes, kLl128Bytes, kSimpleBytes, kUserBytes, kUserBytes}, family), 2U);
    EXPECT_EQ(find_simple({kLlBytes, kLl128Bytes, 16 * kSimpleBytes}, family), 2U) << "NCCL_BUFFSIZE";
  }
}

TEST_F(RegistrationOrderTest, SendAndReceiveRegisterOnlyTheirSharedBuffer) {
  for (const auto family : {Family::kPointToPoint, Family::kUnknown}) {
    EXPECT_EQ(find_simple({kPointToPointBytes}, family), 0U);
    EXPECT_EQ(find_simple({kPointToPointBytes, kUserBytes}, family), 0U);
    EXPECT_EQ(find_simple({kPointToPointBytes, kUserBytes, kUserBytes, kUserBytes}, family), 0U);
    // A user's buffer may have any length.
    EXPECT_EQ(find_simple({kPointToPointBytes, kLlBytes, kLl128Bytes}, family), 0U);
  }
}

TEST_F(RegistrationOrderTest, SendAndReceiveWithLlRegisterTheirSimpleBufferSecond) {
  set("NCCL_ALLOC_P2P_NET_LL_BUFFERS", "1");
  for (const auto family : {Family::kPointToPoint, Family::kUnknown}) {
    EXPECT_EQ(find_simple({kLlBytes, kPointToPointBytes}, family), 1U);
    EXPECT_EQ(find_simple({kLlBytes, kPointToPointBytes, kUserBytes}, family), 1U);
  }
  EXPECT_EQ(find_simple({kLlBytes, kLl128Bytes, kSimpleBytes}, Family::kUnknown), 2U);
  EXPECT_EQ(find_simple({kLlBytes, kLl128Bytes, kSimpleBytes}, Family::kCollective), 2U);
}

// Bootstrap registers one buffer, and whatever its length is, it is the one.
TEST_F(RegistrationOrderTest, ASingleRegistrationIsTheOne) {
  for (const auto family : {Family::kCollective, Family::kPointToPoint, Family::kUnknown}) {
    EXPECT_EQ(find_simple({64}, family), 0U);
    EXPECT_EQ(find_simple({kLlBytes}, family), 0U);
  }
}

TEST_F(RegistrationOrderTest, UsersLengthsOfNcclsBuffersAreFollowed) {
  set("NCCL_LL_BUFFSIZE", "262144");
  EXPECT_EQ(find_simple({262'144, kLl128Bytes, kSimpleBytes}, Family::kUnknown), 2U);
  EXPECT_EQ(find_simple({kLlBytes, kUserBytes, kUserBytes}, Family::kUnknown), 0U)
      << "not NCCL's LL buffer now";
}

TEST_F(RegistrationOrderTest, WhatIsRegisteredLaterChangesNothing) {
  RegistrationOrder order;
  order.add(kPointToPointBytes);
  ASSERT_EQ(order.find_simple(Family::kPointToPoint), 0U);
  for (int i = 0; i < 10; ++i) order.add(kUserBytes);
  EXPECT_EQ(order.find_simple(Family::kPointToPoint), 0U);
}

constexpr uint32_t kBroadcast = 1U << 0, kReduce = 1U << 1, kAllGather = 1U << 2, kReduceScatter = 1U << 3,
                   kAllReduce = 1U << 4, kSendRecv = 1U << 6;
constexpr uint32_t kRing = 1U << 1, kSimple = 1U << 2;
constexpr uint32_t kClassic[] = {kBroadcast, kReduce, kAllGather, kReduceScatter, kAllReduce};

TEST(NeverUnpacked, SimpleRingsAndTreesAreUnpacked) {
  for (const uint32_t operation : kClassic) EXPECT_FALSE(is_never_unpacked({operation, kRing, kSimple}));
  EXPECT_FALSE(is_never_unpacked({})) << "tables up to 10 say nothing";
}

TEST(NeverUnpacked, LowLatencyProtocolsAndPatAreNot) {
  for (const uint32_t operation : kClassic) {
    EXPECT_TRUE(is_never_unpacked({operation, kRing, abi::kProtoLl}));
    EXPECT_TRUE(is_never_unpacked({operation, kRing, abi::kProtoLl128}));
    EXPECT_TRUE(is_never_unpacked({operation, abi::kAlgoPat, kSimple}));
  }
}

TEST(NeverUnpacked, AttributesOfOtherOperationsAreStale) {
  for (uint32_t operation = kSendRecv; operation != 0; operation <<= 1)
    EXPECT_FALSE(is_never_unpacked({operation, abi::kAlgoPat, abi::kProtoLl128})) << operation;
}

TEST(ClassifyReceive, ByTheOrderOfRegistration) {
  const DataAttributes plain{kAllReduce, kRing, kSimple};
  EXPECT_EQ(classify_receive(false, plain, 0, 2), ReceiveClass::kNoSlot) << "LL";
  EXPECT_EQ(classify_receive(false, plain, 1, 2), ReceiveClass::kNoSlot) << "LL128";
  EXPECT_EQ(classify_receive(false, plain, 2, 2), ReceiveClass::kUnpacked);
  EXPECT_EQ(classify_receive(false, plain, 3, 2), ReceiveClass::kSlotOnly) << "a user's buffer";
  EXPECT_EQ(classify_receive(false, {}, 0, 0), ReceiveClass::kUnpacked);
  EXPECT_EQ(classify_receive(false, {}, 1, 0), ReceiveClass::kSlotOnly);
}

TEST(ClassifyReceive, AHintOrAnAttributeWins) {
  for (uint32_t ordinal = 0; ordinal < 4; ++ordinal) {
    EXPECT_EQ(classify_receive(true, {}, ordinal, 2), ReceiveClass::kNoSlot);
    EXPECT_EQ(classify_receive(false, {kAllGather, abi::kAlgoPat, kSimple}, ordinal, 2),
              ReceiveClass::kNoSlot);
    EXPECT_EQ(classify_receive(false, {kAllReduce, kRing, abi::kProtoLl}, ordinal, 2), ReceiveClass::kNoSlot);
  }
}

}  // namespace
}  // namespace verbena::nccl
