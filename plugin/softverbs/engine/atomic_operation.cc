#include "softverbs/engine/atomic_operation.h"

#include <sched.h>

#include "softverbs/engine/queue_pair.h"
#include "softverbs/gpu/gpu_service.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs {
namespace {

// A lock that serialises all atomic operations on one process's host memory, in all processes. The lock word
// names its holder. If the holder was killed, another process takes the lock. This is safe, because the
// holder's last write is its only change.
class AtomicTurn {
 public:
  AtomicTurn(Process& process, Segment& segment)
      : word_(segment.header().atomic_holder), mine_(process.claimer() + 1) {
    constexpr uint64_t kSuspicionNs = 10'000'000;
    uint64_t since_ns = 0;
    uint32_t holder = 0;
    while (!word_.compare_exchange_strong(holder, mine_)) {
      const uint64_t now_ns = read_clock_ns();
      if (since_ns == 0) since_ns = now_ns;
      if (now_ns - since_ns > kSuspicionNs && process.is_claimer_dead(holder - 1)) {
        if (word_.compare_exchange_strong(holder, mine_)) return;
      }
      sched_yield();
      holder = 0;
    }
  }
  ~AtomicTurn() { word_.store(0, std::memory_order_release); }
  AtomicTurn(const AtomicTurn&) = delete;
  AtomicTurn& operator=(const AtomicTurn&) = delete;

 private:
  std::atomic<uint32_t>& word_;
  const uint32_t mine_;
};

WordChange name_change(const Operation& op) {
  const SendRequest& request = *op.request;
  const bool is_swap = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
  WordChange change{0, 0, is_swap, request.compare_add, request.swap};
  change.address = reinterpret_cast<uint64_t>(op.remote.pieces[0].iov_base);
  change.gpu = op.remote.gpus[0];
  return change;
}

StepOutcome change_host_word(const Operation& op, uint64_t& before) {
  const int pid = op.peer->is_self ? 0 : op.peer->pid;
  const AtomicTurn turn(*Process::get(), *op.peer->segment);
  if (const int error = read_pieces(pid, op.remote.pieces, {{&before, sizeof(before)}}); error != 0)
    return explain_copy_error(error);
  uint64_t after = name_change(op).apply_to(before);
  const int error = write_pieces(pid, op.remote.pieces, {{&after, sizeof(after)}});
  return error == 0 ? StepOutcome{} : explain_copy_error(error);
}

}  // namespace

StepOutcome execute_atomic(Operation& op) {
  if (op.local.has_gpu) return {Step::kFail, IBV_WC_LOC_PROT_ERR};
  if (op.remote.has_gpu) {
    while (!begin_change(op)) sched_yield();
    while (!end_change(op, Permission::kGranted)) sched_yield();
    return op.outcome;
  }
  uint64_t before = 0;
  const StepOutcome outcome = change_host_word(op, before);
  if (outcome.step == Step::kDone) write_pieces(0, op.local.pieces, {{&before, sizeof(before)}});
  return outcome;
}

bool begin_change(Operation& op) {
  if (!submit(*op.peer, name_change(op), op.change_request)) return false;
  op.change = Change::kAsked;
  return true;
}

bool end_change(Operation& op, Permission permission, const Operation* carried) {
  if (op.change == Change::kAsked && permission == Permission::kGranted) {
    CarriedWords words;
    if (carried != nullptr) {
      words.address = reinterpret_cast<uint64_t>(carried->remote.pieces[0].iov_base);
      words.gpu = carried->remote.gpus[0];
      words.count = static_cast<uint32_t>(carried->bytes / sizeof(uint64_t));
      words.words = carried->carried;
    }
    open_gate(*op.peer, op.change_request, words);
    op.change = Change::kAllowed;
  } else if (op.change == Change::kAsked && permission == Permission::kDenied) {
    withdraw(*op.peer, op.change_request);
    op.change = Change::kWithdrawn;
  }
  uint64_t before = 0;
  const ServiceState state = look_at_request(*op.peer, op.change_request, &before);
  if (state == ServiceState::kBusy) return false;
  op.outcome = {};
  if (state == ServiceState::kDone) {
    write_pieces(0, op.local.pieces, {{&before, sizeof(before)}});
  } else if (op.change == Change::kWithdrawn) {
    op.outcome = {Step::kFail, IBV_WC_WR_FLUSH_ERR};
  } else {
    op.outcome = explain_failure(op, IBV_WC_REM_OP_ERR);
  }
  return true;
}

}  // namespace verbena::softverbs
