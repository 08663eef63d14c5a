// Peers that passed the handshake and then break the protocol: an error that says so, never a hang, a write
// outside a buffer or a page that is lost.
#include <gtest/gtest.h>

#include <atomic>

#include "base/log_capture.h"
#include "protocol/immediate.h"
#include "transport/support/pool_probe.h"
#include "transport/support/raw_peer.h"

namespace verbena::transport {
namespace {

using protocol::encode_tag;

constexpr uint32_t kPageBytes = 4096, kWindowPages = 40;

struct Lie {
  const char* name;
  void (*tell)(RawSender& sender);
};

void PrintTo(const Lie& lie, std::ostream* out) {
  *out << lie.name;
}

void expect_refused(AcceptedEnd& end, Request* request) {
  base::Status status = base::Status::kOk;
  bool is_done = false;
  EXPECT_TRUE(poll_until([&] {
    uint64_t bytes = 0;
    status = end.receiver->test(*static_cast<ReceiveMessage*>(request), &is_done, &bytes).status();
    return is_done || status != base::Status::kOk;
  }));
  EXPECT_EQ(status, base::Status::kRemote);
  EXPECT_FALSE(is_done);
}

class LyingSenderTest : public testing::TestWithParam<Lie> {
 protected:
  Host host_;
  const Nic& nic_ = host_.nic();
};

TEST_P(LyingSenderTest, IsFoundOutAndCostsNoPage) {
  PoolProbe probe(nic_);
  apply_settings(PoolProbe::make_settings(kWindowPages));
  {
    const base::LogCapture log;
    Memory memory(nic_, 1 << 16);
    AcceptedEnd end;
    RawSender sender(nic_, true, &end);
    Request* request = nullptr;
    ASSERT_TRUE(end.receiver->post(memory.bytes().data(), memory.bytes().size(), memory.registration(),
                                   ReceiveClass::kUnpacked, &request));
    GetParam().tell(sender);
    expect_refused(end, request);
    ASSERT_EQ(log.warnings().size(), 1U);
    EXPECT_NE(log.warnings()[0].find("receive from 127.0.0.1:"), std::string::npos) << log.warnings()[0];
  }
  probe.expect_whole();
}

// Of a chunk that comes with `length_bytes`.
uint32_t tag(uint8_t sequence, uint16_t index, bool last, uint32_t length_bytes, bool direct = false) {
  return encode_tag({sequence, index, last, direct}, length_bytes);
}
constexpr uint32_t kShort = 8;

// To the place that the receiver grants the first message.
void write_granted(RawSender& sender, uint32_t imm, uint32_t length_bytes) {
  const protocol::Grant& grant = sender.control().grants[0];
  ASSERT_TRUE(poll_until([&] {
    return std::atomic_ref(const_cast<uint64_t&>(grant.stamp)).load() == protocol::Grant::make_stamp(0, 0);
  }));
  sender.write(imm, grant.address, grant.remote_keys[0], length_bytes);
}

const Lie kLies[] = {
    {"WrittenBeforeAndNothingWas",
     [](RawSender& s) { s.send(protocol::kWrittenBit | protocol::kLastBit, kShort); }},
    {"AMessageTheRingDoesNotReach",
     [](RawSender& s) { s.send(tag(protocol::kMessageRing, 0, true, kShort), kShort); }},
    {"AMessageLongAgo", [](RawSender& s) { s.send(tag(0xFF, 0, true, kShort), kShort); }},
    {"AHoleInAPage", [](RawSender& s) { s.send(tag(0, 0, false, kPageBytes - 1), kPageBytes - 1); }},
    {"AStagedChunkThatSaysDirect", [](RawSender& s) { s.send(tag(0, 0, true, kShort, true), kShort); }},
    {"AHoleInAStagedWrite", [](RawSender& s) { s.write(tag(0, 0, false, 0), 0, 0, 0); }},
    {"AStagedWriteOfNoReceive", [](RawSender& s) { s.write(tag(1, 0, true, 0), 0, 0, 0); }},
    {"ADirectChunkOfNoReceive", [](RawSender& s) { s.write(tag(1, 0, true, 0, true), 0, 0, 0); }},
    {"NoBytesOfAMessageThatHasSome", [](RawSender& s) { s.write(tag(0, 0, true, kShort, true), 0, 0, 0); }},
    {"NoBytesOfAStagedMessageThatHasSome", [](RawSender& s) { s.send(tag(0, 0, true, kShort), 0); }},
    {"NoBytesOfAPage", [](RawSender& s) { s.send(tag(0, 0, false, kPageBytes), 0); }},
    {"BytesOfAnEmptyMessage", [](RawSender& s) { s.send(tag(0, 0, true, 0), kShort); }},
    {"LessThanAnnounced", [](RawSender& s) { s.send(tag(0, 0, true, kShort), kShort - 1); }},
    {"MoreThanAnnounced", [](RawSender& s) { s.send(tag(0, 0, true, kShort), kShort + 1); }},
    {"LessThanAnnouncedInItsPlace",
     [](RawSender& s) { write_granted(s, tag(0, 0, true, kPageBytes, true), kPageBytes - 1); }},
    {"AUnitBehindWhatWasWrittenBefore",
     [](RawSender& s) {
       write_granted(s, encode_tag({0, 0, true, true, protocol::kWrittenUnitBytes}, 0),
                     protocol::kWrittenUnitBytes);
     }},
    {"TwoEnds",
     [](RawSender& s) {
       s.send(tag(0, 3, true, kShort), kShort);
       s.send(tag(0, 4, true, kShort), kShort);
     }},
    {"BothKindsInOneMessage",
     [](RawSender& s) {
       s.send(tag(0, 0, false, kPageBytes), kPageBytes);
       s.write(tag(0, 1, true, 0, true), 0, 0, 0);
     }},
    {"NoEnd", [](RawSender& s) { s.send(tag(0, 1023, false, kPageBytes), kPageBytes); }},
    {"MoreThanItsWindow",
     [](RawSender& s) {
       for (uint16_t i = 0; i <= kWindowPages; ++i) s.send(tag(0, i, false, kPageBytes), kPageBytes);
     }},
};

INSTANTIATE_TEST_SUITE_P(Lies, LyingSenderTest, testing::ValuesIn(kLies),
                         [](const auto& lie) { return std::string(lie.param.name); });

// A message that is closed stays closed, also while an older one is open and its place in the ring is free.
TEST(LyingSender, AChunkOfAClosedMessageIsRefused) {
  auto [host, nic] = OwnNic(1, PoolProbe::make_settings(kWindowPages));
  const base::LogCapture log;
  Memory memory(nic, 1 << 16);
  AcceptedEnd end;
  RawSender sender(nic, true, &end);
  Request *open = nullptr, *closed = nullptr;
  for (Request** request : {&open, &closed}) {
    ASSERT_TRUE(end.receiver->post(memory.bytes().data(), 1000, memory.registration(),
                                   ReceiveClass::kUnpacked, request));
  }
  const auto test = [&](Request* request, bool* done) {
    uint64_t bytes = 0;
    return end.receiver->test(*static_cast<ReceiveMessage*>(request), done, &bytes).status();
  };
  bool is_done = false;
  sender.send(tag(1, 0, true, kShort), kShort);
  ASSERT_TRUE(poll_until([&] { return test(closed, &is_done) != base::Status::kOk || is_done; }));
  ASSERT_TRUE(end.receiver->consume(*static_cast<ReceiveMessage*>(closed)));
  sender.send(tag(1, 0, true, kShort), kShort);
  EXPECT_TRUE(poll_until([&] { return test(open, &is_done) != base::Status::kOk; }, 2'000)) << "it was taken";
}

// What is staged has room for the descriptors of the longest message that may be, and for no more.
TEST(LyingSender, AStagedMessageBeyondTheThresholdIsRefused) {
  auto [host, nic] = OwnNic(
      1, {{"VERBENA_UNPACK_THRESHOLD", "32k"}, {"VERBENA_PAGE_BYTES", "4k"}, {"VERBENA_WINDOW_PAGES", "32"}});
  const base::LogCapture log;
  Memory memory(nic, 1 << 16);
  AcceptedEnd end;
  RawSender sender(nic, true, &end);
  ConnectedPair neighbour = connect_here(nic, nic, true);  // whose descriptors lie behind
  Request* request = nullptr;
  ASSERT_TRUE(end.receiver->post(memory.bytes().data(), memory.bytes().size(), memory.registration(),
                                 ReceiveClass::kUnpacked, &request));
  constexpr uint16_t kPages = 9;
  for (uint16_t i = 0; i < kPages; ++i) sender.send(tag(0, i, i + 1 == kPages, kPageBytes), kPageBytes);
  expect_refused(end, request);
  const LoadMeta& first = neighbour.receiving.handle->meta->mem[0][0];
  EXPECT_EQ(first.len, 0U) << "written outside";
}

class LyingReceiverTest : public testing::Test {
 protected:
  static constexpr uint32_t kWindow = 32;

  // Keeps asking one send until it fails.
  base::Status provoke() {
    Request* request = nullptr;
    base::Status status = base::Status::kOk;
    poll_until([&] {
      bool is_done = false;
      if (request == nullptr) {
        status =
            sender_->post(memory_.bytes().data(), 5000, memory_.registration(), false, &request).status();
      } else {
        status = sender_->test(*static_cast<SendMessage*>(request), &is_done).status();
      }
      return is_done || status != base::Status::kOk;
    });
    return status;
  }

  // One: whom it is about, where, and what to try.
  void expect_line(const char* where) const {
    ASSERT_EQ(log_.warnings().size(), 1U);
    for (const char* part :
         {"send to 127.0.0.1:", where, "Check that both hosts run the same build of the plugin"})
      EXPECT_NE(log_.warnings()[0].find(part), std::string::npos) << part << " in: " << log_.warnings()[0];
  }

  Host host_;
  const Nic& nic_ = host_.nic();
  Memory memory_{nic_, 1 << 16};
  std::unique_ptr<Sender> sender_;
  RawReceiver receiver_{nic_, kWindow, &sender_};
  base::LogCapture log_;
};

TEST_F(LyingReceiverTest, CreditsThatWereNeverTaken) {
  receiver_.control().credits.returned[0] = 1;
  EXPECT_EQ(provoke(), base::Status::kRemote);
  expect_line("rail softverbs0:1, qp ");
}

TEST_F(LyingReceiverTest, MessagesConsumedBeforeTheyWereSent) {
  receiver_.control().credits.consumed = 2;
  EXPECT_EQ(provoke(), base::Status::kRemote);
  expect_line("message 2 ");
}

TEST_F(LyingReceiverTest, AGrantThatIsTooShort) {
  receiver_.control().grants[0] = {.address = 4096,
                                   .remote_keys = {},
                                   .length_bytes = 4999,
                                   .note = {},
                                   .stamp = protocol::Grant::make_stamp(0, 0)};
  EXPECT_EQ(provoke(), base::Status::kInvalidUsage);
}

TEST_F(LyingReceiverTest, AGrantOfMemoryThatIsNotThere) {
  receiver_.control().grants[0] = {.address = 4096,
                                   .remote_keys = {7},
                                   .length_bytes = 5000,
                                   .note = {},
                                   .stamp = protocol::Grant::make_stamp(0, 0)};
  EXPECT_EQ(provoke(), base::Status::kRemote);
}

// Where nothing is staged credits ride on grants.
class LyingStampTest : public LyingReceiverTest {
 protected:
  std::unique_ptr<Sender> direct_sender_;
  RawReceiver direct_receiver_{nic_, kWindow, &direct_sender_, false};
};

class LyingNoteTest : public LyingStampTest, public testing::WithParamInterface<protocol::CreditNote> {};

TEST_P(LyingNoteTest, IsFoundOut) {
  sender_ = std::move(direct_sender_);
  direct_receiver_.control().grants[0] = {.address = 4096,
                                          .remote_keys = {},
                                          .length_bytes = 5000,
                                          .note = GetParam(),
                                          .stamp = protocol::Grant::make_stamp(0, 0)};
  EXPECT_EQ(provoke(), base::Status::kRemote);
  expect_line("peer ");  // returned or consumed too much
}

// Each stamp is ahead of the one before it, and the last one leads back to the first.
TEST_F(LyingStampTest, StampsThatLeadInACircle) {
  sender_ = std::move(direct_sender_);
  auto& grants = direct_receiver_.control().grants;
  grants[0].stamp = protocol::Grant::make_stamp(0x3FFFFFE0, 0);
  grants[1].stamp = protocol::Grant::make_stamp(0x7FFFFFC1, 0);
  grants[2].stamp = protocol::Grant::make_stamp(0x1F, 0);
  EXPECT_EQ(provoke(), base::Status::kRemote);
  EXPECT_EQ(log_.warnings().size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Notes, LyingNoteTest,
                         testing::Values(protocol::CreditNote::make(0, 0, 1),     // never taken
                                         protocol::CreditNote::make(2, 0, 0),     // never sent
                                         protocol::CreditNote::make(0, 255, 0)),  // no such queue pair
                         [](const auto& note) { return "Number" + std::to_string(note.index); });

}  // namespace
}  // namespace verbena::transport
