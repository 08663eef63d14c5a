#include <unistd.h>

#include <cerrno>

#include "fixture.h"

#undef ibv_reg_mr

// Regions that change, regions of the whole address space, and other names for domains, regions and devices.
namespace verbena::softverbs_test {
namespace {

constexpr int kReadWrite = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

struct MemoryChangeTest : ::testing::Test {
  Node node;
  Buffer source{node, 4096}, target{node, 4096, IBV_ACCESS_LOCAL_WRITE};
  QueuePair pair{node};

  MemoryChangeTest() {
    pair.connect(pair.address());
    source.fill(5);
  }
  ibv_wc_status write(uint64_t address, uint32_t rkey) {
    EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(source, 0, 64).to(address, rkey).post(pair), 0);
    return node.wait_completion().status;
  }
};

TEST_F(MemoryChangeTest, AccessIsGiven) {
  const uint32_t key = target.mr()->rkey;
  ASSERT_EQ(ibv_rereg_mr(target.mr(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kReadWrite), 0);
  EXPECT_EQ(target.mr()->rkey, key);
  EXPECT_EQ(write(target.address(), key), IBV_WC_SUCCESS);
  EXPECT_TRUE(target.matches(5, 64));
}

TEST_F(MemoryChangeTest, AccessIsTaken) {
  Buffer open(node, 64);
  ASSERT_EQ(ibv_rereg_mr(open.mr(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_LOCAL_WRITE),
            0);
  EXPECT_EQ(write(open.address(), open.mr()->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryChangeTest, RegionMovesToOtherMemory) {
  Buffer open(node, 4096);
  std::vector<uint8_t> other(128);
  ASSERT_EQ(ibv_rereg_mr(open.mr(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, other.data(), other.size(), 0),
            0);
  EXPECT_EQ(open.mr()->addr, other.data());
  EXPECT_EQ(open.mr()->length, other.size());
  EXPECT_EQ(write(reinterpret_cast<uint64_t>(other.data()), open.mr()->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(other.data(), source.data(), 64), 0);
  EXPECT_EQ(write(open.address(), open.mr()->rkey), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(MemoryChangeTest, RegionMovesToAnotherDomain) {
  Buffer open(node, 64);
  ibv_pd* other = ibv_alloc_pd(node.context);
  ASSERT_EQ(ibv_rereg_mr(open.mr(), IBV_REREG_MR_CHANGE_PD, other, nullptr, 0, 0), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  EXPECT_EQ(write(open.address(), open.mr()->rkey), IBV_WC_REM_ACCESS_ERR);
  open.drop_mr();
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(MemoryChangeTest, ImpossibleChangesLeaveTheRegionAsItWas) {
  Buffer open(node, 64);
  EXPECT_EQ(ibv_rereg_mr(open.mr(), 0, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(ibv_rereg_mr(open.mr(), IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_WRITE),
            IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(
      ibv_rereg_mr(open.mr(), IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, reinterpret_cast<void*>(8), 64, 0),
      IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(write(open.address(), open.mr()->rkey), IBV_WC_SUCCESS);
}

TEST_F(MemoryChangeTest, WholeAddressSpaceIsOneRegion) {
  ibv_mr* all = ibv_reg_mr(node.pd, nullptr, SIZE_MAX, kReadWrite | IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(all, nullptr);
  EXPECT_EQ(write(target.address() + 8, all->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(target.data() + 8, source.data(), 64), 0);
  ibv_sge piece{target.address(), 4096, all->lkey};
  EXPECT_EQ(ibv_advise_mr(node.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &piece, 1), 0);
  ASSERT_EQ(ibv_dereg_mr(all), 0);
  EXPECT_EQ(ibv_advise_mr(node.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &piece, 1), EFAULT);
}

TEST_F(MemoryChangeTest, ParentDomainIsTheDomain) {
  ibv_td_init_attr thread_init{};
  ibv_td* thread = ibv_alloc_td(node.context, &thread_init);
  ASSERT_NE(thread, nullptr);
  ibv_parent_domain_init_attr init{};
  init.pd = node.pd;
  init.td = thread;
  ibv_pd* parent = ibv_alloc_parent_domain(node.context, &init);
  ASSERT_NE(parent, nullptr);
  ibv_mr* region = ibv_reg_mr(parent, target.data(), target.size(), kReadWrite);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(write(target.address(), region->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_dealloc_pd(parent), EBUSY);
  EXPECT_EQ(ibv_dealloc_td(thread), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dealloc_pd(parent), 0);
  EXPECT_EQ(ibv_dealloc_td(thread), 0);
}

TEST_F(MemoryChangeTest, ImportedObjectsAreTheSame) {
  Buffer open(node, 64);
  ibv_context* context = ibv_import_device(dup(node.context->cmd_fd));
  ASSERT_NE(context, nullptr);
  EXPECT_EQ(context->device, node.context->device);
  ibv_pd* pd = ibv_import_pd(context, node.pd->handle);
  ASSERT_NE(pd, nullptr);
  ibv_mr* region = ibv_import_mr(pd, open.mr()->handle);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->rkey, open.mr()->rkey);
  EXPECT_EQ(write(open.address(), region->rkey), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_import_pd(context, node.pd->handle + 1000), nullptr);
  EXPECT_EQ(ibv_import_mr(pd, open.mr()->handle + 1000), nullptr);
  ibv_unimport_mr(region);
  ibv_unimport_pd(pd);
  EXPECT_EQ(write(open.address(), open.mr()->rkey), IBV_WC_SUCCESS) << "the original lives on";
  EXPECT_EQ(ibv_close_device(context), 0);
}

TEST_F(MemoryChangeTest, ClockRuns) {
  ibv_values_ex values{};
  values.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  ASSERT_EQ(ibv_query_rt_values_ex(node.context, &values), 0);
  EXPECT_EQ(values.comp_mask, static_cast<uint32_t>(IBV_VALUES_MASK_RAW_CLOCK));
  EXPECT_NE(values.raw_clock.tv_sec + values.raw_clock.tv_nsec, 0);
}

}  // namespace
}  // namespace verbena::softverbs_test
