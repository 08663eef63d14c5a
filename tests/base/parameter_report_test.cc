#include "base/parameter_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/parameters.h"
#include "tests/base/scoped_environment.h"

namespace verbena::base {
namespace {

ParameterRow row_of(const std::string& name) {
  for (const ParameterRow& row : list_parameters()) {
    if (row.name == name) return row;
  }
  ADD_FAILURE() << "no row " << name;
  return {};
}

TEST(ParameterReport, ShowsDefaultsAndMeaning) {
  const ParameterRow row = row_of("VERBENA_UNPACK_THRESHOLD");
  EXPECT_EQ(row.type, "size");
  EXPECT_EQ(row.fallback, "32k");
  EXPECT_EQ(row.unit, "bytes");
  EXPECT_EQ(row.aliases, "NCCL_NET_DEVICE_UNPACK_THRESHOLD");
  EXPECT_EQ(row.origin, "default");
  EXPECT_FALSE(row.doc.empty());
}

TEST(ParameterReport, ShowsTheValueInForceAndItsOrigin) {
  {
    ScopedEnvironment environment;
    environment.set("NCCL_IB_SL", "3");
    ASSERT_TRUE(load_parameters());
    EXPECT_EQ(row_of("VERBENA_SL").value, "3");
    EXPECT_EQ(row_of("VERBENA_SL").origin, "NCCL_IB_SL");
    EXPECT_EQ(row_of("VERBENA_SL").fallback, "-1");
  }
  ASSERT_TRUE(load_parameters());
}

std::string read_file(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(ParameterReport, IsTheCommittedPage) {
  EXPECT_EQ(read_file(VERBENA_PARAMETERS_PAGE), format_parameters_markdown())
      << "the tables have changed: run verbena-parameters-page > docs/parameters.md in the build's bin "
         "folder";
}

TEST(ParameterReport, IsThePythonPackagesTable) {
  EXPECT_EQ(read_file(VERBENA_PYTHON_TABLE), format_parameters_python())
      << "the tables have changed: run verbena-parameters-page --python > python/verbena/setting_table.py in "
         "the build's bin folder";
}

TEST(ParameterReport, ShowsWhatOtherComponentsRead) {
  ScopedEnvironment environment;
  environment.set("SOFTVERBS_DEVICES", "3");
  environment.set("SOFTVERBS_PORT", "80");
  environment.set("AITER_QUICK_REDUCE_QUANTIZATION", "int6");
  EXPECT_EQ(row_of("SOFTVERBS_DEVICES").value, "3");
  EXPECT_EQ(row_of("SOFTVERBS_DEVICES").origin, "SOFTVERBS_DEVICES");
  EXPECT_EQ(row_of("SOFTVERBS_PORT").value, "23552") << "out of range: the default is used";
  EXPECT_EQ(row_of("SOFTVERBS_PORT").origin, "default");
  EXPECT_EQ(row_of("VERBENA_QUICK_REDUCE_QUANTIZATION").value, "INT6");
  EXPECT_EQ(row_of("VERBENA_QUICK_REDUCE_QUANTIZATION").origin, "AITER_QUICK_REDUCE_QUANTIZATION");
}

TEST(ParameterReport, HidesWhatHardlyAnybodyNeeds) {
  const auto rows = list_parameters();
  EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](const ParameterRow& row) { return row.is_advanced; }),
            18);
  EXPECT_TRUE(row_of("VERBENA_RAIL_RETRY_MS").is_advanced);
  EXPECT_TRUE(row_of("SOFTVERBS_SPIN_POLLS").is_advanced);
  EXPECT_FALSE(row_of("VERBENA_HCA").is_advanced);
}

}  // namespace
}  // namespace verbena::base
