// The plugin over a NIC that is not softverbs, in a process without a CUDA driver: what it says of memory of
// GPUs, and that what it says holds.
#include <dlfcn.h>

#include <algorithm>

#include "nccl/live_fixture.h"
#include "verbs/faulty/faulty_ibverbs.h"

namespace verbena::nccl::testing {
namespace {

using verbs::faulty::Hooks;

class ForeignNicTest : public LiveTest<NewestVersion> {
 protected:
  ForeignNicTest() {
    environment_.set("VERBENA_IBVERBS_LIB", FAULTY_LIBRARY);
    environment_.set(verbs::faulty::kTargetVariable, SOFTVERBS_LIBRARY);
    hooks_.vendor = 0x15b3;
  }
  ~ForeignNicTest() override {
    hooks_.vendor = 0;
    hooks_.most_srq_entries = hooks_.most_inline_bytes = INT32_MAX;
    hooks_.refuses_more_inline = hooks_.makes_no_pairs = false;
    hooks_.data_direct_path = nullptr;
    hooks_.refuses_data_direct = hooks_.takes_any_dmabuf = false;
  }

  static bool has_warned(const std::string& text) {
    const std::vector<std::string> lines = LogCapture::get().take_warnings();
    return std::ranges::any_of(lines, [&](const std::string& line) { return line.find(text) != line.npos; });
  }
  static Hooks& find_hooks() {
    void* library = dlopen(FAULTY_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return *reinterpret_cast<verbs::faulty::GetHooks>(dlsym(library, verbs::faulty::kGetHooks))();
  }
  Hooks& hooks_ = find_hooks();
};

// What NCCL then does: it takes its next transport.
TEST_F(ForeignNicTest, DevicesThatCannotBeUsedFailInit) {
  hooks_.makes_no_pairs = true;
  EXPECT_EQ(start(), 0);
  EXPECT_TRUE(
      has_warned("device softverbs0:1 is not used: the plugin cannot create a queue pair on this device"));
  EXPECT_EQ(hooks_.live_objects, 0);
  hooks_.makes_no_pairs = false;
  EXPECT_EQ(start(), 2);
}

// Before listen, when NCCL can no longer take another transport.
TEST_F(ForeignNicTest, DatagramsWithoutSharedReceiveQueuesFailInit) {
  environment_.set("VERBENA_TRANSPORT", "datagram");
  for (const int entries : {0, 100}) {
    hooks_.most_srq_entries = entries;
    EXPECT_EQ(start(), 0);
    EXPECT_TRUE(has_warned(
        "device softverbs0:1: the device's shared receive queues have too few entries for datagrams (" +
        std::to_string(entries) + " entries"));
    EXPECT_EQ(hooks_.live_objects, 0);
  }
  hooks_.most_srq_entries = INT32_MAX;
  ASSERT_EQ(start(), 2) << "the devices are asked again";
  EXPECT_NE(establish(), nullptr);
}

struct Lesser {
  const char* name;
  int inline_bytes;
  bool refuses_more_inline;
  int srq_entries;
};

// Grants, of 64 bytes, leave from registered memory where they are not sent inline: more of them than there
// is room for at a time. Receive entries lie in queues of the queue pairs' own where none can be shared.
class LesserDeviceTest : public ForeignNicTest, public ::testing::WithParamInterface<Lesser> {};

TEST_P(LesserDeviceTest, MovesMessagesAllTheSame) {
  hooks_.most_inline_bytes = GetParam().inline_bytes;
  hooks_.refuses_more_inline = GetParam().refuses_more_inline;
  hooks_.most_srq_entries = GetParam().srq_entries;
  const int joined = start_joined();
  ASSERT_FALSE(HasFailure());
  for (const int device : {0, joined}) {
    LiveConnection<NewestVersion>* connection = establish(device);
    for (int i = 0; i < 100; ++i) {
      const char* problem = connection->transfer(i % 3 == 0 ? 200'000 : 100, 0, 0);
      ASSERT_EQ(problem, nullptr) << problem << ", message " << i << ", device " << device;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LesserDeviceTest,
                         ::testing::Values(Lesser{"NothingInline", 0, false, INT32_MAX},
                                           Lesser{"HalfOfAGrantInline", 32, false, INT32_MAX},
                                           Lesser{"RefusesMoreThanHalfAGrantInline", 32, true, INT32_MAX},
                                           Lesser{"RefusesMoreThanAnOddNumberInline", 63, true, INT32_MAX},
                                           Lesser{"NoSharedReceiveQueues", INT32_MAX, false, 0},
                                           Lesser{"SmallSharedReceiveQueues", INT32_MAX, false, 100},
                                           Lesser{"Neither", 32, true, 0}),
                         [](const auto& device) { return device.param.name; });

TEST_F(ForeignNicTest, RailAndPlaneAreWhatTheUserSays) {
  environment_.set("VERBENA_HCA", "softverbs0:1:6:1,softverbs1:1:6:0");
  const int joined = start_joined();
  ASSERT_FALSE(HasFailure());
  abi::ncclNetProperties_v12_t properties{};
  ASSERT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.rail_id, 6);
  EXPECT_EQ(properties.plane_id, 1);
  ASSERT_EQ((*net_)->get_properties(joined, &properties), abi::kSuccess);
  EXPECT_EQ(properties.rail_id, 6);
  EXPECT_EQ(properties.plane_id, abi::kUndefined) << "they differ";
}

// NCCL takes kPtrCuda alone for leave to register addresses of a GPU, which fails without peer memory.
TEST_F(ForeignNicTest, WithoutPeerMemoryOnlyDmabufsAreOffered) {
  ASSERT_GT(start(), 0);
  abi::ncclNetProperties_v12_t properties{};
  ASSERT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
  EXPECT_EQ(properties.ptr_support, abi::kPtrHost | abi::kPtrDmabuf);
}

// By either transport.
class ForeignGpuTest : public ForeignNicTest, public ::testing::WithParamInterface<const char*> {
 protected:
  ForeignGpuTest() { environment_.set("VERBENA_TRANSPORT", GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Transports, ForeignGpuTest, ::testing::Values("connected", "datagram"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST_P(ForeignGpuTest, IflushPushesWhatCameToAGpu) {
  ASSERT_GT(start(), 0);
  LiveConnection<NewestVersion>* connection = establish();
  void* mhandle = nullptr;
  ASSERT_EQ(net_->reg_mr(connection->recv_comm, connection->received.bytes.data(),
                         connection->received.bytes.size(), abi::kPtrCuda, &mhandle),
            abi::kSuccess);
  const std::span<std::byte> room = connection->received.bytes.first(1 << 20);
  void* const receive = connection->receive(room, mhandle);
  void* const send = connection->send(1 << 20);
  int sizes[abi::kMaxTestSizes] = {};
  ASSERT_TRUE(connection->wait(receive, sizes));
  ASSERT_TRUE(connection->wait(send, sizes));
  void *request = nullptr, *data = room.data();
  int size = static_cast<int>(room.size());
  hooks_.reads[0] = 0;
  ASSERT_EQ((*net_)->iflush(connection->recv_comm, 1, &data, &size, &mhandle, &request), abi::kSuccess);
  ASSERT_NE(request, nullptr);
  EXPECT_TRUE(connection->wait(request, nullptr));
  EXPECT_EQ(hooks_.reads[0], 1);
  EXPECT_EQ((*net_)->dereg_mr(connection->recv_comm, mhandle), abi::kSuccess);
}

// NCCL then looks for the GPUs near that function, and flushes whatever the GPU.
TEST_F(ForeignNicTest, DataDirectIsTheDevicesPlaceAndForcesFlushes) {
  hooks_.data_direct_path = "/devices/pci0000:00/0000:00:07.0/0000:07:00.0";
  for (const bool is_wanted : {true, false}) {
    if (!is_wanted) environment_.set("NCCL_IB_DATA_DIRECT", "0");
    ASSERT_EQ(start(), 2);
    abi::ncclNetProperties_v12_t properties{};
    ASSERT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
    EXPECT_EQ(properties.force_flush, is_wanted ? 1 : 0);
    if (is_wanted) {
      EXPECT_STREQ(properties.pci_path, "/sys/devices/pci0000:00/0000:00:07.0/0000:07:00.0");
    } else {
      EXPECT_EQ(properties.pci_path, nullptr) << "these have no PCI path of their own";
    }
    ASSERT_EQ(net_->finalize(context_), abi::kSuccess);
    is_up_ = false;
  }
}

TEST_P(ForeignGpuTest, DmabufsAreReachedByDataDirectWhereTheyCanBe) {
  hooks_.data_direct_path = "/devices/pci0000:00/0000:00:07.0/0000:07:00.0";
  hooks_.takes_any_dmabuf = true;
  LiveConnection<NewestVersion>* connection = start_connected();
  const auto receive_into_dmabuf = [&](int expected_regions) {
    hooks_.data_direct_regions = 0;
    void* mhandle = nullptr;
    constexpr int kDescriptor = 0;  // of whatever file
    ASSERT_EQ((*net_)->reg_mr_dmabuf(connection->recv_comm, connection->received.bytes.data(), 1 << 20,
                                     abi::kPtrCuda, 0, kDescriptor, &mhandle),
              abi::kSuccess);
    EXPECT_EQ(hooks_.data_direct_regions, expected_regions);
    tools::fill_pattern(connection->sent.bytes.first(1 << 20), 5);
    void* const receive = connection->receive(connection->received.bytes.first(1 << 20), mhandle);
    void* const send = connection->send(1 << 20);
    int sizes[abi::kMaxTestSizes] = {};
    ASSERT_TRUE(connection->wait(receive, sizes));
    ASSERT_TRUE(connection->wait(send, sizes));
    EXPECT_EQ(tools::check_pattern(connection->received.bytes.first(1 << 20), 5).wrong_bytes, 0U);
    void *request = nullptr, *data = connection->received.bytes.data();
    int size = 1 << 20;
    ASSERT_EQ((*net_)->iflush(connection->recv_comm, 1, &data, &size, &mhandle, &request), abi::kSuccess);
    ASSERT_NE(request, nullptr);
    EXPECT_TRUE(connection->wait(request, nullptr));
    EXPECT_EQ((*net_)->dereg_mr(connection->recv_comm, mhandle), abi::kSuccess);
  };
  receive_into_dmabuf(1);
  hooks_.refuses_data_direct = true;  // as what is not mapped for PCIe
  receive_into_dmabuf(0);
}

// NCCL flushes for GPUs of compute capability below 9 by itself.
TEST_F(ForeignNicTest, AGpuThatKeepsNoOrderForcesFlushes) {
  ASSERT_NE(dlopen(NAMING_CUDA, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE), nullptr);
  ASSERT_GT(start(), 0);
  const auto is_forced = [&](const char* order) {
    environment_.set("NAMING_CUDA_WRITE_ORDER", order);
    abi::ncclNetProperties_v12_t properties{};
    EXPECT_EQ((*net_)->get_properties(0, &properties), abi::kSuccess);
    return properties.force_flush;
  };
  EXPECT_EQ(is_forced("100"), 0);
  EXPECT_EQ(is_forced("0"), 1);
  EXPECT_EQ(is_forced(""), 0) << "a driver that does not say";
}

}  // namespace
}  // namespace verbena::nccl::testing
