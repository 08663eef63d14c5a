// NCCL's own transport, taken out of a library that does not export it.
#include "common/nccl_ib.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/error.h"

namespace verbena::tools {
namespace {

std::string find_complaint(const auto& act) {
  try {
    act();
  } catch (const ToolError& error) {
    return error.what();
  }
  return "";
}

void expect_complaint(const auto& act, const std::string& words) {
  const std::string said = find_complaint(act);
  EXPECT_NE(said.find(words), std::string::npos) << said;
}

class NcclIb : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("SAMPLE_NCCL_VERSION"); }
};

TEST_F(NcclIb, TableVersionFollowsTheRelease) {
  EXPECT_EQ(find_table_version(21903), 7);
  EXPECT_EQ(find_table_version(22005), 8);
  EXPECT_EQ(find_table_version(22304), 8);
  EXPECT_EQ(find_table_version(22403), 9);
  EXPECT_EQ(find_table_version(22706), 10);
  EXPECT_EQ(find_table_version(22809), 11);
  EXPECT_EQ(find_table_version(22907), 11);
  EXPECT_EQ(find_table_version(23007), 12);
  for (const int version : {21805, 23100, 32809}) {
    expect_complaint([&] { find_table_version(version); }, "only for NCCL 2.19 to 2.30");
  }
  expect_complaint([] { find_table_version(23101); }, "NCCL 2.31.1");
}

TEST_F(NcclIb, FindsTheTableThatIsNotExported) {
  const NcclIbLibrary library(SAMPLE_NCCL);
  EXPECT_EQ(library.release(), "2.28.9");
  const auto transport = library.adapt();
  EXPECT_STREQ(transport->name(), "IB");
  EXPECT_EQ(transport->version(), 11);
  transport->init(nullptr);
  EXPECT_EQ(transport->read_properties(0).name, "sample_ib");
}

TEST_F(NcclIb, RefusesATableOfAnotherLength) {
  setenv("SAMPLE_NCCL_VERSION", "22706", 1);
  expect_complaint([] { NcclIbLibrary(SAMPLE_NCCL).adapt(); },
                   "NCCL 2.27.6: ncclNetIb has 176 bytes, but a table v10 has 160");
}

TEST_F(NcclIb, RefusesLibrariesWithoutIt) {
  expect_complaint([] { NcclIbLibrary("/nonexistent/libnccl.so.2"); },
                   "cannot load NCCL: /nonexistent/libnccl.so.2");
  expect_complaint([] { NcclIbLibrary library(SAMPLE_PLUGIN); }, "ncclGetVersion is missing");
  expect_complaint([] { find_data_symbol(SAMPLE_PLUGIN, "ncclNetIb"); }, "has no data symbol ncclNetIb");
  expect_complaint([] { find_data_symbol("/nonexistent", "ncclNetIb"); }, "cannot open /nonexistent");
}

TEST_F(NcclIb, RefusesFilesThatAreNoLibraries) {
  const auto file = std::filesystem::temp_directory_path() / ("nccl_ib_test." + std::to_string(getpid()));
  std::ofstream(file) << "not ELF";
  expect_complaint([&] { find_data_symbol(file, "ncclNetIb"); }, "is not an ELF file");
  std::ofstream(file) << std::string("\177ELF\2\1\1", 7) << std::string(40, '\0');
  EXPECT_NE(find_complaint([&] { find_data_symbol(file, "ncclNetIb"); }), "");
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace verbena::tools
