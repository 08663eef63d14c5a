#include "common/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace verbena::tools {
namespace {

// What one that is shown for longer than the quiet time writes.
std::string write_progress(bool is_terminal, bool is_long) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  {
    Progress progress(24, ends[1], is_terminal);
    progress.show(0, "at once");
    if (is_long) std::this_thread::sleep_for(std::chrono::milliseconds(600));
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
  const std::string text = write_progress(true, true);
  EXPECT_NE(text.find("3 of 24 done, latency, 4K B"), std::string::npos) << text;
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.find("at once"), std::string::npos) << "what is over soon needs none: " << text;
  const std::string cleared = "\r\033[K";
  ASSERT_GE(text.size(), cleared.size());
  EXPECT_EQ(text.substr(text.size() - cleared.size()), cleared);
  EXPECT_LT(text.size(), 100U) << "cut to the terminal's width";
}

TEST(Progress, IsForTerminalsAlone) {
  EXPECT_EQ(write_progress(false, true), "");
  EXPECT_EQ(write_progress(true, false), "");
}

}  // namespace
}  // namespace verbena::tools
