#include "nccl/rma/group.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "nccl/log_capture.h"

namespace verbena::nccl::testing {

namespace {

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

void for_each_rank(uint32_t ranks, const std::function<void(uint32_t)>& act) {
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < ranks; ++rank) threads.emplace_back([&act, rank] { act(rank); });
  for (std::thread& thread : threads) thread.join();
}

RmaGroup::RmaGroup(tools::RmaPlugin& plugin, const RmaGroupShape& shape) : plugin_(plugin) {
  EXPECT_EQ(plugin_.init(&init_context_, 7, &LogCapture::write), abi::kSuccess);
  std::vector<std::array<char, abi::kHandleBytes>> handles(shape.ranks);
  std::vector<void*> pointers;
  for (uint32_t rank = 0; rank < shape.ranks; ++rank) {
    ranks_.push_back(std::make_unique<RmaRank>());
    ranks_[rank]->rank = rank;
    ranks_[rank]->memory.resize(shape.memory_bytes);
    EXPECT_EQ(plugin_.listen(init_context_, shape.device_of_rank(rank), handles[rank].data(),
                             &ranks_[rank]->listen_comm),
              abi::kSuccess);
    pointers.push_back(handles[rank].data());
  }
  void* const garbage = reinterpret_cast<void*>(uintptr_t{0x10});  // NCCL may pass another's context
  for_each_rank(shape.ranks, [&](uint32_t number) {
    RmaRank& rank = *ranks_[number];
    ASSERT_EQ(plugin_.connect(garbage, pointers.data(), static_cast<int>(shape.ranks),
                              static_cast<int>(number), rank.listen_comm, &rank.communicator),
              abi::kSuccess);
    EXPECT_EQ(plugin_.close_listen(rank.listen_comm), abi::kSuccess);
    void* context = nullptr;
    ASSERT_EQ(plugin_.create_context(rank.communicator, shape.contexts, shape.rank_stride, &context),
              abi::kSuccess);
    rank.contexts.push_back(context);
    const auto made =
        plugin_.register_memory(rank.communicator, rank.memory.data(), rank.memory.size(), abi::kPtrHost);
    ASSERT_EQ(made.result, abi::kSuccess);
    EXPECT_EQ(made.mhandle, made.gin_handle);
    rank.region = made.mhandle;
  });
}

RmaGroup::~RmaGroup() {
  for (const auto& rank : ranks_) close(*rank);
  EXPECT_EQ(plugin_.finalize(init_context_), abi::kSuccess);
}

void RmaGroup::close(RmaRank& rank) {
  if (rank.communicator == nullptr) return;
  EXPECT_EQ(plugin_.close(std::exchange(rank.communicator, nullptr)), abi::kSuccess);
}

void* RmaGroup::put(const tools::RmaTarget& target, const tools::RmaCopy& copy) {
  void* request = nullptr;
  EXPECT_EQ(plugin_.put(target, copy, &request), abi::kSuccess);
  return request;
}

void* RmaGroup::put_signal(const tools::RmaTarget& target, const tools::RmaCopy& copy,
                           const tools::RmaAdd& add) {
  void* request = nullptr;
  EXPECT_EQ(plugin_.put_signal(target, copy, add, &request), abi::kSuccess);
  return request;
}

void* RmaGroup::signal(const tools::RmaTarget& target, uint32_t to, const tools::RmaAdd& add) {
  return put_signal(target, {.rank = to}, add);
}

void RmaGroup::progress(const RmaRank* except) {
  for (const auto& rank : ranks_) {
    if (rank->communicator == nullptr || rank.get() == except) continue;
    EXPECT_EQ(plugin_.progress(rank->target()), abi::kSuccess);
  }
}

bool RmaGroup::poll_until(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    progress();
    if (std::chrono::steady_clock::now() > end) return false;
  }
  return true;
}

bool RmaGroup::finish(RmaRank& rank, void* request) {
  if (request == nullptr) return true;
  int is_done = 0;
  return poll_until([&] {
    EXPECT_EQ(plugin_.test(rank.target(), request, &is_done), abi::kSuccess);
    return is_done != 0;
  });
}

RmaTest::RmaTest() {
  set("SOFTVERBS_JOB", "rma-" + std::to_string(getpid()));
  set("SOFTVERBS_DEVICES", "2");
  set("VERBENA_IBVERBS_LIB", "softverbs");
  LogCapture::get().take_lines();
}

RmaTest::~RmaTest() {
  plugin_.reset();
  if (library_ != nullptr) dlclose(library_);
}

tools::RmaPlugin& RmaTest::plugin() {
  if (plugin_ == nullptr) {
    library_ = dlopen(LoadedPlugin::path(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library_, nullptr) << dlerror();
    plugin_ = tools::adapt_rma_table(library_, GetParam());
  }
  return *plugin_;
}

bool RmaTest::is_logged(const std::string& text) {
  bool is_there = false;
  for (const LogLine& line : LogCapture::get().take_lines())
    is_there |= line.text.find(text) != std::string::npos;
  return is_there;
}

std::string name_table(const ::testing::TestParamInfo<std::string>& table) {
  return table.param.substr(std::string("nccl").size());
}

}  // namespace verbena::nccl::testing
