// Runs: consecutive pages that one connection has for itself, so that softverbs makes one copy of many pages.
// The connections over pages in GPU memory run on a stand-in for CUDA's driver
// (tests/softverbs/fake_cuda.cc).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>

#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"
#include "transport/setup/page_choice.h"
#include "transport/support/transfer.h"

// LeakSanitizer of gcc 12 fails on thread-local memory of libraries that were loaded later, such as the
// stand-in for CUDA's driver.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return 1;
}

namespace verbena::transport {
namespace {

TEST(FreePagesTest, RunsAreCutAndJoined) {
  FreePages pages;
  EXPECT_EQ(pages.take(3).count, 0U);
  pages.add({0, 100});
  const auto first = pages.take_together(30), second = pages.take_together(30);
  EXPECT_EQ(first.first, 0U);
  EXPECT_EQ(second.first, 30U);
  EXPECT_EQ(pages.count(), 40U);
  pages.add(first);
  EXPECT_EQ(pages.count(), 70U);
  EXPECT_EQ(pages.longest(), 40U);
  EXPECT_EQ(pages.take_together(41).count, 0U) << "70 are free, but not together";
  const auto tail = pages.take_together(31);
  EXPECT_EQ(tail.first, 60U) << "the lowest that is long enough";
  EXPECT_EQ(pages.take(100).count, 30U) << "the lowest, as far as it reaches";
  pages.add({0, 30});
  pages.add(tail);
  pages.add(second);
  EXPECT_EQ(pages.longest(), 100U) << "joined on both sides";
  EXPECT_EQ(pages.count(), 100U);
}

class PageRunTest : public testing::Test {
 protected:
  static constexpr uint32_t kPages = 128;
  static constexpr BouncePool::WindowRequest kWish{
      .wanted = 32, .modest = 32, .least = 12, .wants_run = true};

  Host host_{
      Settings{{"VERBENA_PAGE_BYTES", "16k"}, {"VERBENA_BOUNCE_BYTES", std::to_string(kPages * 16384)}}};
  const Nic& nic_ = host_.nic();
  std::shared_ptr<BouncePool> pool_ =
      take(BouncePool::acquire(BouncePool::Kind::kHostPages, 16384), "a pool");

  BouncePool::Reservation reserve(uint32_t pairs = 1) {
    return take(pool_->reserve(*nic_.rails[0], kWish, pairs), "entries");
  }
};

TEST_F(PageRunTest, EachHasAQueueOfItsOwnUntilTheyAreUsedUp) {
  const auto first = reserve(), second = reserve(2);
  EXPECT_EQ(first.entries, 32U);
  EXPECT_EQ(second.entries, 32U) << "each of two queue pairs";
  EXPECT_NE(first.queue, second.queue);
  const auto third = reserve();
  EXPECT_EQ(third.entries, 32U);
  EXPECT_EQ(reserve().entries, 0U) << "nothing is left";
  EXPECT_NE(pool_->describe().find("128 of 128 in use"), std::string::npos) << pool_->describe();
  EXPECT_NE(pool_->describe().find("3 connections with a contiguous run of pages each"), std::string::npos)
      << pool_->describe();

  pool_->release(*first.queue, 32);
  const auto again = reserve();
  EXPECT_EQ(again.entries, 32U) << "a run is free again as a whole";
  pool_->release(*second.queue, 32);
  EXPECT_EQ(reserve().entries, 0U) << "the other queue pair's entries are still its connection's";
  pool_->release(*second.queue, 32);
  EXPECT_EQ(reserve(2).entries, 32U);
}

// A connection that has closed keeps its queue pairs until their last completion.
TEST_F(PageRunTest, ARunIsFreeAgainWhenItsQueuePairsAreGone) {
  const auto run = reserve(4);
  EXPECT_EQ(run.entries, 32U);
  Link::Options options;
  options.rails = nic_.rails;
  verbs::SharedReceiveQueue* const queues[] = {run.queue->shared()};
  const uint32_t entries[] = {4 * 32U};
  options.receive_queues = queues;
  options.receive_entries = entries;
  auto link = take(Link::create(options), "a link");
  link.stop();
  pool_->retire(std::move(link), {run.queue}, {});
  pool_->release(*run.queue, 4 * 32);
  const bool is_free = poll_until([&] { return reserve().entries == 32; });
  EXPECT_TRUE(is_free) << pool_->describe();
}

// --- Pages in GPU memory.

template <typename... Arguments>
bool call(const char* name, Arguments... arguments) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  return function != nullptr && reinterpret_cast<int (*)(Arguments...)>(function)(arguments...) == 0;
}

class GpuRunTest : public testing::Test {
 protected:
  void SetUp() override {
    void* context = nullptr;
    int count = 0, all = 0, batches = 0;
    if (!call("cuInit", 0U) || !call("cuDeviceGetCount", &count) || !call("fakeCountCalls", &all, &batches))
      GTEST_SKIP() << "without the stand-in for CUDA's driver: skipped";
    ASSERT_TRUE(call("cuDevicePrimaryCtxRetain", &context, 0));
    ASSERT_TRUE(call("cuCtxSetCurrent", context));
  }
  void TearDown() override { call("cuCtxSetCurrent", static_cast<void*>(nullptr)); }
};

int count_calls() {
  int all = 0, batches = 0;
  call("fakeCountCalls", &all, &batches);
  return all;
}

TEST_F(GpuRunTest, LongMessagesAreStagedInPagesOfTheGpu) {
  Host host(Settings{{"VERBENA_UNPACK_THRESHOLD", "unlimited"}});
  const PageChoice choice = choose_pages(host.nic());
  EXPECT_EQ(choice.kind, BouncePool::Kind::kGpuPages);
  EXPECT_EQ(choice.page_bytes, 65536U);
  EXPECT_TRUE(choice.wants_runs);
  apply_settings({{"VERBENA_PAGE_BYTES", "4k"}, {"VERBENA_UNPACK_THRESHOLD", "unlimited"}});
  EXPECT_EQ(choose_pages(host.nic()).page_bytes, 4096U) << "what the user says";
  apply_settings({});
  EXPECT_EQ(choose_pages(host.nic()).kind, BouncePool::Kind::kHostPages) << "short messages";
  EXPECT_FALSE(choose_pages(host.nic()).wants_runs);
  apply_settings({{"VERBENA_UNPACK_THRESHOLD", "unlimited"}, {"VERBENA_BOUNCE", "host"}});
  EXPECT_EQ(choose_pages(host.nic()).kind, BouncePool::Kind::kHostPages);
}

// What a kernel would read: the pieces of a message by its slot's descriptors.
std::vector<std::byte> unpack(const UnpackDeviceHandle& handle, uint64_t slot, size_t bytes) {
  std::vector<std::byte> message(bytes);
  for (uint64_t i = 0; i < handle.meta->cnt[slot]; ++i) {
    const LoadMeta& piece = handle.meta->mem[slot][i];
    EXPECT_TRUE(
        call("cuMemcpyDtoH_v2", static_cast<void*>(message.data() + piece.dst_off),
             static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(handle.bounce_buf)) + piece.src_off,
             size_t{piece.len}));
  }
  return message;
}

TEST_F(GpuRunTest, AMessageIsOneCopyWhereverItBegins) {
  constexpr size_t kBytes = 256 << 10;
  constexpr int kMessages = 40;  // round the run and through all slots
  auto [host, nic, connection] =
      OwnConnection(1, Settings{{"VERBENA_UNPACK_THRESHOLD", "unlimited"}, {"VERBENA_BOUNCE_BYTES", "16m"}});
  // The device handle lies in the GPU's memory, too.
  UnpackDeviceHandle handle{};
  ASSERT_TRUE(call("cuMemcpyDtoH_v2", static_cast<void*>(&handle),
                   static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(connection.receiving.handle)),
                   sizeof(handle)));
  Memory memory(nic, kBytes);
  int wraps = 0;
  for (int m = 0; m < kMessages; ++m) {
    for (size_t i = 0; i < kBytes; ++i) memory.bytes()[i] = static_cast<std::byte>(i * 7 + (i >> 12) + m);
    Request* receive = nullptr;
    Request* send = nullptr;
    ASSERT_TRUE(connection.receiving.receiver->post(memory.bytes().data(), kBytes, memory.registration(),
                                                    ReceiveClass::kUnpacked, &receive));
    const int before = count_calls();
    ASSERT_TRUE(connection.sender->post(memory.bytes().data(), kBytes, memory.registration(), true, &send));
    bool is_sent = false, is_received = false;
    uint64_t bytes = 0;
    ASSERT_TRUE(poll_until([&] {
      const bool is_sound =
          (is_sent || connection.sender->test(*static_cast<SendMessage*>(send), &is_sent)) &&
          (is_received ||
           connection.receiving.receiver->test(*static_cast<ReceiveMessage*>(receive), &is_received, &bytes));
      EXPECT_TRUE(is_sound);
      return is_sent && is_received;
    }));
    EXPECT_EQ(bytes, kBytes);
    // One more where the message goes round the end of its run.
    const int copies = count_calls() - before;
    EXPECT_LE(copies, 2);
    wraps += copies == 2 ? 1 : 0;
    const auto slot = static_cast<uint64_t>(m % kUnpackQueueDepthSlots);
    EXPECT_EQ(std::memcmp(unpack(handle, slot, kBytes).data(), memory.bytes().data(), kBytes), 0)
        << "message " << m;
    ASSERT_TRUE(connection.receiving.receiver->consume(*static_cast<ReceiveMessage*>(receive)));
  }
  EXPECT_EQ(connection.sender->statistics().sent_staged().bytes, kMessages * kBytes);
  EXPECT_LE(wraps, kMessages / 4);
}

// A channel of datagrams, whose kernel unpacks.
class DatagramChannel {
 public:
  using EnginePointer = std::shared_ptr<datagram::Engine>;
  // `connections`: that the receiver's GPU will have.
  DatagramChannel(const EnginePointer& from, const EnginePointer& to, uint32_t connections) {
    protocol::datagram::DatagramHandle address{};
    const auto listener = take(datagram::Listener::open(to, &address), "a listener");
    const auto connector = take(datagram::Connector::start(from, address), "a connector");
    EXPECT_TRUE(poll_until([&] {
      if (sender == nullptr) sender = take(connector->poll(), "a sender");
      if (receiver == nullptr) receiver = take(listener->poll(true, connections), "a receiver");
      return sender != nullptr && receiver != nullptr;
    }));
    EXPECT_TRUE(call("cuMemcpyDtoH_v2", static_cast<void*>(&handle),
                     static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(receiver->device_handle())),
                     sizeof(handle)));
  }
  // Until the message is in its slot; how many pieces it has there.
  uint64_t transfer(Memory& sent, Memory& received) {
    const size_t bytes = sent.bytes().size();
    for (size_t i = 0; i < bytes; ++i)
      sent.bytes()[i] = static_cast<std::byte>(i * 7 + (i >> 12) + messages_);
    Request *receive = nullptr, *send = nullptr;
    int is_sent = 0, is_received = 0, received_bytes = 0;
    const int before = count_calls();
    EXPECT_TRUE(poll_until([&] {
      bool is_sound = true;
      if (receive == nullptr)
        is_sound = is_sound && receiver->post(received.bytes().data(), bytes, received.registration(),
                                              ReceiveClass::kUnpacked, &receive, 0);
      if (send == nullptr)
        is_sound = is_sound && sender->post(sent.bytes().data(), bytes, sent.registration(), false, &send, 0);
      if (send != nullptr && !is_sent) is_sound = is_sound && sender->test(*send, &is_sent, nullptr);
      if (receive != nullptr && !is_received)
        is_sound = is_sound && receiver->test(*receive, &is_received, &received_bytes);
      EXPECT_TRUE(is_sound);
      return (is_sent && is_received) || !is_sound;
    }));
    EXPECT_EQ(static_cast<size_t>(received_bytes), bytes);
    copies += count_calls() - before;
    const auto slot = static_cast<uint64_t>(messages_ % kUnpackQueueDepthSlots);
    const uint64_t pieces = handle.meta->cnt[slot];
    const std::vector<std::byte> unpacked = unpack(handle, slot, bytes);
    const std::byte* const found = pieces != 0 ? unpacked.data() : received.bytes().data();
    EXPECT_EQ(std::memcmp(found, sent.bytes().data(), bytes), 0) << "message " << messages_;
    ++messages_;
    EXPECT_TRUE(receiver->consume(*receive));
    return pieces;
  }

  std::unique_ptr<datagram::SendEnd> sender;
  std::unique_ptr<datagram::ReceiveEnd> receiver;
  UnpackDeviceHandle handle{};
  int copies = 0;  // of all messages

 private:
  int messages_ = 0;
};

// Datagrams have pages of one engine, whatever their channels: those of a message follow each other all the
// same, as far as others leave them together.
TEST_F(GpuRunTest, PacketsOfAMessageAreFewCopiesAndFewPieces) {
  constexpr size_t kBytes = 512 << 10, kPieces = 32;
  constexpr int kMessages = 40;
  setenv("SOFTVERBS_GPU_BATCH", "0", 1);  // a batch is one call, too; read with the first device
  apply_settings({{"VERBENA_BOUNCE_BYTES", "64m"}});
  const std::shared_ptr<NicRegistry> nics = take(NicRegistry::discover(), "devices");
  const Nic& nic = *nics->find(0);
  const auto engine = take(datagram::Engine::find(nic, nics, true), "an engine");
  DatagramChannel channel(engine, engine, 1);
  Memory memory(nic, kBytes);
  for (int m = 0; m < kMessages; ++m) EXPECT_EQ(channel.transfer(memory, memory), kPieces);
  EXPECT_LE(channel.copies, 2 * kMessages) << "of " << kMessages << " messages, each of several packets";
}

// A page has room in a slot, however many share the memory of the descriptors.
TEST_F(GpuRunTest, AmongManyConnectionsAKernelUnpacksShortMessages) {
  apply_settings({{"VERBENA_BOUNCE_BYTES", "64m"}});
  const std::shared_ptr<NicRegistry> nics = take(NicRegistry::discover(), "devices");
  const Nic& nic = *nics->find(0);
  const auto engine = take(datagram::Engine::find(nic, nics, true), "an engine");
  DatagramChannel few(engine, engine, 2000), many(engine, engine, 5000);
  Memory page(nic, engine->name().data_bytes()), two_pages(nic, page.bytes().size() + 1);
  EXPECT_EQ(few.transfer(page, page), 32U);
  EXPECT_NE(few.transfer(two_pages, two_pages), 0U);
  EXPECT_EQ(many.transfer(page, page), 16U);
  EXPECT_EQ(many.transfer(two_pages, two_pages), 0U) << "it is copied";
}

// Where ends differ, packets are as long as the shorter: a slot has room for more of them.
TEST_F(GpuRunTest, ManyShortPacketsAreUnpackedFromLongPages) {
  setenv("SOFTVERBS_DEVICES", "2", 1);  // read with the first device
  apply_settings({{"VERBENA_BOUNCE_BYTES", "64m"}, {"VERBENA_PAGE_BYTES", "4k"}});
  const std::shared_ptr<NicRegistry> nics = take(NicRegistry::discover(), "devices");
  const Nic &short_nic = *nics->find(1), &long_nic = *nics->find(0);
  const auto short_packets = take(datagram::Engine::find(short_nic, nics, true), "an engine");
  apply_settings({{"VERBENA_BOUNCE_BYTES", "64m"}});
  const auto long_packets = take(datagram::Engine::find(long_nic, nics, true), "an engine");
  ASSERT_GT(long_packets->name().data_bytes(), short_packets->name().data_bytes());
  DatagramChannel channel(short_packets, long_packets, 1);
  Memory sent(short_nic, 200'000), received(long_nic, 200'000);
  for (int m = 0; m < 20; ++m)
    EXPECT_EQ(channel.transfer(sent, received), 200'000 / short_packets->name().data_bytes() + 1);
}

}  // namespace
}  // namespace verbena::transport
