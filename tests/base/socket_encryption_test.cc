#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "base/socket.h"
#include "log_capture.h"

namespace verbena::base {
namespace {

std::shared_ptr<const HmacKey> make_key(const std::string& secret) {
  auto key = HmacKey::create(as_bytes(secret.data(), secret.size()));
  EXPECT_TRUE(key);
  return std::make_shared<const HmacKey>(std::move(*key));
}

// Two ends, and somebody between them who sees all that goes by.
class SocketEncryptionTest : public testing::Test {
 protected:
  SocketEncryptionTest() {
    near_ = make_end(near_network_);
    far_ = make_end(far_network_);
  }
  Socket make_end(FileDescriptor& network) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    network = FileDescriptor(ends[1]);
    return Socket(FileDescriptor(ends[0]), {});
  }
  void encrypt(const char* near_secret, const char* far_secret) {
    if (near_secret != nullptr) {
      EXPECT_TRUE(near_.encrypt(make_key(near_secret), ConnectionEnd::kSender));
    }
    if (far_secret != nullptr) {
      EXPECT_TRUE(far_.encrypt(make_key(far_secret), ConnectionEnd::kReceiver));
    }
  }
  void carry() {
    carry(near_network_.get(), far_network_.get());
    carry(far_network_.get(), near_network_.get());
  }
  void carry(int from, int to) {
    char bytes[4096];
    for (ssize_t count; (count = recv(from, bytes, sizeof(bytes), 0)) > 0;) {
      if (changes_at_ >= seen_.size() && changes_at_ < seen_.size() + static_cast<size_t>(count))
        bytes[changes_at_ - seen_.size()] ^= 1;
      seen_.append(bytes, static_cast<size_t>(count));
      EXPECT_EQ(send(to, bytes, static_cast<size_t>(count), MSG_NOSIGNAL), count);
    }
  }
  // What arrives of it, after many turns; empty if anything failed.
  std::string pass(Socket& from, Socket& to, const std::string& text) {
    std::string arrived(text.size(), '\0');
    size_t sent = 0, received = 0;
    for (int turn = 0; turn < 1000 && received < text.size(); ++turn) {
      const auto out = from.send_all(text.data(), text.size(), sent);
      carry();
      const auto in = to.receive_exact(arrived.data(), arrived.size(), received);
      carry();
      if (!out || !in) return "";
    }
    arrived.resize(received);
    return arrived;
  }
  bool has_said(const char* words) {
    for (const std::string& line : log_.warnings())
      if (line.find(words) != std::string::npos) return true;
    return false;
  }

  LogCapture log_;
  FileDescriptor near_network_, far_network_;
  Socket near_, far_;
  std::string seen_;
  size_t changes_at_ = SIZE_MAX;
};

constexpr char kSecret[] = "a secret of these tests", kOther[] = "another secret of these tests";
const std::string kText = "what nobody in between may read";

TEST_F(SocketEncryptionTest, WithoutItAllIsSeen) {
  EXPECT_EQ(pass(near_, far_, kText), kText);
  EXPECT_EQ(seen_, kText);
}

TEST_F(SocketEncryptionTest, WhatIsSaidArrivesAndCannotBeRead) {
  encrypt(kSecret, kSecret);
  EXPECT_FALSE(near_.awaits_peer());
  EXPECT_EQ(pass(near_, far_, kText), kText);
  EXPECT_EQ(pass(far_, near_, kText), kText);
  for (size_t at = 0; at + 8 < kText.size(); ++at) EXPECT_EQ(seen_.find(kText.substr(at, 8)), seen_.npos);
  EXPECT_GT(seen_.size(), 2 * kText.size());
  const std::string both = seen_;
  near_ = make_end(near_network_), far_ = make_end(far_network_);
  seen_.clear();
  encrypt(kSecret, kSecret);
  EXPECT_EQ(pass(near_, far_, kText), kText);
  EXPECT_NE(seen_, both.substr(0, seen_.size())) << "a connection has keys of its own";
}

TEST_F(SocketEncryptionTest, LongTextsPass) {
  encrypt(kSecret, kSecret);
  std::string text(60'000, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761U >> 24);
  EXPECT_EQ(pass(near_, far_, text), text);
  EXPECT_EQ(pass(far_, near_, text), text);
}

// One end polls before it writes: it must not be told to write what it cannot.
TEST_F(SocketEncryptionTest, AnEndAwaitsItsPeer) {
  encrypt(kSecret, kSecret);
  size_t sent = 0;
  EXPECT_FALSE(*near_.send_all(kText.data(), kText.size(), sent));
  EXPECT_TRUE(near_.awaits_peer());
  EXPECT_EQ(pass(near_, far_, kText), kText);
  EXPECT_FALSE(near_.awaits_peer());
}

TEST_F(SocketEncryptionTest, AnotherKeyIsSaidToBeTheCause) {
  encrypt(kSecret, kOther);
  EXPECT_EQ(pass(near_, far_, kText), "");
  EXPECT_TRUE(has_said("VERBENA_JOB_KEY_FILE differs"));
  EXPECT_TRUE(far_.is_peer_closed()) << "nothing counts any more";
}

TEST_F(SocketEncryptionTest, AListenerThatEncryptsRefusesOneThatDoesNot) {
  encrypt(nullptr, kSecret);
  EXPECT_EQ(pass(near_, far_, kText), "");
  EXPECT_TRUE(has_said("VERBENA_ENCRYPTION"));
}

TEST_F(SocketEncryptionTest, ACallerThatEncryptsRefusesOneThatDoesNot) {
  encrypt(kSecret, nullptr);
  EXPECT_EQ(pass(far_, near_, kText), "");
  EXPECT_TRUE(has_said("VERBENA_ENCRYPTION"));
}

TEST_F(SocketEncryptionTest, WhatIsChangedOnTheWayEndsTheConnection) {
  constexpr size_t kPreambles = 80;
  for (const size_t at :
       {size_t{0}, size_t{20}, size_t{60}, kPreambles, kPreambles + 4, kPreambles + 4 + kText.size()}) {
    near_ = make_end(near_network_), far_ = make_end(far_network_);
    seen_.clear();
    changes_at_ = at;
    encrypt(kSecret, kSecret);
    const std::string arrived = pass(near_, far_, kText);
    EXPECT_NE(arrived, kText) << "byte " << at;
  }
}

TEST_F(SocketEncryptionTest, NobodyTalksToHimself) {
  encrypt(kSecret, nullptr);
  size_t sent = 0, received = 0;
  std::string arrived(kText.size(), '\0');
  EXPECT_TRUE(near_.send_all(kText.data(), kText.size(), sent));
  carry(near_network_.get(), near_network_.get());
  EXPECT_FALSE(near_.receive_exact(arrived.data(), arrived.size(), received));
}

}  // namespace
}  // namespace verbena::base
