// Datagrams between two devices of VERBENA_IBVERBS_LIB: softverbs, or the kernel's in tests/vm.
#include "verbs/datagram_queues.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "support/loopback.h"
#include "tests/base/log_capture.h"
#include "verbs/address_handles.h"

namespace verbena::verbs {
namespace {

constexpr uint32_t kKey = 0x1234567, kHeaderBytes = 24, kLineBytes = kGrhBytes + kHeaderBytes;
constexpr uint32_t kPageBytes = 512, kReceives = 4;
constexpr uint32_t kDepth = 8;
constexpr uint16_t kMark = 3;

template <typename T>
T take(base::Result<T> made) {
  EXPECT_TRUE(made);
  return made ? std::move(*made) : T();
}

TEST(CongestionMarkTest, IsInTheNetworksHeader) {
  std::array<std::byte, kGrhBytes> ipv6{}, ipv4{};
  ipv4.fill(std::byte{0x6F});  // a device may leave anything in front of IPv4's header
  ipv6[0] = std::byte{0x6F};   // with the traffic class's upper half
  ipv6[6] = std::byte{17};
  const auto set_ipv4 = [&](uint8_t service) {
    std::fill(ipv4.begin() + 20, ipv4.end(), std::byte{0x11});
    ipv4[20] = std::byte{0x45};
    ipv4[21] = std::byte{service};
    ipv4[29] = std::byte{17};
    ipv4[30] = ipv4[31] = std::byte{0};
    uint32_t sum = 0;
    for (size_t i = 20; i < kGrhBytes; i += 2)
      sum += std::to_integer<uint32_t>(ipv4[i]) << 8 | std::to_integer<uint32_t>(ipv4[i + 1]);
    sum = ~((sum & 0xffff) + (sum >> 16));
    ipv4[30] = static_cast<std::byte>(sum >> 8);
    ipv4[31] = static_cast<std::byte>(sum);
  };
  for (uint32_t field = 0; field < 4; ++field) {
    ipv6[1] = static_cast<std::byte>(0xC0 | field << 4 | 0xF);  // and the flow label's
    set_ipv4(static_cast<uint8_t>(0xFC | field));
    EXPECT_EQ(has_congestion_mark(ipv6.data()), field == 3) << field;
    EXPECT_EQ(has_congestion_mark(ipv4.data()), field == 3) << field;
  }
  ASSERT_TRUE(has_congestion_mark(ipv6.data()) && has_congestion_mark(ipv4.data()));
  ipv6[6] = ipv4[35] = std::byte{6};  // not UDP; not the header that its checksum is of
  EXPECT_FALSE(has_congestion_mark(ipv6.data()));
  EXPECT_FALSE(has_congestion_mark(ipv4.data()));
  std::array<std::byte, kGrhBytes> neither{};
  neither.fill(std::byte{0xFF});
  EXPECT_FALSE(has_congestion_mark(neither.data()));
}

class DatagramEnd {
 public:
  explicit DatagramEnd(Device& device, uint32_t key = kKey) : device_(device) {
    region_ = take(MemoryRegion::register_memory(device, memory_.data(), memory_.size(), {}));
    sends_ = take(CompletionQueue::create(device, 32));
    receives_ = take(CompletionQueue::create(device, 32));
    queue_ = take(SharedReceiveQueue::create(device, 32, 2));
    pair_ = take(DatagramPair::create(device, sends_, receives_, queue_,
                                      {.send_depth = kDepth, .inline_bytes = 32, .key = key, .mark = kMark}));
    for (uint32_t i = 0; i < kReceives; ++i) post_receive(i);
  }

  std::byte* line(uint32_t i) { return memory_.data() + size_t{i} * kLineBytes; }
  std::byte* page(uint32_t i) { return memory_.data() + kPagesAt + size_t{i} * kPageBytes; }
  std::byte* header() { return memory_.data() + kHeaderAt; }
  std::byte* data() { return memory_.data() + kDataAt; }

  void post_receive(uint32_t i) {
    const SplitReceive receive{{line(i), kLineBytes, region_.local_key(), i},
                               {page(i), kPageBytes, region_.local_key(), i}};
    EXPECT_TRUE(post_split(queue_, {&receive, 1}));
  }
  AddressHandle make_way(DatagramEnd& to, uint32_t flow_label = 5) {
    return take(device_.address_handles().take(device_.local_address(), to.device_.address(), -1, flow_label,
                                               AddressHandles::Purpose::kPeer));
  }
  Datagram make(const AddressHandle& way, DatagramEnd& to, uint32_t data_bytes, uint32_t key = kKey) {
    return {.way = way.get(),
            .pair_number = to.pair_.number(),
            .key = key,
            .imm = 0xABCD1234,
            .header_length = kHeaderBytes,
            .data_length = data_bytes,
            .header = header(),
            .data = data(),
            .header_key = region_.local_key(),
            .data_key = region_.local_key()};
  }
  static std::optional<Completion> wait(CompletionQueue& queue, int64_t limit_ms = 10'000) {
    const auto deadline = base::Deadline::after_ms(limit_ms);
    for (;;) {
      std::array<Completion, 1> out;
      if (queue.poll(out) == 1) return out[0];
      if (deadline.has_passed()) return std::nullopt;
    }
  }
  DatagramPair& pair() { return pair_; }
  CompletionQueue& sends() { return sends_; }
  CompletionQueue& receives() { return receives_; }

 private:
  static constexpr size_t kPagesAt = 4096, kHeaderAt = 8192, kDataAt = 8192 + 64;

  Device& device_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(16384);
  MemoryRegion region_;
  CompletionQueue sends_, receives_;
  SharedReceiveQueue queue_;
  DatagramPair pair_;
};

class DatagramQueuesTest : public testing::Test {
 protected:
  // A kernel's device may lose what is sent while it looks for its neighbour.
  static void SetUpTestSuite() {
    const auto devices = open_devices();
    DatagramEnd near(*devices.at(0)), far(*devices.at(1));
    const AddressHandle way = near.make_way(far);
    const Datagram datagram = near.make(way, far, 0);
    for (uint32_t tries = 0; tries < kDepth; ++tries) {
      ASSERT_TRUE(near.pair().post({&datagram, 1}));
      if (DatagramEnd::wait(far.receives(), 1000)) return;
    }
  }
  DatagramQueuesTest() {
    for (size_t i = 0; i < kHeaderBytes; ++i) near_.header()[i] = static_cast<std::byte>(i + 100);
    for (size_t i = 0; i < kPageBytes; ++i) near_.data()[i] = static_cast<std::byte>(i * 7 + 3);
  }

  base::LogCapture log_;
  std::vector<std::unique_ptr<Device>> devices_ = open_devices();
  DatagramEnd near_{*devices_.at(0)}, far_{*devices_.at(1)};
  AddressHandle way_ = near_.make_way(far_);
};

TEST_F(DatagramQueuesTest, TheHeaderLandsInTheLineAndTheDataInThePage) {
  const Datagram datagram = near_.make(way_, far_, 200);
  ASSERT_TRUE(near_.pair().post({&datagram, 1}));
  const auto arrived = DatagramEnd::wait(far_.receives());
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->error, 0);
  EXPECT_EQ(arrived->length, kLineBytes + 200);
  EXPECT_EQ(arrived->imm(), 0xABCD1234);
  const auto i = static_cast<uint32_t>(arrived->cookie);
  ASSERT_LT(i, kReceives);
  EXPECT_EQ(std::memcmp(far_.line(i) + kGrhBytes, near_.header(), kHeaderBytes), 0);
  EXPECT_EQ(std::memcmp(far_.page(i), near_.data(), 200), 0);
  EXPECT_EQ(far_.page(i)[200], std::byte{});
  const auto sent = DatagramEnd::wait(near_.sends());
  ASSERT_TRUE(sent);
  EXPECT_EQ(sent->error, 0);
  EXPECT_EQ(DatagramPair::mark_of(sent->cookie), kMark);
  near_.pair().retire(sent->cookie);
  EXPECT_EQ(near_.pair().free_slots(), kDepth);
}

TEST_F(DatagramQueuesTest, AHeaderAloneMayGoInline) {
  ASSERT_GE(near_.pair().inline_bytes(), kHeaderBytes);
  Datagram datagram = near_.make(way_, far_, 0);
  datagram.send_inline = true;
  datagram.header_key = 0;
  ASSERT_TRUE(near_.pair().post({&datagram, 1}));
  const auto arrived = DatagramEnd::wait(far_.receives());
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->length, kLineBytes);
  EXPECT_EQ(std::memcmp(far_.line(static_cast<uint32_t>(arrived->cookie)) + kGrhBytes, near_.header(),
                        kHeaderBytes),
            0);
}

TEST_F(DatagramQueuesTest, AChainIsOneCompletion) {
  std::vector<Datagram> chain(kReceives, near_.make(way_, far_, 64));
  for (uint32_t i = 0; i < chain.size(); ++i) chain[i].imm = i;
  ASSERT_TRUE(near_.pair().post(chain));
  EXPECT_EQ(near_.pair().free_slots(), kDepth - kReceives);
  uint32_t seen = 0;
  for (size_t i = 0; i < chain.size(); ++i) {
    const auto arrived = DatagramEnd::wait(far_.receives());
    ASSERT_TRUE(arrived);
    seen |= 1U << arrived->imm();
  }
  EXPECT_EQ(seen, 0xFU);
  const auto sent = DatagramEnd::wait(near_.sends());
  ASSERT_TRUE(sent);
  near_.pair().retire(sent->cookie);
  EXPECT_EQ(near_.pair().free_slots(), kDepth);
}

TEST_F(DatagramQueuesTest, WhoDoesNotKnowTheKeyIsNotHeard) {
  const std::array chain{near_.make(way_, far_, 64, kKey + 1), near_.make(way_, far_, 32)};
  ASSERT_TRUE(near_.pair().post(chain));
  const auto arrived = DatagramEnd::wait(far_.receives());
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->length, kLineBytes + 32) << "the first was not for us";
}

TEST_F(DatagramQueuesTest, WhatFindsNoReceiveIsLost) {
  const std::vector<Datagram> chain(kReceives + 2, near_.make(way_, far_, 64));
  ASSERT_TRUE(near_.pair().post(chain));
  for (uint32_t i = 0; i < kReceives; ++i) ASSERT_TRUE(DatagramEnd::wait(far_.receives()));
  ASSERT_TRUE(DatagramEnd::wait(near_.sends()));
  far_.post_receive(0);
  Datagram late = near_.make(way_, far_, 64);
  late.imm = 77;
  ASSERT_TRUE(near_.pair().post({&late, 1}));
  const auto arrived = DatagramEnd::wait(far_.receives());
  ASSERT_TRUE(arrived);
  EXPECT_EQ(arrived->imm(), 77U) << "nobody kept the two for later";
}

}  // namespace
}  // namespace verbena::verbs
