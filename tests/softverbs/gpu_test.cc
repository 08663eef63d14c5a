#include <linux/futex.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "datagrams.h"
#include "gpu_fixture.h"
#include "softverbs/shared/shared_layout.h"
#include "tests/base/scoped_environment.h"

// Every kind of memory on either side, in one process and between two. Skipped where there is no CUDA device.
namespace verbena::softverbs_test {
namespace {

using GpuOrderTest = WithGpu<::testing::Test>;
using GpuDatagramTest = WithGpu<::testing::Test>;
using GpuHeldTest = WithGpu<::testing::Test>;

constexpr size_t kSizes[] = {1, 8, 100, 4096, 65536 + 12, kBytes - 64};
constexpr ibv_wr_opcode kOpcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
                                      IBV_WR_RDMA_READ};

// What the side that sends asks of the other.
enum class Order { kEnd, kPostReceive, kFill, kClear, kExpect };
struct Command {
  Order order;
  uint8_t seed;
  size_t offset, bytes;
};

// Plays the passive side of all transfers with one kind of memory.
void serve(int socket, Node& node, QueuePair& pair, Registered& side) {
  for (;;) {
    const auto command = hear<Command>(socket);
    switch (command.order) {
      case Order::kEnd:
        return;
      case Order::kPostReceive:
        EXPECT_EQ(pair.post_receive(0, side.piece(command.offset, command.bytes)), 0);
        break;
      case Order::kFill:
        side.memory.fill(command.seed, command.bytes);
        break;
      case Order::kClear:
        side.memory.clear(command.bytes);
        break;
      case Order::kExpect:
        // With a receive the data must be there when its completion is.
        if (command.offset == SIZE_MAX) {
          EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
          break;
        }
        tell(socket, side.memory.matches(command.seed, command.offset, command.bytes));
        continue;
    }
    tell(socket, true);
  }
}

void order(int socket, Command command) {
  tell(socket, command);
  if (command.order != Order::kEnd) {
    EXPECT_TRUE(hear<bool>(socket));
  }
}

void transfer(int socket, QueuePair& pair, Registered& near, RemoteMemory far, ibv_wr_opcode opcode,
              size_t bytes, uint8_t seed) {
  const size_t offset = bytes % 64 == 0 ? 0 : 4, end = offset + bytes;
  const bool is_read = opcode == IBV_WR_RDMA_READ;
  const bool has_receive = opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (is_read) {
    order(socket, {Order::kFill, seed, 0, end});
    near.memory.clear(end);
  } else {
    near.memory.fill(seed, end);
    order(socket, {Order::kClear, 0, 0, end});
  }
  if (has_receive) order(socket, {Order::kPostReceive, 0, offset, bytes});
  ASSERT_EQ(Send(opcode, 1).from(near.piece(offset, bytes)).to(far + offset).run(pair), IBV_WC_SUCCESS);
  if (has_receive) order(socket, {Order::kExpect, 0, SIZE_MAX, 0});
  if (is_read) {
    EXPECT_TRUE(near.memory.matches(seed, offset, bytes));
  } else {
    order(socket, {Order::kExpect, seed, offset, bytes});
  }
}

// Transfers from and to each kind of memory here, with one kind there.
void drive_all(int socket, Kind far_kind) {
  auto [node, pair] = Connected(socket);
  const auto far = hear<RemoteMemory>(socket);
  uint8_t seed = 1;
  for (const Kind near_kind : kKinds) {
    Registered near(node, near_kind, 0);
    for (const ibv_wr_opcode opcode : kOpcodes) {
      for (const size_t bytes : kSizes) {
        SCOPED_TRACE(std::string(get_name(near_kind)) + " to " + get_name(far_kind) + ", opcode " +
                     std::to_string(opcode) + ", bytes " + std::to_string(bytes));
        transfer(socket, pair, near, far, opcode, bytes, seed++);
        if (::testing::Test::HasFailure()) break;
      }
    }
  }
  order(socket, {Order::kEnd, 0, 0, 0});
}

void test_all(Kind far_kind, bool is_other_gpu) {
  Child child([=](int socket) {
    const int gpu = is_other_gpu ? count_gpus() - 1 : 0;
    start_cuda();
    auto [node, pair] = Connected(socket);
    Registered side(node, far_kind, gpu);
    tell(socket, side.remote());
    serve(socket, node, pair, side);
  });
  run_apart([&] { drive_all(child.socket(), far_kind); });
}
void drive_one_process(Kind far_kind) {
  Node node;
  QueuePair pair(node);
  pair.connect(pair.address());
  Registered far(node, far_kind, count_gpus() - 1);
  uint8_t seed = 1;
  for (const Kind near_kind : kKinds) {
    Registered near(node, near_kind, 0);
    for (const size_t bytes : kSizes) {
      SCOPED_TRACE(std::string(get_name(near_kind)) + " to " + get_name(far_kind) + ", bytes " +
                   std::to_string(bytes));
      near.memory.fill(++seed, bytes);
      far.memory.clear(bytes);
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, bytes)).to(far.remote()).run(pair),
                IBV_WC_SUCCESS);
      EXPECT_TRUE(far.memory.matches(seed, 0, bytes));
      near.memory.clear(bytes);
      ASSERT_EQ(Send(IBV_WR_RDMA_READ, 2).from(near.piece(0, bytes)).to(far.remote()).run(pair),
                IBV_WC_SUCCESS);
      EXPECT_TRUE(near.memory.matches(seed, 0, bytes));
    }
  }
}

class GpuTest : public WithGpu<::testing::TestWithParam<Kind>> {};

TEST_P(GpuTest, BetweenProcesses) {
  test_all(GetParam(), false);
}

TEST_P(GpuTest, BetweenProcessesAndGpus) {
  test_all(GetParam(), true);
}

TEST_P(GpuTest, InOneProcess) {
  run_apart([] { drive_one_process(GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuTest, ::testing::ValuesIn(kKinds),
                         [](const auto& test) { return std::string(get_name(test.param)); });

// Pages sent to a GPU one by one, then an immediate without data: all pages are there when it arrives.
TEST_F(GpuOrderTest, NoticeFollowsItsPages) {
  constexpr size_t kPageBytes = 16384, kPages = 128;
  constexpr int kRounds = 20;
  Child child([](int socket) {
    start_cuda();
    Node node;
    QueuePair pair(node, {.receive_requests = 256});
    meet(socket, pair);
    Registered side(node, Kind::kDevice, 0);
    tell(socket, side.remote());
    for (int round = 0; round < kRounds; ++round) {
      side.memory.clear();
      ibv_recv_wr request{}, *bad = nullptr;
      ASSERT_EQ(ibv_post_recv(pair.qp, &request, &bad), 0);
      tell(socket, true);
      ASSERT_EQ(node.wait_completion().opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_TRUE(side.memory.matches(static_cast<uint8_t>(round), 0, kPages * kPageBytes))
          << "round " << round;
    }
  });
  run_apart([&] {
    Node node;
    QueuePair pair(node, {.send_requests = 512});
    meet(child.socket(), pair);
    const auto far = hear<RemoteMemory>(child.socket());
    Registered near(node, Kind::kExportable, 0);
    for (int round = 0; round < kRounds; ++round) {
      near.memory.fill(static_cast<uint8_t>(round));
      hear<bool>(child.socket());
      for (size_t page = 0; page < kPages; ++page) {
        // Odd pages first within pairs, so that not all copies continue each other.
        const size_t at = (page ^ 1) * kPageBytes;
        ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, page, 0).from(near.piece(at, kPageBytes)).to(far + at).post(pair),
                  0);
      }
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE_WITH_IMM, 1000).to(0, 0).post(pair), 0);
      EXPECT_EQ(node.wait_completion().wr_id, 1000u);
    }
  });
}

bool uses_batches() {
  const char* const setting = getenv("SOFTVERBS_GPU_BATCH");
  return setting == nullptr || setting[0] != '0';
}

// A staged message: sends of a page each, from memory that is whole, into receives that a queue has in some
// order.
constexpr size_t kStagedPageBytes = 16384, kStagedPages = 32;

// All in one call; the last is signaled.
int post_chain(QueuePair& pair, std::vector<Send>& sends) {
  sends.back().request.send_flags = IBV_SEND_SIGNALED;
  return post_together(pair, sends);
}

// What the driver was asked for by the second of two messages, as the first may have been cut by chance.
void expect_staged(const std::vector<size_t>& pages_there, const std::function<void(CopyCalls)>& judge,
                   uint32_t page_bytes = kStagedPageBytes) {
  Child child([&](int socket) {
    start_cuda();
    Node node;
    QueuePair pair(node, {.receive_requests = 256});
    meet(socket, pair);
    Registered side(node, Kind::kDevice, 0);
    for (int round = 0; round < 2; ++round) {
      side.memory.clear();
      for (const size_t page : pages_there) {
        ASSERT_EQ(pair.post_receive(0, side.piece(page * page_bytes, page_bytes)), 0);
      }
      tell(socket, true);
      ASSERT_EQ(node.wait_completions(kStagedPages).size(), kStagedPages);
      tell(socket, side.memory.matches(3, 0, kStagedPages * page_bytes));
    }
  });
  run_apart([&] {
    auto [node, pair] = Connected(child.socket());
    Registered near(node, Kind::kDevice, 0);
    near.memory.fill(3);
    CopyCalls before;
    for (int round = 0; round < 2; ++round) {
      hear<bool>(child.socket());
      before = count_copy_calls();
      std::vector<Send> sends;
      for (const size_t page : pages_there)
        sends.emplace_back(IBV_WR_SEND, page, 0).from(near.piece(page * page_bytes, page_bytes));
      ASSERT_EQ(post_chain(pair, sends), 0);
      ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
      EXPECT_TRUE(hear<bool>(child.socket()));
    }
    const CopyCalls after = count_copy_calls();
    // Over the wire the data are bounced in pieces.
    if (!is_over_wire()) judge({after.all - before.all, after.batches - before.batches});
  });
}

TEST_F(GpuOrderTest, SendsIntoConsecutivePagesAreOneCopy) {
  std::vector<size_t> pages;
  for (size_t page = 0; page < kStagedPages; ++page) pages.push_back(page);
  expect_staged(pages, [](CopyCalls calls) {
    EXPECT_EQ(calls.all, 1);
    EXPECT_EQ(calls.batches, 0);
  });
}

// So that they are done one after the other, not all at the end.
TEST_F(GpuOrderTest, AMiBOfConsecutivePagesIsACopyOfItsOwn) {
  constexpr uint32_t kLongPageBytes = 65536;
  std::vector<size_t> pages;
  for (size_t page = 0; page < kStagedPages; ++page) pages.push_back(page);
  expect_staged(
      pages, [](CopyCalls calls) { EXPECT_EQ(calls.all, int{kStagedPages * kLongPageBytes >> 20}); },
      kLongPageBytes);
}

TEST_F(GpuOrderTest, SendsIntoScatteredPagesAreOneBatch) {
  std::vector<size_t> pages;
  for (size_t page = 0; page < kStagedPages; ++page) pages.push_back(page ^ 1);
  expect_staged(pages, [](CopyCalls calls) {
    EXPECT_EQ(calls.all, uses_batches() ? 1 : static_cast<int>(kStagedPages));
    EXPECT_EQ(calls.batches, uses_batches() ? 1 : 0);
  });
}

// Writes become visible in their order, whether or not a receive says so: what a kernel polls for is the
// last.
TEST_F(GpuOrderTest, AFlagFollowsWhatWasWrittenBefore) {
  constexpr size_t kPieces = 8, kPieceBytes = 65536, kFlagAt = kPieces * 2 * kPieceBytes;
  constexpr uint8_t kRounds = 10;
  Child child([&](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    Registered side(node, Kind::kDevice, 0);
    for (uint8_t round = 1; round <= kRounds; ++round) {
      side.memory.clear();
      tell(socket, side.remote());
      while (!side.memory.matches(round, kFlagAt, 8)) {
      }
      for (size_t piece = 0; piece < kPieces; ++piece)
        EXPECT_TRUE(side.memory.matches(round, 2 * piece * kPieceBytes, kPieceBytes)) << "piece " << piece;
    }
  });
  run_apart([&] {
    auto [node, pair] = Connected(child.socket());
    Registered near(node, Kind::kDevice, 0);
    for (uint8_t round = 1; round <= kRounds; ++round) {
      const auto far = hear<RemoteMemory>(child.socket());
      near.memory.fill(round);
      std::vector<Send> writes;
      for (size_t piece = 0; piece <= kPieces; ++piece) {
        const bool is_flag = piece == kPieces;
        const size_t at = is_flag ? kFlagAt : 2 * piece * kPieceBytes;
        writes.emplace_back(IBV_WR_RDMA_WRITE, piece, 0)
            .from(near.piece(at, is_flag ? 8 : kPieceBytes))
            .to(far + at);
      }
      ASSERT_EQ(post_chain(pair, writes), 0);
      EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
    }
  });
}

// The same where the flag is written behind sends, and continues the last of them.
void drive_flag_behind_sends() {
  constexpr size_t kSends = 8, kSendBytes = 1024, kFlagAt = kSends * 2 * kSendBytes;
  auto [node, first, second] = ConnectedPair();
  Registered near(node, Kind::kDevice, 0), far(node, Kind::kDevice, 0);
  for (uint8_t round = 1; round <= 10; ++round) {
    near.memory.fill(round, kFlagAt + 8);
    far.memory.clear(kFlagAt + 8);
    std::vector<Send> sends;
    for (size_t i = 1; i <= kSends; ++i) {
      const size_t at = i == kSends ? kFlagAt - kSendBytes : 2 * i * kSendBytes;
      ASSERT_EQ(second.post_receive(0, far.piece(at, kSendBytes)), 0);
      sends.emplace_back(IBV_WR_SEND, i, 0).from(near.piece(at, kSendBytes));
    }
    sends.emplace_back(IBV_WR_RDMA_WRITE, 100, 0).from(near.piece(kFlagAt, 8)).to(far.remote(kFlagAt));
    ASSERT_EQ(post_chain(first, sends), 0);
    while (!far.memory.matches(round, kFlagAt, 8)) {
    }
    for (size_t i = 1; i < kSends; ++i)
      EXPECT_TRUE(far.memory.matches(round, 2 * i * kSendBytes, kSendBytes)) << "send " << i;
    ASSERT_EQ(node.wait_completions(kSends + 1).size(), kSends + 1);
  }
}

TEST_F(GpuOrderTest, AFlagFollowsTheSendsThatItContinues) {
  run_apart([] { drive_flag_behind_sends(); });
}

// The same where the memory of the flag is another GPU's, whose copies are another stream's.
void drive_flag_of_another_gpu() {
  constexpr size_t kPieces = 32, kPieceBytes = 1024, kFlagAt = kPieces * 2 * kPieceBytes;
  auto [node, first, second] = ConnectedPair();
  Registered data(node, Kind::kDevice, 0), flag(node, Kind::kDevice, count_gpus() - 1),
      far(node, Kind::kDevice, 0);
  for (uint8_t round = 1; round <= 10; ++round) {
    data.memory.fill(round, kFlagAt);
    flag.memory.fill(round, kFlagAt + 8);
    far.memory.clear(kFlagAt + 8);
    std::vector<Send> writes;
    for (size_t piece = 0; piece <= kPieces; ++piece) {
      const size_t at = 2 * piece * kPieceBytes;
      const Registered& near = piece == kPieces ? flag : data;
      writes.emplace_back(IBV_WR_RDMA_WRITE, piece, 0)
          .from(near.piece(at, piece == kPieces ? 8 : kPieceBytes))
          .to(far.remote(at));
    }
    ASSERT_EQ(post_chain(first, writes), 0);
    while (!far.memory.matches(round, kFlagAt, 8)) {
    }
    for (size_t piece = 0; piece < kPieces; ++piece)
      EXPECT_TRUE(far.memory.matches(round, 2 * piece * kPieceBytes, kPieceBytes)) << "piece " << piece;
    EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  }
}

TEST_F(GpuOrderTest, AFlagOfAnotherGpuFollowsWhatWasWrittenBefore) {
  run_apart([] { drive_flag_of_another_gpu(); });
}

// Datagrams whose header lands in host memory, and the data behind it in a page of memory of that kind.
void expect_datagrams(Kind near_kind, Kind far_kind, bool is_other_gpu, const char* plan,
                      const std::function<void(CopyCalls)>& judge) {
  constexpr uint32_t kPackets = 60, kSeed = 9, kPageStep = kPageBytes / 256 * 13;
  const base::ScopedEnvironment environment({{"SOFTVERBS_FAULTS", plan}});
  Child child([&](int socket) {
    const int gpu = is_other_gpu ? count_gpus() - 1 : 0;
    start_cuda();
    unsetenv("SOFTVERBS_FAULTS");
    Node node;
    DatagramEnd end(node);
    Registered pages(node, far_kind, gpu);
    Buffer lines(node, kPackets * kLineBytes);
    for (int round = 0; round < 3; ++round) {
      pages.memory.clear();
      for (uint32_t i = 0; i < kPackets; ++i) end.post_receive(i, lines, pages);
      tell(socket, DatagramAddress{end.address(), end.qp->qp_num});
      for (const ibv_wc& wc : node.wait_completions(kPackets)) {
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        const uint8_t* const line = lines.data() + wc.wr_id * kLineBytes + kGrhBytes;
        for (uint32_t i = 0; i < kHeaderBytes; ++i)
          EXPECT_EQ(line[i], wc.imm_data + i) << "header of " << wc.imm_data;
        // The pattern of a page is that of the page before, plus kPageStep.
        const auto seed = static_cast<uint8_t>(kSeed + kPageStep * (wc.imm_data - wc.wr_id));
        EXPECT_TRUE(pages.memory.matches(seed, wc.wr_id * kPageBytes, kDataBytes))
            << "page " << wc.wr_id << " of packet " << wc.imm_data;
      }
      tell(socket, true);
    }
  });
  run_apart([&] {
    Node node;
    DatagramEnd end(node);
    Buffer headers(node, kPackets * kHeaderBytes);
    for (uint32_t i = 0; i < kPackets * kHeaderBytes; ++i)
      headers.data()[i] = static_cast<uint8_t>(i / kHeaderBytes + i % kHeaderBytes);
    Registered near(node, near_kind, 0);
    near.memory.fill(kSeed, kPackets * kPageBytes);
    CopyCalls before;
    for (int round = 0; round < 3; ++round) {
      const auto there = hear<DatagramAddress>(child.socket());
      ibv_ah* const handle = end.make_handle(there.gid, 7);
      std::vector<DatagramEnd::Packet> packets;
      for (uint32_t i = 0; i < kPackets; ++i)
        packets.push_back({i, headers.piece(i * kHeaderBytes, kHeaderBytes),
                           near.piece(i * kPageBytes, kDataBytes), handle, there.number});
      before = count_copy_calls();
      ASSERT_EQ(end.post(packets), 0);
      ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
      EXPECT_TRUE(hear<bool>(child.socket()));
      ibv_destroy_ah(handle);
    }
    const CopyCalls after = count_copy_calls();
    if (!is_over_wire()) judge({after.all - before.all, after.batches - before.batches});
  });
}

TEST_F(GpuDatagramTest, HeadersLandInHostMemoryAndDataInPagesOfAGpu) {
  for (const Kind near_kind : {Kind::kDevice, Kind::kExportable, Kind::kPageable})
    for (const bool is_other_gpu : {false, true})
      expect_datagrams(near_kind, Kind::kDevice, is_other_gpu, "", [&](CopyCalls calls) {
        EXPECT_LE(calls.all, uses_batches() ? 8 : 60) << get_name(near_kind);
      });
}

// Through memory of the sender's, many by one call.
TEST_F(GpuDatagramTest, DataOfAGpuLandsInHostMemory) {
  for (const Kind near_kind : {Kind::kDevice, Kind::kExportable})
    expect_datagrams(near_kind, Kind::kPageable, true, "", [&](CopyCalls calls) {
      EXPECT_LE(calls.all, uses_batches() ? 8 : 60) << get_name(near_kind);
    });
}

TEST_F(GpuDatagramTest, APlanCarriesDataOfGpusToo) {
  for (const auto& [near_kind, far_kind] : {std::pair{Kind::kDevice, Kind::kDevice},
                                            {Kind::kPageable, Kind::kDevice},
                                            {Kind::kDevice, Kind::kPageable}})
    expect_datagrams(near_kind, far_kind, true, "reorder by=8 chance=0.5", [](CopyCalls) {});
}

// Memory that is freed and allocated again, mostly at its old address, must not be reached through an old
// mapping.
TEST_F(GpuOrderTest, RegistrationsComeAndGo) {
  constexpr int kRounds = 12;
  Child child([](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    for (int round = 0; round < kRounds; ++round) {
      Registered side(node, round % 2 == 0 ? Kind::kDevice : Kind::kExportable, 0);
      side.memory.clear();
      tell(socket, side.remote());
      hear<bool>(socket);
      EXPECT_TRUE(side.memory.matches(static_cast<uint8_t>(round), 0, kBytes)) << "round " << round;
    }
  });
  run_apart([&] {
    auto [node, pair] = Connected(child.socket());
    Registered near(node, Kind::kDevice, 0);
    for (int round = 0; round < kRounds; ++round) {
      const auto far = hear<RemoteMemory>(child.socket());
      near.memory.fill(static_cast<uint8_t>(round));
      ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far).run(pair), IBV_WC_SUCCESS);
      tell(child.socket(), true);
    }
  });
}

// What a peer no longer lends is unmapped by a thread of ours, which must be done with CUDA when exit() ends
// it.
TEST_F(GpuOrderTest, ExitBesideUnmapping) {
  Child child([](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    {
      Registered side(node, Kind::kDevice, 0);
      tell(socket, side.remote());
      hear<bool>(socket);
      usleep(50'000);
    }
    char none = 0;
    EXPECT_EQ(recv(socket, &none, 1, 0), 0);  // until the other has ended
  });
  Child leaving([&child](int) {
    // The last handler but a sanitizer's, which has no use for a fork's end.
    atexit([] { _exit(::testing::Test::HasFailure() ? 1 : 0); });
    setenv("FAKE_CUDA_EXIT_MS", "400", 1);
    start_cuda();
    auto [node, pair] = Connected(child.socket());
    const auto far = hear<RemoteMemory>(child.socket());
    Registered near(node, Kind::kDevice, 0);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far).run(pair), IBV_WC_SUCCESS);
    tell(child.socket(), true);
    exit(0);
  });
  leaving.join();
  shutdown(child.socket(), SHUT_RDWR);
}

// A peer that is killed while its GPU memory is written to.
TEST_F(GpuOrderTest, KilledPeer) {
  for (const Kind kind : {Kind::kDevice, Kind::kPieced}) {
    Child child([kind](int socket) {
      start_cuda();
      auto [node, pair] = Connected(socket);
      Registered side(node, kind, 0);
      tell(socket, side.remote());
      pause();
    });
    run_apart([&child] {
      Node node;
      QueuePair pair(node, {.send_requests = 128});
      meet(child.socket(), pair);
      const auto far = hear<RemoteMemory>(child.socket());
      Registered near(node, Kind::kDevice, 0);
      const auto write = [&] {
        return Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far).post(pair);
      };
      for (int i = 0; i < 64; ++i) ASSERT_EQ(write(), 0);
      EXPECT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
      ::kill(child.pid(), SIGKILL);
      ibv_wc wc{};
      // A process with a GPU takes its time to die, and until then its memory is there.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (wc.status == IBV_WC_SUCCESS && std::chrono::steady_clock::now() < deadline) {
        ASSERT_EQ(write(), 0);
        wc = node.wait_completion();
      }
      EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
      EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
    });
    child.kill();
  }
}

// --- While a copy is under way: the stand-in for CUDA holds it for a while.

struct Held {
  Node left_node, right_node;
  QueuePair left{left_node}, right{right_node};
  Registered near{left_node, Kind::kDevice, 0}, far{right_node, Kind::kDevice, 0};

  Held() {
    meet(left, right);
    near.memory.fill(kSeed);
    far.memory.clear();
    hold_copies(true);
  }
  void write(uint64_t wr_id, uint32_t rkey) {
    ASSERT_EQ(
        Send(IBV_WR_RDMA_WRITE, wr_id).from(near.piece(0, kBytes)).to(far.memory.address(), rkey).post(left),
        0);
  }

  static constexpr uint8_t kSeed = 5;
};

void hold_and(const std::function<void(Held& held, const std::atomic<bool>& is_released)>& body,
              unsigned held_ms = 50) {
  run_apart([&] {
    if (!hold_copies(false)) return;  // a real driver
    std::atomic<bool> is_released{false}, is_over{false};
    Held held;
    std::thread releasing([&] {
      for (unsigned ms = 0; ms < held_ms && !is_over; ++ms) usleep(1'000);
      is_released = true;
      hold_copies(false);
    });
    body(held, is_released);
    is_over = true;
    releasing.join();
  });
}

TEST_F(GpuHeldTest, TheFarEndFailsBehindWhatWasPostedBefore) {
  const base::ScopedEnvironment environment({{"SOFTVERBS_FAULTS", "fail status=RETRY_EXC peer=error nth=2"}});
  hold_and([](Held& held, const std::atomic<bool>& is_released) {
    held.write(1, held.far.mr->rkey);
    held.write(2, held.far.mr->rkey);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(held.right_node.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_FATAL);
    EXPECT_TRUE(is_released);
    EXPECT_TRUE(held.far.memory.matches(Held::kSeed, 0, kBytes));
    ibv_ack_async_event(&event);
    EXPECT_EQ(held.left_node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(held.left_node.wait_completion().status, IBV_WC_RETRY_EXC_ERR);
  });
}

// A send behind the copy tries again and again to begin, as there is no receive for it.
TEST_F(GpuHeldTest, DeregistrationWaitsForTheCopy) {
  if (is_over_wire()) GTEST_SKIP() << "over the wire a copy that is held is the sender's own: skipped";
  hold_and([](Held& held, const std::atomic<bool>& is_released) {
    ibv_mr* region = ibv_reg_mr(held.right_node.pd, reinterpret_cast<void*>(held.far.memory.address()),
                                kBytes, kAllAccess);
    ASSERT_NE(region, nullptr);
    held.write(1, region->rkey);
    ASSERT_EQ(Send(IBV_WR_SEND, 2).from(held.near.piece(0, 64)).post(held.left), 0);
    usleep(10'000);
    EXPECT_EQ(ibv_dereg_mr(region), 0);
    EXPECT_TRUE(is_released);
    EXPECT_TRUE(held.far.memory.matches(Held::kSeed, 0, kBytes));
  });
}

TEST_F(GpuHeldTest, AResetIsNotUndoneByARequestThatFails) {
  const base::ScopedEnvironment environment({{"SOFTVERBS_FAULTS", "fail status=RETRY_EXC work=done nth=1"}});
  hold_and([](Held& held, const std::atomic<bool>&) {
    held.write(1, held.far.mr->rkey);
    EXPECT_EQ(held.left.to_state(IBV_QPS_RESET), 0);
    EXPECT_EQ(held.left.query_state(), IBV_QPS_RESET);
  });
}

// What a plan holds goes to a GPU by the rail's worker: no other thread has its lanes, and whoever posts
// waits for no copy.
TEST_F(GpuHeldTest, WhoPostsADatagramWaitsForNoCopyOfAnother) {
  if (is_over_wire()) GTEST_SKIP() << "over the wire nothing is held here: skipped";
  const base::ScopedEnvironment environment({{"SOFTVERBS_FAULTS", "reorder by=4"}});
  hold_and(
      [](Held& held, const std::atomic<bool>& is_released) {
        constexpr uint32_t kPackets = 20;
        DatagramEnd right(held.right_node), first(held.left_node), second(held.left_node);
        Buffer headers(held.left_node, kHeaderBytes), lines(held.right_node, kPackets * kLineBytes);
        for (uint32_t i = 0; i < kPackets; ++i) right.post_receive(i, lines, held.far);
        ibv_ah* const handle = first.make_handle(right.address(), 7);
        const auto header = headers.piece(0, kHeaderBytes);
        const DatagramEnd::Packet packet{0, header, header, handle, right.qp->qp_num};
        ASSERT_EQ(first.post(std::vector(kPackets - 1, packet)), 0);
        usleep(10'000);  // now the worker waits for what is held
        ASSERT_EQ(second.post({packet}), 0);
        EXPECT_FALSE(is_released) << "a post has waited";
        hold_copies(false);
        EXPECT_EQ(held.right_node.wait_completions(kPackets).size(), kPackets);
        EXPECT_EQ(held.left_node.wait_completions(2).size(), 2U);
        ibv_destroy_ah(handle);
      },
      10'000);
}

constexpr uint64_t kReady = 2, kDone = 3, kFailed = 4;  // states of a request: gpu_service.cc

// An owner copies to and from memory of its own for peers that cannot map it. What a peer asks for lies in
// the owner's tables, where the peer may write anything: numbers that overflow, or name another's memory, are
// refused, and the owner goes on.
TEST_F(GpuOrderTest, ALyingPeerGetsNoCopy) {
  if (is_over_wire()) GTEST_SKIP() << "over the wire no owner is asked to copy: skipped";
  using namespace softverbs;
  constexpr uint8_t kSeed = 7;
  Child owner([](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    Registered side(node, Kind::kPieced, 0);
    tell(socket, side.remote());
    tell(socket, pair.qp->qp_num);
    hear<bool>(socket);
    EXPECT_TRUE(side.memory.matches(kSeed, 0, kBytes));
    tell(socket, true);
  });
  run_apart([&owner] {
    auto [node, pair] = Connected(owner.socket());
    const auto far = hear<RemoteMemory>(owner.socket());
    const auto owners_pair = hear<uint32_t>(owner.socket());
    Registered near(node, Kind::kPageable, 0);
    near.memory.fill(kSeed, kBytes);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far).run(pair), IBV_WC_SUCCESS);

    uint8_t* theirs = find_tables(get_qp_slot(owners_pair));
    uint8_t* own = find_tables(get_qp_slot(pair.qp->qp_num));
    ASSERT_TRUE(theirs != nullptr && own != nullptr);
    const auto& header = *reinterpret_cast<const SegmentHeader*>(own);
    const uint64_t claimer = header.slot << 12 | (header.generation & 0xfff);
    auto& table = *reinterpret_cast<GpuServiceTable*>(theirs + kGpuService);
    GpuRequest& request = table.requests[0];
    ASSERT_GT(request.bytes, 0U) << "the write did not take this way";
    const uint64_t address = request.address, bytes = request.bytes, stage = request.stage,
                   stage_block = request.stage_block, stage_block_bytes = request.stage_block_bytes;
    const uint32_t gpu = request.gpu;
    uint64_t asker = claimer;
    const auto ask = [&](const std::function<void()>& lie) {
      asker = claimer;
      request.address = address, request.bytes = bytes, request.stage = stage, request.gpu = gpu;
      request.stage_block = stage_block, request.stage_block_bytes = stage_block_bytes;
      request.kind = kGpuRead;  // to where the stage is said to be
      lie();
      request.word.store(asker << 8 | kReady);
      table.doorbell.fetch_add(1);
      syscall(SYS_futex, reinterpret_cast<uint32_t*>(&table.doorbell), FUTEX_WAKE, INT_MAX, nullptr, nullptr,
              0);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      const auto is_answered = [&] { return (request.word.load() & 0xff) != kReady; };
      while (!is_answered() && std::chrono::steady_clock::now() < deadline) sched_yield();
      return request.word.exchange(0) & 0xff;
    };
    EXPECT_EQ(ask([] {}), kDone) << "the truth";
    EXPECT_EQ(ask([&] { request.stage = uint64_t{0} - 100, request.bytes = 200; }), kFailed);
    EXPECT_EQ(ask([&] { request.stage = kArena - 64; }), kFailed) << "the tables themselves";
    EXPECT_EQ(ask([&] { request.stage = kSegmentBytes - bytes + 1; }), kFailed);
    EXPECT_EQ(ask([&] { request.stage_block = uint64_t{0} - 4096, request.stage_block_bytes = 8192; }),
              kFailed);
    EXPECT_EQ(ask([&] { request.stage_block_bytes = kSegmentBytes; }), kFailed);
    EXPECT_EQ(ask([&] { request.address -= uint64_t{1} << 30; }), kFailed);
    EXPECT_EQ(ask([&] { request.bytes = UINT64_MAX; }), kFailed);
    EXPECT_EQ(ask([&] { request.gpu = 0; }), kFailed);
    EXPECT_EQ(ask([&] { request.gpu = UINT32_MAX; }), kFailed);
    const auto ask_change = [&](const std::function<void()>& lie) {
      return ask([&] {
        request.kind = kGpuAdd, request.gate = kGateOpen, request.operand = 0;
        lie();
      });
    };
    EXPECT_EQ(ask_change([] {}), kDone) << "the truth about a change";
    EXPECT_EQ(ask_change([&] { request.address -= uint64_t{1} << 30; }), kFailed);
    EXPECT_EQ(ask_change([&] { request.address += 4; }), kFailed);
    EXPECT_EQ(ask_change([&] { request.gpu = UINT32_MAX; }), kFailed);
    EXPECT_EQ(ask_change([&] { request.gate = kGateWithdrawn; }), kFailed);
    EXPECT_NE(ask_change([&] { request.gate = kGateClosed, asker = UINT32_MAX; }), kDone) << "nobody's";
    EXPECT_EQ(ask([] {}), kDone) << "after all the lies";
    tell(owner.socket(), true);
    EXPECT_TRUE(hear<bool>(owner.socket()));
  });
}

}  // namespace
}  // namespace verbena::softverbs_test
