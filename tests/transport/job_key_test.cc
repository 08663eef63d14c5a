// Connections of which one or both ends have a job key, attackers that interfere, and that logs contain no
// secrets.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log_capture.h"
#include "transport/support/job_key.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

using protocol::Handle;

constexpr char kSecret[] = "Xyzzy-plugh-secret-0123456789";

struct Ends {
  base::Status sending = base::Status::kOk, receiving = base::Status::kOk;
  std::unique_ptr<Sender> sender;
  std::unique_ptr<Receiver> receiver;

  bool are_done() const {
    return (sender != nullptr || sending != base::Status::kOk) &&
           (receiver != nullptr || receiving != base::Status::kOk);
  }
};

class JobKeyTest : public testing::Test {
 protected:
  JobKeyTest() { listener_ = take(Listener::open(nic_, &handle_), "a listener"); }

  // Each end has its own settings; the sender's hello is made with the first, the listener reads it with the
  // second.
  Ends meet(const Settings& sending, const Settings& receiving) {
    apply_settings(sending);
    auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
    apply_settings(receiving);
    Ends ends;
    EXPECT_TRUE(poll_until([&] { return poll(*connector, ends); })) << "it hangs";
    return ends;
  }
  bool poll(Connector& connector, Ends& ends) {
    void* device_handle = nullptr;
    if (ends.sender == nullptr && ends.sending == base::Status::kOk) {
      auto sender = connector.poll();
      if (sender)
        ends.sender = std::move(*sender);
      else
        ends.sending = sender.error().status;
    }
    if (ends.receiver == nullptr && ends.receiving == base::Status::kOk) {
      auto receiver = listener_->poll({}, &device_handle);
      if (receiver)
        ends.receiver = std::move(*receiver);
      else
        ends.receiving = receiver.error().status;
    }
    return ends.are_done();
  }
  // Until the sender's end fails, or both stand. The listener waits on all the while.
  Ends knock(const Settings& sending, const Settings& receiving) {
    apply_settings(sending);
    auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
    apply_settings(receiving);
    Ends ends;
    EXPECT_TRUE(poll_until([&] { return poll(*connector, ends) || ends.sending != base::Status::kOk; }));
    return ends;
  }
  void expect_transfer(const Settings& settings) {
    Ends ends = meet(settings, settings);
    ASSERT_NE(ends.sender, nullptr);
    ASSERT_NE(ends.receiver, nullptr);
    ConnectedPair connection{std::move(ends.sender), {std::move(ends.receiver), nullptr}};
    Transfer transfer;
    transfer.messages.assign(5, {.length_bytes = 1000});
    expect_transfer_here(connection, nic_, nic_, transfer);
    EXPECT_TRUE(log_.warnings().empty());
  }
  // Whatever strangers did: the peer that has the key gets its connection.
  void expect_peer_connects() {
    Ends ends = meet(key_.settings(), key_.settings());
    EXPECT_NE(ends.sender, nullptr);
    EXPECT_NE(ends.receiver, nullptr);
  }
  void expect_refused(const Ends& ends, const char* receivers_words, const char* senders_words) {
    EXPECT_EQ(ends.sending, base::Status::kRemote);
    const auto warnings = log_.warnings();
    ASSERT_EQ(warnings.size(), 2U);
    for (const std::string& line : warnings) {
      EXPECT_NE(line.find("VERBENA_JOB_KEY_FILE"), std::string::npos) << line;
      const char* words = line.find("accept from") != std::string::npos ? receivers_words : senders_words;
      EXPECT_NE(line.find(words), std::string::npos) << line;
    }
  }
  void expect_no_secret_logged();
  bool is_noticed();

  Host host_;
  const Nic& nic_ = host_.nic();
  JobKeyFile key_{"key", kSecret}, other_key_{"other_key", "Quux-another-secret-0123456789"};
  Handle handle_;
  std::unique_ptr<Listener> listener_;
  base::LogCapture log_;
};

TEST_F(JobKeyTest, ACommonKeyConnects) {
  expect_transfer(key_.settings());
}

TEST_F(JobKeyTest, ASenderWithoutAKeyIsRefused) {
  const Ends ends = knock({}, key_.settings());
  EXPECT_EQ(ends.receiving, base::Status::kOk);
  expect_refused(ends, "the peer has no job key", "it has a job key but this rank has none");
  expect_peer_connects();
}

TEST_F(JobKeyTest, AReceiverWithoutAKeyRefuses) {
  const Ends ends = meet(key_.settings(), {});
  EXPECT_EQ(ends.receiving, base::Status::kRemote);
  expect_refused(ends, "the peer has a job key but this rank has none", "it has no job key");
}

TEST_F(JobKeyTest, AnotherKeyIsRefused) {
  const Ends ends = knock(other_key_.settings(), key_.settings());
  EXPECT_EQ(ends.receiving, base::Status::kOk);
  expect_refused(ends, "the peer has a different job key", "it has a different job key");
  expect_peer_connects();
}

Settings with_encryption(Settings settings) {
  settings.emplace_back("VERBENA_ENCRYPTION", "1");
  return settings;
}

TEST_F(JobKeyTest, BothEndsEncrypt) {
  expect_transfer(with_encryption(key_.settings()));
}

TEST_F(JobKeyTest, OnlyOneEndEncrypts) {
  const auto expect_said = [&] {
    const auto warnings = log_.warnings();
    EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(), [](const std::string& line) {
      return line.find("VERBENA_ENCRYPTION") != std::string::npos;
    }));
  };
  // A listener waits on for its peer, whichever of the two it is.
  const Ends encrypting = knock(with_encryption(key_.settings()), key_.settings());
  EXPECT_EQ(encrypting.sending, base::Status::kRemote);
  EXPECT_EQ(encrypting.receiving, base::Status::kOk);
  expect_said();
  const Ends plain = knock(key_.settings(), with_encryption(key_.settings()));
  EXPECT_EQ(plain.sending, base::Status::kRemote);
  EXPECT_EQ(plain.receiving, base::Status::kOk);
  expect_peer_connects();
}

// Carries bytes between a connector and the listener, and changes one on the way.
class Meddler {
 public:
  enum class Way { kToReceiver, kToSender };
  Meddler(Handle& handle, Way way, size_t offset) : way_(way), offset_(offset) {
    trap_ = take(base::Listener::open_at(
                     std::bit_cast<base::SocketAddress>(protocol::AddressRecord{4, 0, 0, {127, 0, 0, 1}})),
                 "a trap");
    onward_ =
        take(base::Socket::start_connect(std::bit_cast<base::SocketAddress>(handle.address)), "a way on");
    handle.address = std::bit_cast<protocol::AddressRecord>(trap_.address());
  }

  void step() {
    if (!caught_) {
      if (auto accepted = take(trap_.accept(), "a caller")) caught_ = std::move(*accepted);
      return;
    }
    carry(caught_, onward_, way_ == Way::kToReceiver, &to_receiver_);
    carry(onward_, caught_, way_ == Way::kToSender, &to_sender_);
  }

 private:
  void carry(base::Socket& from, base::Socket& to, bool meddles, size_t* carried) {
    uint8_t bytes[4096];
    const ssize_t count = recv(from.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count < 0) return;
    if (count == 0) {
      shutdown(to.fd(), SHUT_WR);
      return;
    }
    const auto length = static_cast<size_t>(count);
    if (meddles && offset_ >= *carried && offset_ - *carried < length) bytes[offset_ - *carried] ^= 1;
    *carried += length;
    EXPECT_EQ(send(to.fd(), bytes, length, MSG_NOSIGNAL), count);
  }

  Way way_;
  size_t offset_, to_receiver_ = 0, to_sender_ = 0;
  base::Listener trap_;
  base::Socket caught_, onward_;
};

bool JobKeyTest::is_noticed() {
  const auto warnings = log_.warnings();
  return std::any_of(warnings.begin(), warnings.end(), [](const std::string& line) {
    return line.find("VERBENA_JOB_KEY_FILE") != std::string::npos;
  });
}

struct Change {
  const char* name;
  Meddler::Way way;
  size_t offset;
};

class MeddlerTest : public JobKeyTest, public testing::WithParamInterface<Change> {};

TEST_P(MeddlerTest, IsNoticed) {
  apply_settings(key_.settings());
  Meddler meddler(handle_, GetParam().way, GetParam().offset);
  auto connector = take(Connector::start(nic_, handle_, -1), "a connector");
  Ends ends;
  EXPECT_TRUE(poll_until([&] {
    meddler.step();
    if (ends.sending != base::Status::kOk) connector.reset();  // as NCCL closes what failed
    if (connector) return poll(*connector, ends), is_noticed();
    void* device_handle = nullptr;
    if (auto receiver = listener_->poll({}, &device_handle); !receiver)
      ends.receiving = receiver.error().status;
    return is_noticed();
  }));
  EXPECT_TRUE(ends.receiver == nullptr && ends.receiving == base::Status::kOk)
      << "the listener waits on for the peer";
}

INSTANTIATE_TEST_SUITE_P(
    Changes, MeddlerTest,
    testing::Values(
        Change{"TheSendersQueuePair", Meddler::Way::kToReceiver, offsetof(protocol::Hello, queue_pair)},
        Change{"TheControlKeys", Meddler::Way::kToReceiver, offsetof(protocol::Hello, control_keys)},
        Change{"TheReceiversQueuePair", Meddler::Way::kToSender, offsetof(protocol::Welcome, queue_pair)},
        Change{"TheReceiversAddress", Meddler::Way::kToSender, offsetof(protocol::Welcome, rail)},
        Change{"TheReady", Meddler::Way::kToReceiver,
               sizeof(protocol::Hello) + offsetof(protocol::Ready, mac)}),
    [](const auto& change) { return std::string(change.param.name); });

// Attackers that saw the nonce, which is sent unencrypted: each loses its own connection.
class ImpostorTest : public JobKeyTest {
 protected:
  protocol::Hello make_hello() {
    apply_settings(key_.settings());
    auto auth = take(HandshakeAuth::create(), "proofs");
    protocol::Hello hello{};
    hello.header = protocol::make_header(sizeof(hello), handle_.header.nonce);
    hello.rails = hello.queue_pairs = 1;
    hello.traffic_class = -1;
    hello.control_address = 0x1000;
    hello.queue_pair[0].number = 77;
    const verbs::PortAddress port = nic_.rails[0]->address();
    std::memcpy(hello.rail[0].bytes, &port, sizeof(port));
    EXPECT_TRUE(auth.sign(hello));
    return hello;
  }
  base::Socket call() {
    auto socket =
        take(base::Socket::start_connect(std::bit_cast<base::SocketAddress>(handle_.address)), "a socket");
    EXPECT_TRUE(poll_until([&] { return take(socket.finish_connect(), "a connection"); }));
    return socket;
  }
  void listen() {
    void* device_handle = nullptr;
    auto receiver = listener_->poll({}, &device_handle);
    EXPECT_TRUE(receiver && !*receiver) << "the listener gave up";
  }
  // Says it, and is sent away.
  void expect_sent_away(const void* words, size_t length_bytes) {
    base::Socket socket = call();
    size_t sent = 0;
    EXPECT_TRUE(take(socket.send_all(words, length_bytes, sent), "words"));
    EXPECT_TRUE(poll_until([&] { return listen(), socket.is_peer_closed(); }));
  }
};

TEST_F(ImpostorTest, WhatNobodyOfTheJobSaysIsNotTheListenersError) {
  const protocol::Hello hello = make_hello();
  const auto spoil = [&](auto&& change) {
    protocol::Hello changed = hello;
    change(changed);
    expect_sent_away(&changed, sizeof(changed));
  };
  spoil([](protocol::Hello& changed) { ++changed.header.version; });
  spoil([](protocol::Hello& changed) { changed.header.length_bytes -= 8; });
  spoil([](protocol::Hello& changed) { changed.is_keyed = 0; });
  spoil([](protocol::Hello& changed) { changed.proof.mac[0] ^= 1; });
  expect_peer_connects();
}

// An attacker can replay a recorded Hello, without success.
TEST_F(ImpostorTest, AHelloThatIsSaidAgainIsNotEnough) {
  struct {
    protocol::Hello hello;
    protocol::Ready ready;
  } words{make_hello(), {}};
  words.ready.header = protocol::make_header(sizeof(words.ready), handle_.header.nonce);
  expect_sent_away(&words, sizeof(words));
  expect_peer_connects();
}

// However often.
TEST_F(ImpostorTest, HellosSaidAgainDoNotKeepThePeerOut) {
  const protocol::Hello hello = make_hello();
  std::vector<base::Socket> calls;
  while (calls.size() < 40) {
    calls.push_back(call());
    size_t sent = 0;
    EXPECT_TRUE(take(calls.back().send_all(&hello, sizeof(hello), sent), "hello"));
    listen();
  }
  expect_peer_connects();
}

std::string show_hex(const void* data, size_t length_bytes, bool is_reversed) {
  std::vector<uint8_t> bytes(static_cast<const uint8_t*>(data),
                             static_cast<const uint8_t*>(data) + length_bytes);
  if (is_reversed) std::reverse(bytes.begin(), bytes.end());
  std::string text;
  for (const uint8_t byte : bytes) {
    for (const int nibble : {byte >> 4, byte & 15}) text += "0123456789abcdef"[nibble];
  }
  return text;
}

// In any form that a log line could give it, whole or a good part.
void JobKeyTest::expect_no_secret_logged() {
  const uint64_t nonce = handle_.header.nonce;
  std::vector<std::string> secrets{std::string(kSecret).substr(0, 8),
                                   show_hex(kSecret, 6, false),
                                   std::to_string(nonce),
                                   std::to_string(static_cast<int64_t>(nonce)),
                                   show_hex(&nonce, sizeof(nonce), false),
                                   show_hex(&nonce, sizeof(nonce), true)};
  size_t lines = 0;
  for (const auto level : {base::LogLevel::kWarn, base::LogLevel::kInfo, base::LogLevel::kTrace}) {
    for (std::string line : log_.lines_of(level)) {
      ++lines;
      std::string lower = line;
      std::transform(lower.begin(), lower.end(), lower.begin(),
                     [](unsigned char c) { return std::tolower(c); });
      for (const std::string& secret : secrets) {
        EXPECT_EQ(line.find(secret), std::string::npos) << line;
        EXPECT_EQ(lower.find(secret), std::string::npos) << line;
      }
    }
  }
  EXPECT_GT(lines, 0U) << "nothing was looked at";
}

TEST_F(JobKeyTest, NoSecretIsLogged) {
  meet(key_.settings(), key_.settings());
  base::log_info("a line, so that there is one");
  expect_no_secret_logged();
  listener_ = take(Listener::open(nic_, &handle_), "a listener");
  knock(key_.settings(), other_key_.settings());
  expect_no_secret_logged();
  // A stranger's nonce may be that of another connection of ours.
  listener_ = take(Listener::open(nic_, &handle_), "a listener");
  Handle forged = handle_;
  forged.header.nonce ^= 2;
  auto connector = take(Connector::start(nic_, forged, -1), "a connector");
  Ends ends;
  EXPECT_TRUE(poll_until([&] { return poll(*connector, ends), ends.sending != base::Status::kOk; }));
  expect_no_secret_logged();
  handle_ = forged;
  expect_no_secret_logged();
}

}  // namespace
}  // namespace verbena::transport
