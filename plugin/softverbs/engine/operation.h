// One request while it is executed: its checks, its copy, and the completion at the peer.
#pragma once

#include <memory>
#include <vector>

#include "softverbs/engine/send_queue.h"
#include "softverbs/shared/copy.h"
#include "softverbs/shared/receive_ring.h"

namespace verbena::softverbs {

struct Qp;
struct PeerProcess;
class GpuLane;

// The reason why the oldest request of a send queue must wait.
enum class Wait { kNone, kPeerNotReady, kPeerGone, kReceiverNotReady, kRailDown, kDelayed };

enum class Step { kDone, kWait, kFail };
enum class Change { kNone, kAsked, kAllowed, kWithdrawn };

struct StepOutcome {
  Step step = Step::kDone;
  ibv_wc_status status = IBV_WC_SUCCESS;  // of a failure
  Wait wait = Wait::kNone;
  uint64_t budget_ns = UINT64_MAX;  // maximum wait; then the request fails with `status`
};

// A gather list in one process's memory. `gpus` has an entry for each piece: 0 for host memory, or 1 + the
// index of its SharedGpu.
struct Memory {
  Pieces pieces;
  std::vector<uint32_t> gpus, keys;
  bool has_gpu = false;
  bool is_relaxed = false;  // writes to it may be seen in any order

  void clear();
  void add(uint64_t address, uint64_t bytes, uint32_t gpu, uint32_t key);
  void add_first(uint64_t address, uint64_t bytes);  // of host memory
};

struct OperationState {
  Qp* qp = nullptr;
  SendRequest* request = nullptr;
  PeerProcess* peer = nullptr;
  SharedQp* target = nullptr;
  uint32_t target_index = 0;
  uint32_t source_qp = 0;  // the requester's number
  bool is_datagram = false;
  bool fits = true;         // false if an unreliable message is longer than its receive
  bool is_wired = false;    // a datagram to another host, whose bytes have not been read yet
  bool is_struck = false;   // a datagram to which a fault applies
  uint64_t bytes = 0;       // to copy
  uint8_t header[40] = {};  // of a datagram
  uint32_t marks =
      0;  // requests counted in target->started but not in finished: this one, and later attempts
  bool has_receive = false;  // taken at the target and not completed yet
  StepOutcome outcome;

  // Copies by a GPU lane are complete when the lane has completed these tickets.
  GpuLane* lane = nullptr;
  uint64_t lane_first = 0, lane_last = 0;  // tickets (first, last]
  bool has_landed = false;                 // the copies are done, or `is_broken`
  bool is_broken = false;
  // An atomic change of a word in GPU memory, which the owner executes.
  Change change = Change::kNone;
  uint32_t change_request = 0;
  // For a write that is executed together with the atomic change after it: its words, once they are loaded;
  // otherwise null.
  uint64_t* carried = nullptr;
  bool is_carried_loaded = false;
  uint32_t carried_looks = 0;
};

// One request while it is executed: prepare, copy, finish.
struct Operation : OperationState {
  Memory local, remote;
  ReceiveRequest receive;
  Pieces staged, staged_to;  // of a datagram: data that is first copied to this process, and its destination

  bool uses_gpu() const { return local.has_gpu || remote.has_gpu; }
  // The owner of the target first clears a key or changes a state, then reads the marks. This process first
  // sets the mark, then reads the key and the state. So either the owner sees the mark, or this process sees
  // the cleared key or the changed state.
  void mark();
  void unmark();
  // Resets the operation. The lists keep their capacity.
  void reset();
};

// Finished operations, for reuse by this thread. Without reuse, each datagram would allocate memory a dozen
// times.
class OperationPool {
 public:
  static OperationPool& of_thread();
  std::unique_ptr<Operation> take();  // nullptr: no memory is left
  void give_back(std::unique_ptr<Operation> op);

 private:
  static constexpr size_t kMost = 128;  // the maximum outstanding work of two queue pairs
  std::vector<std::unique_ptr<Operation>> spare_;
};

// Checks the request, marks the peer's queue pair, and takes a receive if necessary. Never waits: if the
// request cannot start yet, the call changes nothing. After a failure finish() must still be called.
StepOutcome prepare(Operation& op, Qp& qp, SendRequest& request);

// Returns the outcome that the sender sees. On an unreliable connection the sender does not learn that a
// message could not be placed. The message is lost, together with the receive that was taken for it.
StepOutcome settle(Operation& op, const StepOutcome& outcome);

// Copies between host memories.
StepOutcome copy_host(Operation& op);

// Returns whether a long copy should continue.
StepOutcome check_progress(const Operation& op);

// Reports the outcome (op.outcome) to the peer and clears the mark. The caller reports the sender's
// completion.
void finish(Operation& op);

// Counts a request of `bytes` bytes that was executed at its target. query_qp reports the count there as
// rq_psn.
void count_carried_out(const Qp& qp, SharedQp& target, uint64_t bytes);

// Steps of the functions above, for requests that are sent to other hosts or come from them. At the
// requester:
bool gather_local(Operation& op);  // false on a protection error of the gather list
StepOutcome wait_for_peer(const Qp& qp);
StepOutcome wait_for_rail(const Qp& qp);
// Waits, then fails with RETRY_EXC: for a peer that has left. A NIC notices this only by its timeouts. Until
// then, an application may take its completions of earlier requests and end.
StepOutcome wait_for_timeout(const Qp& qp);
// A failure whose wait is kPeerGone: of a request whose peer has gone since the request was prepared.
StepOutcome lose_peer();
StepOutcome wait_for_receive(const Qp& qp, uint32_t timer);
// At the target:
bool take_receive(Operation& op);
StepOutcome name_remote(Operation& op);  // the memory that the request names by a remote key
uint32_t get_needed_access(ibv_wr_opcode opcode);
void complete_receive(Operation& op, ibv_wc_status status);
// The event and the completion status that the peer's end reports for a failed request. find_peer_failure()
// returns false if the peer's end reports nothing.
struct PeerFailure {
  ibv_event_type event;
  ibv_wc_status receive_status;
};
bool find_peer_failure(ibv_wc_status status, PeerFailure& failure);

// Returns the outcome of a failed copy. `error` is an errno.
StepOutcome explain_copy_error(int error);
// Returns the outcome of an operation that failed with `status`: RETRY_EXC if its peer is dead, otherwise
// `status`. A dead peer's memory is unmapped, so copies that name this memory are refused.
StepOutcome explain_failure(const Operation& op, ibv_wc_status status);

bool is_read(const Operation& op);
bool is_send(ibv_wr_opcode opcode);
bool is_atomic(ibv_wr_opcode opcode);

}  // namespace verbena::softverbs
