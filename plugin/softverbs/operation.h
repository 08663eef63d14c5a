#pragma once

#include "softverbs/copy.h"
#include "softverbs/receive_ring.h"
#include "softverbs/send_queue.h"

namespace verbena::softverbs {

struct Qp;
struct Peer;
class GpuLane;

// Why the head of a send queue does not move.
enum class Wait { kNone, kPeerNotReady, kReceiverNotReady, kRailDown, kDelayed };

enum class Step { kDone, kWait, kFail };

struct Outcome {
  Step step = Step::kDone;
  ibv_wc_status status = IBV_WC_SUCCESS;  // of a failure
  Wait wait = Wait::kNone;
  uint64_t budget_ns = UINT64_MAX;  // how long to wait before that is a failure with `status`
};

// A gather list in one process's memory. `gpus` says for each piece 0 (host) or 1 + the index of its
// SharedGpu.
struct Memory {
  Pieces pieces;
  std::vector<uint32_t> gpus, keys;
  bool has_gpu = false;

  void clear();
  void add(uint64_t address, uint64_t bytes, uint32_t gpu, uint32_t key);
};

// One request of a connected queue pair on its way: prepare, copy, finish.
struct Operation {
  Qp* qp = nullptr;
  SendRequest* request = nullptr;
  Peer* peer = nullptr;
  SharedQp* target = nullptr;
  uint32_t target_index = 0;
  uint32_t source_qp = 0;  // the requester's number
  bool is_datagram = false;
  Memory local, remote;
  uint64_t bytes = 0;      // to copy
  uint8_t header[40];      // of a datagram
  bool fits = true;        // an unreliable message in its receive
  bool is_wired = false;   // a datagram to another host, whose bytes are still to be read
  bool is_struck = false;  // a datagram that a plan of faults carries
  ReceiveRequest receive;
  bool is_marked = false;    // counted in target->started, not yet in finished
  bool has_receive = false;  // opened there, not yet closed
  Outcome outcome;

  // GPU copies: done when the lane has come so far.
  GpuLane* lane = nullptr;
  uint64_t lane_first = 0, lane_last = 0;  // tickets (first, last]

  bool uses_gpu() const { return local.has_gpu || remote.has_gpu; }
  // The owner of the target clears the way first (a key, a state), then looks at the marks; we set the mark
  // first, then look: one of the two always sees the other.
  void mark();
  void unmark();
};

// Checks everything, marks the peer's queue pair and takes a receive if one is needed. Never waits: when the
// request cannot go yet everything is as it was. A failure still needs finish().
Outcome prepare(Operation& op, Qp& qp, SendRequest& request);

// On an unreliable connection nobody tells the sender what became of a message that could not be placed: it
// is lost, and a receive that was taken for it is spoilt.
Outcome settle(Operation& op, const Outcome& outcome);

// Between host memories.
Outcome copy_host(Operation& op);

// Whether a long copy should go on.
Outcome check_progress(const Operation& op);

// Tells the peer how it went (op.outcome) and lets go of its queue pair. The sender's completion is the
// caller's.
void finish(Operation& op);

// Steps of the above, for requests that go over the wire or came from there: of the requester,
bool gather_local(Operation& op);  // false on a protection error of the gather list
Outcome wait_for_peer(const Qp& qp);
Outcome wait_for_rail(const Qp& qp);
Outcome wait_for_receive(const Qp& qp, uint32_t timer);
// of the target.
bool take_receive(Operation& op);
Outcome name_remote(Operation& op);  // the memory that the request names by a remote key
uint32_t get_needed_access(ibv_wr_opcode opcode);
void complete_receive(Operation& op, ibv_wc_status status);
// What the peer's side sees of a failure: nothing, or an error of its own.
struct PeerFailure {
  ibv_event_type event;
  ibv_wc_status receive_status;
};
bool find_peer_failure(ibv_wc_status status, PeerFailure& failure);

// What a failed copy means. `error` is an errno.
Outcome explain_copy_error(int error);

bool is_read(const Operation& op);
bool is_send(ibv_wr_opcode opcode);
bool is_atomic(ibv_wr_opcode opcode);

}  // namespace verbena::softverbs
