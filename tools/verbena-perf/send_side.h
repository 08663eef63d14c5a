#pragma once
#include <array>
#include <cstdint>

#include "common/net_plugin.h"
#include "verbena-perf/fifo.h"
#include "verbena-perf/pass.h"

namespace verbena::tools::perf {

// NCCL's send proxy for one connection: a window of isends, of which only the oldest is tested.
class SendSide {
 public:
  SendSide(NetPlugin& plugin, void* comm, const Options& options);

  void start(const Pass& pass);
  // Each moves by at most one message and says whether it did.
  bool post();
  bool complete();
  bool finished() const { return completed_ == pass_.count; }

  void release() { fifo_.release(plugin_, comm_); }

 private:
  NetPlugin& plugin_;
  void* comm_;
  Fifo fifo_;
  unsigned window_;
  Pass pass_;
  uint64_t filled_ = 0;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  std::array<void*, 8> requests_{};
};

}  // namespace verbena::tools::perf
