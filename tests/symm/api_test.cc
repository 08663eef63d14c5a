// verbena.h and verbena.hpp as an application sees them; each rank is a process.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "verbena/verbena.hpp"

extern "C" int count_results_in_c(void);

namespace verbena {
namespace {

// Forks `count` ranks that find each other by the environment; each returns whether all went well. No test of
// this program touches the library before it forks: the library's threads do not live on in a child.
void run_ranks(uint32_t count, const std::function<bool(uint32_t rank)>& body) {
  std::vector<pid_t> ranks;
  // Bound but not listening: the kernel gives the port only to a process that binds it by number.
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(setsockopt(holder, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
  ASSERT_EQ(bind(holder, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(holder, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  for (uint32_t rank = 0; rank < count; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", std::to_string(count).c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("VERBENA_BOOTSTRAP_PORT", port.c_str(), 1);
      bool is_right = false;
      try {
        is_right = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
      }
      _exit(is_right ? 0 : 1);
    }
    ranks.push_back(pid);
  }
  for (uint32_t rank = 0; rank < count; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(ranks[rank], &status, 0), ranks[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
  }
  close(holder);
}

TEST(ApiTest, CompilesAsC) {
  EXPECT_EQ(count_results_in_c(), 8);
}

TEST(ApiTest, WindowsAndTeams) {
  run_ranks(3, [](uint32_t rank) {
    auto context = SymmetricContext::from_environment();
    auto window = context.allocate(1000);
    const auto world = context.world();
    bool is_right = context.rank() == rank && context.size() == 3 && window.length_bytes() == 1000 &&
                    verbena_window_find(context.handle(), window.address() + 999) == window.handle() &&
                    world.size() == 3 && context.lsa().size() == 3 && world.device_context() != nullptr;
    *window.peer_address<uint32_t>((rank + 1) % 3) = rank + 1;
    context.barrier();
    is_right = is_right && *window.address<uint32_t>() == (rank + 2) % 3 + 1;
    const auto team = context.split(world, rank == 1 ? -1 : 5, -int64_t{rank});
    is_right = is_right && static_cast<bool>(team) == (rank != 1);
    if (team)
      is_right = is_right && team.size() == 2 && team.world_rank(0) == 2 && team.context().team_size == 2;
    const auto listed = context.create_team({2, 1, 0});
    is_right = is_right && listed.rank() == 2 - rank;
    context.check_error();
    return is_right;
  });
}

TEST(ApiTest, Workspaces) {
  run_ranks(3, [](uint32_t rank) {
    auto context = SymmetricContext::from_environment();
    const auto pair = context.split(context.world(), rank == 2 ? -1 : 0);
    auto workspace = context.create_workspace(pair, 1 << 16, 16);
    bool is_right = static_cast<bool>(workspace) == (rank < 2);
    if (workspace) {
      const SymmWorkspace<>& kernel = workspace.workspace();
      is_right = is_right && kernel.blocks.count == 16 &&
                 workspace.slot_bytes() == (1 << 16) / (16 * kSymmTurns * 2) &&
                 workspace.device_workspace()->context.team_size == 2 &&
                 kernel.context.signals != pair.context().signals;
      *kernel.context.failure = 3;
      try {
        workspace.check_error();
        is_right = false;
      } catch (const Failure& failure) {
        is_right = is_right && failure.result() == VERBENA_TIMEOUT &&
                   std::string(failure.what()).find("signal 0") != std::string::npos;
      }
      is_right = is_right && verbena_context_get_error(context.handle(), nullptr, 0) == VERBENA_TIMEOUT;
    }
    workspace.reset();
    workspace.check_error();
    context.check_error();
    auto other = context.create_workspace(context.world(), 0, 1);
    const SymmetricTeam theirs = other.team();
    is_right = is_right && theirs.size() == 3 &&
               theirs.device_context() == &other.device_workspace()->context &&
               verbena_team_free(theirs.handle()) == VERBENA_INVALID_ARGUMENT &&
               verbena_team_reset(context.handle(), theirs.handle()) == VERBENA_INVALID_ARGUMENT;
    return is_right && other.slot_bytes() == 0 &&
           verbena_workspace_free(nullptr) == VERBENA_INVALID_ARGUMENT &&
           verbena_workspace_reset(nullptr) == VERBENA_INVALID_ARGUMENT;
  });
}

TEST(ApiTest, CallsOnStreamsNeedAGpu) {
  run_ranks(2, [](uint32_t rank) {
    verbena_set_log([](verbena_log_level, const char*) {});
    auto context = SymmetricContext::from_environment();
    const auto world = context.world();
    const auto window = context.allocate(4096);
    const auto fails = [&](verbena_result expected, const char* why, const std::function<void()>& call) {
      try {
        call();
        return false;
      } catch (const Failure& failure) {
        return failure.result() == expected && std::string(failure.what()).find(why) != std::string::npos;
      }
    };
    const uint32_t peer = 1 - rank;
    const auto needs_gpu = [&](const std::function<void()>& call) {
      return fails(VERBENA_INVALID_USAGE, "needs a GPU", call);
    };
    return needs_gpu([&] { world.barrier_on(nullptr, 3); }) &&
           needs_gpu([&] { world.signal_on(nullptr, 255, peer, 2, SymmSignalOperation::kSet); }) &&
           needs_gpu([&] { world.wait_on(nullptr, 0, SymmCompare::kLess, -1); }) &&
           needs_gpu([&] { world.put_on(nullptr, window.address(), window.address() + 64, 64, peer); }) &&
           needs_gpu([&] {
             const verbena_piece piece{window.address(), window.address() + 64, 64};
             world.put_pieces_on(nullptr, &piece, 1, peer);
           }) &&
           fails(VERBENA_INVALID_ARGUMENT, "pieces is NULL",
                 [&] { world.put_pieces_on(nullptr, nullptr, 1, peer); }) &&
           needs_gpu([&] { world.get_on(nullptr, window.address(), window.address() + 64, 64, peer); }) &&
           needs_gpu([&] { world.quiet_on(nullptr); }) &&
           fails(VERBENA_INVALID_ARGUMENT, "rank 2 does not exist",
                 [&] { world.signal_on(nullptr, 0, 2); }) &&
           fails(VERBENA_INVALID_ARGUMENT, "team is NULL",
                 [] { check(verbena_quiet_on_stream(nullptr, nullptr)); });
  });
}

TEST(ApiTest, ATableForTileScale) {
  run_ranks(3, [](uint32_t rank) {
    auto context = SymmetricContext::from_environment();
    const auto window = context.allocate(4096);
    const auto team = context.split(context.world(), 0, -static_cast<int64_t>(rank));
    const std::vector<uint64_t> table = team.make_tilescale_table(window);
    const auto as_number = [](const void* address) { return reinterpret_cast<uint64_t>(address); };
    bool is_right = table.size() == 1024 && table[0] == 2 - rank && table[1] == 3 && table[5] == 0 &&
                    table[1023] == as_number(team.device_context());
    for (uint32_t peer = 0; peer < 3; ++peer)
      is_right = is_right && table[2 + peer] == as_number(window.peer_address(2 - peer));
    return is_right && table[4 - rank] == as_number(window.address());
  });
}

extern "C" void* verbena_pool_allocate_0(ssize_t length_bytes, int gpu, void* stream);
extern "C" void verbena_pool_release_0(void* address, ssize_t length_bytes, int gpu, void* stream);
extern "C" void* verbena_pool_allocate_1(ssize_t length_bytes, int gpu, void* stream);

TEST(ApiTest, APoolsMemoryLiesInAWindow) {
  constexpr int kNoGpu = -1;
  run_ranks(2, [](uint32_t rank) {
    verbena_set_log([](verbena_log_level, const char*) {});
    auto context = SymmetricContext::from_environment();
    auto pool = context.create_pool(4096), other = context.create_pool(512);
    verbena_window* const window = verbena_pool_window(pool.handle());
    auto* const begin = static_cast<std::byte*>(verbena_window_address(window));
    void* const first = verbena_pool_allocate_0(1, kNoGpu, nullptr);
    void* const second = verbena_pool_allocate_0(1000, kNoGpu, nullptr);
    bool is_right = pool.index() == 0 && other.index() == 1 && first == begin && second == begin + 512 &&
                    verbena_window_find(context.handle(), second) == window;
    pool.check();
    verbena_pool_release_0(first, 1, kNoGpu, nullptr);
    is_right = is_right && verbena_pool_allocate_0(512, kNoGpu, nullptr) == begin && pool.max_used() == 1536;
    is_right = is_right && verbena_pool_allocate_0(4096, kNoGpu, nullptr) == nullptr &&
               verbena_pool_allocate_0(8, 3, nullptr) == nullptr &&
               verbena_pool_allocate_0(-1, kNoGpu, nullptr) == nullptr &&
               verbena_pool_allocate_1(512, kNoGpu, nullptr) ==
                   verbena_window_address(verbena_pool_window(other.handle()));
    pool.check();
    // One rank takes something that the other does not.
    if (rank == 1) verbena_pool_allocate_0(8, kNoGpu, nullptr);
    try {
      pool.check();
      is_right = false;
    } catch (const Failure& failure) {
      is_right =
          is_right && failure.result() == VERBENA_INVALID_USAGE &&
          std::string(failure.what()).find("ranks 0 and 1 have used a pool differently (5 and 6 calls)") !=
              std::string::npos;
    }
    std::vector<SymmetricPool> more;
    for (int i = 0; i < 6; ++i) more.push_back(context.create_pool(512));
    try {
      context.create_pool(512);
      is_right = false;
    } catch (const Failure& failure) {
      is_right = is_right && std::string(failure.what()).find("already has 8 pools") != std::string::npos;
    }
    more.pop_back();
    {
      // Its pools go with a context, and leave their numbers.
      verbena_pool* left = nullptr;
      auto brief = SymmetricContext::from_environment();
      check(verbena_pool_create(brief.handle(), 512, &left));
      is_right = is_right && verbena_pool_index(left) == 7;
    }
    return is_right && context.create_pool(512).index() == 7 &&
           verbena_pool_free(nullptr) == VERBENA_INVALID_ARGUMENT;
  });
}

TEST(ApiTest, ErrorsAreResultsAndText) {
  run_ranks(2, [](uint32_t rank) {
    verbena_set_log([](verbena_log_level, const char*) {});
    auto context = SymmetricContext::from_environment();
    try {
      context.allocate(rank == 0 ? 4096 : 1 << 20);
      return false;
    } catch (const Failure& failure) {
      if (failure.result() != VERBENA_INVALID_USAGE ||
          std::string(failure.what()).find("ranks 0 and 1") == std::string::npos)
        return false;
    }
    verbena_team* const world = verbena_team_world(context.handle());
    return verbena_team_free(world) == VERBENA_INVALID_ARGUMENT &&
           verbena_window_free(nullptr) == VERBENA_INVALID_ARGUMENT &&
           verbena_context_create(nullptr, 0, 1, nullptr) == VERBENA_INVALID_ARGUMENT;
  });
}

TEST(ApiTest, AnAbortIsTold) {
  run_ranks(1, [](uint32_t) {
    auto context = SymmetricContext::from_environment();
    char text[8] = "";
    if (verbena_context_get_error(context.handle(), text, sizeof(text)) != VERBENA_SUCCESS) return false;
    context.abort();
    const bool is_told =
        verbena_context_get_error(context.handle(), text, sizeof(text)) == VERBENA_INVALID_USAGE;
    return is_told && std::strlen(text) == 7 && *context.world().context().abort_word != 0;
  });
}

TEST(ApiTest, ASettingOutOfRangeIsAnError) {
  run_ranks(1, [](uint32_t) {
    setenv("VERBENA_SYMM_TEAMS", "1000", 1);
    verbena_context* context = nullptr;
    return verbena_context_create_from_environment(&context) == VERBENA_INVALID_USAGE && context == nullptr;
  });
}

TEST(ApiTest, OverTheCallersAllGather) {
  run_ranks(1, [](uint32_t) {
    const auto alone = [](void*, const void* mine, void* all, size_t bytes_each) {
      std::memcpy(all, mine, bytes_each);
      return 0;
    };
    auto context = SymmetricContext::from_all_gather(alone, nullptr, 0, 1);
    return context.size() == 1 && context.allocate(1).address() != nullptr;
  });
}

bool has_own_threads() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("verbena-")) return true;
  }
  return false;
}

// As CUDA's handler, which is there before the context and frees what its threads look at.
TEST(ApiTest, ThreadsEndBeforeWhatWasThereBefore) {
  run_ranks(2, [](uint32_t) {
    std::atexit([] { _exit(has_own_threads() ? 2 : 0); });
    setenv("VERBENA_SYMM_PATH", "rdma", 1);
    setenv("VERBENA_IBVERBS_LIB", "softverbs", 1);
    verbena_context* context = nullptr;
    if (verbena_context_create_from_environment(&context) != VERBENA_SUCCESS || !has_own_threads())
      return false;
    verbena_context_barrier(context);
    std::exit(0);
  });
}

// What a child frees, leaves and destroys is its parent's.
TEST(ApiTest, AForkedChildChangesNothing) {
  run_ranks(2, [](uint32_t) {
    setenv("VERBENA_SYMM_PATH", "rdma", 1);
    setenv("VERBENA_IBVERBS_LIB", "softverbs", 1);
    verbena_context* context = nullptr;
    verbena_window* window = nullptr;
    if (verbena_context_create_from_environment(&context) != VERBENA_SUCCESS ||
        verbena_window_allocate(context, 64, &window) != VERBENA_SUCCESS)
      return false;
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const bool is_refused = verbena_context_barrier(context) == VERBENA_INVALID_USAGE &&
                              verbena_context_quiet(context) == VERBENA_INVALID_USAGE;
      const bool is_ended = verbena_window_free(window) == VERBENA_SUCCESS &&
                            verbena_context_destroy(context) == VERBENA_SUCCESS;
      std::exit(is_refused && is_ended ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return false;
    return verbena_context_barrier(context) == VERBENA_SUCCESS &&
           verbena_window_free(window) == VERBENA_SUCCESS &&
           verbena_context_destroy(context) == VERBENA_SUCCESS;
  });
}

TEST(ApiTest, ContextsOneAfterTheOtherAndSideBySide) {
  run_ranks(2, [](uint32_t) {
    for (int round = 0; round < 3; ++round) {
      auto first = SymmetricContext::from_environment(), second = SymmetricContext::from_environment();
      auto one = first.allocate(64), other = second.allocate(64);
      if (verbena_window_find(first.handle(), other.address()) != nullptr) return false;
    }
    return true;
  });
}

}  // namespace
}  // namespace verbena
