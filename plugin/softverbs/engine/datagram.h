// The part of the engine that carries datagrams: many at a time, and lost without notice when nobody
// takes them.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams: they are lost without notice when nobody takes them. One that goes to
// another host is read when it is executed.
StepOutcome prepare_datagram(Operation& op);

// Names op.bytes of the receive that was taken as op.remote. False when they do not fit.
bool scatter_datagram(Operation& op);

// Datagrams that one run of a send queue carries: what goes from host memory to host memory of one process is
// copied by one call, what has a GPU at either end takes its lane. So a header may land in host memory and
// the data behind it in a GPU's page. From a GPU's memory to host memory of another process data takes the
// lane to pinned memory here, and from there the call.
class DatagramChain {
 public:
  DatagramChain() = default;
  DatagramChain(const DatagramChain&) = delete;
  DatagramChain& operator=(const DatagramChain&) = delete;
  ~DatagramChain();

  enum class Begun { kYes, kNo, kLater };
  // Begins the copies of an operation that stays where it is until it has been finished. kNo: nothing was
  // begun, as some of its memory cannot be addressed from here; kLater: nor was it, but when those before it
  // have been finished it can be. With memory of a GPU: workers only.
  Begun begin(Operation& op);
  // Its copies by lanes are done: begins those that follow them. Operations land in the order they began.
  void land(Operation& op);
  // The copies between host memories are done.
  void flush();

 private:
  Begun reserve(const Operation& op, uint64_t bytes, uint8_t*& stage);
  // To host memory of `peer_`, registered by this key: at once where it is mapped here, else with the next
  // flush().
  void write_host(const iovec& from, uint64_t to, uint32_t key);

  PeerProcess* peer_ = nullptr;
  Pieces local_, remote_;
  std::vector<Operation*> operations_;  // with pieces among them
  // What this send queue has of the pinned memory; used from `stage_at_` on until nothing of it is in use.
  uint32_t rail_ = 0;
  uint8_t* stage_ = nullptr;
  uint64_t stage_at_ = 0, staged_operations_ = 0;
};

}  // namespace verbena::softverbs
