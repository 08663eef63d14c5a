// The built plugin, every table, every entry, over softverbs: what NCCL does with a device, done by hand.
#include <cstring>

#include "nccl/live_fixture.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class AbiTest : public LiveTest<V> {
 protected:
  void SetUp() override {
    LiveTest<V>::SetUp();
    if (this->HasFatalFailure()) return;
    ASSERT_EQ(this->start(), 2);
  }
  void expect_no_warnings() {
    for (const std::string& line : LogCapture::get().take_warnings()) ADD_FAILURE() << line;
  }
};
TYPED_TEST_SUITE(AbiTest, AllVersions, VersionNames);

TYPED_TEST(AbiTest, PropertiesAreWhatNcclNeeds) {
  for (int device = 0; device < 2; ++device) {
    typename TypeParam::Properties properties;
    std::memset(static_cast<void*>(&properties), 0xee, sizeof properties);
    ASSERT_EQ((*this->net_)->get_properties(device, &properties), abi::kSuccess);
    EXPECT_GT(std::strlen(properties.name), 0u);
    EXPECT_NE(properties.guid, 0u);
    EXPECT_NE(properties.ptr_support & abi::kPtrHost, 0);
    EXPECT_EQ(properties.ptr_support & ~(abi::kPtrHost | abi::kPtrCuda | abi::kPtrDmabuf), 0);
    EXPECT_GT(properties.speed_mbps, 0);
    EXPECT_LT(properties.speed_mbps, 10'000'000);
    EXPECT_GE(properties.port, 0);
    EXPECT_GE(properties.latency_us, 0.f);
    EXPECT_LT(properties.latency_us, 1000.f);
    EXPECT_GE(properties.max_comms, 1024);
    EXPECT_EQ(properties.max_recvs, 1);
    EXPECT_EQ(properties.net_device_type, abi::kDeviceUnpack);
    EXPECT_EQ(properties.net_device_version, abi::kDeviceUnpackVersion);
    if constexpr (TypeParam::kVersion >= 8) {
      EXPECT_EQ(properties.reg_is_global, 0);
    }
    if constexpr (TypeParam::kHasVDevice) {
      EXPECT_TRUE(properties.force_flush == 0 || properties.force_flush == 1);
      EXPECT_EQ(properties.vprops.ndevs, 1);
      EXPECT_EQ(properties.vprops.devs[0], device);
      EXPECT_GE(properties.max_p2p_bytes, size_t{1} << 30);
      EXPECT_LE(properties.max_p2p_bytes, size_t{1} << 40);
      EXPECT_GT(properties.max_coll_bytes, 0u);
    }
  }
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, DevicesDifferInNameAndGuid) {
  typename TypeParam::Properties first, second;
  ASSERT_EQ((*this->net_)->get_properties(0, &first), abi::kSuccess);
  ASSERT_EQ((*this->net_)->get_properties(1, &second), abi::kSuccess);
  EXPECT_STRNE(first.name, second.name);
  EXPECT_NE(first.guid, second.guid);
}

TYPED_TEST(AbiTest, AcceptFillsTheDeviceHandle) {
  auto* connection = this->establish();
  ASSERT_TRUE(connection->unpacks());
  EXPECT_EQ(connection->device_handle.needs_proxy_progress, 1);
  EXPECT_EQ(connection->device_handle.size, sizeof(UnpackDeviceHandle));
  EXPECT_EQ(connection->unpack().head, kUnpackFreshHead);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(connection->unpack().meta) % 16, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(connection->unpack().bounce_buf) % kUnpackBounceAlignmentBytes, 0u);
  EXPECT_TRUE(connection->all_slots_are_empty());
}

TYPED_TEST(AbiTest, ConnectionsOfOneGpuShareTheBounceRegionAndNotTheSlots) {
  auto *first = this->establish(0), *second = this->establish(1);
  EXPECT_EQ(first->unpack().bounce_buf, second->unpack().bounce_buf);
  EXPECT_NE(first->unpack().meta, second->unpack().meta);
}

TYPED_TEST(AbiTest, MovesBytesBothWays) {
  auto *there = this->establish(), *back = this->establish();
  const size_t sizes[] = {0, 1, 7, 8, 64, 4095, 4096, 4097, 16385, 65536, 524288, 1 << 20, (4 << 20) - 4096};
  for (const size_t size : sizes) {
    for (auto* connection : {there, back}) {
      EXPECT_EQ(connection->transfer(size, 0, 0), nullptr) << size;
      EXPECT_EQ(connection->transfer(size, 3, 1), nullptr) << size;
    }
  }
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, SmallMessagesAreUnpackedAndBulkIsNot) {
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  EXPECT_EQ(connection->last_unpacked.bytes, 4096u);
  ASSERT_EQ(connection->transfer(2 << 20, 0, 0), nullptr);
  EXPECT_EQ(connection->last_unpacked.descriptor_count, 0u);
}

TYPED_TEST(AbiTest, HintedReceivesTakeNoSlotAndArriveInPlace) {
  auto* connection = this->establish();
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(connection->transfer(1024, 0, 0, Protocol::kLl), nullptr) << round;
    ASSERT_EQ(connection->transfer(1024, 0, 0), nullptr) << round;
  }
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, WithoutADeviceHandleBytesArriveInPlace) {
  for (const HandleShape shape : {HandleShape::kPointsToNull, HandleShape::kNull}) {
    auto* connection = this->establish(0, shape);
    EXPECT_FALSE(connection->unpacks());
    for (const size_t size : {0, 1, 4096, 100000, 1 << 20})
      EXPECT_EQ(connection->transfer(size, 1, 2), nullptr) << size;
  }
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, LaterRegistrationsAreUserBuffersThatArriveInPlace) {
  auto* connection = this->establish();
  LiveBuffer user(65536);
  ASSERT_TRUE(connection->add_registration(connection->recv_comm, user));
  const std::span<std::byte> message = connection->sent.bytes.first(4096), room = user.bytes.first(4096);
  for (uint64_t round = 0; round < 20; ++round) {
    tools::fill_pattern(message, round);
    void* const receive = connection->receive(room, user.mhandle);
    void* const send = connection->send(message, connection->sent.mhandle);
    int size = 0;
    ASSERT_TRUE(receive != nullptr && send != nullptr && connection->wait(receive, &size));
    EXPECT_EQ(connection->place({}).descriptor_count, 0u);  // the kernel steps over this slot
    EXPECT_EQ(tools::check_pattern(room, round).wrong_bytes, 0u);
    ASSERT_TRUE(connection->wait(send, nullptr));
    ASSERT_EQ((*this->net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
    ASSERT_EQ(connection->transfer(512, 0, 0), nullptr) << round;  // the slots still agree
  }
  EXPECT_EQ((*this->net_)->dereg_mr(connection->recv_comm, user.mhandle), abi::kSuccess);
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, EightMessagesInFlightKeepTheirOrder) {
  auto* connection = this->establish();
  constexpr size_t kCount = 8, kPlaceBytes = 65536, kLength = 5000;
  for (int round = 0; round < 10; ++round) {
    void *receives[kCount], *sends[kCount];
    for (size_t i = 0; i < kCount; ++i) {  // every second send comes before its receive
      const std::span<std::byte> message = connection->sent.bytes.subspan(i * kPlaceBytes, kLength + i);
      tools::fill_pattern(message, i);
      const auto post_send = [&] { sends[i] = connection->send(message, connection->sent.mhandle); };
      if (i % 2 == 0) post_send();
      receives[i] = connection->receive(connection->received.bytes.subspan(i * kPlaceBytes, kPlaceBytes),
                                        connection->received.mhandle);
      if (i % 2 == 1) post_send();
      ASSERT_TRUE(receives[i] != nullptr && sends[i] != nullptr);
    }
    for (size_t i = 0; i < kCount; ++i) {
      int size = 0;
      ASSERT_TRUE(connection->wait(receives[i], &size) && connection->wait(sends[i], nullptr));
      ASSERT_EQ(size, static_cast<int>(kLength + i));
      const std::span<std::byte> room = connection->received.bytes.subspan(i * kPlaceBytes, kLength + i);
      connection->place(room);
      EXPECT_EQ(tools::check_pattern(room, i).wrong_bytes, 0u);
    }
    for (void* request : receives) {
      ASSERT_EQ((*this->net_)->irecv_consumed(connection->recv_comm, 1, request), abi::kSuccess);
    }
    EXPECT_TRUE(connection->all_slots_are_empty());
  }
  this->expect_no_warnings();
}

TYPED_TEST(AbiTest, FlushEndsOrIsNotNeeded) {
  auto* connection = this->establish();
  ASSERT_EQ(connection->transfer(4096, 0, 0), nullptr);
  void* data = connection->received.bytes.data();
  void *mhandle = connection->received.mhandle, *request = data;
  int size = 4096;
  ASSERT_EQ((*this->net_)->iflush(connection->recv_comm, 1, &data, &size, &mhandle, &request), abi::kSuccess);
  if (request != nullptr) {
    EXPECT_TRUE(connection->wait(request, nullptr));
  }
}

TYPED_TEST(AbiTest, DeviceMemoryHandlesAreZero) {
  auto* connection = this->establish();
  void* device_mhandle = connection;
  EXPECT_EQ(
      (*this->net_)->get_device_mr(connection->recv_comm, connection->received.mhandle, &device_mhandle),
      abi::kSuccess);
  EXPECT_EQ(device_mhandle, nullptr);
}

TYPED_TEST(AbiTest, DmaBufRegistrationEndsWithAnAnswer) {
  auto* connection = this->establish();
  void* mhandle = connection;
  const abi::Result result = (*this->net_)
                                 ->reg_mr_dmabuf(connection->recv_comm, connection->received.bytes.data(),
                                                 4096, abi::kPtrCuda, 0, -1, &mhandle);
  EXPECT_NE(result, abi::kSuccess);  // no dma-buf has descriptor -1
  EXPECT_EQ(mhandle, nullptr);
  EXPECT_EQ(LogCapture::get().take_warnings().size(), 1u);
  EXPECT_EQ(connection->transfer(4096, 0, 0), nullptr);
}

TYPED_TEST(AbiTest, TwoDevicesJoinIntoOne) {
  if constexpr (TypeParam::kHasVDevice) {
    decltype(typename TypeParam::Properties{}.vprops) members{2, {0, 1}};
    int joined = -1, count = 0;
    ASSERT_EQ((*this->net_)->make_vdevice(&joined, &members), abi::kSuccess);
    EXPECT_EQ(joined, 2);
    ASSERT_EQ((*this->net_)->devices(&count), abi::kSuccess);
    EXPECT_EQ(count, 3);
    typename TypeParam::Properties properties;
    ASSERT_EQ((*this->net_)->get_properties(joined, &properties), abi::kSuccess);
    EXPECT_EQ(properties.vprops.ndevs, 2);
    EXPECT_EQ(properties.vprops.devs[1], 1);
    auto* connection = this->establish(joined);
    for (const size_t size : {0, 1, 4096, 100000, 1 << 20, 3 << 20}) {
      EXPECT_EQ(connection->transfer(size, 0, 0), nullptr) << size;
    }
    this->expect_no_warnings();
  }
}

TYPED_TEST(AbiTest, ProtocolAttributesDecideWithoutAHint) {
  if constexpr (TypeParam::kHasContext) {
    auto* connection = this->establish();
    constexpr abi::CommAttr kAny{-1, -1, -1, -1};
    // PAT poses as Simple but never unpacks: in place, and no slot.
    abi::NetAttr pat{kAny, kAny, 1u << 2, abi::kAlgoPat, abi::kProtoSimple};
    ASSERT_EQ((*this->net_)->set_net_attr(this->context_, &pat), abi::kSuccess);
    const std::span<std::byte> message = connection->sent.bytes.first(2000),
                               room = connection->received.bytes.first(2000);
    tools::fill_pattern(message, 5);
    void* const receive = connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(message, connection->sent.mhandle);
    int size = 0;
    ASSERT_TRUE(connection->wait(receive, &size) && connection->wait(send, nullptr));
    EXPECT_EQ(tools::check_pattern(room, 5).wrong_bytes, 0u);
    EXPECT_TRUE(connection->all_slots_are_empty());
    ASSERT_EQ((*this->net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
    abi::NetAttr ring{kAny, kAny, 1u << 2, 1u << 1, abi::kProtoSimple};
    ASSERT_EQ((*this->net_)->set_net_attr(this->context_, &ring), abi::kSuccess);
    EXPECT_EQ(connection->transfer(2000, 0, 0), nullptr);
    EXPECT_EQ(connection->last_unpacked.bytes, 2000u);
  }
}

}  // namespace
}  // namespace verbena::nccl::testing
