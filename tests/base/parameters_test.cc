#include "base/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/base/log_capture.h"
#include "tests/base/scoped_environment.h"

namespace verbena::base {
namespace {

class ParametersTest : public ::testing::Test {
 protected:
  std::string only_warning() const {
    const std::vector<std::string> warnings = capture_.warnings();
    EXPECT_EQ(warnings.size(), 1u);
    return warnings.empty() ? "" : warnings[0];
  }
  // Other tests of this program begin with the defaults again.
  void TearDown() override {
    for (const std::string& name : set_names_) unsetenv(name.c_str());
    EXPECT_TRUE(load_parameters());
  }
  void set(const std::string& name, const std::string& value) {
    environment_.set(name, value);
    set_names_.push_back(name);
  }

  LogCapture capture_;
  ScopedEnvironment environment_;
  std::vector<std::string> set_names_;
};

TEST_F(ParametersTest, AreTheDefaultsWithoutEnvironment) {
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().page_bytes, 16384);
  EXPECT_EQ(parameters().unpack_threshold_bytes, 32768);
  EXPECT_EQ(parameters().hca, "");
  EXPECT_EQ(parameter_origin("VERBENA_PAGE_BYTES"), "default");
  EXPECT_TRUE(capture_.warnings().empty());
}

TEST_F(ParametersTest, AreReadAnewByEveryLoad) {
  set("VERBENA_PAGE_BYTES", "4096");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().page_bytes, 4096);
  set("VERBENA_PAGE_BYTES", "8k");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().page_bytes, 8192);
  unsetenv("VERBENA_PAGE_BYTES");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().page_bytes, 16384);
}

TEST_F(ParametersTest, ADefaultFromElsewhereStandsBehindTheEnvironment) {
  set("VERBENA_PAGE_BYTES", "4096");
  ASSERT_TRUE(load_parameters());
  set_parameter_default("VERBENA_PAGE_BYTES", "8192", "a file");
  set_parameter_default("VERBENA_MIN_STRIPE_BYTES", "12345", "a file");
  EXPECT_EQ(parameters().page_bytes, 4096);
  EXPECT_EQ(parameters().min_stripe_bytes, 12345);
  EXPECT_EQ(parameter_origin("VERBENA_MIN_STRIPE_BYTES"), "a file");
  EXPECT_TRUE(capture_.warnings().empty());
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().min_stripe_bytes, 65536);
}

TEST_F(ParametersTest, ADefaultFromElsewhereThatIsOutOfRangeIsNotTaken) {
  ASSERT_TRUE(load_parameters());
  set_parameter_default("VERBENA_MIN_STRIPE_BYTES", "1", "a file");
  EXPECT_EQ(parameters().min_stripe_bytes, 65536);
  EXPECT_NE(only_warning().find("VERBENA_MIN_STRIPE_BYTES from a file: out of range (value 1"),
            std::string::npos);
  EXPECT_EQ(parameter_origin("VERBENA_MIN_STRIPE_BYTES"), "default");
}

TEST_F(ParametersTest, TakeAliases) {
  set("NCCL_IB_TIMEOUT", "22");
  set("NCCL_IB_HCA", "=mlx5_1");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().ack_timeout, 22);
  EXPECT_EQ(parameters().hca, "=mlx5_1");
  EXPECT_EQ(parameter_origin("VERBENA_ACK_TIMEOUT"), "NCCL_IB_TIMEOUT");
}

TEST_F(ParametersTest, PreferThePrimaryNameEvenToAWrongAlias) {
  set("NCCL_IB_TIMEOUT", "nonsense");
  set("VERBENA_ACK_TIMEOUT", "5");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().ack_timeout, 5);
  EXPECT_EQ(parameter_origin("VERBENA_ACK_TIMEOUT"), "VERBENA_ACK_TIMEOUT");
}

TEST_F(ParametersTest, TreatAnEmptyValueAsNotSet) {
  set("VERBENA_ACK_TIMEOUT", "");
  set("NCCL_IB_TIMEOUT", "9");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().ack_timeout, 9);
}

TEST_F(ParametersTest, NameAnOutOfRangeValueInOneLine) {
  set("VERBENA_CONNECT_TIMEOUT_MS", "5");
  const Outcome outcome = load_parameters();
  EXPECT_EQ(outcome.status(), Status::kInvalidUsage);
  EXPECT_EQ(
      only_warning(),
      "verbena: parameters: VERBENA_CONNECT_TIMEOUT_MS: out of range (value 5, range 100 to 86400000 ms)");
}

TEST_F(ParametersTest, FitWhatAnAliasSays) {
  set("NCCL_IB_TIMEOUT", "40");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().ack_timeout, 31);
  EXPECT_EQ(parameter_origin("VERBENA_ACK_TIMEOUT"), "NCCL_IB_TIMEOUT");
  EXPECT_EQ(only_warning(),
            "verbena: parameters: VERBENA_ACK_TIMEOUT from NCCL_IB_TIMEOUT: out of range, so the plugin uses "
            "the maximum, 31 (value 40, range 1 to 31 4.096 us * 2^n)");
}

TEST_F(ParametersTest, ANegativeAliasIsNotSet) {
  set("NCCL_IB_TIMEOUT", "-1");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameter_origin("VERBENA_ACK_TIMEOUT"), kDefaultOrigin);
}

struct GivenValue {
  const char *name, *value;
  int64_t expected;
  bool is_told;
};

// Each is good for NCCL, and none of them may keep the plugin from working.
TEST_F(ParametersTest, TakeEveryValueThatNcclTakes) {
  const std::pair<GivenValue, int64_t Parameters::*> values[] = {
      {{"NCCL_IB_QPS_PER_CONNECTION", "16", 8, true}, &Parameters::qps_per_connection},
      {{"NCCL_IB_QPS_PER_CONNECTION", "128", 8, true}, &Parameters::qps_per_connection},
      {{"NCCL_IB_RETRY_CNT", "10", 7, true}, &Parameters::retry_count},
      {{"NCCL_IB_TIMEOUT", "0", 20, true}, &Parameters::ack_timeout},
      {{"NCCL_IB_TIMEOUT", "-1", 20, false}, &Parameters::ack_timeout},
      {{"NCCL_IB_TIMEOUT", "soon", 20, true}, &Parameters::ack_timeout},
      {{"NCCL_IB_PKEY", "-1", 0, false}, &Parameters::pkey_index},
      {{"NCCL_IB_GID_INDEX", "-2", -1, false}, &Parameters::gid_index},
      {{"NCCL_IB_GID_INDEX", "3", 3, false}, &Parameters::gid_index},
      {{"NCCL_IB_SL", "-2", -1, false}, &Parameters::service_level},
      {{"NCCL_IB_TC", "300", 255, true}, &Parameters::traffic_class},
      {{"NCCL_IB_SUBNET_PREFIX_LEN", "64", 32, true}, &Parameters::subnet_prefix_bits},
      {{"NCCL_LL_BUFFSIZE", "-2", 524288, false}, &Parameters::nccl_ll_buffer_bytes},
      {{"NCCL_LL128_BUFFSIZE", "-2", 4915200, false}, &Parameters::nccl_ll128_buffer_bytes},
      {{"NCCL_NET_DEVICE_UNPACK_THRESHOLD", "-1", 32768, false}, &Parameters::unpack_threshold_bytes},
  };
  for (const auto& [given, field] : values) {
    set(given.name, given.value);
    capture_.clear();
    EXPECT_TRUE(load_parameters()) << given.name << "=" << given.value;
    EXPECT_EQ(parameters().*field, given.expected) << given.name << "=" << given.value;
    EXPECT_EQ(capture_.warnings().size(), given.is_told ? 1U : 0U) << given.name << "=" << given.value;
    unsetenv(given.name);
  }
}

TEST_F(ParametersTest, TakeEveryFlagAndWordThatNcclTakes) {
  for (const auto& [value, expected, is_told] :
       {std::tuple("-1", true, false), std::tuple("2", true, false), std::tuple("0", false, false),
        std::tuple("please", true, true)}) {
    set("NCCL_IB_ECE_ENABLE", value);
    capture_.clear();
    ASSERT_TRUE(load_parameters()) << value;
    EXPECT_EQ(parameters().ece, expected) << value;
    EXPECT_EQ(capture_.warnings().size(), is_told ? 1U : 0U) << value;
  }
  unsetenv("NCCL_IB_ECE_ENABLE");
  set("NCCL_IB_ADDR_FAMILY", "AF_UNIX");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(parameters().address_family, AddressFamily::kAuto);
}

TEST_F(ParametersTest, SayWhichSettingsHaveNoEffect) {
  set("NCCL_IB_USE_INLINE", "1");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(only_warning(),
            "verbena: parameters: NCCL_IB_USE_INLINE is set but has no effect on Verbena: grants are sent "
            "inline if "
            "the device supports it");
  set("NCCL_IB_USE_INLINE", "");
  capture_.clear();
  ASSERT_TRUE(load_parameters());
  EXPECT_TRUE(capture_.warnings().empty());
}

// Another thread may be in the middle of a getenv.
TEST_F(ParametersTest, TheEnvironmentGrowsWithoutTouchingWhatOthersRead) {
  constexpr const char* kNames[] = {"PARAMETERS_TEST_FIRST", "PARAMETERS_TEST_SECOND"};
  for (const char* name : kNames) {
    unsetenv(name);
    char** const before = environ;
    std::vector<char*> entries;
    for (char** entry = before; *entry != nullptr; ++entry) entries.push_back(*entry);
    EXPECT_TRUE(set_environment_default(name, "7"));
    EXPECT_NE(environ, before);
    EXPECT_STREQ(getenv(name), "7");
    EXPECT_FALSE(set_environment_default(name, "8")) << "it is set";
    EXPECT_STREQ(getenv(name), "7");
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(before[i], entries[i]) << "what a reader still has";
      ASSERT_EQ(environ[i], entries[i]);
    }
    EXPECT_EQ(before[entries.size()], nullptr);
  }
  setenv("PARAMETERS_TEST_THIRD", "9", 1);  // what the C library does with an array that is not its own
  EXPECT_STREQ(getenv("PARAMETERS_TEST_FIRST"), "7");
  for (const char* name : kNames) unsetenv(name);
  unsetenv("PARAMETERS_TEST_THIRD");
}

// tests/base/nccl_settings.txt lists what NCCL's IB transport reads.
TEST_F(ParametersTest, KnowEverySettingOfNcclsOwnTransport) {
  std::ifstream list(VERBENA_NCCL_SETTINGS);
  int settings = 0;
  for (std::string line; std::getline(list, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    ++settings;
    int times = 0;
    for (const settings::SettingOf<Parameters>& spec : list_parameter_settings()) {
      std::istringstream names(std::string(spec.name) + " " + spec.aliases);
      for (std::string name; names >> name;) times += name == line;
    }
    for (const settings::NamedSetting& setting : list_ignored_settings()) times += line == setting.name;
    EXPECT_EQ(times, 1) << line << " must be an alias, or be listed as without effect";
  }
  EXPECT_GE(settings, 52);
}

TEST_F(ParametersTest, NameEveryWrongValue) {
  set("VERBENA_SL", "16");
  set("VERBENA_BOUNCE", "moon");
  EXPECT_EQ(load_parameters().status(), Status::kInvalidUsage);
  EXPECT_EQ(capture_.warnings().size(), 2u);
}

TEST_F(ParametersTest, StayAsTheyWereWhenAValueIsWrong) {
  set("VERBENA_PAGE_BYTES", "4096");
  ASSERT_TRUE(load_parameters());
  set("VERBENA_PAGE_BYTES", "8192");
  set("VERBENA_SL", "16");
  EXPECT_FALSE(load_parameters());
  EXPECT_EQ(parameters().page_bytes, 4096);
}

TEST_F(ParametersTest, WarnOnceAboutAnUnknownNameAndSuggestTheClosest) {
  set("VERBENA_UNPACK_TRESHOLD", "1");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(only_warning(),
            "verbena: parameters: VERBENA_UNPACK_TRESHOLD is unknown and is ignored; did you mean "
            "VERBENA_UNPACK_THRESHOLD?");
}

TEST_F(ParametersTest, WarnAboutEveryUnknownNameOfOursAndOfNcclsIbTransport) {
  set("VERBENA_GIDINDEX", "1");
  set("VERBENA_", "");
  set("VERBENAX", "1");
  set("NCCL_IB_NO_SUCH_THING", "1");
  ASSERT_TRUE(load_parameters());
  EXPECT_EQ(capture_.warnings().size(), 3u);
}

}  // namespace
}  // namespace verbena::base
