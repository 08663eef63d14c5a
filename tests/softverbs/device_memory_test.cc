#include <unistd.h>

#include "fixture.h"

// Memory of the device: copies to and from it, requests on it, and its other names.
namespace verbena::softverbs_test {
namespace {

constexpr unsigned kDeviceAccess = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

struct DeviceMemoryTest : ::testing::Test {
  Node node;
  Buffer buffer{node, 4096};
  ibv_dm* memory = nullptr;

  DeviceMemoryTest() {
    buffer.fill(3);
    ibv_alloc_dm_attr init{};
    init.length = 4096;
    memory = ibv_alloc_dm(node.context, &init);
    EXPECT_NE(memory, nullptr);
  }
  ~DeviceMemoryTest() override {
    if (memory != nullptr) {
      EXPECT_EQ(ibv_free_dm(memory), 0);
    }
  }
};

TEST_F(DeviceMemoryTest, CopiesAreAlignedAndInside) {
  EXPECT_EQ(ibv_memcpy_to_dm(memory, 8, buffer.data(), 64), 0);
  uint8_t back[64];
  EXPECT_EQ(ibv_memcpy_from_dm(back, memory, 8, sizeof(back)), 0);
  EXPECT_EQ(memcmp(back, buffer.data(), sizeof(back)), 0);
  EXPECT_NE(ibv_memcpy_to_dm(memory, 2, buffer.data(), 64), 0);
  EXPECT_NE(ibv_memcpy_to_dm(memory, 8, buffer.data(), 63), 0);
  EXPECT_NE(ibv_memcpy_to_dm(memory, 4096, buffer.data(), 4), 0);
  EXPECT_NE(ibv_memcpy_from_dm(back, memory, UINT64_MAX - 3, 8), 0);
}

TEST_F(DeviceMemoryTest, RequestsReachItFromZero) {
  ibv_mr* region = ibv_reg_dm_mr(node.pd, memory, 1024, 1024, kDeviceAccess);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ibv_free_dm(memory), EBUSY);
  QueuePair pair(node);
  pair.connect(pair.address());
  Send send(IBV_WR_RDMA_WRITE, 1);
  ASSERT_EQ(send.from(buffer, 0, 64).to(8, region->rkey).run(pair), IBV_WC_SUCCESS);
  uint8_t back[64];
  EXPECT_EQ(ibv_memcpy_from_dm(back, memory, 1024 + 8, sizeof(back)), 0);
  EXPECT_EQ(memcmp(back, buffer.data(), sizeof(back)), 0);
  send.request.wr.rdma.remote_addr = 1024;
  ASSERT_EQ(send.post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_ACCESS_ERR) << "beyond the region";
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(DeviceMemoryTest, RegionsStayInside) {
  EXPECT_EQ(ibv_reg_dm_mr(node.pd, memory, 1024, 4096, kDeviceAccess), nullptr);
  EXPECT_EQ(ibv_reg_dm_mr(node.pd, memory, 0, 4096, IBV_ACCESS_LOCAL_WRITE), nullptr) << "not from zero";
}

TEST_F(DeviceMemoryTest, SizeIsBounded) {
  ibv_device_attr_ex attributes{};
  ASSERT_EQ(ibv_query_device_ex(node.context, nullptr, &attributes), 0);
  ibv_alloc_dm_attr init{};
  init.length = attributes.max_dm_size + 1;
  EXPECT_EQ(ibv_alloc_dm(node.context, &init), nullptr);
}

TEST_F(DeviceMemoryTest, ImportedMemoryIsTheSame) {
  ibv_context* context = ibv_import_device(dup(node.context->cmd_fd));
  ASSERT_NE(context, nullptr);
  ibv_dm* imported = ibv_import_dm(context, memory->handle);
  ASSERT_NE(imported, nullptr);
  ASSERT_EQ(ibv_memcpy_to_dm(memory, 0, buffer.data(), 64), 0);
  uint8_t back[64];
  ASSERT_EQ(ibv_memcpy_from_dm(back, imported, 0, sizeof(back)), 0);
  EXPECT_EQ(memcmp(back, buffer.data(), sizeof(back)), 0);
  EXPECT_EQ(ibv_free_dm(memory), EBUSY);
  ibv_unimport_dm(imported);
  EXPECT_EQ(ibv_close_device(context), 0);
}

}  // namespace
}  // namespace verbena::softverbs_test
