#pragma once
#include <array>
#include <cstdint>

#include "common/net_plugin.h"
#include "verbena-perf/fifo.h"

namespace verbena::tools::perf {

// Does what NCCL's send proxy does for one connection: posts a window of isends and tests only the oldest.
class SendSide {
 public:
  // `lender` as in Fifo.
  SendSide(NetPlugin& plugin, void* comm, const PerfOptions& options, const SendSide* lender);

  void start(const Pass& pass);
  // Each advances by at most one message and returns whether it did.
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
