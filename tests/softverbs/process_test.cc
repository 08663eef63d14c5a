#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fixture.h"
#include "softverbs/shared/receive_ring.h"

// Which PR_SET_PTRACER the library asked for.
static std::vector<unsigned long> ptracers;

// Stands in front of the C library's.
extern "C" __attribute__((visibility("default"))) int prctl(int option, ...) noexcept {
  unsigned long more[4];
  va_list list;
  va_start(list, option);
  for (unsigned long& one : more) one = va_arg(list, unsigned long);
  va_end(list);
  if (option == PR_SET_PTRACER) ptracers.push_back(more[0]);
  return static_cast<int>(syscall(SYS_prctl, option, more[0], more[1], more[2], more[3]));
}

// Two processes on one host, and what is left of a killed one.
namespace verbena::softverbs_test {
namespace {

TEST(ProcessTest, SendWriteReadOverAllSizes) {
  constexpr size_t kBytes = 3 << 20;
  const size_t sizes[] = {0, 1, 8, 63, 64, 65, 512, 513, 4096, 65536, 300001, kBytes};
  Child child([&](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, kBytes);
    tell(socket, memory.remote());
    for (size_t bytes : sizes) {
      ASSERT_EQ(pair.post_receive(1, memory, 0, kBytes), 0);
      tell(socket, true);
      EXPECT_EQ(node.wait_completion().byte_len, bytes);
      EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 1), bytes)) << "sent " << bytes;
      memset(memory.data(), 0, kBytes);
      ASSERT_EQ(pair.post_receive(2, memory, 0, 0), 0);
      tell(socket, true);
      const ibv_wc written = node.wait_completion();
      EXPECT_EQ(written.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
      EXPECT_EQ(written.byte_len, bytes);
      EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 2), bytes)) << "written " << bytes;
      memory.fill(static_cast<uint8_t>(bytes + 3));
      tell(socket, true);
      hear<bool>(socket);
    }
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), kBytes);
  const auto remote = hear<RemoteMemory>(child.socket());
  for (size_t bytes : sizes) {
    hear<bool>(child.socket());
    memory.fill(static_cast<uint8_t>(bytes + 1));
    ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, bytes).run(pair), IBV_WC_SUCCESS);
    hear<bool>(child.socket());
    memory.fill(static_cast<uint8_t>(bytes + 2));
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE_WITH_IMM, 2).from(memory, 0, bytes).to(remote).run(pair),
              IBV_WC_SUCCESS);
    hear<bool>(child.socket());
    ASSERT_EQ(Send(IBV_WR_RDMA_READ, 3).from(memory, 0, bytes).to(remote).run(pair), IBV_WC_SUCCESS);
    EXPECT_TRUE(memory.matches(static_cast<uint8_t>(bytes + 3), bytes)) << "read " << bytes;
    tell(child.socket(), true);
  }
}

TEST(ProcessTest, EventWakesTheOtherProcess) {
  NodeOptions options;
  options.with_channel = true;
  Child child([&](int socket) {
    Node node(options);
    Buffer memory(node, 64);
    QueuePair pair(node);
    meet(socket, pair);
    for (int round = 0; round < 5; ++round) {
      ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
      ASSERT_EQ(ibv_req_notify_cq(node.cq, 0), 0);
      tell(socket, true);
      ibv_cq* cq = nullptr;
      void* context = nullptr;
      ASSERT_EQ(ibv_get_cq_event(node.channel, &cq, &context), 0);
      ibv_ack_cq_events(cq, 1);
      node.wait_completion();
    }
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  for (int round = 0; round < 5; ++round) {
    hear<bool>(child.socket());
    usleep(1000);
    ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 64).run(pair), IBV_WC_SUCCESS);
  }
}

TEST(ProcessTest, RemoteFaultReachesItsOwner) {
  Child child([](int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 64);
    ASSERT_EQ(pair.post_receive(4, memory, 0, 64), 0);
    tell(socket, true);
    ibv_async_event event{};
    ASSERT_EQ(ibv_get_async_event(node.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    EXPECT_EQ(event.element.qp, pair.qp);
    ibv_ack_async_event(&event);
    const ibv_wc wc = node.wait_completion();
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, 4u);
    EXPECT_EQ(pair.query_state(), IBV_QPS_ERR);
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  hear<bool>(child.socket());
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(0x1234, 0x77).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_ACCESS_ERR);
}

// Unmapped behind the registration's back: the kernel's refusal becomes a completion, not a signal.
TEST(ProcessTest, VanishedRemotePages) {
  Child child([](int socket) {
    Node node;
    void* pages = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ibv_mr* mr = ibv_reg_mr(node.pd, pages, 8192, kAllAccess);
    QueuePair pair(node);
    meet(socket, pair);
    munmap(pages, 8192);
    tell(socket, RemoteMemory{reinterpret_cast<uint64_t>(pages), mr->rkey});
    hear<bool>(socket);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
  });
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  const auto remote = hear<RemoteMemory>(child.socket());
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(memory, 0, 8).to(remote).post(pair), 0);
  EXPECT_EQ(node.wait_completion().status, IBV_WC_REM_OP_ERR);
  tell(child.socket(), true);
}

// Makes the kernel refuse copies from other processes, as some containers do.
bool forbid_copies() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(program), program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(ProcessTest, RefusedCopiesFailTheConnection) {
  Child owner([](int socket) {
    Node node;
    QueuePair pair(node);
    tell(socket, pair.address());
    hear<bool>(socket);
  });
  const auto address = hear<Address>(owner.socket());
  Child refused([&](int) {
    ASSERT_TRUE(forbid_copies());
    Node node;
    QueuePair pair(node);
    EXPECT_EQ(pair.to_init(), 0);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(pair.to_ready_to_receive(address), EPERM);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("ptrace_scope"), std::string::npos) << said;
  });
  refused.join();
  tell(owner.socket(), true);
}

// Queue pair numbers and memory keys cannot be guessed: they differ between processes.
TEST(ProcessTest, NumbersAndKeysAreNotGuessed) {
  constexpr int kProcesses = 8;
  std::set<uint32_t> keys, numbers;
  for (int i = 0; i < kProcesses; ++i) {
    Child child([](int socket) {
      Node node;
      Buffer memory(node, 64);
      QueuePair pair(node);
      tell(socket, memory.mr()->rkey);
      tell(socket, pair.qp->qp_num);
      hear<bool>(socket);
    });
    keys.insert(hear<uint32_t>(child.socket()));
    numbers.insert(hear<uint32_t>(child.socket()) % softverbs::kQpCount);
    tell(child.socket(), true);
  }
  EXPECT_EQ(keys.size(), static_cast<size_t>(kProcesses));
  EXPECT_GT(numbers.size(), 1u) << "one in a thousand is the same as another";
}

// A process takes the memory of its tables away, under the eyes of those who have mapped them.
void cut_off_own_tables() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const std::string name = std::filesystem::read_symlink(entry.path(), ignored);
    const bool is_table = name.find("softverbs") != std::string::npos && !name.ends_with("/processes");
    if (is_table && std::filesystem::file_size(entry.path(), ignored) == softverbs::kSegmentBytes)
      static_cast<void>(ftruncate(std::stoi(entry.path().filename()), 0) == 0);
  }
}

// A process may write anything into its own tables: a process that sends to it does not read or write outside
// of them.
TEST(ProcessTest, ALyingPeerDoesNotMoveItsSendersHand) {
  using namespace softverbs;
  constexpr int kLies = 6;
  std::vector<std::unique_ptr<Child>> liars, senders;
  for (int lie = 0; lie < kLies; ++lie) {
    liars.push_back(std::make_unique<Child>([lie](int socket) {
      auto [node, memory, pair] = ConnectedMemory(socket, 64);
      ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
      uint8_t* tables = find_tables(get_qp_slot(pair.qp->qp_num));
      ASSERT_NE(tables, nullptr);
      auto& qp = reinterpret_cast<SharedQp*>(tables + kQpTable)[get_qp_index(pair.qp->qp_num)];
      auto& queue =
          reinterpret_cast<SharedReceiveQueue*>(tables + kReceiveQueueTable)[qp.receive_queue.get()];
      auto& cq = reinterpret_cast<SharedCq*>(tables + kCqTable)[qp.receive_cq.get()];
      ASSERT_EQ(qp.number.load(), pair.qp->qp_num);
      if (lie == 0) cq.ring.set(uint64_t{1} << 44);
      if (lie == 1) qp.receive_cq.set(UINT32_MAX);
      if (lie == 2) queue.ring.set(uint64_t{0} - (uint64_t{1} << 40));
      if (lie == 3) qp.receive_queue.set(UINT32_MAX);
      if (lie == 4) queue.max_sge.set(UINT32_MAX), queue.capacity.set(1 << 30), queue.head.store(UINT32_MAX);
      if (lie == 5) cut_off_own_tables();
      tell(socket, true);
      hear<bool>(socket);
      _exit(::testing::Test::HasFailure() ? 1 : 0);  // its own tables are of no use to it any more
    }));
    senders.push_back(std::make_unique<Child>([](int socket) {
      Node node;
      Buffer memory(node, 64);
      QpOptions options;
      options.rnr_retry = 1;
      QueuePair pair(node, options);
      meet(socket, pair);
      hear<bool>(socket);
      ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 64).post(pair), 0);
      node.wait_completion();  // a failure, or the liar's loss
    }));
    Child &liar = *liars.back(), &sender = *senders.back();
    tell(sender.socket(), hear<Address>(liar.socket()));
    tell(liar.socket(), hear<Address>(sender.socket()));
    for (Child* of : {&liar, &sender}) {
      hear<bool>(of->socket());
      tell(of->socket(), true);
    }
    tell(sender.socket(), hear<bool>(liar.socket()));
    sender.join();
    tell(liar.socket(), true);
  }
}

// The same for a process in whose tables its peer writes what it likes.
TEST(ProcessTest, ALyingPeerDoesNotMoveItsReceiversHand) {
  using namespace softverbs;
  constexpr int kLies = 5;
  for (int lie = 0; lie < kLies; ++lie) {
    Child victim([lie](int socket) {
      Node node;
      Buffer memory(node, 64);
      {
        QueuePair pair(node);
        meet(socket, pair);
        ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
        tell(socket, true);
        hear<bool>(socket);  // that it was lied to
        if (lie == 0) {
          EXPECT_NE(pair.post_receive(2, memory, 0, 64), 0) << "nobody holds the slot";
        }
        ibv_wc completion{};
        ibv_poll_cq(node.cq, 1, &completion);
        ASSERT_EQ(pair.to_state(IBV_QPS_ERR), 0);
        ibv_poll_cq(node.cq, 1, &completion);
      }
      // What it gave back is not given out again from anywhere else.
      QpOptions larger;
      larger.receive_requests = 4096;
      const QueuePair next(node, larger);
      tell(socket, true);
    });
    Child liar([lie](int socket) {
      auto [node, pair] = Connected(socket);
      const auto victims = hear<uint32_t>(socket);
      uint8_t* tables = find_tables(get_qp_slot(victims));
      ASSERT_NE(tables, nullptr);
      auto& qp = reinterpret_cast<SharedQp*>(tables + kQpTable)[get_qp_index(victims)];
      auto& queue =
          reinterpret_cast<SharedReceiveQueue*>(tables + kReceiveQueueTable)[qp.receive_queue.get()];
      if (lie == 0) {
        const uint64_t bytes = get_receive_slot_bytes(queue.max_sge.get());
        const uint64_t ticket = queue.tail.load();
        auto& slot = *reinterpret_cast<ReceiveSlot*>(tables + queue.ring.get() + ticket * bytes);
        slot.word.store(make_word(ticket, SlotState::kHeld, (1u << kHolderBits) - 1));
      }
      if (lie == 1) queue.ring.set(uint64_t{1} << 44);
      if (lie == 2) reinterpret_cast<SharedCq*>(tables + kCqTable)[qp.receive_cq.get()].ring.set(1 << 29);
      if (lie == 3) qp.receives_opened.store(qp.receives_closed.load() + INT32_MAX);
      if (lie == 4) queue.capacity.set(1u << 31), queue.max_sge.set(UINT32_MAX);
      tell(socket, true);
      hear<bool>(socket);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    });
    const auto address = hear<Address>(victim.socket());
    tell(victim.socket(), hear<Address>(liar.socket()));
    tell(liar.socket(), address);
    for (Child* of : {&victim, &liar}) hear<bool>(of->socket());
    for (Child* of : {&victim, &liar}) tell(of->socket(), true);
    hear<bool>(victim.socket());
    tell(liar.socket(), address.qp_number);
    hear<bool>(liar.socket());
    if (lie == 4) liar.kill();  // its victim looks for what it held
    tell(victim.socket(), true);
    hear<bool>(victim.socket());
    victim.join();
    if (lie != 4) {
      tell(liar.socket(), true);
      liar.join();
    }
  }
}

// The user's other processes may attach while a peer may have to copy, and not before or after.
TEST(ProcessTest, OthersMayAttachWhileThereAreQueuePairs) {
  Child child([](int) {
    ptracers.clear();
    Node node;
    EXPECT_EQ(ptracers, std::vector<unsigned long>());
    {
      const QueuePair first(node);
      const QueuePair second(node);
      EXPECT_EQ(ptracers, std::vector<unsigned long>{PR_SET_PTRACER_ANY});
    }
    EXPECT_EQ(ptracers, (std::vector<unsigned long>{PR_SET_PTRACER_ANY, 0}));
  });
  child.join();
  Child other([](int) {
    setenv("SOFTVERBS_PTRACER", "0", 1);
    Node node;
    const QueuePair pair(node);
    EXPECT_EQ(ptracers, std::vector<unsigned long>());
  });
  other.join();
}

// A process of this job, which it leaves by softverbs' exit handler.
class Member : public Child {
 public:
  Member(const std::string& job, const std::function<void(int socket)>& body)
      : Child([=](int socket) {
          setenv("SOFTVERBS_JOB", job.c_str(), 1);
          // Runs after softverbs' handler, and before a sanitizer's, which does not work in a traced process.
          atexit([] {
            fflush(nullptr);
            _exit(::testing::Test::HasFailure() ? 1 : 0);
          });
          body(socket);
          exit(0);
        }) {}
};

// A process is stopped before and after each system call with which it enters and leaves its job. At every
// stop another process can enter and leave.
TEST(ProcessTest, AProcessThatStopsWhileItEntersOrLeavesDelaysNoOther) {
  const std::string job = "stopped-" + std::to_string(getpid());
  const auto exists = [&job] {
    const std::filesystem::directory_iterator all("/dev/shm");
    return std::any_of(begin(all), end(all),
                       [&](const auto& it) { return it.path().string().ends_with(job); });
  };
  Member stopped(job, [](int socket) {
    const bool is_traced = ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0;
    tell(socket, is_traced);
    if (!is_traced) return;
    raise(SIGSTOP);
    const Node node;
  });
  if (!hear<bool>(stopped.socket())) GTEST_SKIP() << "this process may not trace another";
  Member first(job, [](int socket) {
    const Node node;
    tell(socket, true);
    pollfd end{socket, POLLIN, 0};
    poll(&end, 1, -1);
  });
  hear<bool>(first.socket());
  int status = 0;
  EXPECT_EQ(waitpid(stopped.pid(), &status, 0), stopped.pid());
  while (WIFSTOPPED(status) && !HasFailure()) {
    EXPECT_EQ(ptrace(PTRACE_SYSCALL, stopped.pid(), nullptr, nullptr), 0);
    EXPECT_EQ(waitpid(stopped.pid(), &status, 0), stopped.pid());
    Member(job, [](int) { const Node node; }).join();
  }
  if (WIFSTOPPED(status)) stopped.kill();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_TRUE(exists());
  tell(first.socket(), true);
  first.join();
  EXPECT_FALSE(exists()) << "the last process to leave removes the folder";
}

TEST(ProcessTest, OtherNetworkNamespace) {
  Child child([](int socket) {
    const bool is_elsewhere = unshare(CLONE_NEWNET) == 0;
    tell(socket, is_elsewhere);
    auto [node, memory, pair] = ConnectedMemory(socket, 64);
    ASSERT_EQ(pair.post_receive(1, memory, 0, 64), 0);
    EXPECT_EQ(node.wait_completion().byte_len, 8u);
  });
  const bool is_elsewhere = hear<bool>(child.socket());
  auto [node, memory, pair] = ConnectedMemory(child.socket(), 64);
  ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 8).run(pair), IBV_WC_SUCCESS);
  child.join();
  if (!is_elsewhere) GTEST_SKIP() << "no right to make a network namespace: both were in one";
}

}  // namespace
}  // namespace verbena::softverbs_test
