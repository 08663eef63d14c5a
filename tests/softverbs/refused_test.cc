// Calls fail with a cause where the system refuses memory, descriptors, threads or system calls, because of a
// limit or of a container's seccomp profile: no exception reaches the application, no peer is taken for dead,
// no signal ends the process.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>

#include "fixture.h"
#include "tests/base/refused_calls.h"

namespace {
// How many more allocations of this thread succeed before one fails; -1: all succeed.
thread_local int allocations_left = -1;
}  // namespace

extern "C" void* __libc_malloc(size_t bytes);
// Also serves libibverbs.so.1, whose operator new calls malloc().
extern "C" void* malloc(size_t bytes) {
  if (allocations_left < 0 || allocations_left-- > 0) return __libc_malloc(bytes);
  errno = ENOMEM;
  return nullptr;
}

namespace verbena::softverbs_test {
namespace {

struct Ended {
  int code = -1;     // exit status, or 128 + signal
  std::string said;  // what it wrote to stderr
};

// Runs `body` in a forked process, for a minute at most.
Ended run_alone(const std::function<int()>& body) {
  Ended run;
  int lines[2];
  if (pipe(lines) != 0) return run;
  const pid_t child = fork();
  if (child == 0) {
    dup2(lines[1], STDERR_FILENO);
    close(lines[0]);
    close(lines[1]);
    alarm(60);
    _exit(body());
  }
  close(lines[1]);
  char part[512];
  for (ssize_t length = 0; (length = read(lines[0], part, sizeof(part))) > 0;)
    run.said.append(part, static_cast<size_t>(length));
  close(lines[0]);
  int status = 0;
  waitpid(child, &status, 0);
  run.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return run;
}

// Makes every call from the list of devices to a completion, over one queue pair that is connected to itself.
// Returns 0 on success, 1 if a call failed with errno or a completion with a status, 2 if a call failed
// without errno, 3 if the bytes are wrong. An exception ends the process.
int talk_to_itself() noexcept {
  const auto check = [](const void* made) { return made != nullptr ? 0 : errno != 0 ? 1 : 2; };
  ibv_device** const list = ibv_get_device_list(nullptr);
  if (const int failed = check(list)) return failed;
  if (list[0] == nullptr) return 1;
  ibv_context* const context = ibv_open_device(list[0]);
  if (const int failed = check(context)) return failed;
  ibv_comp_channel* const channel = ibv_create_comp_channel(context);
  if (const int failed = check(channel)) return failed;
  ibv_pd* const pd = ibv_alloc_pd(context);
  if (const int failed = check(pd)) return failed;
  ibv_cq* const cq = ibv_create_cq(context, 16, nullptr, channel, 0);
  if (const int failed = check(cq)) return failed;
  uint8_t memory[64] = "there", landing[64] = "";
  ibv_mr* const from = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
  if (const int failed = check(from)) return failed;
  ibv_mr* const to =
      ibv_reg_mr(pd, landing, sizeof(landing), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  if (const int failed = check(to)) return failed;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap = {4, 4, 1, 1, 0};
  init.qp_type = IBV_QPT_RC;
  ibv_qp* const qp = ibv_create_qp(pd, &init);
  if (const int failed = check(qp)) return failed;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  if (ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
    return 1;
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_4096;
  attributes.dest_qp_num = qp->qp_num;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  if (ibv_query_gid(context, 1, 0, &attributes.ah_attr.grh.dgid) != 0) return 1;
  if (ibv_modify_qp(qp, &attributes,
                    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
    return 1;
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 14;
  attributes.retry_cnt = attributes.rnr_retry = 7;
  if (ibv_modify_qp(qp, &attributes,
                    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                        IBV_QP_MAX_QP_RD_ATOMIC))
    return 1;
  ibv_sge piece{reinterpret_cast<uint64_t>(memory), sizeof(memory), from->lkey};
  ibv_send_wr write{}, *bad = nullptr;
  write.sg_list = &piece;
  write.num_sge = 1;
  write.opcode = IBV_WR_RDMA_WRITE;
  write.send_flags = IBV_SEND_SIGNALED;
  write.wr.rdma.remote_addr = reinterpret_cast<uint64_t>(landing);
  write.wr.rdma.rkey = to->rkey;
  if (ibv_post_send(qp, &write, &bad) != 0) return 1;
  ibv_wc done{};
  int count = 0;
  while ((count = ibv_poll_cq(cq, 1, &done)) == 0) continue;
  if (count < 0) return 1;
  if (done.status != IBV_WC_SUCCESS) return 1;
  const bool is_there = memcmp(memory, landing, sizeof(memory)) == 0;
  if (ibv_destroy_qp(qp) != 0 || ibv_dereg_mr(from) != 0 || ibv_dereg_mr(to) != 0 ||
      ibv_destroy_cq(cq) != 0 || ibv_destroy_comp_channel(channel) != 0 || ibv_dealloc_pd(pd) != 0 ||
      ibv_close_device(context) != 0)
    return 1;
  ibv_free_device_list(list);
  return is_there ? 0 : 3;
}

// Refuses one of the system calls that need memory, descriptors or threads, and another one in each run.
void refuse_each(int error) {
  const base::OneRefused refusing(
      {SYS_openat,    SYS_read,   SYS_newfstatat, SYS_memfd_create, SYS_ftruncate,
       SYS_fallocate, SYS_mmap,   SYS_getrandom,  SYS_eventfd2,     SYS_epoll_create1,
       SYS_epoll_ctl, SYS_pipe2,  SYS_clone3,     SYS_clone,        SYS_socket,
       SYS_bind,      SYS_listen, SYS_pidfd_open, SYS_mkdir,        SYS_flock},
      error);
  std::set<int> refused;
  for (uint32_t number = 0;; ++number) {
    const auto run = refusing.run(
        number,
        [] {
          const int null = open("/dev/null", O_WRONLY);
          dup2(null, STDERR_FILENO);
          errno = 0;
          return talk_to_itself();
        },
        60'000);
    if (!run) GTEST_SKIP() << "this kernel hands no system calls to another process";
    ASSERT_TRUE(run->code == 0 || run->code == 1)
        << "code " << run->code << " where system call " << run->call << " was refused, number " << number;
    if (run->call < 0) break;
    refused.insert(run->call);
  }
  EXPECT_GT(refused.size(), 5u) << "the sweep refused too little";
}

TEST(RefusedTest, EachStepForLackOfMemory) {
  refuse_each(ENOMEM);
}
TEST(RefusedTest, EachStepForLackOfDescriptorsOrProcesses) {
  refuse_each(EAGAIN);
}
TEST(RefusedTest, EachStepOverTheWire) {
  constexpr const char* kNames[] = {"SOFTVERBS_NETDEVS", "SOFTVERBS_FORCE_WIRE", "SOFTVERBS_INSECURE"};
  setenv(kNames[0], "127.0.0.1", 1);
  setenv(kNames[1], "1", 1);
  setenv(kNames[2], "1", 1);
  refuse_each(ENOMEM);
  for (const char* name : kNames) unsetenv(name);
}

TEST(RefusedTest, EachAllocation) {
  constexpr int kNoneFailed = 4;
  Ended run;
  for (int number = getenv("NN") ? atoi(getenv("NN")) : 0; run.code != kNoneFailed; ++number) {
    run = run_alone([number] {
      errno = 0;
      allocations_left = number;
      const int result = talk_to_itself();
      return allocations_left >= 0 && result == 0 ? kNoneFailed : result;
    });
    EXPECT_TRUE(run.code == 0 || run.code == 1 || run.code == kNoneFailed)
        << "code " << run.code << " where allocation " << number << " failed: " << run.said;
  }
}

TEST(RefusedTest, ALimitOfFileSizesIsNoSignal) {
  const auto [code, said] = run_alone([] {
    constexpr rlimit kLittle{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &kLittle) != 0) return 9;
    return talk_to_itself();
  });
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("file sizes"), std::string::npos) << said;
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
}

TEST(RefusedTest, NoThreadIsNamedAndTheMaskOfSignalsIsAsBefore) {
  const auto [code, said] = run_alone([] {
    sigset_t before, after;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    if (!base::refuse_calls({SYS_clone, SYS_clone3}, EAGAIN)) return 9;
    const int ended = talk_to_itself();
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    for (int signal = 1; signal < NSIG; ++signal)
      if (sigismember(&before, signal) != sigismember(&after, signal)) return 8;
    return ended;
  });
  if (code == 9) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("ulimit -u"), std::string::npos) << said;
}

TEST(RefusedTest, MemfdCreateIsNamed) {
  const auto [code, said] = run_alone([] {
    if (!base::refuse_calls({SYS_memfd_create}, EPERM)) return 9;
    return talk_to_itself();
  });
  if (code == 9) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EQ(code, 1);
  EXPECT_NE(said.find("memfd_create"), std::string::npos) << said;
}

class PeerTest : public testing::Test {
 protected:
  // The peer: takes one message, and ends when it is told to.
  static void answer(int socket) {
    auto [node, memory, pair] = ConnectedMemory(socket, 4096);
    ASSERT_EQ(pair.post_receive(1, memory, 0, 4096), 0);
    tell(socket, true);
    EXPECT_EQ(node.wait_completion().byte_len, 64u);
    hear<bool>(socket);
  }
  static void send_to(Child& child, Node& node) {
    Buffer memory(node, 4096);
    QueuePair pair(node);
    meet(child.socket(), pair);
    hear<bool>(child.socket());
    ASSERT_EQ(Send(IBV_WR_SEND, 1).from(memory, 0, 64).run(pair), IBV_WC_SUCCESS);
    tell(child.socket(), true);
  }
};

TEST_F(PeerTest, AQueuePairOfNoKnownProcessIsNamedWithAdvice) {
  const auto [code, said] = run_alone([] {
    Node node;
    QueuePair pair(node);
    Address nobody = pair.address();
    nobody.qp_number ^= 0x800000;  // of another slot of the table of processes
    if (pair.to_init() != 0) return 2;
    return pair.to_ready_to_receive(nobody);
  });
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("SOFTVERBS_NETDEVS"), std::string::npos) << said;
}

TEST_F(PeerTest, PidfdOpenRefusedIsDoneWithout) {
  const auto [code, said] = run_alone([] {
    Child child([](int socket) { answer(socket); });
    if (!base::refuse_calls({SYS_pidfd_open}, EPERM)) return 9;
    Node node;
    send_to(child, node);
    return testing::Test::HasFailure() ? 1 : 0;
  });
  if (code == 9) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("pidfd_open() failed"), std::string::npos) << said;
}

TEST_F(PeerTest, APeersEndIsNoticedWithoutPidfdOpen) {
  const auto [code, said] = run_alone([] {
    Child child([](int socket) {
      auto [node, pair] = Connected(socket);
      hear<bool>(socket);
      _exit(0);
    });
    if (!base::refuse_calls({SYS_pidfd_open}, EPERM)) return 9;
    auto [node, memory, pair] = ConnectedMemory(child.socket(), 4096);
    if (Send(IBV_WR_SEND, 1).from(memory, 0, 64).post(pair) != 0) return 2;  // no receive is posted
    tell(child.socket(), true);
    return node.wait_completion().status == IBV_WC_RETRY_EXC_ERR ? 0 : 3;
  });
  if (code == 9) GTEST_SKIP() << "this kernel has no seccomp";
  EXPECT_EQ(code, 0) << said;
}

TEST_F(PeerTest, ALackOfDescriptorsIsNamed) {
  const auto [code, said] = run_alone([] {
    Child child([](int socket) {
      auto [node, pair] = Connected(socket);
      hear<bool>(socket);
    });
    Node node;
    QueuePair pair(node);
    tell(child.socket(), pair.address());
    const auto peer = hear<Address>(child.socket());
    if (pair.to_init() != 0) return 2;
    const int next = dup(0);
    close(next);
    const rlimit none{static_cast<rlim_t>(next), static_cast<rlim_t>(next)};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return 4;
    const int error = pair.to_ready_to_receive(peer);
    for (int i = 0; i < 2; ++i) tell(child.socket(), true);  // met, and done
    return error == EMFILE ? 0 : 3;
  });
  EXPECT_EQ(code, 0) << said;
  EXPECT_NE(said.find("ulimit -n"), std::string::npos) << said;
}

}  // namespace
}  // namespace verbena::softverbs_test
