#include <cstring>
#include <random>

#include "wire_caller.h"

// Callers that break the wire's protocol: each loses its own connection and nothing else.
namespace verbena::softverbs_test {
namespace {

using namespace softverbs::wire;

TEST_F(WireHostileTest, StrangeHellosAreTurnedAway) {
  const auto spoil = [&](auto&& change) {
    Hello hello = make_hello(victim_, ++links_);
    change(hello);
    expect_turned_away(hello);
  };
  spoil([](Hello& hello) { hello.magic ^= 1; });
  spoil([](Hello& hello) { ++hello.version; });
  spoil([](Hello& hello) { hello.job[0] ^= 1; });
  spoil([](Hello& hello) { ++hello.slot; });
  spoil([](Hello& hello) { hello.streams = 0; });
  spoil([](Hello& hello) { hello.streams = kMaxStreams + 1; });
  spoil([](Hello& hello) { hello.stream = hello.streams; });
  spoil([](Hello& hello) { hello.source[15] = 3; });
  spoil([](Hello& hello) { hello.destination[15] = 3; });
  spoil([](Hello& hello) { memset(&hello, 0xa5, sizeof(hello)); });
}

TEST_F(WireHostileTest, FramesThatCannotBe) {
  const auto spoil = [&](auto&& change) {
    Header header = make_write();
    change(header);
    expect_ends(header);
  };
  spoil([](Header& header) { header.kind = static_cast<Kind>(0); });
  spoil([](Header& header) { header.kind = static_cast<Kind>(99); });
  spoil([](Header& header) { header.kind = Kind::kResponse; });
  spoil([](Header& header) { header.kind = Kind::kAcknowledge; });
  spoil([](Header& header) { header.code = 0xff; });
  spoil([](Header& header) { header.length = header.bytes = kMaxFrameBytes + 1; });
  spoil([](Header& header) { header.length = UINT32_MAX; });
  spoil([](Header& header) { header.bytes = UINT32_MAX; });
  spoil([](Header& header) { header.offset = 1; });
  spoil([](Header& header) { header.offset = UINT32_MAX; });
  spoil([](Header& header) { header.length = 0; });
  spoil([](Header& header) { header.code = IBV_WR_RDMA_READ; });
  spoil([](Header& header) { header.code = IBV_WR_ATOMIC_FETCH_AND_ADD; });
  spoil([](Header& header) { header.kind = Kind::kDatagram; });
  spoil([](Header& header) { header.kind = Kind::kAbandon; });
}

TEST_F(WireHostileTest, Garbage) {
  std::mt19937 random(3);
  for (int round = 0; round < 30; ++round) {
    const auto caller = welcome();
    std::vector<uint8_t> noise(8192);
    for (uint8_t& byte : noise) byte = static_cast<uint8_t>(random());
    caller->say(noise.data(), noise.size());
    EXPECT_TRUE(caller->has_ended());
  }
}

TEST_F(WireHostileTest, ATruncatedFrameEndsWithItsConnection) {
  const Header header = make_write();
  for (const size_t bytes : {sizeof(header) / 2, sizeof(header), sizeof(header) + 100}) {
    std::vector<uint8_t> part(bytes, 1);
    memcpy(part.data(), &header, std::min(bytes, sizeof(header)));
    welcome()->say(part.data(), part.size());
    expect_honest_goes_on();
  }
}

TEST_F(WireHostileTest, WrongKeysAreRefused) {
  Header header = make_write();
  ++header.key;
  expect_refusal(*welcome(), header, kAccessError);
  expects_error_ = true;
}

TEST_F(WireHostileTest, OutsideOfTheMemoryIsRefused) {
  Header header = make_write();
  header.address += kBytes - 4095;
  expect_refusal(*welcome(), header, kAccessError);
  expects_error_ = true;
}

TEST_F(WireHostileTest, OtherQueuePairsAreRefused) {
  const auto caller = welcome();
  Header unknown = make_write(), foreign = make_write();
  unknown.target_qp += 77;
  expect_refusal(*caller, unknown, kGone);
  foreign.source_qp = kHonestQp;  // that queue pair is another one's peer
  expect_refusal(*caller, foreign, kGone);
}

TEST_F(WireHostileTest, SequencesOutOfOrder) {
  const auto ahead = welcome();
  Header header = make_write(), answer{};
  header.sequence = 5;
  ahead->say_frame(header);
  EXPECT_FALSE(ahead->hear(answer, 300)) << "held: messages 0 to 4 come first";
  const auto behind = welcome();
  header = make_write();
  expect_acknowledgement(*behind, header);
  behind->say_frame(header);
  EXPECT_TRUE(behind->has_ended()) << "message 0 once more";
}

TEST_F(WireHostileTest, ChunksThatDisagree) {
  const auto spoil = [&](auto&& change) {
    const auto caller = welcome();
    Header header = make_write(8192);
    header.length = 4096;
    caller->say_frame(header);
    header.offset = 4096;
    change(header);
    caller->say_frame(header);
    EXPECT_TRUE(caller->has_ended());
  };
  spoil([](Header& header) { header.bytes = 16384; });
  spoil([](Header& header) { header.address += 8; });
  spoil([](Header& header) { ++header.key; });
  spoil([](Header& header) { header.code = IBV_WR_SEND; });
  spoil([](Header& header) { header.offset = 0, header.length = 8192; });  // more bytes than it has
}

}  // namespace
}  // namespace verbena::softverbs_test
