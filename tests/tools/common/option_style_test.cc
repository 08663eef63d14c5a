// The options that all tools share: what they accept, and the page that explains them.
#include "common/option_style.h"

#include <gtest/gtest.h>

#include <sstream>

#include "common/error.h"

namespace verbena::tools {
namespace {

struct Sample {
  SizeOptions sizes;
  OutputOptions output;
  double timeout_s = 60;
  int status = -1;
  std::string help;
};

Sample parse(std::vector<const char*> arguments) {
  Sample sample;
  CLI::App app("Does something.");
  add_size_options(app, sample.sizes);
  add_duration_option(app, "--timeout", sample.timeout_s, "any one step may take so long", 1, 3600);
  add_output_options(app, sample.output);
  style_help(app, "sample");
  sample.help = app.help();
  arguments.insert(arguments.begin(), "sample");
  testing::internal::CaptureStderr();
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    resolve_sizes(sample.sizes);
    check_output_options(sample.output);
  } catch (const CLI::ParseError& error) {
    sample.status = leave_parsing(app, error);
  }
  testing::internal::GetCapturedStderr();
  return sample;
}

TEST(OptionStyle, SizesAreSpelledInSeveralWays) {
  const std::vector<uint64_t> expected{8, 32, 64};
  EXPECT_EQ(resolve_sizes(parse({"--sizes", "8:64"}).sizes), expected);
  EXPECT_EQ(resolve_sizes(parse({"--sizes", "8:64", "-f", "4"}).sizes), expected);
  EXPECT_EQ(resolve_sizes(parse({"--sizes=8,32,64"}).sizes), expected);
  EXPECT_EQ(resolve_sizes(parse({"--size", "1M"}).sizes), std::vector<uint64_t>{1 << 20});
  EXPECT_EQ(resolve_sizes(parse({}).sizes).back(), uint64_t{64} << 20);
}

TEST(OptionStyle, TimesHaveUnits) {
  EXPECT_EQ(parse({"--timeout", "90"}).timeout_s, 90);
  EXPECT_EQ(parse({"--timeout", "2m"}).timeout_s, 120);
  EXPECT_EQ(parse({"--timeout", "500ms"}).status, kExitUsage) << "below the least";
}

TEST(OptionStyle, AResultGoesToAFileOrToStandardOutput) {
  EXPECT_EQ(parse({"--json", "file"}).output.json, "file");
  EXPECT_EQ(parse({"--json", "-"}).output.json, "-");
  EXPECT_EQ(parse({"--json"}).output.json, "-");
  EXPECT_EQ(parse({"--csv", "--json", "file"}).output.csv, "-");
  EXPECT_TRUE(parse({"--csv"}).output.takes_stdout());
  EXPECT_FALSE(parse({"--csv=file"}).output.takes_stdout());
}

TEST(OptionStyle, UsageIsToldByTheExitStatus) {
  EXPECT_EQ(parse({}).status, -1);
  EXPECT_EQ(parse({"--json", "--csv"}).status, kExitUsage) << "both on standard output";
  EXPECT_EQ(parse({"--sizes", "64:8"}).status, kExitUsage);
  EXPECT_EQ(parse({"--timeout", "soon"}).status, kExitUsage);
  EXPECT_EQ(parse({"--nonsense"}).status, kExitUsage);
}

TEST(OptionStyle, HelpFitsAScreen) {
  const std::string help = parse({}).help;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 110U) << line;
  EXPECT_NE(help.find("(default 60s)"), std::string::npos) << "in its unit:\n" << help;
  EXPECT_NE(help.find("--factor N "), std::string::npos) << help;
  EXPECT_NE(help.find("to 1048576; default 4"), std::string::npos) << help;
  EXPECT_EQ(help.find("--size "), std::string::npos) << "hidden:\n" << help;
  EXPECT_NE(help.find("Exit status:"), std::string::npos) << help;
}

}  // namespace
}  // namespace verbena::tools
