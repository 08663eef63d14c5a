#include "common/cpu_unpack.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "common/error.h"

namespace verbena::tools {
namespace {

class CpuUnpack : public testing::Test {
 protected:
  CpuUnpack() {
    for (size_t index = 0; index < bounce_.size(); ++index) bounce_[index] = static_cast<std::byte>(index);
  }

  std::unique_ptr<NetUnpackMeta> meta_ = std::make_unique<NetUnpackMeta>();
  std::vector<std::byte> bounce_ = std::vector<std::byte>(256);
  UnpackDeviceHandle handle_{meta_.get(), bounce_.data(), kUnpackFreshHead};
  std::vector<std::byte> destination_ = std::vector<std::byte>(16);
};

TEST_F(CpuUnpack, FreshHandleStartsAtSlotZero) {
  EXPECT_EQ(compute_slot(kUnpackFreshHead, 0), 0U);
  EXPECT_EQ(compute_slot(kUnpackFreshHead, 15), 15U);
  EXPECT_EQ(compute_slot(kUnpackFreshHead, 16), 0U);
  EXPECT_EQ(compute_slot(0, 0), 1U);
}

TEST_F(CpuUnpack, EmptySlotLeavesTheBuffer) {
  const UnpackedSlot unpacked = unpack_slot(handle_, 0, destination_);
  EXPECT_EQ(unpacked.descriptor_count, 0U);
  EXPECT_EQ(destination_, std::vector<std::byte>(16));
}

TEST_F(CpuUnpack, CopiesPiecesOfItsSlotInAnyOrder) {
  meta_->mem[3][0] = {200, 6, 10};
  meta_->mem[3][1] = {17, 10, 0};
  meta_->cnt[3] = 2;
  const UnpackedSlot unpacked = unpack_slot(handle_, 3, destination_);
  EXPECT_EQ(unpacked.bytes, 16U);
  EXPECT_EQ(std::memcmp(destination_.data(), bounce_.data() + 17, 10), 0);
  EXPECT_EQ(std::memcmp(destination_.data() + 10, bounce_.data() + 200, 6), 0);
}

TEST_F(CpuUnpack, RefusesWhatLeavesTheBuffer) {
  meta_->cnt[0] = 1;
  meta_->mem[0][0] = {0, 16, 1};
  EXPECT_THROW(unpack_slot(handle_, 0, destination_), ToolError);
  meta_->mem[0][0] = {0, 1, ~0ULL};
  EXPECT_THROW(unpack_slot(handle_, 0, destination_), ToolError);
}

TEST_F(CpuUnpack, RefusesMoreThanASlotHolds) {
  meta_->cnt[0] = kUnpackMaxDescriptors + 1;
  EXPECT_THROW(unpack_slot(handle_, 0, destination_), ToolError);
}

}  // namespace
}  // namespace verbena::tools
