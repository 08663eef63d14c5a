#include "common/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace verbena::tools {
namespace {

constexpr int64_t kHourNs = 3'600'000'000'000;

// What a progress line writes if it is shown once, `quiet_ns` from its beginning being left out.
std::string write_progress(bool is_terminal, int64_t quiet_ns) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  {
    Progress progress(24, ends[1], is_terminal, quiet_ns);
    progress.show(3, "latency, 4K B" + std::string(200, '.'));
  }
  close(ends[1]);
  std::string text(1000, '\0');
  const ssize_t count = read(ends[0], text.data(), text.size());
  close(ends[0]);
  text.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return text;
}

TEST(Progress, IsALineThatIsClearedAgain) {
  const std::string text = write_progress(true, 0);
  EXPECT_NE(text.find("3 of 24 done, latency, 4K B"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const std::string cleared = "\r\033[K";
  ASSERT_GE(text.size(), cleared.size());
  EXPECT_EQ(text.substr(text.size() - cleared.size()), cleared);
  EXPECT_LT(text.size(), 100U) << "cut to the terminal's width";
}

TEST(Progress, IsForTerminalsAlone) {
  EXPECT_EQ(write_progress(false, 0), "");
}

TEST(Progress, AShortRunShowsNone) {
  EXPECT_EQ(write_progress(true, kHourNs), "");
}

}  // namespace
}  // namespace verbena::tools
