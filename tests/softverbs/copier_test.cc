// The copier: what goes on while the application's threads hold the driver's lock, and its life as a process.
#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>
#include <string>
#include <thread>

#include "gpu_fixture.h"
#include "tests/base/refused_calls.h"
#include "tests/base/scoped_environment.h"

// Functions of the drop-in.
extern "C" size_t softverbs_explain_wait(char* text, size_t bytes);
extern "C" const char* softverbs_explain_no_gpu();

namespace verbena::softverbs_test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kPatienceMs = 20000;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// One process that writes to itself.
struct Loop {
  Node node;
  QueuePair left{node}, right{node};
  Loop() { meet(left, right); }
};

ibv_wc write_bytes(Node& node, QueuePair& pair, const Registered& near, const Registered& far,
                   uint64_t bytes) {
  EXPECT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, bytes)).to(far.remote()).post(pair), 0);
  return node.wait_completion(kPatienceMs);
}

class CopierTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (count_gpus() == 0) GTEST_SKIP() << "no CUDA device: skipped";
  }
};

// --- While a thread of the application holds the driver's lock

// The stand-in plays what was measured of a real driver.
class CopierBlockedTest : public CopierTest, public ::testing::WithParamInterface<Blocker> {};

// A thread makes a call while a kernel waits for a word.
class Blocked {
 public:
  Blocked(int gpu, Blocker blocker, uint64_t word) {
    prepare_blocker(gpu, blocker);
    EXPECT_TRUE(spin_until(gpu, word));
    thread_ = std::thread([=] { run_blocker(gpu, blocker); });
    usleep(5000);
    EXPECT_TRUE(is_spinning());
  }
  ~Blocked() {
    const auto deadline = steady_clock::now() + seconds(60);
    while (is_spinning() && steady_clock::now() < deadline) usleep(100);
    thread_.join();
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  std::thread thread_;
};

constexpr int kGoOnMs = 20'000;  // a busy machine; where copies do not go on, they wait for the kernel

// The application's kernel waits for the last word of a message.
void expect_to_go_on(Loop& loop, Registered& near, Registered& far, int far_gpu, size_t bytes,
                     Blocker blocker) {
  far.memory.clear(kBytes);
  near.memory.fill(7, bytes);
  const uint64_t end = far.memory.address() + bytes;
  const Blocked blocked(far_gpu, blocker, (end - 1) / 8 * 8);
  ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, bytes)).to(far.remote()).post(loop.left), 0);
  EXPECT_EQ(loop.node.wait_completion(kGoOnMs).status, IBV_WC_SUCCESS) << "stops";
  const auto deadline = steady_clock::now() + std::chrono::milliseconds(kGoOnMs);
  while (is_spinning() && steady_clock::now() < deadline) usleep(100);
  EXPECT_FALSE(is_spinning()) << "the kernel waits for ever; " << describe_copier();
}

void drive_blocked(Kind near_kind, int near_gpu, int far_gpu, Blocker blocker) {
  Loop loop;
  Registered near(loop.node, near_kind, near_gpu), far(loop.node, Kind::kDevice, far_gpu);
  for (const size_t bytes : {8, 24, 64, 100, 999, 4096, 20000, 65536, 3 << 20}) {
    SCOPED_TRACE(std::string(get_name(blocker)) + ", " + std::to_string(bytes) + " bytes from " +
                 get_name(near_kind));
    expect_to_go_on(loop, near, far, far_gpu, bytes, blocker);
    EXPECT_TRUE(far.memory.matches(7, 0, bytes));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(CopierBlockedTest, CopiesToTheGpuGoOn) {
  run_apart([] { drive_blocked(Kind::kPageable, 0, 0, GetParam()); });
}
TEST_P(CopierBlockedTest, CopiesWithinTheGpuGoOn) {
  run_apart([] { drive_blocked(Kind::kDevice, 0, 0, GetParam()); });
}
TEST_P(CopierBlockedTest, CopiesFromAnotherGpuGoOn) {
  run_apart([] { drive_blocked(Kind::kDevice, count_gpus() - 1, 0, GetParam()); });
}

// The kernel waits for an add behind what is read from its memory.
void drive_reads(Blocker blocker) {
  Loop loop;
  Registered near(loop.node, Kind::kPageable, 0), far(loop.node, Kind::kDevice, 0);
  Buffer result(loop.node, 8);
  far.memory.clear(kBytes);
  far.memory.fill(3, 4096);
  near.memory.clear(kBytes);
  const uint64_t flag = far.memory.address() + 8192;
  const Blocked blocked(0, blocker, flag);
  ASSERT_EQ(Send(IBV_WR_RDMA_READ, 1).from(near.piece(0, 4096)).to(far.remote()).post(loop.left), 0);
  EXPECT_EQ(loop.node.wait_completion(kGoOnMs).status, IBV_WC_SUCCESS) << "stops";
  EXPECT_TRUE(near.memory.matches(3, 0, 4096));
  Send add(IBV_WR_ATOMIC_FETCH_AND_ADD, 2);
  add.from(result, 0, 8).request.wr.atomic = {flag, 1, 0, far.mr->rkey};
  ASSERT_EQ(add.post(loop.left), 0);
  EXPECT_EQ(loop.node.wait_completion(kGoOnMs).status, IBV_WC_SUCCESS) << "stops";
}

TEST_P(CopierBlockedTest, ReadsAndAddsGoOn) {
  run_apart([] { drive_reads(GetParam()); });
}

INSTANTIATE_TEST_SUITE_P(Calls, CopierBlockedTest, ::testing::ValuesIn(kBlockers), [](const auto& test) {
  std::string name = get_name(test.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
});

// --- Memory

TEST_F(CopierTest, MemoryThatNobodyElseCanMapIsRefusedWithTheRemedy) {
  run_apart([] {
    Node node;
    TestMemory memory(Kind::kPrivate, 0, kBytes);
    testing::internal::CaptureStderr();
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
    EXPECT_EQ(ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess), nullptr);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("Allocate the memory with cudaMalloc"), std::string::npos) << said;
    EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << "once: " << said;
  });
}

// Whose reservation holds nothing else.
TEST_F(CopierTest, AThreadWithoutAContextRegistersMemory) {
  run_apart([] {
    Node node;
    TestMemory memory(Kind::kExportable, 0, kBytes);
    std::thread([&] {
      ibv_mr* const region =
          ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess);
      ASSERT_NE(region, nullptr);
      EXPECT_EQ(ibv_dereg_mr(region), 0);
    }).join();
  });
}

// Many, each used; then their memory is no longer mapped in the copier.
TEST_F(CopierTest, ManyRegionsComeAndGo) {
  if (!refuse_copies_after(INT_MAX)) GTEST_SKIP() << "a real driver maps them where /proc does not show it";
  run_apart([] {
    constexpr int kRegions = 300;
    Loop loop;
    Registered near(loop.node, Kind::kPageable, 0);
    near.memory.fill(9, 64);
    const auto count_mapped = [] {
      const std::string maps = read_file("/proc/" + std::to_string(find_copier()) + "/maps");
      size_t count = 0;
      for (size_t at = 0; (at = maps.find("fake-device", at)) != std::string::npos; ++at) ++count;
      return count;
    };
    size_t before = 0;
    for (int round = 0; round < 2; ++round) {
      std::vector<std::unique_ptr<TestMemory>> memories;
      std::vector<ibv_mr*> regions;
      for (int i = 0; i < kRegions; ++i) {
        memories.push_back(
            std::make_unique<TestMemory>(i % 2 == 0 ? Kind::kDevice : Kind::kExportable, 0, 4096));
        regions.push_back(
            ibv_reg_mr(loop.node.pd, reinterpret_cast<void*>(memories.back()->address()), 4096, kAllAccess));
        ASSERT_NE(regions.back(), nullptr);
        ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1)
                      .from(near.piece(0, 64))
                      .to(memories.back()->address(), regions.back()->rkey)
                      .run(loop.left),
                  IBV_WC_SUCCESS);
        ASSERT_TRUE(memories.back()->matches(9, 0, 64));
      }
      EXPECT_GE(count_mapped(), static_cast<size_t>(kRegions));
      for (ibv_mr* region : regions) EXPECT_EQ(ibv_dereg_mr(region), 0);
      if (round == 0) before = count_mapped();
      EXPECT_LE(count_mapped(), before);
    }
    EXPECT_LT(before, size_t{10});
  });
}

// The sender's own memory: when its registration has ended, nothing reads it any more.
TEST_F(CopierTest, DeregistrationWaitsForTheCopyFromThisMemory) {
  run_apart([] {
    Loop loop;
    Registered far(loop.node, Kind::kDevice, count_gpus() - 1);
    TestMemory memory(Kind::kDevice, 0, kBytes);
    ibv_mr* const near =
        ibv_reg_mr(loop.node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess);
    ASSERT_NE(near, nullptr);
    memory.fill(4);
    far.memory.clear();
    if (!hold_copies(true)) {  // a real driver
      EXPECT_EQ(ibv_dereg_mr(near), 0);
      return;
    }
    Send write(IBV_WR_RDMA_WRITE, 1);
    write.sges.push_back({memory.address(), kBytes, near->lkey});
    ASSERT_EQ(write.to(far.remote()).post(loop.left), 0);
    std::atomic<bool> is_released{false};
    std::thread releasing([&] {
      usleep(100'000);
      is_released = true;
      hold_copies(false);
    });
    usleep(20'000);
    EXPECT_EQ(ibv_dereg_mr(near), 0);
    EXPECT_TRUE(is_released);
    memory.fill(5);
    releasing.join();
    EXPECT_EQ(loop.node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_TRUE(far.memory.matches(4, 0, kBytes))
        << "the copy took what was written after the deregistration";
  });
}

// How often the copier's threads for GPUs have waited.
uint64_t count_waits() {
  uint64_t waits = 0;
  const std::string tasks = "/proc/" + std::to_string(find_copier()) + "/task";
  for (const auto& thread : std::filesystem::directory_iterator(tasks)) {
    if (!read_file(thread.path() / "comm").starts_with("copier-gpu")) continue;
    const std::string status = read_file(thread.path() / "status");
    const std::string name = "\nvoluntary_ctxt_switches:";
    waits += std::stoull(status.substr(status.find(name) + name.size()));
  }
  return waits;
}
// Two of its threads that poll for a copy would take both CPUs of a small machine from the application.
TEST_F(CopierTest, LeavesTheCpuWhileACopyIsInFlight) {
  run_apart([] {
    setenv("SOFTVERBS_WORKER_SPIN_US", "0", 1);
    Loop loop;
    Registered near(loop.node, Kind::kDevice, 0), far(loop.node, Kind::kDevice, count_gpus() - 1);
    if (!hold_copies(true)) return;  // a real driver
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far.remote()).post(loop.left), 0);
    usleep(20'000);
    const uint64_t before = count_waits();
    usleep(100'000);
    EXPECT_GT(count_waits(), before + 20);
    hold_copies(false);
    EXPECT_EQ(loop.node.wait_completion().status, IBV_WC_SUCCESS);
  });
}

// --- The process

bool is_there(int pid) {
  const std::string status = read_file("/proc/" + std::to_string(pid) + "/stat");
  return !status.empty() && status.find(") Z ") == std::string::npos;
}

bool has_gone(int pid) {
  const auto deadline = steady_clock::now() + seconds(20);
  while (is_there(pid) && steady_clock::now() < deadline) usleep(1000);
  return !is_there(pid);
}

TEST_F(CopierTest, ItIsNamedAndHoldsNothingOfTheApplication) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);  // without O_CLOEXEC
  const auto read_link = [](const std::filesystem::path& path) {
    return std::filesystem::read_symlink(path).string();
  };
  const std::string inherited = read_link("/proc/self/fd/" + std::to_string(ends[0]));
  const base::ScopedEnvironment environment({{"CUDA_VISIBLE_DEVICES", "0,1"}, {"LD_PRELOAD", ""}});
  run_apart([&] {
    Loop loop;
    Registered side(loop.node, Kind::kDevice, 0);
    const int pid = find_copier();
    ASSERT_GT(pid, 0);
    const std::string folder = "/proc/" + std::to_string(pid);
    EXPECT_EQ(std::string(read_file(folder + "/cmdline").c_str()),
              "softverbs-copier for " + std::to_string(getpid()));
    EXPECT_EQ(read_file(folder + "/comm"), "softverbs-copie\n");
    EXPECT_NE(getsid(pid), getsid(0));
    const std::string variables = read_file(folder + "/environ");
    EXPECT_EQ(variables.find("CUDA_VISIBLE_DEVICES"), std::string::npos);
    EXPECT_EQ(variables.find("LD_PRELOAD"), std::string::npos);
    close(ends[1]);
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd")) {
      if (entry.path().filename() == "2") continue;  // where it says what it dies of
      EXPECT_NE(read_link(entry.path()), inherited);
    }
    EXPECT_EQ(kill(pid, SIGINT), 0);  // of the terminal's group
    Registered near(loop.node, Kind::kPageable, 0);
    near.memory.fill(1, 64);
    EXPECT_EQ(write_bytes(loop.node, loop.left, near, side, 64).status, IBV_WC_SUCCESS);
  });
  close(ends[0]);
  close(ends[1]);
}

// Without a thread, a process or a descriptor for the copier a registration fails with the cause, here and in
// the copier.
TEST_F(CopierTest, EachStepOfItsStartRefused) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own threads would be refused, too";
#endif
  if (!refuse_copies_after(INT_MAX)) GTEST_SKIP() << "a real driver needs these calls itself";
  const base::OneRefused refusing(
      {SYS_clone, SYS_clone3, SYS_fork, SYS_vfork, SYS_socketpair, SYS_pidfd_open}, EAGAIN);
  for (uint32_t number = 0;; ++number) {
    const auto run = refusing.run(
        number,
        [] {
          Node node;
          TestMemory memory(Kind::kDevice, 0, kBytes);
          testing::internal::CaptureStderr();
          errno = 0;
          ibv_mr* const region =
              ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess);
          const int error = errno;
          const std::string said = testing::internal::GetCapturedStderr();
          if (region != nullptr) return ibv_dereg_mr(region);
          const bool is_explained = !said.empty() && said.find("ended") == std::string::npos;
          if (!is_explained) std::cerr << said;
          return error != 0 && is_explained ? 1 : 2;
        },
        60'000);
    if (!run) GTEST_SKIP() << "this kernel hands no system calls to another process";
    EXPECT_TRUE(run->code == 0 || run->code == 1)
        << "code " << run->code << " where system call " << run->call << " was refused, number " << number;
    if (run->call < 0) break;
  }
}

TEST_F(CopierTest, AnInstanceOfAGpuStaysChosen) {
  if (!refuse_copies_after(INT_MAX)) GTEST_SKIP() << "needs a GPU in instances";
  const base::ScopedEnvironment environment({{"CUDA_VISIBLE_DEVICES", "MIG-1234"}});
  run_apart([] {
    Loop loop;
    Registered side(loop.node, Kind::kDevice, 0);
    EXPECT_NE(read_file("/proc/" + std::to_string(find_copier()) + "/environ")
                  .find("CUDA_VISIBLE_DEVICES=MIG-1234"),
              std::string::npos);
  });
}

std::set<std::string> list_shared_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator("/dev/shm"))
    names.insert(entry.path());
  return names;
}

// By any death; a child that the application has forked holds what it has inherited.
TEST_F(CopierTest, ItEndsWithTheApplication) {
  for (const int number : {SIGKILL, SIGSEGV, 0}) {
    const std::set<std::string> before = list_shared_files();
    Child application([number](int socket) {
      start_cuda();
      auto* const loop = new Loop;
      auto* const side = new Registered(loop->node, Kind::kDevice, 0);
      ASSERT_NE(side->mr, nullptr);
      tell(socket, find_copier());
      const int child = fork();
      if (child == 0) {
        pause();
        _exit(0);
      }
      tell(socket, child);
      hear<bool>(socket);
      signal(SIGSEGV, SIG_DFL);
      if (number == 0) _exit(0);
      kill(getpid(), number);
      pause();
    });
    const int copier = hear<int>(application.socket()), child = hear<int>(application.socket());
    ASSERT_GT(copier, 0);
    EXPECT_TRUE(is_there(copier));
    tell(application.socket(), true);
    EXPECT_TRUE(has_gone(copier)) << "signal " << number;
    kill(child, SIGKILL);
    application.kill();
    const std::string job = getenv("SOFTVERBS_JOB");
    for (const std::string& name : list_shared_files()) {
      EXPECT_TRUE(before.contains(name) || name.find("copier") == std::string::npos) << name;
      EXPECT_EQ(name.find(job), std::string::npos) << name;
    }
  }
}

// A child of the application that ends does not end it.
TEST_F(CopierTest, AForkedChildLeavesItAlone) {
  run_apart([] {
    Loop loop;
    Registered near(loop.node, Kind::kPageable, 0), far(loop.node, Kind::kDevice, 0);
    near.memory.fill(2, 64);
    EXPECT_EQ(write_bytes(loop.node, loop.left, near, far, 64).status, IBV_WC_SUCCESS);
    Child child([](int) {});
    child.join();
    EXPECT_EQ(write_bytes(loop.node, loop.left, near, far, 64).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(is_there(find_copier()));
  });
}

// In the middle of copies: each that it had fails, none is reported as done, and the error says which process
// died.
TEST_F(CopierTest, WhenItIsKilledItsCopiesFail) {
  run_apart([] {
    Loop loop;
    Registered near(loop.node, Kind::kDevice, 0), far(loop.node, Kind::kDevice, count_gpus() - 1),
        host(loop.node, Kind::kPageable, 0), other(loop.node, Kind::kPageable, 0);
    near.memory.fill(6);
    far.memory.clear();
    EXPECT_EQ(write_bytes(loop.node, loop.left, near, far, 64).status, IBV_WC_SUCCESS);
    const int copier = find_copier();
    const bool is_held = hold_copies(true);  // else a real driver, which may be done
    testing::internal::CaptureStderr();
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far.remote()).post(loop.left), 0);
    if (is_held) usleep(20'000);
    kill(copier, SIGKILL);
    const ibv_wc_status status = loop.node.wait_completion(kPatienceMs).status;
    EXPECT_TRUE(far.memory.matches(6, 0, 64));
    EXPECT_TRUE(status == IBV_WC_GENERAL_ERR || (!is_held && far.memory.matches(6, 0, kBytes))) << status;
    EXPECT_TRUE(!is_held || !far.memory.matches(6, 0, kBytes));
    EXPECT_TRUE(has_gone(copier));
    usleep(50'000);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("process " + std::to_string(copier)), std::string::npos) << said;
    hold_copies(false);

    // Later ones fail at once; what needs no GPU goes on.
    QueuePair later(loop.node), its_peer(loop.node), another(loop.node), anothers_peer(loop.node);
    meet(later, its_peer);
    meet(another, anothers_peer);
    EXPECT_EQ(write_bytes(loop.node, later, near, far, 64).status, IBV_WC_GENERAL_ERR);
    EXPECT_EQ(write_bytes(loop.node, another, host, other, 64).status, IBV_WC_SUCCESS);
    TestMemory fresh(Kind::kDevice, 0, 4096);
    EXPECT_EQ(ibv_reg_mr(loop.node.pd, reinterpret_cast<void*>(fresh.address()), 4096, kAllAccess), nullptr);
  });
}

// A peer's copier is not ours: what the peer has under way fails there, and not here.
TEST_F(CopierTest, OnlyItsApplicationHasTheError) {
  Child other([](int socket) {
    start_cuda();
    auto [node, pair] = Connected(socket);
    Registered side(node, Kind::kDevice, 0);
    tell(socket, side.remote());
    tell(socket, find_copier());
    hear<bool>(socket);
    EXPECT_TRUE(side.memory.matches(8, 0, kBytes));
  });
  run_apart([&other] {
    auto [node, pair] = Connected(other.socket());
    const auto far = hear<RemoteMemory>(other.socket());
    const int theirs = hear<int>(other.socket());
    Registered near(node, Kind::kDevice, 0);
    near.memory.fill(8);
    EXPECT_NE(find_copier(), theirs);
    kill(theirs, SIGKILL);
    EXPECT_TRUE(has_gone(theirs));
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, kBytes)).to(far).post(pair), 0);
    EXPECT_EQ(node.wait_completion(kPatienceMs).status, IBV_WC_SUCCESS);
    tell(other.socket(), true);
  });
}

// --- What it says

std::string explain_wait() {
  std::string text(4096, '\0');
  text.resize(softverbs_explain_wait(text.data(), text.size()));
  return text;
}

bool waits_to_say(const std::string& part) {
  const auto deadline = steady_clock::now() + seconds(30);
  while (explain_wait().find(part) == std::string::npos && steady_clock::now() < deadline) usleep(10'000);
  return explain_wait().find(part) != std::string::npos;
}

TEST_F(CopierTest, ItSaysWhichCopyIsNotDone) {
  run_apart([] {
    Loop loop;
    Registered near(loop.node, Kind::kPageable, 0), far(loop.node, Kind::kDevice, 0);
    if (!hold_copies(true)) return;  // a real driver
    EXPECT_EQ(explain_wait(), "");
    ASSERT_EQ(Send(IBV_WR_RDMA_WRITE, 1).from(near.piece(0, 64)).to(far.remote()).post(loop.left), 0);
    EXPECT_TRUE(waits_to_say("process " + std::to_string(find_copier()) +
                             ", which copies GPU memory, started a copy on its device 0, which has not "
                             "finished after"));
    hold_copies(false);
    EXPECT_EQ(loop.node.wait_completion().status, IBV_WC_SUCCESS);
    EXPECT_EQ(explain_wait(), "");
    kill(find_copier(), SIGKILL);
    EXPECT_TRUE(waits_to_say("has exited"));
  });
}

TEST_F(CopierTest, ItSaysWhichCallOfTheApplicationDoesNotReturn) {
  run_apart([] {
    if (!hold_copies(false)) return;  // a real driver, which registers memory meanwhile
    Loop loop;
    Registered near(loop.node, Kind::kPageable, 0), far(loop.node, Kind::kDevice, 0);
    near.memory.fill(1, 64);
    far.memory.clear();
    TestMemory late(Kind::kDevice, 0, 4096);
    std::thread registering;
    {
      const Blocked blocked(0, Blocker::kFree, far.memory.address());
      registering = std::thread([&] {
        ibv_mr* const region =
            ibv_reg_mr(loop.node.pd, reinterpret_cast<void*>(late.address()), 4096, kAllAccess);
        EXPECT_NE(region, nullptr);
        ibv_dereg_mr(region);
      });
      EXPECT_TRUE(waits_to_say("has not returned from exporting GPU memory (cuIpcGetMemHandle"));
      EXPECT_NE(explain_wait().find("cudaFree"), std::string::npos);
      EXPECT_EQ(write_bytes(loop.node, loop.left, near, far, 64).status, IBV_WC_SUCCESS);
    }
    registering.join();
    EXPECT_EQ(explain_wait(), "");
  });
}

std::string explain_no_gpu() {
  const char* const why = softverbs_explain_no_gpu();
  return why == nullptr ? "" : why;
}

TEST_F(CopierTest, ItSaysWhetherGpuMemoryCanBeRegistered) {
  run_apart([] {
    EXPECT_EQ(explain_no_gpu(), "");  // there is no context yet
    const Node node;
    TestMemory memory(Kind::kDevice, 0, 4096);  // makes one
    EXPECT_EQ(explain_no_gpu(), "");
    EXPECT_GT(find_copier(), 0) << "it was tried";
  });
  run_apart([] {
    setenv("SOFTVERBS_GPU", "0", 1);
    EXPECT_EQ(explain_no_gpu(), "SOFTVERBS_GPU=0");
    EXPECT_EQ(find_copier(), 0);
  });
  run_apart([] {
    setenv("FAKE_CUDA_NO_SHARING", "1", 1);
    if (!hold_copies(false)) return;  // a real driver
    Node node;
    TestMemory memory(Kind::kDevice, 0, 4096);
    EXPECT_NE(explain_no_gpu().find("the copier process cannot map memory of this GPU"), std::string::npos)
        << explain_no_gpu();
    EXPECT_EQ(ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), 4096, kAllAccess), nullptr);
    EXPECT_EQ(errno, EOPNOTSUPP);
  });
}

// --- Finding the program

// The library and the program in a folder of their own; `mode`: the program's, 0: it is not there.
class Installed {
 public:
  explicit Installed(mode_t mode) {
    Dl_info info{};
    EXPECT_NE(dladdr(reinterpret_cast<void*>(&ibv_open_device), &info), 0);
    const std::filesystem::path from = std::filesystem::canonical(info.dli_fname).parent_path();
    char name[] = "/tmp/softverbs-copier-test.XXXXXX";
    top_ = mkdtemp(name);
    std::filesystem::create_directory(folder_ = top_ / "softverbs");
    std::filesystem::copy(from / "libibverbs.so.1", folder_ / "libibverbs.so.1");
    if (mode == 0) return;
    std::filesystem::copy(from / "softverbs-copier", folder_ / "softverbs-copier");
    chmod((folder_ / "softverbs-copier").c_str(), mode);
  }
  ~Installed() { std::filesystem::remove_all(top_); }
  // Runs CopierTest.OneWrite over it; its exit status, and what it says.
  int run(std::string& said) const {
    const char* const path = getenv("LD_LIBRARY_PATH");
    const std::string command = "cd / && LD_LIBRARY_PATH=" + folder_.string() + ":" +
                                (path == nullptr ? "" : path) +
                                " LD_PRELOAD=" + (folder_ / "libibverbs.so.1").string() + " " +
                                std::filesystem::canonical("/proc/self/exe").string() +
                                " --gtest_also_run_disabled_tests --gtest_filter='*OneWrite' 2>&1";
    FILE* const pipe = popen(command.c_str(), "r");
    char text[4096];
    while (fgets(text, sizeof(text), pipe) != nullptr) said += text;
    return pclose(pipe);
  }

 private:
  std::filesystem::path top_, folder_;
};

TEST_F(CopierTest, DISABLED_OneWrite) {
  run_apart([] {
    Loop loop;
    Registered near(loop.node, Kind::kPageable, 0), far(loop.node, Kind::kDevice, 0);
    ASSERT_NE(far.mr, nullptr);
    near.memory.fill(2, 4096);
    EXPECT_EQ(write_bytes(loop.node, loop.left, near, far, 4096).status, IBV_WC_SUCCESS);
    EXPECT_TRUE(far.memory.matches(2, 0, 4096));
  });
}

// They preload the library, and a sanitizer's runtime has to come first.
class CopierInstalledTest : public CopierTest {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the library cannot be preloaded before a sanitizer's runtime: skipped";
#endif
    CopierTest::SetUp();
  }
};

TEST_F(CopierInstalledTest, ItIsFoundBesideTheLibrary) {
  std::string said;
  EXPECT_EQ(Installed(0755).run(said), 0) << said;
}
TEST_F(CopierInstalledTest, ItNeedsNotBeExecutable) {
  std::string said;
  EXPECT_EQ(Installed(0644).run(said), 0) << said;
}
TEST_F(CopierInstalledTest, WhereItIsMissingTheLineNamesIt) {
  std::string said;
  EXPECT_NE(Installed(0).run(said), 0);
  EXPECT_NE(said.find("/softverbs-copier: No such file"), std::string::npos) << said;
}

}  // namespace
}  // namespace verbena::softverbs_test
