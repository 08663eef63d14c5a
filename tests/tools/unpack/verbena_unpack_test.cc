#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <set>
#include <string>

#include "base/scratch_path.h"
#include "common/error.h"
#include "common/program.h"
#include "tools/run_tool.h"
#include "verbena-unpack/images.h"
#include "verbena-unpack/nccl_source.h"
#include "verbena-unpack/test_case.h"

namespace verbena::tools::unpack {
namespace {

ToolRun run_unpack(const std::string& environment, const std::string& arguments) {
  return run_tool(environment + " timeout -s KILL 60 " + VERBENA_UNPACK + " " + arguments);
}

bool mentions(const ToolRun& run, const std::string& words) {
  return run.output.find(words) != std::string::npos;
}

const std::string kNoGpu = "FAKE_GPUS=0 LD_LIBRARY_PATH=" FAKE_FOLDER;
const std::string kOldGpu = "FAKE_GPUS=1 LD_LIBRARY_PATH=" FAKE_FOLDER;

TEST(VerbenaUnpack, SaysWhenThereIsNoGpu) {
  const ToolRun none = run_unpack(kNoGpu, "");
  EXPECT_EQ(none.status, 4);
  EXPECT_TRUE(mentions(none, "no CUDA device: verbena-unpack needs a GPU")) << none.output;
  const ToolRun other = run_unpack(kOldGpu, "--gpu 1");
  EXPECT_EQ(other.status, 4);
  EXPECT_TRUE(mentions(other, "no CUDA device 1: there are 1")) << other.output;
}

TEST(VerbenaUnpack, SaysWhenTheGpuIsTooOld) {
  const ToolRun run = run_unpack(kOldGpu, "");
  EXPECT_EQ(run.status, 4);
  EXPECT_TRUE(mentions(run, "the kernels are for sm_80 and later")) << run.output;
}

TEST(VerbenaUnpack, RefusesBadOptions) {
  for (const char* arguments :
       {"--page 3x", "--page 0", "--slice 5m", "--src-align 16", "--dst-align -1", "--slots 17", "--blocks 0",
        "--threads 100", "--threads 1024", "--bounce disk", "--copy fast", "--copy nccl", "--compile-only",
        "--volume 0", "--stages 1"}) {
    const ToolRun run = run_unpack(kNoGpu, arguments);
    EXPECT_EQ(run.status, 2) << arguments << "\n" << run.output;
  }
  EXPECT_EQ(run_unpack("", "--help").status, 0);
}

TEST(VerbenaUnpack, CompilesNcclsCodeIntoItsKernel) {
  if (find_nvcc().empty()) GTEST_SKIP() << "no nvcc where tests run";
  const ToolRun run = run_unpack("", "--compile-only --nccl-source " NCCL_CHECKOUT);
  EXPECT_EQ(run.status, 0) << run.output;
  EXPECT_TRUE(mentions(run, "compiles for sm_90")) << run.output;
}

TEST(VerbenaUnpack, SaysWhyNcclsCodeCannotBeHad) {
  const ToolRun nowhere = run_unpack("", "--compile-only --nccl-source /nonexistent");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(mentions(nowhere, "no /nonexistent/src/device/network/unpack/unpack.h")) << nowhere.output;
  const ToolRun no_compiler =
      run_unpack("CUDA_HOME=/nonexistent PATH=/bin", "--compile-only --nccl-source " NCCL_CHECKOUT);
  EXPECT_EQ(no_compiler.status, 1);
  EXPECT_TRUE(mentions(no_compiler, "no nvcc in the PATH")) << no_compiler.output;
  if (find_nvcc().empty()) GTEST_SKIP() << "no nvcc where tests run";
  const verbena::tests::ScratchPath scratch("verbena_unpack_checkout");
  const std::string& broken = scratch.get();
  std::filesystem::copy(NCCL_CHECKOUT, broken, std::filesystem::copy_options::recursive);
  std::filesystem::remove(broken + "/src/device/network/unpack/unpack_defs.h");
  const ToolRun run = run_unpack("", "--compile-only --nccl-source " + broken);
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(mentions(run, "nvcc cannot compile NCCL's unpack.h:")) << run.output;
  EXPECT_TRUE(mentions(run, "unpack_defs.h")) << run.output;
}

TEST(Images, AreThere) {
  constexpr uint32_t kFatbinMagic = 0xBA55ED50;
  uint32_t magic = 0;
  ASSERT_GT(kernel_image().size(), sizeof magic);
  std::memcpy(&magic, kernel_image().data(), sizeof magic);
  EXPECT_EQ(magic, kFatbinMagic);
  EXPECT_NE(nccl_kernel_text().find("unpack_nccl"), std::string_view::npos);
  EXPECT_NE(unpack_run_text().find("struct UnpackRun"), std::string_view::npos);
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
