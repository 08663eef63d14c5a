// Ranks of one process that met through a table of NCCL's device API, as NCCL makes them: each with memory
// that all reach. Collective calls are made by a thread for each rank.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/rma_plugin.h"
#include "nccl/loaded_plugin.h"
#include "nccl/log_capture.h"

namespace verbena::nccl::testing {

// Calls `act(rank)` on a thread for each.
void for_each_rank(uint32_t ranks, const std::function<void(uint32_t)>& act);

// One rank: what NCCL holds of it.
struct RmaRank {
  uint32_t rank = 0;
  void* listen_comm = nullptr;
  void* communicator = nullptr;
  std::vector<void*> contexts{};
  std::vector<std::byte> memory{};
  void* region = nullptr;  // of `memory`

  std::atomic_ref<uint64_t> word(size_t offset) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory.data() + offset));
  }
  tools::RmaTarget target(int index = 0, size_t context = 0) const {
    return {communicator, contexts.empty() ? nullptr : contexts[context], index};
  }
};

struct RmaGroupShape {
  uint32_t ranks = 2;
  int contexts = 4;
  size_t memory_bytes = 1 << 20;
  int rank_stride = 1;
  int device_of_rank(uint32_t rank) const { return spreads ? static_cast<int>(rank % 2) : 0; }
  bool spreads = false;  // ranks take devices in turn
};

class RmaGroup {
 public:
  // init, listen, connect, createContext, regMrSym on every rank; expectations fail where a call does.
  RmaGroup(tools::RmaPlugin& plugin, const RmaGroupShape& shape);
  ~RmaGroup();

  RmaRank& operator[](uint32_t rank) { return *ranks_[rank]; }
  uint32_t size() const { return static_cast<uint32_t>(ranks_.size()); }
  tools::RmaPlugin& plugin() { return plugin_; }

  // Return the requests of calls that must succeed. signal() signals without a put.
  void* put(const tools::RmaTarget& target, const tools::RmaCopy& copy);
  void* put_signal(const tools::RmaTarget& target, const tools::RmaCopy& copy, const tools::RmaAdd& add);
  void* signal(const tools::RmaTarget& target, uint32_t to, const tools::RmaAdd& add);

  // One tick of every rank's proxy, or of all but one.
  void progress(const RmaRank* except = nullptr);
  // Until then, with progress on all ranks; false after a minute.
  bool poll_until(const std::function<bool()>& done);
  // Until the request is done, by testing it and by progress of all ranks. Takes a null request as done.
  bool finish(RmaRank& rank, void* request);
  void close(RmaRank& rank);

 private:
  tools::RmaPlugin& plugin_;
  void* init_context_ = nullptr;
  std::vector<std::unique_ptr<RmaRank>> ranks_;
};

// The tables of the library under test over softverbs, one suite a table.
class RmaTest : public ::testing::TestWithParam<std::string> {
 protected:
  RmaTest();
  ~RmaTest() override;

  // Opens the library at the first call, in the environment that was set until then.
  tools::RmaPlugin& plugin();
  void set(const std::string& name, const std::string& value) { environment_.set(name, value); }

  // Of the lines logged since the last call: whether one has the text.
  static bool is_logged(const std::string& text);

 private:
  ScopedEnvironment environment_;
  void* library_ = nullptr;
  std::unique_ptr<tools::RmaPlugin> plugin_;
};

inline auto every_table() {
  return ::testing::ValuesIn(tools::list_rma_symbols());
}
std::string name_table(const ::testing::TestParamInfo<std::string>& table);

}  // namespace verbena::nccl::testing
