// The part of the engine that carries datagrams. It sends many at a time. A datagram without a posted receive
// is lost without notice.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams. A datagram without a posted receive is lost without notice. The bytes
// of a datagram to another host are read when it is executed.
StepOutcome prepare_datagram(Operation& op);

// Sets op.remote to op.bytes of the receive that was taken. Returns false if they do not fit.
bool scatter_datagram(Operation& op);

// The datagrams of one run of a send queue. Copies between host memories of one pair of processes are made by
// one system call; copies with a GPU at either end use its lane. So a header may go to host memory and the
// data after it to a GPU's page. Data from a GPU to another process's host memory goes through the lane to
// pinned memory here, and from there by the system call.
class DatagramChain {
 public:
  DatagramChain() = default;
  DatagramChain(const DatagramChain&) = delete;
  DatagramChain& operator=(const DatagramChain&) = delete;
  ~DatagramChain();

  enum class Begun { kYes, kNo, kLater };
  // Begins the copies of an operation, which must not move until it is finished. kNo: nothing was begun,
  // because some of its memory cannot be addressed from here. kLater: nothing was begun, but retry after
  // earlier operations are finished. Only workers may begin operations with GPU memory.
  Begun begin(Operation& op);
  // The copies by lanes are done: begins the copies that follow them. Operations arrive in the order in which
  // they began.
  void land(Operation& op);
  // The copies between host memories are done.
  void flush();

 private:
  Begun reserve(const Operation& op, uint64_t bytes, uint8_t*& stage);
  // Copies to host memory of `peer_` that is registered by this key: at once if it is mapped here, else with
  // the next flush().
  void write_host(const iovec& from, uint64_t to, uint32_t key);

  PeerProcess* peer_ = nullptr;
  Pieces local_, remote_;
  std::vector<Operation*> operations_;  // number of copies that consist of several pieces
  // This send queue's part of the pinned memory. It is used from `stage_at_` on, until all of it is free
  // again.
  uint32_t rail_ = 0;
  uint8_t* stage_ = nullptr;
  uint64_t stage_at_ = 0, staged_operations_ = 0;
};

}  // namespace verbena::softverbs
