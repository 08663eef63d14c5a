#include <sched.h>

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
constexpr auto kMaxHuntTime = std::chrono::seconds(60);  // where the writer hardly ever runs
constexpr uint64_t kEnoughFresh = 5;

uint64_t load_word(const uint8_t* address) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_ACQUIRE);
}

// Reader and writer must run at the same time to meet.
void use_cpu(int index) {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof(set), &set);
    return set;
  }();
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all) || index-- != 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
}

// Writes blocks whose every word is the round's number, until the peer has seen enough.
void write_rounds(QueuePair& pair, Buffer& source, size_t bytes, RemoteMemory remote, bool is_inline,
                  const std::atomic<bool>& stop) {
  use_cpu(1);
  const unsigned flags = IBV_SEND_SIGNALED | (is_inline ? unsigned{IBV_SEND_INLINE} : 0u);
  for (uint64_t round = 1; !stop; ++round) {
    for (size_t at = 0; at < bytes; at += 8) memcpy(source.data() + at, &round, 8);
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, round, flags).from(source, 0, bytes).to(remote).run(pair),
              IBV_WC_SUCCESS);
  }
}

struct Hunt {
  uint64_t looks = 0, fresh = 0, torn = 0;
};

// Two words of each unit of a write: `late` must never be newer than `early`, so it is read first.
struct Suspects {
  size_t unit_bytes, early, late;
};

Hunt hunt(const uint8_t* memory, size_t bytes, Suspects where) {
  use_cpu(0);
  Hunt result;
  uint64_t last = 0;
  const auto begin = Clock::now();
  const auto is_over = [&] {
    const auto hunted = Clock::now() - begin;
    return hunted >= kHuntTime && (result.fresh > kEnoughFresh || hunted >= kMaxHuntTime);
  };
  while (!is_over()) {
    for (int i = 0; i < 50; ++i) {
      for (size_t at = 0; at + where.unit_bytes <= bytes; at += where.unit_bytes, ++result.looks) {
        const uint64_t tail = load_word(memory + at + where.late);
        const uint64_t head = load_word(memory + at + where.early);
        result.torn += tail > head ? 1u : 0u;
        if (at == 0 && tail != last) ++result.fresh;
        if (at == 0) last = tail;
      }
    }
  }
  return result;
}

void hunt_between_processes(size_t bytes, bool is_inline, Suspects where) {
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
    const Hunt result = hunt(aligned, bytes, where);
    EXPECT_EQ(result.torn, 0u) << "of " << result.fresh << " new values seen";
    EXPECT_GT(result.fresh, kEnoughFresh) << "nothing arrived, so nothing was tested";
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
  std::thread writer([&] { write_rounds(pair, source, bytes, remote, is_inline, stop); });
  hear<bool>(child.socket());
  stop = true;
  writer.join();
  tell(child.socket(), true);
}

void hunt_in_process(size_t bytes, Suspects where) {
  Node node;
  Buffer source(node, bytes), target(node, bytes + 64);
  const size_t shift = 64 - target.address() % 64;
  QueuePair pair(node);
  pair.connect(pair.address());
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    write_rounds(pair, source, bytes, {target.address() + shift, target.mr()->rkey}, false, stop);
  });
  const Hunt result = hunt(target.data() + shift, bytes, where);
  stop = true;
  writer.join();
  EXPECT_EQ(result.torn, 0u) << "of " << result.fresh << " new values seen";
  EXPECT_GT(result.fresh, kEnoughFresh) << "nothing arrived, so nothing was tested";
}

TEST(OrderTest, TailAfterHeadBetweenProcesses) {
  hunt_between_processes(4096, false, {4096, 0, 4088});
}
TEST(OrderTest, TailAfterTheWordBeforeIt) {
  hunt_between_processes(4096, false, {4096, 4080, 4088});
}
TEST(OrderTest, TailAfterHeadOfAnInlineLine) {
  hunt_between_processes(64, true, {64, 0, 56});
}
TEST(OrderTest, LinesOfASmallWriteBetweenProcesses) {
  hunt_between_processes(512, false, {512, 128, 192});
}
TEST(OrderTest, FlagsAfterTheirLinesBetweenProcessesOnRequest) {
  setenv("SOFTVERBS_LL128", "1", 1);  // read by each process when it first opens a device: none here has
  hunt_between_processes(4096, false, {128, 0, 120});
}
TEST(OrderTest, TailAfterHeadOfALargeWrite) {
  hunt_between_processes(1 << 20, false, {1 << 20, 0, (1 << 20) - 8});
}
TEST(OrderTest, TailAfterHeadInProcess) {
  hunt_in_process(4096, {4096, 0, 4088});
}
TEST(OrderTest, FlagsAfterTheirLinesInProcess) {
  hunt_in_process(4096, {128, 0, 120});
}
TEST(OrderTest, FlagsAfterTheirLinesOfALargeWriteInProcess) {
  hunt_in_process(65536, {128, 0, 120});
}

}  // namespace
}  // namespace verbena::softverbs_test
