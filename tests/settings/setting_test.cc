#include "base/parameters.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace verbena::settings {
namespace {

using namespace base;

const SettingOf<Parameters>& spec_of(const std::string& name) {
  for (const SettingOf<Parameters>& spec : list_parameter_settings()) {
    if (name == spec.name) return spec;
  }
  ADD_FAILURE() << "no parameter " << name;
  return list_parameter_settings()[0];
}

// The problem that a value has; empty if none.
std::string problem_of(const std::string& name, const std::string& value) {
  Parameters target;
  return set_value(spec_of(name), value, target);
}

template <typename T>
T parse(const std::string& name, const std::string& value, T Parameters::*field) {
  Parameters target;
  EXPECT_EQ(set_value(spec_of(name), value, target), "") << name << "=" << value;
  return target.*field;
}

TEST(Setting, ReadsFlags) {
  for (const char* word : {"0", "false", "No", "OFF"}) {
    EXPECT_FALSE(parse("VERBENA_ECE", word, &Parameters::ece)) << word;
  }
  for (const char* word : {"1", "true", "Yes", "ON", " 1 "}) {
    EXPECT_TRUE(parse("VERBENA_ECE", word, &Parameters::ece)) << word;
  }
  for (const char* word : {"2", "-1", "maybe", "10"}) {
    EXPECT_EQ(problem_of("VERBENA_ECE", word), "not a boolean") << word;
  }
}

TEST(Setting, ReadsNumbers) {
  EXPECT_EQ(parse("VERBENA_TC", "106", &Parameters::traffic_class), 106);
  EXPECT_EQ(parse("VERBENA_TC", "0x6A", &Parameters::traffic_class), 106);
  EXPECT_EQ(parse("VERBENA_TC", "-1", &Parameters::traffic_class), -1);
  EXPECT_EQ(parse("VERBENA_TC", "0", &Parameters::traffic_class), 0);
  for (const char* text :
       {"1x", "x", "", "-", "--1", "0x", "1 2", "1.5", "0106", "4k", "99999999999999999999"}) {
    EXPECT_EQ(problem_of("VERBENA_TC", text), "not a number") << text;
  }
}

TEST(Setting, KeepsNumbersInTheirRange) {
  EXPECT_EQ(parse("VERBENA_ACK_TIMEOUT", "1", &Parameters::ack_timeout), 1);
  EXPECT_EQ(parse("VERBENA_ACK_TIMEOUT", "31", &Parameters::ack_timeout), 31);
  EXPECT_EQ(problem_of("VERBENA_ACK_TIMEOUT", "0"), "out of range");
  EXPECT_EQ(problem_of("VERBENA_ACK_TIMEOUT", "32"), "out of range");
}

TEST(Setting, ReadsSizesWithSuffixes) {
  EXPECT_EQ(parse("VERBENA_BOUNCE_BYTES", "2m", &Parameters::bounce_bytes), 2 << 20);
  EXPECT_EQ(parse("VERBENA_BOUNCE_BYTES", "4G", &Parameters::bounce_bytes), 4LL << 30);
  EXPECT_EQ(parse("VERBENA_BOUNCE_BYTES", "0x100000", &Parameters::bounce_bytes), 1 << 20);
  EXPECT_EQ(parse("VERBENA_MIN_STRIPE_BYTES", "4k", &Parameters::min_stripe_bytes), 4096);
  EXPECT_EQ(problem_of("VERBENA_BOUNCE_BYTES", "5g"), "out of range");
  for (const char* text : {"k", "4kb", "4t", "", "9223372036854775807k", "unlimited"}) {
    EXPECT_EQ(problem_of("VERBENA_BOUNCE_BYTES", text), "not a size") << text;
  }
}

TEST(Setting, KeepsPowersOfTwo) {
  EXPECT_EQ(parse("VERBENA_PAGE_BYTES", "32k", &Parameters::page_bytes), 32768);
  EXPECT_EQ(problem_of("VERBENA_PAGE_BYTES", "12k"), "not a power of two");
  EXPECT_EQ(problem_of("VERBENA_PAGE_BYTES", "128k"), "out of range");
}

TEST(Setting, ReadsUnlimited) {
  const auto field = &Parameters::unpack_threshold_bytes;
  EXPECT_EQ(parse("VERBENA_UNPACK_THRESHOLD", "unlimited", field), kUnlimitedBytes);
  EXPECT_EQ(parse("VERBENA_UNPACK_THRESHOLD", "0", field), 0);
  EXPECT_EQ(parse("VERBENA_UNPACK_THRESHOLD", "4g", field), 4LL << 30);
  EXPECT_EQ(problem_of("VERBENA_UNPACK_THRESHOLD", "5g"), "out of range");
  EXPECT_EQ(problem_of("VERBENA_UNPACK_THRESHOLD", "-1"), "out of range");
}

TEST(Setting, ReadsChoices) {
  EXPECT_EQ(parse("VERBENA_BOUNCE", "gpu", &Parameters::bounce), BouncePlace::kGpu);
  EXPECT_EQ(parse("VERBENA_BOUNCE", "HOST", &Parameters::bounce), BouncePlace::kHost);
  EXPECT_EQ(parse("VERBENA_WORD_ORDER", "completed", &Parameters::word_order), WordOrder::kCompleted);
  EXPECT_EQ(parse("VERBENA_ADDRESS_FAMILY", "AF_INET6", &Parameters::address_family), AddressFamily::kInet6);
  EXPECT_EQ(problem_of("VERBENA_BOUNCE", "gpus"), "not one of the allowed words");
  EXPECT_EQ(problem_of("VERBENA_BOUNCE", "auto|host"), "not one of the allowed words");
}

TEST(Setting, ReadsTextAsItIs) {
  EXPECT_EQ(parse("VERBENA_HCA", "^=mlx5_0:1,mlx5_2", &Parameters::hca), "^=mlx5_0:1,mlx5_2");
}

TEST(Setting, LeavesTheTargetAloneWhenAValueIsWrong) {
  Parameters target;
  target.retry_count = 3;
  EXPECT_NE(set_value(spec_of("VERBENA_RETRY_COUNT"), "8", target), "");
  EXPECT_EQ(target.retry_count, 3);
}

// What is shown can be read again and means the same, and every default keeps its own rules.
TEST(Setting, ShowsWhatItReads) {
  const Parameters defaults;
  for (const SettingOf<Parameters>& spec : list_parameter_settings()) {
    Parameters target;
    const std::string shown = show_value(spec, defaults);
    EXPECT_EQ(set_value(spec, shown, target), "") << spec.name;
    EXPECT_EQ(show_value(spec, target), shown) << spec.name;
  }
}

TEST(Setting, ShowsSizesAndRanges) {
  Parameters source;
  source.min_stripe_bytes = 4097;
  EXPECT_EQ(show_value(spec_of("VERBENA_MIN_STRIPE_BYTES"), source), "4097");
  EXPECT_EQ(show_value(spec_of("VERBENA_UNPACK_THRESHOLD"), source), "32k");
  EXPECT_EQ(show_range(spec_of("VERBENA_UNPACK_THRESHOLD")), "0 to 4g or unlimited");
  EXPECT_EQ(show_range(spec_of("VERBENA_PAGE_BYTES")), "4k to 64k, a power of two");
  EXPECT_EQ(show_range(spec_of("VERBENA_GID_INDEX")), "-1 to 255");
  EXPECT_EQ(show_range(spec_of("VERBENA_BOUNCE")), "auto or host or gpu");
  EXPECT_EQ(show_range(spec_of("VERBENA_ECE")), "0 or 1");
  EXPECT_EQ(show_range(spec_of("VERBENA_UNPACK")), "auto or 0 or 1");
}

TEST(Setting, NamesAreUniqueAndDocumentedInOneLine) {
  std::set<std::string> names;
  for (const SettingOf<Parameters>& spec : list_parameter_settings()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    const bool is_nccls = std::string(spec.doc).starts_with("Setting of NCCL: ");  // read, not ours to name
    EXPECT_TRUE(std::string(spec.name).starts_with(is_nccls ? "NCCL_" : "VERBENA_")) << spec.name;
    EXPECT_EQ(std::string(spec.doc).find('\n'), std::string::npos) << spec.name;
    EXPECT_GT(std::strlen(spec.doc), 10u) << spec.name;
  }
}

}  // namespace
}  // namespace verbena::settings
