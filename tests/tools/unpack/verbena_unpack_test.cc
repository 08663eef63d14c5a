#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "base/scratch_path.h"
#include "common/error.h"
#include "common/program.h"
#include "tools/run_tool.h"
#include "verbena-bench/unpack/kernel_set.h"
#include "verbena-bench/unpack/test_case.h"

namespace verbena::tools::unpack {
namespace {

ToolRun run_unpack(const std::string& environment, const std::string& arguments) {
  return run_tool(environment + " timeout -s KILL 240 " + VERBENA_BENCH + " unpack " + arguments);
}

const std::string kNoGpu = "FAKE_GPUS=0 LD_LIBRARY_PATH=" FAKE_FOLDER;
const std::string kOldGpu = "FAKE_GPUS=1 FAKE_GPU_CAPABILITIES=7 LD_LIBRARY_PATH=" FAKE_FOLDER;

TEST(VerbenaUnpack, SaysWhenThereIsNoGpu) {
  expect_run(run_unpack(kNoGpu, ""), 4, {"there is no CUDA device; verbena-bench unpack needs a GPU"});
  expect_run(run_unpack(kOldGpu, "--gpu 1"), 4, {"CUDA device 1 does not exist; the number of devices is 1"});
}

TEST(VerbenaUnpack, SaysWhenTheGpuIsTooOld) {
  expect_run(run_unpack(kOldGpu, ""), 4, {"the kernels need sm_80 or later"});
}

TEST(VerbenaUnpack, RefusesBadOptions) {
  for (const char* arguments : {"--page 3x", "--page 0", "--sizes 5m", "--src-align 16", "--dst-align -1",
                                "--slots 17", "--blocks 0", "--threads 100", "--threads 1024",
                                "--bounce disk", "--copy fast", "--copy nccl", "--volume 0", "--stages 1"}) {
    expect_run(run_unpack(kNoGpu, arguments), 2);
  }
  EXPECT_EQ(run_unpack("", "--help").status, 0);
}

// Out of the stand-in for a checkout in checkout/.
TEST(VerbenaUnpack, NcclsCodeCompilesIntoItsKernel) {
  const std::string compile = COMPILE_NCCL_KERNEL;
  EXPECT_EQ(run_tool(compile + " /nonexistent sm_90 /tmp/never").status, 1);
  expect_run(run_tool("CUDA_HOME=/nonexistent " + compile + " " NCCL_CHECKOUT " sm_90 /tmp/never"), 1,
             {"/nonexistent/bin/nvcc was not found"});
  const verbena::tests::ScratchPath image("nccl.cubin");
  expect_run(run_tool("CUDA_HOME=" CUDA_TOOLKIT " " + compile + " " NCCL_CHECKOUT " sm_90 " + image.get()),
             0);
  EXPECT_GT(std::filesystem::file_size(image.get()), 1000U);
}

// The same kernel over Verbena's code of the same names: neither sources of NCCL's nor another line.
TEST(VerbenaUnpack, NcclsKernelCompilesAgainstOurs) {
  const verbena::tests::ScratchPath image("ours.cubin");
  for (const char* architecture : {"sm_80", "sm_90"}) {
    expect_run(run_tool("CUDA_HOME=" CUDA_TOOLKIT " " COMPILE_NCCL_KERNEL " --ours " +
                        std::string(architecture) + " " + image.get()),
               0);
    EXPECT_GT(std::filesystem::file_size(image.get()), 1000U);
  }
}

TEST(Images, AreThere) {
  constexpr uint32_t kFatbinMagic = 0xBA55ED50;
  uint32_t magic = 0;
  ASSERT_GT(kernel_image().size(), sizeof magic);
  std::memcpy(&magic, kernel_image().data(), sizeof magic);
  EXPECT_EQ(magic, kFatbinMagic);
}

TEST(TestCase, ASweepIsEveryCombination) {
  Sweep sweep;
  sweep.blocks = {1, 2};
  sweep.threads = {32, 64, 96};
  sweep.bounces = {BouncePlace::kGpu, BouncePlace::kHost};
  sweep.source_aligns = {0, 1, 2, 3};
  std::set<std::string> names;
  for (const TestCase& test_case : list_cases(sweep)) names.insert(test_case.describe());
  EXPECT_EQ(names.size(), 2U * 3 * 2 * 4);
}

TEST(TestCase, TheTargetsAreEachThereOnce) {
  std::set<std::string> names;
  const std::vector<TestCase> cases = list_target_cases(132);
  for (const TestCase& test_case : cases) names.insert(test_case.describe());
  EXPECT_EQ(names.size(), cases.size());
  for (const char* name :
       {"8x512 4K/512K +0/+0 by 16 gpu", "8x512 4K/512K +0/+0 by 1 gpu", "132x512 4K/512K +0/+0 by 16 gpu",
        "8x512 64K/512K +0/+0 by 1 gpu", "8x512 4K/512K +1/+0 by 1 gpu", "8x512 4K/512K +0/+1 by 1 gpu",
        "132x512 4K/512K +0/+0 by 1 host"})
    EXPECT_EQ(names.count(name), 1U) << name;
}

TEST(Program, IsBoundedAndHeard) {
  const ProgramResult result =
      run_program({"/bin/sh", "-c", "cat; echo more >&2; exit 7"}, "some text\n", 10);
  EXPECT_EQ(result.status, 7);
  EXPECT_EQ(result.output, "some text\nmore\n");
  EXPECT_THROW(run_program({"/bin/sleep", "30"}, "", 0.1), ToolError);
  EXPECT_THROW(run_program({"/nonexistent"}, "", 1), ToolError);
}

}  // namespace
}  // namespace verbena::tools::unpack
