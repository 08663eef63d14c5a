#pragma once
#include <array>
#include <cstdint>
#include <utility>

#include "common/net_plugin.h"
#include "verbena-perf/connection.h"
#include "verbena-perf/fifo.h"
#include "verbena-perf/pass.h"
#include "verbena/unpack_abi.h"

namespace verbena::tools::perf {

// NCCL's receive proxy and its kernel for one connection: a window of irecvs, the oldest tested; a completed
// one is unpacked as the GPU would, checked, and consumed, at once or a few messages later.
class ReceiveSide {
 public:
  ReceiveSide(NetPlugin& plugin, const Connection& connection, const Options& options);

  void start(const Pass& pass);
  // Each moves by at most one message and says whether it did.
  bool post();
  bool complete();
  bool finished() const { return consumed_ == pass_.count; }
  uint64_t completed() const { return completed_; }

  // After a pass of repeated messages: checks the window that it left in the buffers.
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
  UnpackDeviceHandle* unpack_;  // null: the plugin unpacks nothing on this connection
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
