#include "softverbs/engine/shuffled_writes.h"

#include <algorithm>
#include <utility>

#include "softverbs/faults/request_count.h"
#include "softverbs/shared/clock.h"

namespace verbena::softverbs {
namespace {

constexpr size_t kMaxHeld = 32;       // requests
constexpr uint64_t kMaxPieces = 64;   // of a request
constexpr uint64_t kHoldNs = 20'000;  // time in which later requests can overtake
constexpr uint64_t kMaxPauseNs = 20'000, kMaxLongPauseNs = 2'000'000, kLongPauseOnceIn = 16;
constexpr uint32_t kPiecesOfATurn = 4;

bool is_done(const Qp& qp, const Operation& op) {
  return std::none_of(qp.shuffle->left.begin(), qp.shuffle->left.end(),
                      [&](const Shuffle::Piece& piece) { return piece.op == &op; });
}

// Completes the oldest requests that are done.
Step land_placed(Qp& qp) {
  while (!qp.flying.empty() && is_done(qp, *qp.flying.front())) {
    const Step step = conclude(qp, *qp.flying.front(), get_state(*qp.shared) == IBV_QPS_ERR);
    OperationPool::of_thread().give_back(std::move(qp.flying.front()));
    qp.flying.pop_front();
    if (step == Step::kFail) return step;
  }
  return Step::kDone;
}

// Fails the request and all later ones. Earlier requests continue.
void fail_from(Qp& qp, uint64_t number, const StepOutcome& outcome) {
  std::erase_if(qp.shuffle->left, [&](const Shuffle::Piece& piece) { return piece.number >= number; });
  for (const auto& op : qp.flying) {
    if (op->request->number == number) op->outcome = outcome;
    if (op->request->number > number) op->outcome = {Step::kFail, IBV_WC_WR_FLUSH_ERR};
  }
}

void hold_next(Qp& qp) {
  Shuffle& shuffle = *qp.shuffle;
  Operation& op = *qp.next;
  if (shuffle.left.empty()) shuffle.held_until_ns = read_clock_ns() + kHoldNs;
  const uint64_t packet = uint64_t{128} << qp.attributes.path_mtu;
  const uint64_t packets = (op.bytes + packet - 1) / packet;
  const uint64_t bytes = op.uses_gpu() ? op.bytes : packet * ((packets + kMaxPieces - 1) / kMaxPieces);
  for (uint64_t at = 0; at < op.bytes; at += bytes)
    shuffle.left.push_back({&op, op.request->number, at, std::min(bytes, op.bytes - at)});
  qp.flying.push_back(std::move(qp.next));
  ++qp.send_queue.started;
  qp.is_next_prepared = false;
}

// Adds the requests that may be outstanding together. Returns kFlying if no more can be added now.
Stop admit(Qp& qp, uint64_t end) {
  while (get_state(*qp.shared) == IBV_QPS_RTS && qp.send_queue.started != end &&
         qp.flying.size() < kMaxHeld) {
    const bool is_write = qp.send_queue.at(qp.send_queue.started).opcode == IBV_WR_RDMA_WRITE;
    if (!is_write && !qp.flying.empty()) return Stop::kFlying;
    if (qp.next == nullptr) qp.next = OperationPool::of_thread().take();
    if (qp.next == nullptr) return qp.flying.empty() ? fail_next(qp) : Stop::kFlying;
    if (!prepare_next(qp)) return qp.flying.empty() ? Stop::kWaiting : Stop::kFlying;
    if (is_write && qp.next->outcome.step == Step::kDone) {
      hold_next(qp);
      continue;
    }
    if (!qp.flying.empty()) return Stop::kFlying;
    const Step step = run_alone(qp);
    if (step != Step::kDone) return step == Step::kFail ? Stop::kFailed : Stop::kWaiting;
  }
  return qp.flying.empty() ? Stop::kAtEnd : Stop::kFlying;
}

StepOutcome place(const Shuffle::Piece& piece) {
  Operation& op = *piece.op;
  if (const StepOutcome progress = check_progress(op); progress.step != Step::kDone) return progress;
  if (op.uses_gpu()) return execute(op);
  const int error = write_pieces(op.peer->is_self ? 0 : op.peer->pid,
                                 slice_pieces(op.remote.pieces, piece.offset, piece.bytes),
                                 slice_pieces(op.local.pieces, piece.offset, piece.bytes));
  return error == 0 ? StepOutcome{} : explain_copy_error(error);
}

// Call this when the queue pair has stopped: fails the first request that is not placed completely, and all
// later ones.
void stop_placing(Qp& qp) {
  uint64_t first = UINT64_MAX;
  for (const Shuffle::Piece& piece : qp.shuffle->left) first = std::min(first, piece.number);
  fail_from(qp, first, {Step::kFail, IBV_WC_WR_FLUSH_ERR});
}

void place_some(Qp& qp) {
  Shuffle& shuffle = *qp.shuffle;
  if (read_clock_ns() < shuffle.held_until_ns) return;
  for (uint32_t i = 0; i < kPiecesOfATurn && !shuffle.left.empty(); ++i) {
    const uint64_t index = faults::mix(shuffle.key, ++shuffle.draws) % shuffle.left.size();
    const Shuffle::Piece piece = std::exchange(shuffle.left[index], shuffle.left.back());
    shuffle.left.pop_back();
    if (const StepOutcome outcome = place(piece); outcome.step != Step::kDone)
      fail_from(qp, piece.number, outcome);
  }
  // Between two steps other threads may read the memory, and later requests may overtake the pieces that are
  // left.
  const uint64_t draw = faults::mix(shuffle.key, ++shuffle.draws);
  const bool is_long = shuffle.left.size() <= kPiecesOfATurn && draw % kLongPauseOnceIn == 0;
  shuffle.held_until_ns =
      read_clock_ns() + draw / kLongPauseOnceIn % (is_long ? kMaxLongPauseNs : kMaxPauseNs);
}

}  // namespace

// The posting thread leaves all requests to the worker, which runs soon.
Stop run_shuffled(Qp& qp, uint64_t end, Runner runner) {
  const ibv_qp_state state = get_state(*qp.shared);
  if (state != IBV_QPS_RTS) drop_next(qp);
  if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) {
    stop_placing(qp);
  } else if (runner == Runner::kPoster) {
    return Stop::kNeedsWorker;
  }
  if (land_placed(qp) == Step::kFail) return Stop::kFailed;
  if (const Stop stop = admit(qp, end); stop != Stop::kFlying) return stop;
  place_some(qp);
  return land_placed(qp) == Step::kFail ? Stop::kFailed : Stop::kHeld;
}

}  // namespace verbena::softverbs
