#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "common/nccl_host.h"
#include "verbena-perf/fifo.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::perf {

// Does what NCCL's receive proxy and kernel do for one connection: posts a window of irecvs and tests the
// oldest; unpacks a completed one as the GPU would, checks it, and consumes it at once or a few messages
// later.
class ReceiveSide {
 public:
  // `lender` as in Fifo.
  ReceiveSide(NetPlugin& plugin, const NcclHost& host, const PerfOptions& options, const ReceiveSide* lender);

  void start(const Pass& pass);
  // Each advances by at most one message and returns whether it did.
  bool post();
  bool complete();
  bool finished() const { return consumed_ == pass_.count; }
  uint64_t completed() const { return completed_; }

  // After a pass of repeated messages: checks the last window, which is still in the buffers.
  void check_last_window();

  ReceiveCounts take_counts() { return std::exchange(counts_, {}); }
  void release();

 private:
  struct Posted {
    void* request = nullptr;
    unsigned slot = 0;
  };

  bool takes_slots() const { return unpack_ != nullptr && protocol_ == Protocol::kSimple; }
  Posted& posted(uint64_t message) { return ring_[message % ring_.size()]; }
  void unpack(uint64_t message);
  void check_idle_slots(uint64_t message);
  void check_bytes(uint64_t message);
  void consume_until(uint64_t message);

  NetPlugin& plugin_;
  void* comm_;
  Fifo fifo_;
  unsigned window_;
  unsigned consume_lag_;
  Protocol protocol_;
  bool gives_hint_;
  bool verify_;
  UnpackDeviceHandle* unpack_;  // null if this connection does not unpack
  uint64_t first_head_ = 0;
  uint64_t slots_taken_ = 0;
  Pass pass_;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  uint64_t consumed_ = 0;
  std::array<Posted, 8> ring_{};
  ReceiveCounts counts_;
};

}  // namespace verbena::tools::perf
