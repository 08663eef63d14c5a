#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "fixture.h"

// Hunts for bytes of one write that become visible before bytes at lower addresses.
namespace verbena::softverbs_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kHuntTime = std::chrono::milliseconds(700);

uint64_t load_word(const uint8_t* address) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE);
}

// Writes blocks whose every word is the round's number, until the peer has seen enough.
void write_rounds(Node& node, QueuePair& pair, Buffer& source, size_t bytes, RemoteMemory remote,
                  bool is_inline, const std::atomic<bool>& stop) {
  const unsigned flags = IBV_SEND_SIGNALED | (is_inline ? unsigned{IBV_SEND_INLINE} : 0u);
  for (uint64_t round = 1; !stop; ++round) {
    for (size_t at = 0; at < bytes; at += 8) memcpy(source.data() + at, &round, 8);
    Send write(IBV_WR_RDMA_WRITE, round, flags);
    ASSERT_EQ(write.from(source, 0, bytes).to(remote.address, remote.rkey).post(pair), 0);
    ASSERT_EQ(node.wait_completion().status, IBV_WC_SUCCESS);
  }
}

struct Hunt {
  uint64_t looks = 0, fresh = 0, torn = 0;
};

// `late` must never be newer than `early`: what is read first is what lands last.
Hunt hunt(const uint8_t* early, const uint8_t* late) {
  Hunt result;
  uint64_t last = 0;
  for (const auto end = Clock::now() + kHuntTime; Clock::now() < end;) {
    for (int i = 0; i < 1000; ++i, ++result.looks) {
      const uint64_t tail = load_word(late);
      const uint64_t head = load_word(early);
      result.torn += tail > head ? 1u : 0u;
      result.fresh += tail != last ? 1u : 0u;
      last = tail;
    }
  }
  return result;
}

void hunt_between_processes(size_t bytes, bool is_inline, size_t early, size_t late) {
  Child child([=](int socket) {
    Node node;
    std::vector<uint8_t> memory(bytes + 64);
    auto* aligned =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
    ibv_mr* mr = ibv_reg_mr(node.pd, aligned, bytes, kAllAccess);
    QueuePair pair(node);
    tell(socket, pair.address());
    pair.connect(hear<Address>(socket));
    tell(socket, RemoteMemory{reinterpret_cast<uint64_t>(aligned), mr->rkey});
    const Hunt result = hunt(aligned + early, aligned + late);
    EXPECT_EQ(result.torn, 0u) << "of " << result.fresh << " new values seen";
    EXPECT_GT(result.fresh, 5u) << "nothing arrived, so nothing was tested";
    tell(socket, true);
    hear<bool>(socket);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  });
  Node node;
  Buffer source(node, bytes);
  QueuePair pair(node);
  tell(child.socket(), pair.address());
  pair.connect(hear<Address>(child.socket()));
  const auto remote = hear<RemoteMemory>(child.socket());
  std::atomic<bool> stop{false};
  std::thread writer([&] { write_rounds(node, pair, source, bytes, remote, is_inline, stop); });
  hear<bool>(child.socket());
  stop = true;
  writer.join();
  tell(child.socket(), true);
}

void hunt_in_process(size_t bytes, size_t early, size_t late) {
  Node node;
  Buffer source(node, bytes), target(node, bytes + 64);
  const size_t shift = 64 - target.address() % 64;
  QueuePair pair(node);
  pair.connect(pair.address());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    write_rounds(node, pair, source, bytes, {target.address() + shift, target.mr()->rkey}, false, stop);
  });
  const Hunt result = hunt(target.data() + shift + early, target.data() + shift + late);
  stop = true;
  writer.join();
  EXPECT_EQ(result.torn, 0u) << "of " << result.fresh << " new values seen";
  EXPECT_GT(result.fresh, 5u) << "nothing arrived, so nothing was tested";
}

TEST(OrderTest, TailAfterHeadBetweenProcesses) {
  hunt_between_processes(4096, false, 0, 4088);
}
TEST(OrderTest, TailAfterTheWordBeforeItBetweenProcesses) {
  hunt_between_processes(4096, false, 4080, 4088);
}
TEST(OrderTest, TailAfterHeadOfAnInlineLine) {
  hunt_between_processes(64, true, 0, 56);
}
TEST(OrderTest, LinesOfASmallWriteBetweenProcesses) {
  hunt_between_processes(512, false, 128, 192);
}
TEST(OrderTest, FlagAfterItsLineBetweenProcessesWhenAskedFor) {
  setenv("SOFTVERBS_LL128", "1", 1);  // read by each process when it first opens a device: here, none has yet
  hunt_between_processes(16384, false, 8192, 8192 + 120);
}
TEST(OrderTest, TailAfterHeadOfALargeWrite) {
  hunt_between_processes(1 << 20, false, 0, (1 << 20) - 8);
}
TEST(OrderTest, TailAfterHeadInProcess) {
  hunt_in_process(4096, 0, 4088);
}
TEST(OrderTest, FlagAfterItsLineInProcess) {
  hunt_in_process(4096, 1024, 1024 + 120);
}
TEST(OrderTest, FlagAfterItsLineOfALargeWriteInProcess) {
  hunt_in_process(65536, 32768, 32768 + 120);
}

}  // namespace
}  // namespace verbena::softverbs_test
