#include "base/parameter_report.h"

#include <gtest/gtest.h>

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

TEST(ParameterReport, IsTheCommittedPage) {
  std::ifstream file(VERBENA_PARAMETERS_PAGE);
  const std::string committed((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(committed, format_parameters_markdown())
      << "the table has changed: run verbena-parameters-page > docs/parameters.md in the build's bin folder";
}

}  // namespace
}  // namespace verbena::base
