#include "softverbs/atomic_operation.h"

#include <sched.h>

#include "softverbs/clock.h"
#include "softverbs/gpu_copy.h"
#include "softverbs/queue_pair.h"

namespace verbena::softverbs {
namespace {

// A lock among all atomic operations on one process's memory, in whichever process they run. The lock word
// names its holder, so that another process can take the lock over if the holder was killed. That is safe:
// the holder's only change is its last write.
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

// Copies the word as a short message would be copied.
Outcome move_staged(const Operation& op, ibv_wr_opcode opcode, uint64_t* value,
                    const std::function<void()>& once_begun) {
  SendRequest request = *op.request;
  request.opcode = opcode;
  Operation part;
  part.qp = op.qp;
  part.request = &request;
  part.peer = op.peer;
  part.target = op.target;
  part.local.add(reinterpret_cast<uint64_t>(value), sizeof(*value), 0, 0);
  part.remote = op.remote;
  part.bytes = sizeof(*value);
  return copy_staged(part, once_begun);
}

GpuWord reach_host(const Operation& op) {
  const int pid = op.peer->is_self ? 0 : op.peer->pid;
  const auto explain = [](int error) { return error == 0 ? Outcome{} : explain_copy_error(error); };
  return {[=, &op](uint64_t* value) {
            return explain(read_pieces(pid, op.remote.pieces, {{value, sizeof(*value)}}));
          },
          [=, &op](uint64_t* value) {
            return explain(write_pieces(pid, op.remote.pieces, {{value, sizeof(*value)}}));
          }};
}

}  // namespace

GpuWord stage_word(const Operation& op, const std::function<void()>& once_loading) {
  return {[&](uint64_t* value) { return move_staged(op, IBV_WR_RDMA_READ, value, once_loading); },
          [&](uint64_t* value) { return move_staged(op, IBV_WR_RDMA_WRITE, value, {}); }};
}

Outcome execute_atomic(Operation& op, const GpuWord& gpu_word, const std::function<bool()>& is_due) {
  if (op.local.has_gpu) return {Step::kFail, IBV_WC_LOC_PROT_ERR};
  const GpuWord word = op.remote.has_gpu ? gpu_word : reach_host(op);
  uint64_t present = 0;
  {
    const AtomicTurn turn(*Process::get(), *op.peer->segment);
    if (const Outcome loaded = word.load(&present); loaded.step != Step::kDone) return loaded;
    if (!is_due()) return {Step::kFail, IBV_WC_WR_FLUSH_ERR};
    uint64_t next = compute(*op.request, present);
    if (const Outcome stored = word.store(&next); stored.step != Step::kDone) return stored;
  }
  write_pieces(0, op.local.pieces, {{&present, sizeof(present)}});
  return {};
}

}  // namespace verbena::softverbs
