// What a connection costs: two processes with 1,023 connections to each other in each direction, as a GPU has
// with 1,023 peers. Everything counts that the process has more than before the first one: our own memory,
// the device's (softverbs stands in for it), and the landing pages.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "base/parameters.h"
#include "transport/memory/bounce_pool.h"
#include "transport/setup/page_choice.h"
#include "transport/support/memory_use.h"
#include "transport/support/processes.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr uint32_t kPeers = 1023;
constexpr double kKiB = 1024, kMiB = kKiB * kKiB;
constexpr double kMaxBytesPerRail = 64 * kKiB;  // of one end of a connection, without landing pages
constexpr double kMaxBytes = 100 * kMiB;  // of all ends: of one direction with landing pages, of both without
constexpr double kMaxLater = 1 * kKiB;    // of an end, that its first messages add
constexpr rlim_t kDescriptors = 2 * kPeers + 256;  // one an end, and what a process has open anyway

void raise_descriptor_limit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_max < kDescriptors) throw std::runtime_error("the limit of descriptors is too low");
  limit.rlim_cur = std::max(limit.rlim_cur, kDescriptors);
  setrlimit(RLIMIT_NOFILE, &limit);
}

Transfer make_transfer() {
  Transfer transfer;
  transfer.messages = {{.length_bytes = 20'000}, {.length_bytes = 100'000}};
  transfer.sends_ahead = transfer.receives_ahead = 2;
  return transfer;
}

// One of the two processes: all its ends.
class Process {
 public:
  Process(Channel& channel, int rails, bool unpacks)
      : channel_(channel), nic_(host_.nic(rails)), unpacks_(unpacks) {
    raise_descriptor_limit();
    before_ = measure_memory();
  }

  void connect_all() {
    const MemoryUse before = measure_memory();
    for (uint32_t i = 0; i < kPeers; ++i) {
      senders_.push_back(connect(nic_, channel_.hear<protocol::Handle>()));
      channel_.meet();
    }
    report("sender", before, 0);
  }

  void accept_all() {
    const MemoryUse before = measure_memory();
    for (uint32_t i = 0; i < kPeers; ++i) {
      receivers_.push_back(accept(channel_, nic_, unpacks_));
      channel_.meet();
    }
    report("receiver", before, unpacks_ ? page_bytes() : 0);
  }

  // Two messages over each connection, byte by byte: one of them staged where there are pages for it.
  void send_all() {
    uint64_t staging_senders = 0;
    for (auto& sender : senders_) {
      SendingSide side(*sender, nic_, transfer_);
      EXPECT_TRUE(poll_until([&] { return side.step(); }));
      EXPECT_EQ(side.status(), base::Status::kOk);
      staging_senders += sender->statistics().sent_staged().messages;
      EXPECT_EQ(sender->statistics().sent_staged().messages + sender->statistics().sent_direct().messages,
                2U);
      channel_.meet();
    }
    expect_as_many_as_there_are_pages_for(staging_senders);
  }
  void receive_all() {
    uint64_t staging_receivers = 0;
    for (auto& end : receivers_) {
      ReceivingSide side(end, nic_, transfer_);
      EXPECT_TRUE(poll_until([&] { return side.step(); }));
      EXPECT_EQ(side.problem(), "");
      staging_receivers += end.receiver->statistics().received_staged_messages;
      channel_.meet();
    }
    expect_as_many_as_there_are_pages_for(staging_receivers);
  }
  void expect_as_many_as_there_are_pages_for(uint64_t staging) const {
    const auto& parameters = base::parameters();
    const auto pages = static_cast<uint64_t>(parameters.bounce_bytes / parameters.page_bytes);
    const uint64_t most = pages / (kMinEntries * nic_.rails.size());
    EXPECT_LE(staging, unpacks_ ? most : 0);
    EXPECT_GE(staging, unpacks_ ? most * 3 / 4 : 0) << "some of the first have more";
  }

  // That sending and receiving took no more.
  void expect_no_growth() const {
    const MemoryUse now = measure_memory();
    std::printf("%u peers: %.1f MiB in both directions; %.1f MiB pinned\n", kPeers,
                to_mib(now.total_bytes() - before_.total_bytes()), to_mib(now.pinned_bytes));
    EXPECT_LT(now.total_bytes(), static_cast<double>(opened_.total_bytes()) + kMaxLater * 2 * kPeers);
    if (!unpacks_ && nic_.rails.size() == 1) {
      EXPECT_LT(static_cast<double>(now.total_bytes() - before_.total_bytes()), kMaxBytes);
    }
  }

 private:
  static uint64_t page_bytes() {
    const auto pool = take(BouncePool::acquire(BouncePool::Kind::kHostPages), "the pool");
    return pool->usable_bytes();
  }
  void report(const char* end, const MemoryUse& before, uint64_t page_bytes) {
    opened_ = measure_memory();
    const double ends = static_cast<double>(kPeers * nic_.rails.size());
    const uint64_t all_bytes = opened_.total_bytes() - before.total_bytes();
    const double bytes = static_cast<double>(all_bytes - page_bytes) / ends;
    std::printf(
        "%u %ss: %.1f KiB each and rail, %.1f KiB of it the device's; %.1f MiB in all with landing pages\n",
        kPeers, end, bytes / kKiB,
        static_cast<double>(opened_.device_bytes - before.device_bytes) / ends / kKiB, to_mib(all_bytes));
    EXPECT_LE(bytes, kMaxBytesPerRail) << end;
    if (nic_.rails.size() == 1) {
      EXPECT_LT(static_cast<double>(all_bytes), kMaxBytes) << end;
    }
  }
  static double to_mib(uint64_t bytes) { return static_cast<double>(bytes) / kMiB; }

  Channel& channel_;
  Host host_{{{"VERBENA_BOUNCE_BYTES", ""}}};
  const Nic& nic_;
  const bool unpacks_;
  MemoryUse before_, opened_;
  const Transfer transfer_ = make_transfer();
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<AcceptedEnd> receivers_;
};

void run(int rails, bool unpacks) {
  const Part first{[&](Channel& channel) {
    Process process(channel, rails, unpacks);
    process.connect_all();
    process.accept_all();
    process.send_all();
    process.receive_all();
    process.expect_no_growth();
    channel.meet();
  }};
  const Part second{[&](Channel& channel) {
    Process process(channel, rails, unpacks);
    process.accept_all();
    process.connect_all();
    process.receive_all();
    process.send_all();
    process.expect_no_growth();
    channel.meet();
  }};
  run_processes(first, second);
}

TEST(Footprint, OneRail) {
  run(1, true);
}

TEST(Footprint, TwoRails) {
  run(2, true);
}

// As by default: NCCL is offered nothing to unpack.
TEST(Footprint, OneRailWithoutUnpack) {
  run(1, false);
}

}  // namespace
}  // namespace verbena::transport
