// How a group ends: with everything open, one rank before the others, killed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <deque>

#include "nccl/rma/group.h"

namespace verbena::nccl::testing {
namespace {

class RmaTeardownTest : public RmaTest {};
INSTANTIATE_TEST_SUITE_P(Tables, RmaTeardownTest, every_table(), name_table);

// closeColl frees what is left, and waits for nobody.
TEST_P(RmaTeardownTest, ClosesWithContextsMemoryAndRequestsOpen) {
  for (int round = 0; round < 5; ++round) {
    RmaGroup group(plugin(), {.ranks = 3});
    for (uint32_t from = 0; from < 3; ++from) {
      for (uint32_t i = 0; i < 600; ++i) {
        group.put_signal(group[from].target(static_cast<int>(i % 4)),
                         {0, group[from].region, 2000, 1 << 19, group[i % 3].region, i % 3},
                         {0, group[i % 3].region, 1});
      }
    }
    for (uint32_t rank = 0; rank < 3; ++rank) group.close(group[(rank + 1) % 3]);
  }
}

// Requests of a context that is destroyed are tested by nobody; those of others go on.
TEST_P(RmaTeardownTest, AContextIsDestroyedUnderItsRequests) {
  RmaGroup group(plugin(), {});
  if (!plugin().has_contexts()) GTEST_SKIP() << "this table's contexts carry nothing";
  for (uint64_t round = 1; round <= 50; ++round) {
    std::vector<void*> contexts(2);
    for_each_rank(2, [&](uint32_t rank) {
      ASSERT_EQ(plugin().create_context(group[rank].communicator, 4, 1, &contexts[rank]), abi::kSuccess);
    });
    for (int i = 0; i < 500; ++i)
      group.put_signal({group[0].communicator, contexts[0], i % 4},
                       {0, group[0].region, 2000, 1 << 19, group[1].region, 1}, {0, group[1].region, 1});
    EXPECT_EQ(plugin().destroy_context(contexts[0]), abi::kSuccess);
    EXPECT_EQ(plugin().destroy_context(contexts[1]), abi::kSuccess);
    void* const request = group.signal(group[0].target(), 1, {8, group[1].region, 1});
    ASSERT_TRUE(group.finish(group[0], request));
    EXPECT_EQ(group[1].word(8).load(), round);
  }
}

// One process closes its ranks one after the other; what has arrived before is done.
TEST_P(RmaTeardownTest, OneRankLeavesBeforeTheOthers) {
  RmaGroup group(plugin(), {});
  void* request = group.put_signal(group[1].target(), {0, group[1].region, 3000, 1 << 19, group[1].region, 0},
                                   {0, group[1].region, 1});
  ASSERT_TRUE(group.poll_until([&] { return group[0].word(0).load() == 1; }));
  group.close(group[0]);
  EXPECT_TRUE(group.finish(group[1], request));
}

TEST_P(RmaTeardownTest, NothingIsLeftOfManyGroups) {
  const int rounds = VERBENA_IS_SANITIZED ? 30 : 300;
  size_t files = 0, threads = 0;
  void* kept = nullptr;
  ASSERT_EQ(plugin().init(&kept, 1, &LogCapture::write), abi::kSuccess);
  for (int round = 0; round < rounds; ++round) {
    {
      RmaGroup group(plugin(), {.memory_bytes = 4096});
      void* request = group.signal(group[0].target(), 1, {0, group[1].region, 1});
      ASSERT_TRUE(group.finish(group[0], request));
    }
    if (round == 10) {
      files = count_open_files();
      threads = count_threads();
    }
  }
  EXPECT_EQ(count_open_files(), files);
  EXPECT_EQ(count_threads(), threads);
  EXPECT_EQ(plugin().finalize(kept), abi::kSuccess);
}

// A rank as a process: it meets the others through what `exchange` carries, and puts nothing.
class RankProcess {
 public:
  using Handle = std::array<char, abi::kHandleBytes>;

  RankProcess(const std::string& symbol, int ranks, int rank) {
    EXPECT_EQ(pipe(to_), 0);
    EXPECT_EQ(pipe(from_), 0);
    pid_ = fork();
    if (pid_ != 0) {
      ::close(to_[0]);
      ::close(from_[1]);
      return;
    }
    ::close(to_[1]);
    run(symbol, ranks, rank);
    _exit(0);
  }
  ~RankProcess() {
    kill();
    ::close(to_[1]);
    ::close(from_[0]);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  Handle hear_handle() {
    Handle handle{};
    EXPECT_EQ(read(from_[0], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
    return handle;
  }
  void tell_handles(const std::vector<Handle>& handles) {
    for (const Handle& handle : handles)
      EXPECT_EQ(write(to_[1], handle.data(), handle.size()), static_cast<ssize_t>(handle.size()));
  }

 private:
  void run(const std::string& symbol, int ranks, int rank) {
    void* const library = dlopen(LoadedPlugin::path(), RTLD_NOW | RTLD_LOCAL);
    const auto plugin = tools::adapt_rma_table(library, symbol);
    RmaRank self;
    self.rank = static_cast<uint32_t>(rank);
    self.memory.resize(1 << 20);
    Handle mine{};
    void* context = nullptr;
    if (plugin->init(&context, 1, &LogCapture::write) != abi::kSuccess) return;
    if (plugin->listen(context, 0, mine.data(), &self.listen_comm) != abi::kSuccess) return;
    if (write(from_[1], mine.data(), mine.size()) < 0) return;
    std::vector<Handle> handles(static_cast<size_t>(ranks));
    std::vector<void*> pointers;
    for (Handle& handle : handles) {
      if (read(to_[0], handle.data(), handle.size()) != static_cast<ssize_t>(handle.size())) return;
      pointers.push_back(handle.data());
    }
    if (!join(*plugin, self, pointers)) return;
    while (plugin->progress(self.target()) == abi::kSuccess) usleep(1000);
  }

 public:
  static bool join(tools::RmaPlugin& plugin, RmaRank& self, std::vector<void*>& handles) {
    void* rank_context = nullptr;
    if (plugin.connect(nullptr, handles.data(), static_cast<int>(handles.size()), static_cast<int>(self.rank),
                       self.listen_comm, &self.communicator) != abi::kSuccess) {
      return false;
    }
    plugin.close_listen(self.listen_comm);
    if (plugin.create_context(self.communicator, 4, 1, &rank_context) != abi::kSuccess) return false;
    self.contexts.push_back(rank_context);
    const auto made =
        plugin.register_memory(self.communicator, self.memory.data(), self.memory.size(), abi::kPtrHost);
    self.region = made.mhandle;
    return made.result == abi::kSuccess;
  }

 private:
  int to_[2]{}, from_[2]{};
  pid_t pid_ = -1;
};

// Its requests end with an error in bounded time, and those to others as if nothing were.
TEST_P(RmaTeardownTest, AKilledPeerEndsItsRequestsAndNoOthers) {
  set("VERBENA_FAILOVER_TIMEOUT_MS", "1000");
  set("VERBENA_ACK_TIMEOUT", "10");
  std::deque<RankProcess> others;
  for (int rank = 1; rank < 3; ++rank) others.emplace_back(GetParam(), 3, rank);
  RmaRank self;
  self.memory.resize(1 << 20);
  void* context = nullptr;
  ASSERT_EQ(plugin().init(&context, 1, &LogCapture::write), abi::kSuccess);
  std::vector<RankProcess::Handle> handles(3);
  ASSERT_EQ(plugin().listen(context, 0, handles[0].data(), &self.listen_comm), abi::kSuccess);
  for (size_t i = 0; i < 2; ++i) handles[i + 1] = others[i].hear_handle();
  for (RankProcess& other : others) other.tell_handles(handles);
  std::vector<void*> pointers;
  for (RankProcess::Handle& handle : handles) pointers.push_back(handle.data());
  ASSERT_TRUE(RankProcess::join(plugin(), self, pointers));

  const auto issue = [&](uint32_t to) {
    void* request = nullptr;
    EXPECT_EQ(plugin().put_signal(self.target(), {1 << 18, self.region, 1000, 1 << 18, self.region, to},
                                  {8 * to, self.region, 1}, &request),
              abi::kSuccess);
    return request;
  };
  // 0 success, 1 error; every request ends.
  const auto finish = [&](void* request) {
    for (int64_t i = 0; i < 3'000'000'000; ++i) {
      int is_done = 0;
      const abi::Result result = plugin().test(self.target(), request, &is_done);
      plugin().progress(self.target());
      if (result != abi::kSuccess) return 1;
      if (is_done != 0) return 0;
      if (i % 64 == 63) usleep(100);
    }
    return 2;
  };
  void* first = issue(1);
  EXPECT_EQ(finish(first), 0);
  others[0].kill();
  std::vector<void*> to_the_dead, to_the_living;
  for (int i = 0; i < 256; ++i) {
    to_the_dead.push_back(issue(1));
    to_the_living.push_back(issue(2));
  }
  for (void* request : to_the_living) EXPECT_EQ(finish(request), 0);
  int failed = 0;
  for (void* request : to_the_dead) {
    const int how = finish(request);
    ASSERT_NE(how, 2);
    failed += how;
  }
  EXPECT_GT(failed, 0);
  bool has_error = false;
  EXPECT_EQ(plugin().query_last_error(self.target(), &has_error), abi::kSuccess);
  EXPECT_TRUE(has_error);
  EXPECT_TRUE(is_logged("rank 1 failed"));
  void* refused = nullptr;
  EXPECT_EQ(plugin().put(self.target(), {0, self.region, 8, 8, self.region, 1}, &refused), abi::kRemoteError);
  EXPECT_EQ(finish(issue(2)), 0) << "the others go on";
  EXPECT_EQ(plugin().close(self.communicator), abi::kSuccess);
  EXPECT_EQ(plugin().finalize(context), abi::kSuccess);
}

}  // namespace
}  // namespace verbena::nccl::testing
