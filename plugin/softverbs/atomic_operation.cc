#include "softverbs/atomic_operation.h"

#include <sched.h>

#include "softverbs/clock.h"
#include "softverbs/queue_pair.h"

namespace verbena::softverbs {
namespace {

// All atomic operations on one process's memory exclude each other, whoever executes them. The word names the
// holder, so that what a killed one holds can be taken over; between its read and its write it changed
// nothing.
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

uint64_t compute(const SendRequest& request, uint64_t present) {
  if (request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) return present + request.compare_add;
  return present == request.compare_add ? request.swap : present;
}

}  // namespace

Outcome execute_atomic(Operation& op) {
  if (op.uses_gpu()) return {Step::kFail, IBV_WC_REM_INV_REQ_ERR};
  const int pid = op.peer->is_self ? 0 : op.peer->pid;
  uint64_t present = 0;
  {
    const AtomicTurn turn(*Process::get(), *op.peer->segment);
    if (const int error = read_pieces(pid, op.remote.pieces, {{&present, sizeof(present)}}); error != 0) {
      return explain_copy_error(error);
    }
    uint64_t next = compute(*op.request, present);
    if (const int error = write_pieces(pid, op.remote.pieces, {{&next, sizeof(next)}}); error != 0) {
      return explain_copy_error(error);
    }
  }
  write_pieces(0, op.local.pieces, {{&present, sizeof(present)}});
  return {};
}

}  // namespace verbena::softverbs
