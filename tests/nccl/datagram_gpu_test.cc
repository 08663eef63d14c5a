// Datagrams from and to memory of GPUs, through NCCL's tables, over softverbs and a stand-in for CUDA's
// driver (tests/softverbs/fake_cuda.cc): the CPU that touches such memory faults.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "nccl/datagram_peer.h"
#include "softverbs/gpu_memory.h"

// LeakSanitizer of gcc 12 fails on thread-local memory of libraries that were loaded later, such as the
// stand-in.
extern "C" __attribute__((visibility("default"))) int __lsan_is_turned_off() {
  return 1;
}

namespace verbena::nccl::testing {
namespace {

using softverbs_test::hold_copies;
using softverbs_test::Kind;
using softverbs_test::TestMemory;

constexpr size_t kBytes = 4 << 20;

// Memory of a GPU that both ends have registered.
struct GpuMemory {
  GpuMemory() : memory(Kind::kDevice, 0, kBytes) {}
  std::span<std::byte> at(size_t offset, size_t length) const {
    return {reinterpret_cast<std::byte*>(memory.address()) + offset, length};
  }
  std::vector<std::byte> read(size_t offset, size_t length) const {
    if (length == 0) return {};
    const auto bytes = memory.read(offset, length);
    const auto* start = reinterpret_cast<const std::byte*>(bytes.data());
    return {start, start + length};
  }
  TestMemory memory;
  void* mhandle = nullptr;
};

// A device ends what it has begun; whoever takes memory away from it waits for that.
std::thread release_copies_later() {
  return std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    hold_copies(false);
  });
}

class DatagramGpuTest : public LiveTest<NewestVersion> {
 protected:
  using Connection = LiveConnection<NewestVersion>;

  void SetUp() override {
    if (!hold_copies(false)) GTEST_SKIP() << "without the stand-in for CUDA's driver: skipped";
    softverbs_test::start_cuda();
    ASSERT_GT(softverbs_test::count_gpus(), 0);
    DatagramEnvironment::set(environment_);
    environment_.set("VERBENA_UNPACK", "0");
    LiveTest<NewestVersion>::SetUp();
    source_.memory.fill(1);
    target_.memory.clear();
  }
  void TearDown() override {
    hold_copies(false);
    LiveTest<NewestVersion>::TearDown();
  }

  // With GPU memory at either end beside that of the host.
  Connection* connect(int device = 0) {
    Connection* const connection = establish(device, HandleShape::kNull);
    if (!add(connection->send_comm, source_) || !add(connection->recv_comm, target_))
      throw std::runtime_error("GPU memory is not registered");
    return connection;
  }
  bool add(void* comm, GpuMemory& memory) {
    return net_->reg_mr(comm, memory.at(0, 0).data(), kBytes, abi::kPtrCuda, &memory.mhandle) ==
               abi::kSuccess &&
           memory.mhandle != nullptr;
  }
  Connection* start_connected() {
    EXPECT_EQ(start(), 2);
    return connect();
  }
  bool drop(void* comm, GpuMemory& memory) {
    return (*net_)->dereg_mr(comm, std::exchange(memory.mhandle, nullptr)) == abi::kSuccess;
  }
  // From the GPU's memory, to it, and what is there at the end.
  void transfer(Connection& connection, size_t length, size_t from, size_t to) {
    void* const receive = connection.receive(target_.at(to, length), target_.mhandle);
    ASSERT_NE(receive, nullptr);
    void* const send = connection.send(source_.at(from, length), source_.mhandle);
    ASSERT_NE(send, nullptr);
    int sizes[abi::kMaxTestSizes] = {};
    ASSERT_TRUE(connection.wait(receive, sizes));
    EXPECT_EQ(sizes[0], static_cast<int>(length));
    EXPECT_EQ(target_.read(to, length), source_.read(from, length));
    ASSERT_TRUE(connection.wait(send));
    EXPECT_EQ((*net_)->irecv_consumed(connection.recv_comm, 1, receive), abi::kSuccess);
  }
  static bool is_done(Connection& connection, void* request, const Caller<NewestVersion>& net) {
    int done = 0, sizes[abi::kMaxTestSizes] = {};
    connection.result = net->test(request, &done, sizes);
    return done != 0;
  }

  GpuMemory source_, target_;
};

TEST_F(DatagramGpuTest, SendsGatherFromMemoryOfTheGpu) {
  auto* connection = start_connected();
  for (const size_t length : {1, 4000, 100'001, 3'000'000}) {
    const auto room = connection->received.bytes.subspan(16, length);
    void* const receive = connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(source_.at(7, length), source_.mhandle);
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    ASSERT_TRUE(connection->wait(receive));
    EXPECT_EQ(std::vector<std::byte>(room.begin(), room.end()), source_.read(7, length)) << length;
    ASSERT_TRUE(connection->wait(send));
  }
}

TEST_F(DatagramGpuTest, EveryLengthAndPlace) {
  auto* connection = start_connected();
  for (const size_t length : {0, 1, 15, 16, 17, 3967, 3968, 3969, 7936, 65536, 1'000'003, 3'900'000}) {
    SCOPED_TRACE(length);
    ASSERT_NO_FATAL_FAILURE(transfer(*connection, length, length % 61, length % 53));
  }
}

TEST_F(DatagramGpuTest, ManyMessagesAtATime) {
  constexpr size_t kPlaces = 8, kPlaceBytes = kBytes / kPlaces;
  auto* connection = start_connected();
  struct Open {
    void *send = nullptr, *receive = nullptr;
    size_t length = 0, from = 0;
  };
  std::array<Open, kPlaces> open;
  std::mt19937 random{7};
  for (size_t i = 0; i < 400; ++i) {
    Open& at = open[i % kPlaces];
    const size_t to = i % kPlaces * kPlaceBytes;
    if (at.receive != nullptr) {
      int sizes[abi::kMaxTestSizes] = {};
      ASSERT_TRUE(connection->wait(at.receive, sizes)) << i;
      ASSERT_EQ(sizes[0], static_cast<int>(at.length));
      ASSERT_EQ(target_.read(to, at.length), source_.read(at.from, at.length)) << i;
      ASSERT_TRUE(connection->wait(at.send)) << i;
    }
    at.length = random() % 60'000;
    at.from = random() % (kBytes - at.length);
    const bool sends_first = random() % 2 == 0;
    if (sends_first) at.send = connection->send(source_.at(at.from, at.length), source_.mhandle);
    at.receive = connection->receive(target_.at(to, at.length), target_.mhandle);
    if (!sends_first) at.send = connection->send(source_.at(at.from, at.length), source_.mhandle);
    ASSERT_NE(at.send, nullptr);
    ASSERT_NE(at.receive, nullptr);
  }
}

// NCCL's LL128 reads lines of 128 bytes, whose last 8 say that the rest is there, and waits for nothing else.
TEST_F(DatagramGpuTest, ALineWhoseEndIsThereIsThere) {
  constexpr size_t kLineBytes = 128, kFlagBytes = 8, kLength = 100 * 8192;
  environment_.set("SOFTVERBS_FAULTS", "seed 3; lose chance=0.2; reorder by=16 chance=0.2");
  auto* connection = start_connected();
  source_.memory.fill(1, kLength);
  const std::vector<std::byte> wanted = source_.read(0, kLength);
  const auto count_lines = [&](const std::vector<std::byte>& found, size_t* torn) {
    size_t whole = 0;
    for (size_t at = 0; at < kLength; at += kLineBytes) {
      const size_t flag = at + kLineBytes - kFlagBytes;
      if (std::memcmp(&found[flag], &wanted[flag], kFlagBytes) != 0) continue;
      ++(std::memcmp(&found[at], &wanted[at], kLineBytes) == 0 ? whole : *torn);
    }
    return whole;
  };
  for (const bool is_gpu : {true, false}) {
    const auto room = connection->received.bytes.first(kLength);
    void* const receive = is_gpu ? connection->receive(target_.at(0, kLength), target_.mhandle)
                                 : connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(source_.at(0, kLength), source_.mhandle);
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    const auto look = [&](size_t* torn) {
      const auto found = is_gpu ? target_.read(0, kLength) : std::vector<std::byte>(room.begin(), room.end());
      return count_lines(found, torn);
    };
    size_t partial = 0;
    ASSERT_TRUE(poll_until([&] {
      const bool is_over = is_done(*connection, receive, *net_);
      size_t torn = 0, still_torn = 0;
      const size_t whole = look(&torn);
      if (whole != 0 && whole != kLength / kLineBytes) ++partial;
      if (torn != 0) {  // the stand-in may have been copying just then
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        look(&still_torn);
      }
      EXPECT_EQ(still_torn, 0U);
      return is_over || HasFailure();
    }));
    EXPECT_NE(partial, 0U) << "it was never looked at half way";
    ASSERT_TRUE(connection->wait(send));
  }
}

// A receive is done when its bytes are in their place, and not when they are here.
TEST_F(DatagramGpuTest, WhatIsNotInItsPlaceIsNotDone) {
  auto* connection = start_connected();
  ASSERT_TRUE(hold_copies(true));
  void* const receive = connection->receive(target_.at(0, 50'000), target_.mhandle);
  void* const send = connection->send(50'000);
  ASSERT_NE(receive, nullptr);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(connection->wait(send));
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(is_done(*connection, receive, *net_));
  tools::fill_pattern(connection->sent.bytes.first(50'000), 5);  // it was read before
  ASSERT_TRUE(hold_copies(false));
  ASSERT_TRUE(connection->wait(receive));
  EXPECT_EQ(target_.read(0, 50'000), std::vector<std::byte>(50'000));
}

// More than the pool has pages for, of which none comes back; then all do.
TEST_F(DatagramGpuTest, PagesComeBackOnceTheyAreCopied) {
  environment_.set("VERBENA_BOUNCE_BYTES", "1m");
  auto* connection = start_connected();
  ASSERT_TRUE(hold_copies(true));
  const auto message = connection->sent.bytes.first(3'000'000);
  tools::fill_pattern(message, 3);
  void* const receive = connection->receive(target_.at(64, message.size()), target_.mhandle);
  void* const send = connection->send(message, connection->sent.mhandle);
  ASSERT_NE(receive, nullptr);
  ASSERT_NE(send, nullptr);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (std::chrono::steady_clock::now() < end) {
    ASSERT_FALSE(is_done(*connection, send, *net_)) << "there is no room for all of it";
    ASSERT_FALSE(is_done(*connection, receive, *net_));
  }
  ASSERT_TRUE(hold_copies(false));
  ASSERT_TRUE(connection->wait(receive));
  ASSERT_TRUE(connection->wait(send));
  EXPECT_EQ(target_.read(64, message.size()), std::vector<std::byte>(message.begin(), message.end()));
  for (int i = 0; i < 20; ++i) transfer(*connection, 300'000, 0, 0);
}

// With copies under way, as NCCL aborts; the other channel's go on.
TEST_F(DatagramGpuTest, ClosesWithCopiesUnderWay) {
  ASSERT_EQ(start(), 2);
  for (int round = 0; round < 4; ++round) {
    auto* const other = connect();
    GpuMemory theirs, ours;
    theirs.memory.fill(9);
    auto* const closing = establish(0, HandleShape::kNull);
    ASSERT_TRUE(add(closing->recv_comm, ours));
    ASSERT_TRUE(hold_copies(true));
    void* const lost = closing->receive(ours.at(0, 200'000), ours.mhandle);
    void* const lost_send = closing->send(200'000);
    void* const kept = other->receive(target_.at(0, 100'000), target_.mhandle);
    const auto message = other->sent.bytes.first(100'000);
    tools::fill_pattern(message, static_cast<uint64_t>(round));
    void* const kept_send = other->send(message, other->sent.mhandle);
    for (void* request : {lost, lost_send, kept, kept_send}) ASSERT_NE(request, nullptr);
    ASSERT_TRUE(closing->wait(lost_send));
    ASSERT_TRUE(other->wait(kept_send));
    std::thread later = release_copies_later();
    if (round % 2 == 0) {
      EXPECT_TRUE(drop(closing->recv_comm, ours));  // with the receive open
    }
    EXPECT_TRUE(closing->close_recv());
    later.join();
    ours.memory.fill(77);  // it is nobody else's any more
    ASSERT_TRUE(other->wait(kept));
    EXPECT_EQ(target_.read(0, message.size()), std::vector<std::byte>(message.begin(), message.end()));
    EXPECT_TRUE(ours.memory.matches(77, 0, kBytes));
    connections_.clear();
  }
  auto* connection = connect();
  for (int i = 0; i < 20; ++i) transfer(*connection, 1'000'000, 0, 0);  // all pages are there
}

// The handle is in the GPU's memory, the pages there or where its kernels reach them; what has a slot and is
// the user's own memory is put in its place.
class DatagramUnpackTest : public DatagramGpuTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Places, DatagramUnpackTest, ::testing::Values("gpu", "host"),
                         [](const auto& place) { return place.param; });

TEST_P(DatagramUnpackTest, AKernelUnpacks) {
  environment_.set("VERBENA_UNPACK", "1");
  environment_.set("VERBENA_BOUNCE", GetParam());
  ASSERT_EQ(start(), 2);
  Connection* const connection = establish();
  ASSERT_TRUE(add(connection->send_comm, source_));
  ASSERT_TRUE(add(connection->recv_comm, target_));
  using Copy = int(void*, unsigned long long, size_t);
  auto* const copy = reinterpret_cast<Copy*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemcpyDtoH_v2"));
  UnpackDeviceHandle handle{};
  ASSERT_EQ(copy(&handle, reinterpret_cast<uintptr_t>(connection->device_handle.handle), sizeof(handle)), 0);
  const bool is_in_gpu = std::string_view(GetParam()) == "gpu";
  constexpr size_t kLength = 150'000, kPieceBytes = 4096,
                   kDescriptors = (kLength + kPieceBytes - 1) / kPieceBytes;
  for (uint64_t i = 0; i < 40; ++i) {
    const bool is_users = i % 3 == 2;
    const auto room = connection->received.bytes.subspan(32, kLength);
    void* const receive = is_users ? connection->receive(target_.at(32, kLength), target_.mhandle)
                                   : connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(source_.at(i * 100, kLength), source_.mhandle);
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    ASSERT_TRUE(connection->wait(receive));
    const unsigned slot = tools::compute_slot(handle.head, i);
    std::vector<std::byte> pages;
    UnpackDeviceHandle read = handle;  // from a copy of the pages, where the CPU does not reach them
    if (is_in_gpu && !is_users) {
      const auto& meta = *handle.meta;
      size_t end = 0;
      for (uint64_t at = 0; at < meta.cnt[slot]; ++at)
        end = std::max<size_t>(end, size_t{meta.mem[slot][at].src_off} + meta.mem[slot][at].len);
      pages.resize(end);
      ASSERT_EQ(copy(pages.data(), reinterpret_cast<uintptr_t>(handle.bounce_buf), end), 0);
      read.bounce_buf = pages.data();
    }
    const auto unpacked = tools::unpack_slot(read, slot, room);
    EXPECT_EQ(unpacked.descriptor_count, is_users ? 0 : kDescriptors) << i;
    EXPECT_EQ(is_users ? target_.read(32, kLength) : std::vector<std::byte>(room.begin(), room.end()),
              source_.read(i * 100, kLength))
        << i;
    ASSERT_TRUE(connection->wait(send));
    ASSERT_EQ((*net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
  }
  EXPECT_TRUE(LogCapture::get().take_warnings().empty());
}

// It lands in memory of the host, though kernels unpack from pages in the GPU's: no copy of the GPU's device
// is waited for, which takes longer than the bytes.
TEST_F(DatagramGpuTest, AShortMessageWaitsForNoCopyToAGpu) {
  environment_.set("VERBENA_UNPACK", "1");
  ASSERT_EQ(start(), 2);
  Connection* const connection = establish();
  ASSERT_TRUE(hold_copies(true));
  for (const size_t length : {0, 1, 8, 4096, 16384}) {
    const auto room = connection->received.bytes.subspan(16, length);
    const auto message = connection->sent.bytes.subspan(7, length);
    tools::fill_pattern(message, length);
    void* const receive = connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(message, connection->sent.mhandle);
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    int sizes[abi::kMaxTestSizes] = {};
    ASSERT_TRUE(connection->wait(receive, sizes)) << length;
    EXPECT_EQ(sizes[0], static_cast<int>(length));
    EXPECT_TRUE(std::equal(room.begin(), room.end(), message.begin(), message.end())) << length;
    ASSERT_TRUE(connection->wait(send));
    ASSERT_EQ((*net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
  }
}

// Of every length, one behind the other, what is lost and overtaken too; some of it before its receive.
TEST_F(DatagramGpuTest, ShortAndLongMessagesInPagesOfTwoKinds) {
  constexpr size_t kMessages = 300, kMostBytes = 200'000;
  environment_.set("VERBENA_UNPACK", "1");
  environment_.set("SOFTVERBS_FAULTS", "seed 3; lose chance=0.02; reorder by=16");
  ASSERT_EQ(start(), 2);
  Connection* const connection = establish();
  ASSERT_TRUE(add(connection->send_comm, source_));
  ASSERT_TRUE(add(connection->recv_comm, target_));
  std::mt19937 random{11};
  for (size_t i = 0; i < kMessages; ++i) {
    const size_t lengths[] = {random() % 64, 16384, 16385, 1 + random() % kMostBytes, 1 + random() % 20'000};
    const size_t length = lengths[random() % std::size(lengths)], from = random() % (kBytes - length);
    const bool is_late = random() % 2 == 0, is_unpacked = random() % 3 == 0;
    const auto post = [&] {
      return is_unpacked ? connection->receive(length)
                         : connection->receive(target_.at(64, length), target_.mhandle);
    };
    void* receive = is_late ? nullptr : post();
    void* const send = connection->send(source_.at(from, length), source_.mhandle);
    if (is_late) receive = post();
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    int sizes[abi::kMaxTestSizes] = {};
    ASSERT_TRUE(connection->wait(receive, sizes)) << i << ": " << length << " bytes";
    ASSERT_EQ(sizes[0], static_cast<int>(length));
    if (!is_unpacked) {
      ASSERT_EQ(target_.read(64, length), source_.read(from, length)) << i << ": " << length << " bytes";
    }
    ASSERT_TRUE(connection->wait(send));
    ASSERT_EQ((*net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
  }
}

// What is too long for a slot, and lands in pages that the CPU does not reach.
TEST_F(DatagramGpuTest, PagesOfTheGpuAreCopiedToTheHost) {
  environment_.set("VERBENA_UNPACK", "1");
  ASSERT_EQ(start(), 2);
  Connection* const connection = establish();
  ASSERT_TRUE(add(connection->send_comm, source_));
  for (const size_t length : {2'500'000, 3'000'001}) {
    const auto room = connection->received.bytes.subspan(48, length);
    void* const receive = connection->receive(room, connection->received.mhandle);
    void* const send = connection->send(source_.at(9, length), source_.mhandle);
    ASSERT_NE(receive, nullptr);
    ASSERT_NE(send, nullptr);
    ASSERT_TRUE(connection->wait(receive));
    EXPECT_EQ(std::vector<std::byte>(room.begin(), room.end()), source_.read(9, length)) << length;
    ASSERT_TRUE(connection->wait(send));
    ASSERT_EQ((*net_)->irecv_consumed(connection->recv_comm, 1, receive), abi::kSuccess);
  }
}

// Memory of a GPU that cannot be written ends its channel, and no other: what these have under way begins
// again.
TEST_F(DatagramGpuTest, APlacementThatFailsEndsItsChannel) {
  constexpr size_t kLength = 100'000;
  environment_.set("SOFTVERBS_FAULTS", "fail opcode=RDMA_WRITE status=LOC_PROT nth=3");
  ASSERT_EQ(start(), 2);
  auto* const other = connect();
  auto* const failing = establish(0, HandleShape::kNull);
  GpuMemory theirs;
  ASSERT_TRUE(add(failing->recv_comm, theirs));
  ASSERT_TRUE(hold_copies(true));
  // One page, the first write. The third is the other channel's.
  void* const kept = other->receive(target_.at(0, 1'000), target_.mhandle);
  const auto kept_bytes = other->sent.bytes.first(1'000);
  void* const kept_send = other->send(kept_bytes, other->sent.mhandle);
  ASSERT_NE(kept, nullptr);
  ASSERT_NE(kept_send, nullptr);
  ASSERT_TRUE(other->wait(kept_send));
  void* const lost = failing->receive(theirs.at(0, kLength), theirs.mhandle);
  ASSERT_NE(lost, nullptr);
  ASSERT_NE(failing->send(kLength), nullptr);
  std::thread release = release_copies_later();
  EXPECT_FALSE(failing->wait(lost));
  EXPECT_TRUE(other->wait(kept));
  release.join();
  EXPECT_EQ(target_.read(0, 1'000), std::vector<std::byte>(kept_bytes.begin(), kept_bytes.end()));
  for (int i = 0; i < 5; ++i) transfer(*other, 300'000, 0, 0);
  auto* const next = establish(0, HandleShape::kNull);
  ASSERT_TRUE(drop(failing->recv_comm, theirs));
  ASSERT_TRUE(add(next->recv_comm, theirs));
  void* const last = next->receive(theirs.at(0, kLength), theirs.mhandle);
  ASSERT_NE(last, nullptr);
  void* const last_send = next->send(kLength);
  ASSERT_NE(last_send, nullptr);
  EXPECT_TRUE(next->wait(last));
  ASSERT_TRUE(next->wait(last_send));
}

// Its last message is whole all the same.
TEST_F(DatagramGpuTest, APeerThatClosesWithCopiesUnderWay) {
  auto* connection = start_connected();
  const auto message = connection->sent.bytes.first(100'000);
  tools::fill_pattern(message, 4);
  ASSERT_TRUE(hold_copies(true));
  void* const receive = connection->receive(target_.at(0, message.size()), target_.mhandle);
  void* const send = connection->send(message, connection->sent.mhandle);
  ASSERT_NE(receive, nullptr);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(connection->wait(send));
  std::thread later = release_copies_later();
  EXPECT_TRUE(connection->close_send());
  later.join();
  ASSERT_TRUE(connection->wait(receive));
  EXPECT_EQ(target_.read(0, message.size()), std::vector<std::byte>(message.begin(), message.end()));
}

// The grace is for what is not here yet: a copy takes what the device takes.
TEST_F(DatagramGpuTest, WhatAPeerLeftLongAgoIsPutInItsPlace) {
  auto* connection = start_connected();
  const auto message = connection->sent.bytes.first(3000);
  tools::fill_pattern(message, 6);
  void* const send = connection->send(message, connection->sent.mhandle);
  ASSERT_NE(send, nullptr);
  ASSERT_TRUE(connection->wait(send));
  EXPECT_TRUE(connection->close_send());
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(hold_copies(true));
  void* const receive = connection->receive(target_.at(0, message.size()), target_.mhandle);
  ASSERT_NE(receive, nullptr);
  for (int i = 0; i < 100; ++i) {
    ASSERT_FALSE(is_done(*connection, receive, *net_));
    ASSERT_EQ(connection->result, abi::kSuccess);
  }
  ASSERT_TRUE(hold_copies(false));
  ASSERT_TRUE(connection->wait(receive));
  EXPECT_EQ(target_.read(0, message.size()), std::vector<std::byte>(message.begin(), message.end()));
}

// Copies that were under way on it begin again on the other.
TEST_F(DatagramGpuTest, ARailGoesDownForGood) {
  const RailSwitch rails(environment_);
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "700");
  const int joined = start_joined();
  ASSERT_FALSE(HasFailure());
  auto* connection = connect(joined);
  std::future<bool> told = std::async(std::launch::async, [&] { return rails.set(1, "down"); });
  constexpr int kTransfersAfterwards = 100;
  for (size_t i = 0, left = kTransfersAfterwards; left != 0; ++i) {
    if (told.wait_for(std::chrono::seconds(0)) == std::future_status::ready) --left;
    ASSERT_NO_FATAL_FAILURE(transfer(*connection, 500'000, i % 64, i % 48));
  }
  EXPECT_TRUE(told.get());
}

// The GPU's memory cannot be written for one of two peers.
TEST_F(DatagramPeerTest, APlacementThatFailsEndsNoOtherPeersChannel) {
  constexpr int kMessages = 4;
  environment_.set("VERBENA_UNPACK", "0");
  if (!hold_copies(false)) GTEST_SKIP() << "without the stand-in for CUDA's driver: skipped";
  struct Sender {
    pid_t pid = 0;
    int pipe[2] = {-1, -1};
  } senders[2];
  for (Sender& sender : senders) {
    ASSERT_EQ(pipe(sender.pipe), 0);
    sender.pid = fork();
    if (sender.pid != 0) continue;
    End end;
    char turn = 0;
    bool is_well = connect(end, sender.pipe[0]) && end.add_memory();
    const bool is_failing = &sender == &senders[0];
    for (int i = 0; is_well && i < (is_failing ? 1 : kMessages); ++i)
      is_well = read(sender.pipe[0], &turn, 1) == 1 && (end.wait(end.begin(true)) || is_failing);
    _exit(is_well && read(sender.pipe[0], &turn, 1) == 1 ? 0 : 1);  // its engine answers until then
  }
  environment_.set("SOFTVERBS_FAULTS", "fail opcode=RDMA_WRITE status=LOC_PROT nth=1");
  GpuMemory target;
  End end;
  ASSERT_NO_FATAL_FAILURE(listen(end));
  void* ends[2] = {};
  LiveBuffer buffers[2] = {LiveBuffer(kBytes), LiveBuffer(kBytes)};
  for (int i : {0, 1}) {
    ASSERT_EQ(write(senders[i].pipe[1], handle_, sizeof(handle_)), static_cast<ssize_t>(sizeof(handle_)));
    end.comm = nullptr;
    ASSERT_NO_FATAL_FAILURE(accept(end));
    ends[i] = end.comm;
    ASSERT_EQ(end.net.reg_mr(end.comm, target.at(0, 0).data(), kBytes, abi::kPtrCuda, &buffers[i].mhandle),
              abi::kSuccess);
  }
  end.memory = target.at(0, 0).data();
  const auto receive = [&](int i) {
    end.comm = ends[i];
    std::swap(end.buffer.mhandle, buffers[i].mhandle);
    EXPECT_EQ(write(senders[i].pipe[1], "", 1), 1);
    void* const request = end.begin(false);
    const bool is_done = request != nullptr && end.wait(request);
    std::swap(end.buffer.mhandle, buffers[i].mhandle);
    return is_done;
  };
  EXPECT_FALSE(receive(0));
  for (int i = 0; i < kMessages; ++i) EXPECT_TRUE(receive(1)) << i;
  for (int i : {0, 1}) {
    ASSERT_EQ(write(senders[i].pipe[1], "", 1), 1);
    int status = 0;
    end.comm = ends[i];
    ASSERT_NO_FATAL_FAILURE(await_child(end, nullptr, senders[i].pid, 0, status));
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << i << ": " << status;
    EXPECT_EQ(end.net->dereg_mr(ends[i], buffers[i].mhandle), abi::kSuccess);
    if (i == 0) {
      EXPECT_EQ(end.net->close_recv(ends[i]), abi::kSuccess);
    }
    for (const int side : senders[i].pipe) close(side);
  }
  finish(end);
}

// What it has sent is being put in its place; then nothing of it is.
TEST_F(DatagramPeerTest, AKilledPeersMessageIsBeingCopied) {
  environment_.set("VERBENA_UNPACK", "0");
  if (!hold_copies(true)) GTEST_SKIP() << "without the stand-in for CUDA's driver: skipped";
  const pid_t child = start_peer_that_dies();
  GpuMemory target;
  End end;
  ASSERT_NO_FATAL_FAILURE(listen(end));
  ASSERT_NO_FATAL_FAILURE(accept(end));
  ASSERT_TRUE(end.add_memory(target.at(0, 0).data(), abi::kPtrCuda));
  void* const receive = end.begin(false);
  ASSERT_NE(receive, nullptr);
  ASSERT_NO_FATAL_FAILURE(await_kill(end, receive, child));
  expect_failure(end, receive, "the peer's process has ended. See");
  std::thread later = release_copies_later();
  EXPECT_EQ(end.net->dereg_mr(end.comm, end.buffer.mhandle), abi::kSuccess);
  later.join();
  target.memory.fill(8);
  finish(end);
  EXPECT_TRUE(target.memory.matches(8, 0, kBytes));
}

// What each had taken of the receiver's pages when it was killed, others need.
class DatagramKilledSendersTest : public DatagramPeerTest {
 protected:
  static constexpr int kKilled = 5, kMessages = 8;

  // In the child.
  [[noreturn]] static void send(int from_parent, bool is_killed) {
    hold_copies(false);
    const GpuMemory source;
    End end;
    if (!connect(end, from_parent) || !end.add_memory(source.at(0, 0).data(), abi::kPtrCuda)) _exit(1);
    hold_copies(is_killed);
    std::array<void*, kMessages> sends;
    for (void*& send : sends) send = end.begin(true);
    int done = 0, sizes[abi::kMaxTestSizes] = {};
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    while (is_killed && std::chrono::steady_clock::now() < until) end.net->test(sends[0], &done, sizes);
    if (is_killed) raise(SIGKILL);
    for (void* const send : sends)
      if (!end.wait(send)) _exit(2);
    char over = 0;
    _exit(read(from_parent, &over, 1) == 1 ? 0 : 3);  // its engine answers until then
  }
};

TEST_F(DatagramKilledSendersTest, TheirPagesComeBack) {
  environment_.set("VERBENA_UNPACK", "0");
  environment_.set("VERBENA_BOUNCE_BYTES", "1m");
  environment_.set("VERBENA_FAILOVER_TIMEOUT_MS", "5000");
  if (!hold_copies(false)) GTEST_SKIP() << "without the stand-in for CUDA's driver: skipped";
  struct Sender {
    pid_t pid = 0;
    int pipe[2] = {-1, -1};
  };
  std::array<Sender, kKilled + 1> senders;
  for (Sender& sender : senders) {
    ASSERT_EQ(pipe(sender.pipe), 0);
    sender.pid = fork();
    if (sender.pid == 0) send(sender.pipe[0], &sender != &senders.back());
  }
  End end;
  ASSERT_NO_FATAL_FAILURE(listen(end));
  for (const Sender& sender : senders) {
    const bool is_killed = &sender != &senders.back();
    ASSERT_EQ(write(sender.pipe[1], handle_, sizeof(handle_)), static_cast<ssize_t>(sizeof(handle_)));
    end.comm = nullptr;
    ASSERT_NO_FATAL_FAILURE(accept(end));
    ASSERT_TRUE(end.add_memory());
    std::array<void*, kMessages> receives;
    for (void*& receive : receives) ASSERT_NE(receive = end.begin(false), nullptr);
    for (void* const receive : receives) {
      ASSERT_EQ(end.wait(receive), !is_killed);
      if (is_killed) break;
    }
    int status = 0;
    if (!is_killed) {
      ASSERT_EQ(write(sender.pipe[1], "", 1), 1);
    }
    ASSERT_NO_FATAL_FAILURE(await_child(end, nullptr, sender.pid, 0, status));
    EXPECT_TRUE(is_killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(end.net->dereg_mr(end.comm, end.buffer.mhandle), abi::kSuccess);
    if (is_killed) {
      EXPECT_EQ(end.net->close_recv(end.comm), abi::kSuccess);
    }
    for (const int side : sender.pipe) close(side);
  }
  finish(end);
}

}  // namespace
}  // namespace verbena::nccl::testing
