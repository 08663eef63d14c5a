// Life cycle, devices, connections and memory: what each version's entry hands to the core and brings back.
#include <cstring>

#include "nccl/adapters_fixture.h"

namespace verbena::nccl::testing {
namespace {

template <typename V>
class ControlEntriesTest : public AdaptersTest<V> {};
TYPED_TEST_SUITE(ControlEntriesTest, AllVersions, VersionNames);

TYPED_TEST(ControlEntriesTest, EveryMemberIsFilledAndTheNameIsOurs) {
  const void* const* words = reinterpret_cast<const void* const*>(&*this->net_);
  for (size_t i = 0; i < sizeof(typename TypeParam::Table) / sizeof(void*); ++i)
    EXPECT_NE(words[i], nullptr) << i;
  EXPECT_STREQ(this->net_->name, "Verbena");
}

TYPED_TEST(ControlEntriesTest, InitPassesWhatTheVersionHas) {
  fake_core().calls.clear();
  ASSERT_EQ(this->net_.init(&this->context_, 0xfeed, 5, &LogCapture::write), abi::kSuccess);
  const uint64_t id = TypeParam::kHasContext ? 0xfeed : 0;
  const int traffic_class = TypeParam::kHasContext ? 5 : abi::kUndefined;
  EXPECT_EQ(this->last_call(),
            this->call("init", id, traffic_class, &LogCapture::write, nullptr, TypeParam::kVersion));
  if (TypeParam::kHasContext) {
    EXPECT_EQ(this->context_, &this->made_);
  }
}

TYPED_TEST(ControlEntriesTest, RepeatedInitWithoutFinalizeRenewsAnIdleContext) {
  char second = 0;
  fake_core().calls.clear();
  fake_core().produced = &second;
  ASSERT_EQ(this->net_.init(&this->context_, 1, 5, &LogCapture::write), abi::kSuccess);
  if (TypeParam::kHasContext) {
    EXPECT_EQ(fake_core().calls.size(), 1u);
  } else {
    ASSERT_EQ(fake_core().calls.size(), 2u);
    EXPECT_EQ(fake_core().calls[0], this->call("finalize", &this->made_));
    EXPECT_EQ(fake_core().calls[1].function, "init");
    void* comm = nullptr;
    ASSERT_EQ(this->net_.listen(nullptr, 0, this->handle_, &comm), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("listen", &second, 0, this->handle_));
  }
}

TYPED_TEST(ControlEntriesTest, RepeatedInitKeepsAContextInUse) {
  if (TypeParam::kHasContext) return;
  fake_core().is_idle = false;
  fake_core().calls.clear();
  EXPECT_EQ(this->net_.init(&this->context_, 1, 5, &LogCapture::write), abi::kSuccess);
  EXPECT_TRUE(fake_core().calls.empty());
  void* comm = nullptr;
  ASSERT_EQ(this->net_.listen(nullptr, 0, this->handle_, &comm), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("listen", &this->made_, 0, this->handle_));
}

TYPED_TEST(ControlEntriesTest, FailedInitLeavesNoContext) {
  fake_core().produced = nullptr;  // the renewed context of a version without contexts
  ASSERT_EQ(this->net_.init(&this->context_, 1, 5, &LogCapture::write), abi::kSuccess);
  fake_core().answer = [] { return base::Error{base::Status::kInvalidUsage}; };
  this->context_ = &this->comm_;
  EXPECT_EQ(this->net_.init(&this->context_, 1, 5, &LogCapture::write), abi::kInvalidUsage);
  fake_core().answer = [] { return Outcome{}; };
  if (TypeParam::kHasContext) {
    EXPECT_EQ(this->context_, nullptr);
  } else {
    void* comm = nullptr;
    ASSERT_EQ(this->net_.listen(nullptr, 0, this->handle_, &comm), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("listen", nullptr, 0, this->handle_));
  }
}

TYPED_TEST(ControlEntriesTest, DevicesWritesTheCount) {
  int count = 0;
  EXPECT_EQ(this->net_->devices(&count), abi::kSuccess);
  EXPECT_EQ(count, 3);
}

TYPED_TEST(ControlEntriesTest, PropertiesReachEveryMember) {
  char name[] = "upk_0", path[] = "/sys/devices/pci0";
  auto& given = fake_core().properties;
  given = {name,
           path,
           0x1122334455667788,
           3,
           0,
           1,
           400000,
           2,
           1.5f,
           65536,
           1,
           abi::kDeviceUnpack,
           abi::kDeviceUnpackVersion,
           {2, {4, 6}},
           1ul << 40,
           1ul << 39,
           1,
           7,
           9};
  typename TypeParam::Properties got;
  std::memset(static_cast<void*>(&got), 0xee, sizeof got);  // NCCL's struct is not initialised
  ASSERT_EQ(this->net_->get_properties(11, &got), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("get_properties", 11));
  EXPECT_EQ(got.name, name);
  EXPECT_EQ(got.pci_path, path);
  EXPECT_EQ(got.guid, 0x1122334455667788u);
  EXPECT_EQ(got.ptr_support, 3);
  EXPECT_EQ(got.speed_mbps, 400000);
  EXPECT_EQ(got.port, 2);
  EXPECT_EQ(got.latency_us, 1.5f);
  EXPECT_EQ(got.max_comms, 65536);
  EXPECT_EQ(got.max_recvs, 1);
  EXPECT_EQ(got.net_device_type, abi::kDeviceUnpack);
  EXPECT_EQ(got.net_device_version, 7);
  if constexpr (TypeParam::kVersion >= 8) {
    EXPECT_EQ(got.reg_is_global, 0);
  }
  if constexpr (TypeParam::kVersion >= 9) {
    EXPECT_EQ(got.force_flush, 1);
    EXPECT_EQ(got.vprops.ndevs, 2);
    EXPECT_EQ(got.vprops.devs[0], 4);
    EXPECT_EQ(got.vprops.devs[1], 6);
    EXPECT_EQ(got.vprops.devs[3], 0);
    EXPECT_EQ(got.max_p2p_bytes, 1ul << 40);
    EXPECT_EQ(got.max_coll_bytes, 1ul << 39);
  }
  if constexpr (TypeParam::kVersion >= 11) {
    EXPECT_EQ(got.max_multi_request_size, 1);
  }
  if constexpr (TypeParam::kVersion >= 12) {
    EXPECT_EQ(got.rail_id, 7);
    EXPECT_EQ(got.plane_id, 9);
  }
}

TYPED_TEST(ControlEntriesTest, MoreMembersThanTheVersionHoldsAreClipped) {
  fake_core().properties.vprops = {8, {10, 11, 12, 13, 14, 15, 16, 17}};
  typename TypeParam::Properties got{};
  ASSERT_EQ(this->net_->get_properties(0, &got), abi::kSuccess);
  if constexpr (TypeParam::kHasVDevice) {
    const int kept = TypeParam::kVersion == 12 ? 8 : 4;
    ASSERT_EQ(got.vprops.ndevs, kept);
    for (int i = 0; i < kept; ++i) EXPECT_EQ(got.vprops.devs[i], 10 + i);
  }
}

TYPED_TEST(ControlEntriesTest, FailedPropertiesLeaveNcclsStructAlone) {
  fake_core().answer = [] { return base::Error{base::Status::kInvalidArgument}; };
  typename TypeParam::Properties got{};
  got.port = 77;
  EXPECT_EQ(this->net_->get_properties(99, &got), abi::kInvalidArgument);
  EXPECT_EQ(got.port, 77);
}

TYPED_TEST(ControlEntriesTest, VirtualDeviceMembersArriveAndAreBounded) {
  if constexpr (TypeParam::kHasVDevice) {
    const int most = TypeParam::kVersion == 12 ? 8 : 4;
    std::remove_reference_t<decltype(typename TypeParam::Properties{}.vprops)> members{};
    members.ndevs = most;
    for (int i = 0; i < most; ++i) members.devs[i] = 20 + i;
    int device = -1;
    ASSERT_EQ(this->net_->make_vdevice(&device, &members), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("make_virtual_device", &device));
    ASSERT_EQ(fake_core().members.ndevs, most);
    for (int i = 0; i < most; ++i) EXPECT_EQ(fake_core().members.devs[i], 20 + i);

    const size_t calls = fake_core().calls.size();
    for (const int bad : {0, -1, most + 1}) {
      members.ndevs = bad;
      EXPECT_EQ(this->net_->make_vdevice(&device, &members), abi::kInvalidArgument);
    }
    EXPECT_EQ(fake_core().calls.size(), calls);
    EXPECT_EQ(LogCapture::get().take_warnings().size(), 3u);
  }
}

TYPED_TEST(ControlEntriesTest, ListenPassesContextAndHandle) {
  void* comm = nullptr;
  ASSERT_EQ(this->net_.listen(this->given_context(), 2, this->handle_, &comm), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("listen", this->expected_context(), 2, this->handle_));
  EXPECT_EQ(comm, &this->made_);
}

TYPED_TEST(ControlEntriesTest, ConnectPassesTheConfigAndLeavesTheDeviceHandle) {
  void* comm = &this->comm_;  // garbage that a "not yet" must clear
  abi::NetDeviceHandle* device_handle = nullptr;
  fake_core().produced = nullptr;
  const int expected_class = TypeParam::kVersion == 10 ? 105 : abi::kUndefined;
  ASSERT_EQ(this->net_.connect(this->given_context(), 2, 105, this->handle_, &comm, &device_handle),
            abi::kSuccess);
  EXPECT_EQ(this->last_call(),
            this->call("connect", this->expected_context(), 2, expected_class, this->handle_));
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(device_handle, nullptr);
  fake_core().produced = &this->made_;
  ASSERT_EQ(this->net_.connect(this->given_context(), 2, 105, this->handle_, &comm, nullptr), abi::kSuccess);
  EXPECT_EQ(comm, &this->made_);
}

TYPED_TEST(ControlEntriesTest, NullConfigMeansNoTrafficClass) {
  if constexpr (TypeParam::kVersion == 10) {
    void* comm = nullptr;
    ASSERT_EQ(this->net_->connect(0, nullptr, this->handle_, &comm, nullptr), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("connect", this->expected_context(), 0, -1, this->handle_));
  } else if constexpr (TypeParam::kHasContext) {
    ASSERT_EQ(this->net_->init(&this->context_, 3, nullptr, &LogCapture::write, nullptr), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("init", 3, -1, &LogCapture::write, nullptr, TypeParam::kVersion));
  }
}

TYPED_TEST(ControlEntriesTest, AcceptPassesTheDeviceHandleInAllThreeShapes) {
  abi::NetDeviceHandle filled{}, *to_filled = &filled, *to_null = nullptr;
  for (abi::NetDeviceHandle** shape : {&to_filled, &to_null, static_cast<abi::NetDeviceHandle**>(nullptr)}) {
    void* comm = &this->comm_;
    ASSERT_EQ(this->net_->accept(&this->comm_, &comm, shape), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("accept", &this->comm_, shape));
    EXPECT_EQ(comm, &this->made_);
  }
}

TYPED_TEST(ControlEntriesTest, ClosesReachTheirOwnFunction) {
  EXPECT_EQ(this->net_->close_send(&this->comm_), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("close_send", &this->comm_));
  EXPECT_EQ(this->net_->close_recv(&this->comm_), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("close_receive", &this->comm_));
  EXPECT_EQ(this->net_->close_listen(&this->comm_), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("close_listen", &this->comm_));
}

TYPED_TEST(ControlEntriesTest, MemoryArgumentsKeepTheirPlaces) {
  void* mhandle = nullptr;
  ASSERT_EQ(this->net_.reg_mr(&this->comm_, &this->data_, 4096, abi::kPtrCuda, &mhandle), abi::kSuccess);
  EXPECT_EQ(this->last_call(),
            this->call("register_memory", &this->comm_, &this->data_, 4096, abi::kPtrCuda));
  EXPECT_EQ(mhandle, &this->made_);
  const size_t huge = 5ul << 30;
  mhandle = nullptr;
  ASSERT_EQ(this->net_->reg_mr_dmabuf(&this->comm_, &this->data_, huge, abi::kPtrCuda, 64, 9, &mhandle),
            abi::kSuccess);
  EXPECT_EQ(this->last_call(),
            this->call("register_dmabuf", &this->comm_, &this->data_, huge, abi::kPtrCuda, 64, 9));
  EXPECT_EQ(mhandle, &this->made_);
  ASSERT_EQ(this->net_->dereg_mr(&this->comm_, &this->mhandle_), abi::kSuccess);
  EXPECT_EQ(this->last_call(), this->call("deregister_memory", &this->comm_, &this->mhandle_));
}

TYPED_TEST(ControlEntriesTest, RegistrationSizesBeyondTwoGigabytes) {
  void* mhandle = nullptr;
  const abi::Result result =
      this->net_.reg_mr(&this->comm_, &this->data_, 3ul << 30, abi::kPtrHost, &mhandle);
  if (TypeParam::kVersion == 7) {  // arrives as a negative int
    EXPECT_EQ(result, abi::kInvalidArgument);
    EXPECT_EQ(mhandle, nullptr);
    EXPECT_EQ(LogCapture::get().take_warnings().size(), 1u);
  } else {
    EXPECT_EQ(result, abi::kSuccess);
    EXPECT_EQ(this->last_call().words.at(2), 3ul << 30);
  }
}

TYPED_TEST(ControlEntriesTest, DeviceMemoryHandleIsZero) {
  void* device_mhandle = &this->data_;
  fake_core().calls.clear();
  EXPECT_EQ(this->net_->get_device_mr(&this->comm_, &this->mhandle_, &device_mhandle), abi::kSuccess);
  EXPECT_EQ(device_mhandle, nullptr);
  EXPECT_TRUE(fake_core().calls.empty());
}

TYPED_TEST(ControlEntriesTest, FinalizeAndAttributes) {
  if constexpr (TypeParam::kHasContext) {
    EXPECT_EQ(this->net_->finalize(nullptr), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("finalize", nullptr));
    abi::NetAttr attributes{{1, 2, 3, 4}, {5, 6, 7, 8}, 9, 10, 11};
    EXPECT_EQ(this->net_->set_net_attr(this->given_context(), &attributes), abi::kSuccess);
    EXPECT_EQ(this->last_call(), this->call("set_attributes", this->given_context()));
    EXPECT_EQ(std::memcmp(&fake_core().attributes, &attributes, sizeof attributes), 0);
  }
}

}  // namespace
}  // namespace verbena::nccl::testing
