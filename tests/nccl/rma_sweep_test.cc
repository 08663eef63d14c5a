// createContext over a verbs library whose calls fail, one after the other: all ranks hear of it, and the
// next try connects them.
#include <dlfcn.h>

#include <array>
#include <chrono>
#include <thread>

#include "nccl/rma/group.h"
#include "verbs/faulty/faulty_ibverbs.h"

namespace verbena::nccl::testing {
namespace {

using verbs::faulty::GetHooks;
using verbs::faulty::Hooks;
using verbs::faulty::kGetHooks;

constexpr uint32_t kRanks = 2;
constexpr int kMaxContextCalls = 600;  // far more than createContext makes

class RmaSweepTest : public RmaTest {
 protected:
  RmaSweepTest() {
    set("VERBENA_IBVERBS_LIB", FAULTY_LIBRARY);
    set(verbs::faulty::kTargetVariable, SOFTVERBS_LIBRARY);
    set("SOFTVERBS_DEVICES", "1");
    void* const library = dlopen(FAULTY_LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    hooks_ = reinterpret_cast<GetHooks>(dlsym(library, kGetHooks))();
  }
  ~RmaSweepTest() override { hooks_->failing_call = 0; }

  void connect() {
    ASSERT_EQ(plugin().init(&context_, 1, &LogCapture::write), abi::kSuccess);
    std::array<std::array<char, abi::kHandleBytes>, kRanks> handles;
    std::vector<void*> pointers, listen_comms(kRanks);
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(plugin().listen(context_, 0, handles[rank].data(), &listen_comms[rank]), abi::kSuccess);
      pointers.push_back(handles[rank].data());
    }
    for_each_rank(kRanks, [&](uint32_t rank) {
      EXPECT_EQ(plugin().connect(context_, pointers.data(), kRanks, static_cast<int>(rank),
                                 listen_comms[rank], &communicators_[rank]),
                abi::kSuccess);
      EXPECT_EQ(plugin().close_listen(listen_comms[rank]), abi::kSuccess);
    });
  }
  // How many ranks have a context.
  uint32_t create_contexts() {
    std::array<abi::Result, kRanks> results;
    for_each_rank(kRanks, [&](uint32_t rank) {
      results[rank] = plugin().create_context(communicators_[rank], 1, 1, &contexts_[rank]);
    });
    return static_cast<uint32_t>(std::ranges::count(results, abi::kSuccess));
  }
  void close() {
    for (void*& communicator : communicators_) {
      EXPECT_EQ(plugin().close(std::exchange(communicator, nullptr)), abi::kSuccess);
    }
    EXPECT_EQ(plugin().finalize(context_), abi::kSuccess);
  }
  void expect_that_they_reach_each_other() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      void* request = nullptr;
      int is_done = 0;
      const tools::RmaTarget target{communicators_[rank], contexts_[rank], 0};
      ASSERT_EQ(plugin().put_signal(target, {0, nullptr, 0, 0, nullptr, 1 - rank}, {0, regions_[1 - rank], 1},
                                    &request),
                abi::kSuccess);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (request != nullptr && is_done == 0 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
        ASSERT_EQ(plugin().test(target, request, &is_done), abi::kSuccess);
        ASSERT_EQ(plugin().progress({communicators_[1 - rank], contexts_[1 - rank], 0}), abi::kSuccess);
      }
      EXPECT_TRUE(request == nullptr || is_done != 0);
      EXPECT_EQ(memory_[1 - rank][0], 1U);
    }
  }
  void register_memory() {
    memory_ = {};
    for_each_rank(kRanks, [&](uint32_t rank) {
      const auto made = plugin().register_memory(communicators_[rank], memory_[rank].data(),
                                                 sizeof(memory_[rank]), abi::kPtrHost);
      EXPECT_EQ(made.result, abi::kSuccess);
      regions_[rank] = made.mhandle;
    });
  }

  Hooks* hooks_ = nullptr;
  void* context_ = nullptr;
  std::array<void*, kRanks> communicators_{}, contexts_{}, regions_{};
  std::array<std::array<uint64_t, 512>, kRanks> memory_{};
};
INSTANTIATE_TEST_SUITE_P(Tables, RmaSweepTest, every_table(), name_table);

TEST_P(RmaSweepTest, AContextThatFailsAtAnyCallIsMadeByTheNextTry) {
  if (!plugin().has_contexts()) GTEST_SKIP() << "this table makes no contexts";
  int failing = 1, failures = 0;
  for (; failing < kMaxContextCalls; ++failing) {
    ASSERT_NO_FATAL_FAILURE(connect());
    const int pairs = hooks_->live_pairs;
    hooks_->calls = 0;
    hooks_->failed = nullptr;
    hooks_->failing_call = failing;
    const uint32_t made = create_contexts();
    hooks_->failing_call = 0;
    const char* const failed = hooks_->failed;
    const std::string about = "call " + std::to_string(failing) + " " + (failed != nullptr ? failed : "");
    EXPECT_TRUE(made == 0 || made == kRanks) << about;
    if (made != kRanks) {
      ++failures;
      EXPECT_EQ(hooks_->live_pairs, pairs) << about << ": what is left is the next try's";
      ASSERT_EQ(create_contexts(), kRanks) << about;
    }
    register_memory();
    ASSERT_NO_FATAL_FAILURE(expect_that_they_reach_each_other()) << about;
    close();
    if (failed == nullptr) break;
  }
  EXPECT_LT(failing, kMaxContextCalls);
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace verbena::nccl::testing
