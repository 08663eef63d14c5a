// A queue pair of this process, with the state of the thread that executes its requests, and the functions
// that other files of the engine call for it.
#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <deque>
#include <optional>

#include "softverbs/engine/datagram.h"
#include "softverbs/engine/objects.h"
#include "softverbs/engine/operation.h"
#include "softverbs/engine/send_queue.h"
#include "softverbs/shared/receive_ring.h"

namespace verbena::softverbs {

namespace wire {
struct End;
}
namespace faults {
struct QueueFaults;
}

struct Shuffle;

// A request of the ibv_wr_* calls that is being built.
struct ExtendedPost {
  ibv_send_wr request{};
  std::vector<ibv_sge> sges;
  std::vector<uint8_t> inline_bytes;
};

// A queue pair in the error state on which its peer may still be working.
struct ErrorTransition {
  bool was_in_error;
  uint32_t started;  // count of the peer's requests
  uint64_t deadline_ns;
};

struct Qp {
  union {
    ibv_qp base;
    ibv_qp_ex extended;
    // Newer headers may read functions here; this library has none.
    uint8_t newer_headers[sizeof(ibv_qp_ex) + 128];
  };
  uint32_t index = 0;
  uint32_t device = 0;
  SharedQp* shared = nullptr;
  bool signal_all = false;
  bool has_extended_posts = false;  // created for the ibv_wr_* functions
  ibv_qp_cap capacity{};
  ibv_qp_attr attributes{};                     // as set, for query_qp
  std::unique_ptr<wire::End> wire;              // null without a wire
  std::unique_ptr<faults::QueueFaults> faults;  // null without a plan of faults
  std::unique_ptr<Shuffle> shuffle;             // null unless the profile shuffles writes
  bool is_wired = false;                        // the peer is on another host
  bool has_own_runner = false;                  // is_wired, or has a shuffle
  bool takes_empty_writes = true;               // this and the next two members are from the profile
  bool spoils_inline_writes = false;
  uint32_t max_message_bytes = 0;
  PeerProcess* peer = nullptr;  // of an RC queue pair from RTR on; null if there is no such process
  ReceiveQueue receive_queue;

  std::mutex mutex;  // guards all below
  SendQueue send_queue;
  std::vector<ExtendedPost> extended_posts;  // the first extended_count are in use
  size_t extended_count = 0;
  bool is_running = false;  // one thread executes requests, without the mutex
  bool is_with_worker = false;
  std::condition_variable idle;  // is_running became false

  // Used only by the thread that executes requests. Operations [executed, started) of the send queue are
  // outstanding, oldest first. The operation at `started` may already be prepared, and wait for the earlier
  // operations.
  std::deque<std::unique_ptr<Operation>> flying;
  DatagramChain chain;              // of the outstanding datagrams
  std::unique_ptr<Operation> next;  // null between runs, unless it is prepared
  bool is_next_prepared = false;
  // The latest request used a GPU, so a posting thread leaves the next requests to the worker.
  bool has_used_gpu = false;
  Wait wait = Wait::kNone;
  uint64_t wait_start_ns = 0;
  // The change to the error state that a failed request began, if it has not ended.
  std::optional<ErrorTransition> transition;

  Qp();
  ~Qp();
};

inline Qp& get_qp(ibv_qp* qp) {
  return *reinterpret_cast<Qp*>(qp);
}
inline ibv_qp_state get_state(const SharedQp& qp) {
  return static_cast<ibv_qp_state>(qp.state.load(std::memory_order_acquire));
}

// The thread that runs a send queue. The posting thread leaves large copies, and requests that must wait, to
// the rail's worker.
enum class Runner { kPoster, kWorker };

inline void choose_runner(Qp& qp) {
  qp.has_own_runner = qp.is_wired || qp.shuffle != nullptr;
}
void run_send_queue(Qp& qp, Runner runner);
void run_send_queue(Qp& qp, Runner runner, std::unique_lock<std::mutex>& lock);  // holds qp.mutex

// Reports the completion of a request that has failed or has asked for a completion.
void complete_send(Qp& qp, const SendRequest& request, ibv_wc_status status);
// Returns true while the wait is within its time budget. The first call of a wait starts the clock.
bool keep_waiting(Qp& qp, const StepOutcome& outcome);

// Steps of ibv_post_send, with qp.mutex held: checks whether requests may be posted, and adds a request to
// the queue. The functions return 0 or an errno.
int check_can_post(const Qp& qp);
int append(Qp& qp, const ibv_send_wr& request);

// Moves a queue pair of this process to the error state: flushes pending sends and receives.
void enter_error(Qp& qp);
// Like enter_error(), in two steps, for a thread that the peer may be waiting for. The second step returns
// true once the peer is quiet or the timeout is over.
ErrorTransition begin_error(Qp& qp);
bool end_error(Qp& qp, const ErrorTransition& transition);
// Moves a queue pair of the peer to the error state.
void fail_target(PeerProcess& peer, uint32_t qp_index, ibv_event_type event);
void flush_receives(PeerProcess& peer, uint32_t qp_index);
// Waits until no peer accesses this process's memory through the queue pair. Finishes the work of a peer that
// was killed.
void wait_until_quiet(Qp& qp);
// Moves the queue pair to the error state, as requested by the application or the device.
void fail_queue_pair(Qp& qp);
// For the RESET state: waits until no send is outstanding, and removes the queue pair from the worker.
void forget_sends(Qp& qp);

// Returns how long to wait for a peer that is working on a queue pair of this type. The wait is shorter for
// datagrams, because nothing reports that a datagram's sender was killed.
constexpr uint64_t get_patience_ns(int type) {
  return type == IBV_QPT_UD ? 1'000'000'000 : 5'000'000'000;
}

}  // namespace verbena::softverbs
