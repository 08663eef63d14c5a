// What there is of NVIDIA's driver library with devices that are not its own, and that its structures are
// laid out as its header has them. What it does is in tests/nccl/foreign_nic_test.cc.
#include "verbs/mlx5.h"

#if __has_include(<infiniband/mlx5dv.h>)
#include <infiniband/mlx5dv.h>
#endif

#include "support/fake_fixture.h"

namespace verbena::verbs {
namespace {

class Mlx5Test : public FakeDeviceTest {};

TEST_F(Mlx5Test, IsNotAskedAboutDevicesOfOthers) {
  EXPECT_EQ(device().mlx5(), nullptr);
  EXPECT_EQ(device().data_direct_path(), "");
}

#if __has_include(<infiniband/mlx5dv.h>)
// A header of any age has the beginning.
static_assert(offsetof(::mlx5dv_context, comp_mask) == offsetof(mlx5dv::mlx5dv_context, comp_mask));
static_assert(offsetof(::mlx5dv_context, cqe_comp_caps) ==
              offsetof(mlx5dv::mlx5dv_context, cqe_comp_caps_to_reg_c0));
static_assert(offsetof(::mlx5dv_qp_init_attr, create_flags) ==
              offsetof(mlx5dv::mlx5dv_qp_init_attr, create_flags));
static_assert(offsetof(::mlx5dv_qp_init_attr, send_ops_flags) ==
              offsetof(mlx5dv::mlx5dv_qp_init_attr, send_ops_flags));
static_assert(sizeof(::mlx5dv_qp_init_attr) == sizeof(mlx5dv::mlx5dv_qp_init_attr));
#endif

}  // namespace
}  // namespace verbena::verbs
