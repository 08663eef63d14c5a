#include "common/line_channel.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/clock.h"

namespace verbena::tools {
namespace {

class LineChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    near_ = LineChannel(pair[0]);
    far_ = LineChannel(pair[1]);
  }

  // As bytes come, whether or not they are whole lines.
  void send_bytes(const std::string& bytes) {
    ASSERT_EQ(send(far_.descriptor(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  }
  static int64_t soon() { return deadline_after_s(0.05); }
  static int64_t later() { return deadline_after_s(20); }

  LineChannel near_{-1};
  LineChannel far_{-1};
};

// verbena-perf's driver reads the greeting, its worker whatever follows, which may have come in one piece
// with it.
TEST_F(LineChannelTest, LeavesWhatFollowsToTheNextReader) {
  send_bytes("greeting\nhandle\nready\n");
  EXPECT_EQ(near_.receive_line(later()).line, "greeting");
  LineChannel heir(dup(near_.descriptor()));
  EXPECT_EQ(heir.receive_line(later()).line, "handle");
  EXPECT_EQ(near_.receive_line(later()).line, "ready");
}

TEST_F(LineChannelTest, ALineMayComeInPieces) {
  send_bytes("ab");
  EXPECT_EQ(near_.receive_line(soon()).status, LineChannel::Status::kTimeout);
  send_bytes("cd\nef");
  EXPECT_EQ(near_.receive_line(later()).line, "abcd");
  EXPECT_EQ(near_.receive_line(soon()).status, LineChannel::Status::kTimeout);
  send_bytes("\n\n");
  EXPECT_EQ(near_.receive_line(later()).line, "ef");
  EXPECT_EQ(near_.receive_line(later()).line, "");
}

TEST_F(LineChannelTest, LinesAreReadAfterTheirSenderHasGone) {
  const std::string line(20'000, 'x');
  EXPECT_TRUE(far_.send_line(line, later()));
  EXPECT_TRUE(far_.send_line("last", later()));
  far_ = LineChannel(-1);
  EXPECT_EQ(near_.receive_line(later()).line, line);
  EXPECT_EQ(near_.receive_line(later()).line, "last");
  EXPECT_EQ(near_.receive_line(later()).status, LineChannel::Status::kClosed);
}

TEST_F(LineChannelTest, NoOneKeepsALineGoingForEver) {
  const std::string part(1 << 16, 'x');
  LineChannel::Received received;
  for (int at = 0; at < 20 && received.status == LineChannel::Status::kTimeout; ++at) {
    send_bytes(part);
    received = near_.receive_line(soon());
  }
  EXPECT_EQ(received.status, LineChannel::Status::kClosed);
}

TEST_F(LineChannelTest, ASenderDoesNotWaitForEver) {
  EXPECT_FALSE(far_.send_line(std::string(8 << 20, 'x'), soon()));
}

}  // namespace
}  // namespace verbena::tools
