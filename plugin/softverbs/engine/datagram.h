// The part of the engine that sends datagrams, many at a time. A datagram for which no receive is posted is
// lost silently.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// The part of prepare() for datagrams. A datagram without a posted receive is lost silently. The bytes of a
// datagram to another host are read when the operation is executed.
StepOutcome prepare_datagram(Operation& op);

// Sets op.remote to the first op.bytes of the receive that was taken. Returns false if the bytes do not fit.
bool scatter_datagram(Operation& op);

// The datagrams of one run of a send queue. All copies between the host memories of a pair of processes are
// made by one system call. Copies with a GPU on either side use a lane of the GPU. So the header of a
// datagram may be copied to host memory, and its data to GPU memory. Data from a GPU to another process's
// host memory is first copied by the lane to pinned memory of this process, and from there by the system
// call.
class DatagramChain {
 public:
  DatagramChain() = default;
  DatagramChain(const DatagramChain&) = delete;
  DatagramChain& operator=(const DatagramChain&) = delete;
  ~DatagramChain();

  enum class Begun { kYes, kNo, kLater };
  // Begins the copies of an operation, which must not move until it is finished. Returns kNo, and begins
  // nothing, if some of its memory cannot be accessed from this process. Returns kLater, and begins nothing,
  // if the call must be repeated after earlier operations are finished. Only workers may begin operations
  // with GPU memory.
  Begun begin(Operation& op);
  // Call this when the copies by lanes are complete: begins the copies that follow them. Call it for the
  // operations in the order in which they began.
  void land(Operation& op);
  // Executes the copies between host memories.
  void flush();

 private:
  Begun reserve(const Operation& op, uint64_t bytes, uint8_t*& stage);
  // Copies to host memory of `peer_` that is registered by this key: at once if the memory is mapped here,
  // otherwise with the next flush().
  void write_host(const iovec& from, uint64_t to, uint32_t key);

  PeerProcess* peer_ = nullptr;
  Pieces local_, remote_;
  std::vector<Operation*> operations_;  // the operations whose copies flush() executes
  // This send queue's part of the pinned memory. Space is used from `stage_at_` on; all of it is freed
  // together.
  uint32_t rail_ = 0;
  uint8_t* stage_ = nullptr;
  uint64_t stage_at_ = 0, staged_operations_ = 0;
};

}  // namespace verbena::softverbs
