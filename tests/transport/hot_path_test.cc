// Between irecv and irecvConsumed, and between isend and its completion: no allocation, no lock of ours, no
// system call of anybody, no line of log. Both ends are in this process and on one thread, so that softverbs
// copies with memcpy: its system calls on the way to another process are the device's, and are not counted
// here. Nor are its locks; its allocations are.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <shared_mutex>

#include "base/dump_file.h"
#include "base/log.h"
#include "base/log_capture.h"
#include "common/cpu_unpack.h"
#include "common/pattern.h"
#include "transport/support/call_counter.h"
#include "transport/support/transfer.h"

namespace verbena::transport {
namespace {

constexpr int kMessages = 250'000;  // of each of four kinds: a million
constexpr int kBatch = 8;           // NCCL keeps so many open

struct Kind {
  const char* name;
  size_t length_bytes;
  bool may_stage;
  ReceiveClass receive_class;
  bool is_observed = false;
};

void PrintTo(const Kind& kind, std::ostream* out) {
  *out << kind.name;
}

class HotPathTest : public testing::TestWithParam<Kind> {
 protected:
  static Settings make_settings() {
    setenv("SOFTVERBS_SPIN_POLLS", "4294967295", 1);  // a device does not give the CPU away
    if (!GetParam().is_observed) return {};
    return {{"VERBENA_TRACE", testing::TempDir() + "verbena.hot_path.%p.json"}};
  }
  ~HotPathTest() override {
    const base::LogCapture quiet;
    connection_ = {};
    std::filesystem::remove(base::expand_path(testing::TempDir() + "verbena.hot_path.%p.json"));
  }

  // A batch from the first post to the last consume. False if anything failed.
  bool pass_batch() {
    const Kind& kind = GetParam();
    std::array<Request*, kBatch> sends{}, receives{};
    for (int i = 0; i < kBatch; ++i) {
      auto posted = end().post(target(i).data(), target(i).size(), target_.registration(), kind.receive_class,
                               &receives[static_cast<size_t>(i)]);
      auto sent = connection_.sender->post(source_.bytes().data(), kind.length_bytes, source_.registration(),
                                           kind.may_stage, &sends[static_cast<size_t>(i)]);
      if (!posted || !sent) return false;
    }
    int open = 2 * kBatch;
    for (int rounds = 0; open != 0; ++rounds) {
      if (rounds == 1'000'000) return false;
      for (int i = kBatch - 1; i >= 0; --i) open -= test_one(sends, i) + test_one_receive(receives, i);
    }
    return is_good_;
  }

  Receiver& end() { return *connection_.receiving.receiver; }
  std::span<std::byte> target(int i) {
    return target_.bytes().subspan(static_cast<size_t>(i) * kSpaceBytes, GetParam().length_bytes);
  }

  int test_one(std::array<Request*, kBatch>& sends, int i) {
    Request*& request = sends[static_cast<size_t>(i)];
    bool is_done = false;
    if (request == nullptr) return 0;
    is_good_ &= static_cast<bool>(connection_.sender->test(*static_cast<SendMessage*>(request), &is_done));
    if (is_done) request = nullptr;
    return is_done ? 1 : 0;
  }
  int test_one_receive(std::array<Request*, kBatch>& receives, int i) {
    Request*& request = receives[static_cast<size_t>(i)];
    if (request == nullptr) return 0;
    auto& message = *static_cast<ReceiveMessage*>(request);
    bool is_done = false;
    uint64_t bytes = 0;
    is_good_ &= static_cast<bool>(end().test(message, &is_done, &bytes));
    if (!is_done) return 0;
    if (GetParam().receive_class == ReceiveClass::kUnpacked)
      tools::unpack_slot(*connection_.receiving.handle, message.slot, target(i));
    is_good_ &= bytes == GetParam().length_bytes && static_cast<bool>(end().consume(message));
    request = nullptr;
    return 1;
  }

  static constexpr size_t kSpaceBytes = 1 << 18;
  Host host_{make_settings()};
  const Nic& nic_ = host_.nic(2);
  ConnectedPair connection_ = connect_here(nic_, nic_, true);
  Memory source_{nic_, kSpaceBytes}, target_{nic_, kBatch* kSpaceBytes};
  bool is_good_ = true;
};

TEST_P(HotPathTest, AsksForNothing) {
  tools::fill_pattern(source_.bytes().first(GetParam().length_bytes), 1);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(pass_batch());
  if (!start_counting()) GTEST_SKIP() << "this kernel has no syscall user dispatch";
  bool is_good = true;
  for (int i = 0; i < kMessages / kBatch && is_good; ++i) is_good = pass_batch();
  const Calls calls = stop_counting();
  EXPECT_TRUE(is_good);
  EXPECT_EQ(calls.allocations, 0U);
  EXPECT_EQ(calls.locks, 0U);
  EXPECT_EQ(calls.library_allocations, 0U) << "softverbs";
  EXPECT_EQ(calls.log_lines, 0U);
  EXPECT_EQ(calls.first_system_call, -1) << "number of the system call";
  for (int i = 0; i < kBatch; ++i) EXPECT_EQ(tools::check_pattern(target(i), 1).wrong_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Kinds, HotPathTest,
                         testing::Values(Kind{"StagedAndUnpacked", 3000, true, ReceiveClass::kUnpacked},
                                         Kind{"StagedAndCopied", 20'000, true, ReceiveClass::kNoSlot},
                                         Kind{"DirectWithASlot", 40'000, false, ReceiveClass::kUnpacked},
                                         Kind{"DirectStriped", 200'000, false, ReceiveClass::kNoSlot},
                                         Kind{"ObservedStaged", 3000, true, ReceiveClass::kUnpacked, true},
                                         Kind{"ObservedDirect", 200'000, false, ReceiveClass::kNoSlot, true}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST(CallCounter, Counts) {
  std::mutex mutex;
  std::shared_mutex readers;
  ASSERT_TRUE(start_counting());
  const std::string long_enough_for_the_heap(100, 'x');
  mutex.lock();
  mutex.unlock();
  if (mutex.try_lock()) mutex.unlock();
  readers.lock_shared();
  readers.unlock_shared();
  base::log_info("a line");
  const auto parent = syscall(SYS_getppid);
  const Calls calls = stop_counting();
  EXPECT_EQ(parent, getppid()) << "the call is made all the same";
  EXPECT_EQ(long_enough_for_the_heap.size(), 100U);
  EXPECT_GE(calls.allocations, 1U);
  EXPECT_EQ(calls.locks, 3U);
  EXPECT_EQ(calls.log_lines, 1U);
  EXPECT_EQ(calls.first_system_call, SYS_getppid);
  ASSERT_TRUE(start_counting());
  EXPECT_EQ(stop_counting().first_system_call, -1);
}

}  // namespace
}  // namespace verbena::transport
