#include "crypto/encrypted_stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

namespace verbena::crypto {
namespace {

constexpr StreamKey kOneWay{1, 2, 3}, kOtherWay{4, 5, 6};
constexpr auto kSize = EncryptedStream::kForBulk;

std::unique_ptr<EncryptedStream> make(const StreamKey& sending, const StreamKey& receiving) {
  return EncryptedStream::create(sending, receiving, kSize);
}

class EncryptedStreamTest : public testing::Test {
 protected:
  EncryptedStreamTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, network_), 0);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, bench_), 0);
  }
  ~EncryptedStreamTest() override {
    for (const int fd : {network_[0], network_[1], bench_[0], bench_[1]}) close(fd);
  }
  // The next record, taken off the way.
  std::string seal(EncryptedStream& stream, const std::string& text) {
    EXPECT_EQ(stream.send(bench_[0], text.data(), text.size()), static_cast<ssize_t>(text.size()));
    std::string record(text.size() + 100, '\0');
    record.resize(static_cast<size_t>(recv(bench_[1], record.data(), record.size(), 0)));
    return record;
  }
  void put(const std::string& record) {
    EXPECT_EQ(::send(network_[0], record.data(), record.size(), 0), static_cast<ssize_t>(record.size()));
  }
  // What arrives; its errno's name if nothing does.
  std::string receive(EncryptedStream& stream) {
    std::string text(1 << 10, '\0');
    const ssize_t count = stream.receive(network_[1], text.data(), text.size());
    if (count < 0) return errno == EBADMSG ? "EBADMSG" : errno == ECONNRESET ? "ECONNRESET" : "EAGAIN";
    text.resize(static_cast<size_t>(count));
    return text;
  }

  std::unique_ptr<EncryptedStream> near_ = make(kOneWay, kOtherWay), far_ = make(kOtherWay, kOneWay);
  int network_[2], bench_[2];
};

TEST_F(EncryptedStreamTest, WhatIsSentArrivesBothWays) {
  EXPECT_EQ(receive(*far_), "EAGAIN");
  const std::string one = seal(*near_, "one");
  put(one + seal(*near_, "two"));
  EXPECT_EQ(receive(*far_), "one");
  EXPECT_EQ(receive(*far_), "two");
  put(seal(*far_, "three"));
  EXPECT_EQ(receive(*near_), "three");
  close(std::exchange(network_[0], -1));
  EXPECT_EQ(receive(*far_), "") << "the end of the connection";
}

// Through a socket that takes little at a time, in pieces that end anywhere.
TEST_F(EncryptedStreamTest, ALongTextArrivesInItsOrder) {
  constexpr int kRoom = 4096;
  setsockopt(network_[0], SOL_SOCKET, SO_SNDBUF, &kRoom, sizeof(kRoom));
  std::string text(1 << 20, '\0'), arrived;
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 24);
  size_t sent = 0;
  int full = 0;
  while (arrived.size() < text.size()) {
    const ssize_t count = near_->send(network_[0], text.data() + sent, text.size() - sent);
    if (count > 0) sent += static_cast<size_t>(count);
    full += count < 0 && errno == EAGAIN ? 1 : 0;
    char piece[777];
    const ssize_t came = far_->receive(network_[1], piece, sizeof(piece));
    if (came > 0) arrived.append(piece, static_cast<size_t>(came));
    ASSERT_TRUE(came > 0 || errno == EAGAIN);
  }
  EXPECT_EQ(arrived, text);
  EXPECT_GT(full, 10) << "the socket was never full";
}

// Whoever polls the socket must hear of the next record.
TEST_F(EncryptedStreamTest, AControlStreamReadsNoFurtherThanItsRecord) {
  const auto from = EncryptedStream::create(kOneWay, kOtherWay, EncryptedStream::kForControl),
             to = EncryptedStream::create(kOtherWay, kOneWay, EncryptedStream::kForControl);
  const std::string one = seal(*from, "one"), two = seal(*from, "two");
  put(one + two);
  EXPECT_EQ(receive(*to), "one");
  std::string left(100, '\0');
  EXPECT_EQ(recv(network_[1], left.data(), left.size(), MSG_PEEK), static_cast<ssize_t>(two.size()));
  EXPECT_EQ(receive(*to), "two");
}

TEST_F(EncryptedStreamTest, NeitherTextNorRecordRepeats) {
  const std::string text = "the same words twice";
  const std::string one = seal(*near_, text), two = seal(*near_, text);
  EXPECT_EQ(one.size(), text.size() + 20);
  EXPECT_EQ(one.find("same"), one.npos);
  EXPECT_NE(one.substr(4), two.substr(4));
}

TEST_F(EncryptedStreamTest, AnyChangeIsFound) {
  for (size_t bit = 0; bit < 8 * (5 + 20); ++bit) {
    const auto from = make(kOneWay, kOtherWay), to = make(kOtherWay, kOneWay);
    std::string record = seal(*from, "words");
    record[bit / 8] = static_cast<char>(record[bit / 8] ^ 1 << bit % 8);
    put(record + std::string(1 << 16, 'x'));  // for a length that became longer
    std::string got;
    for (int i = 0; i < 3 && got != "EBADMSG"; ++i) got = receive(*to);
    EXPECT_EQ(got, "EBADMSG") << "bit " << bit;
    std::string rest(1 << 17, '\0');
    while (recv(network_[1], rest.data(), rest.size(), 0) > 0) continue;
  }
}

TEST_F(EncryptedStreamTest, RepeatedMissingAndMovedRecordsAreFound) {
  const std::string one = seal(*near_, "one"), two = seal(*near_, "two");
  put(one + one);
  EXPECT_EQ(receive(*far_), "one");
  EXPECT_EQ(receive(*far_), "EBADMSG");
  const auto other = make(kOtherWay, kOneWay);
  put(two);
  EXPECT_EQ(receive(*other), "EBADMSG");
}

TEST_F(EncryptedStreamTest, WhatComesBackIsNotThePeers) {
  put(seal(*near_, "one"));
  EXPECT_EQ(receive(*near_), "EBADMSG");
}

TEST_F(EncryptedStreamTest, AnotherKeyDecryptsNothing) {
  const auto stranger = make({9}, {9});
  put(seal(*stranger, "one"));
  EXPECT_EQ(receive(*far_), "EBADMSG");
}

TEST_F(EncryptedStreamTest, AnEndWithinARecordIsNoEnd) {
  std::string record = seal(*near_, "words");
  record.pop_back();
  put(record);
  EXPECT_EQ(receive(*far_), "EAGAIN");
  close(std::exchange(network_[0], -1));
  EXPECT_EQ(receive(*far_), "ECONNRESET");
}

TEST_F(EncryptedStreamTest, ALengthThatNobodySendsIsRefusedAtOnce) {
  for (const uint32_t length : {0U, static_cast<uint32_t>(kSize.record_bytes + 1), ~0U}) {
    const auto to = make(kOtherWay, kOneWay);
    put(std::string(reinterpret_cast<const char*>(&length), sizeof(length)));
    EXPECT_EQ(receive(*to), "EBADMSG");
  }
}

}  // namespace
}  // namespace verbena::crypto
