#include <sched.h>

#include <algorithm>

#include "softverbs/engine/objects.h"
#include "softverbs/shared/completion_ring.h"
#include "softverbs/verbs/completion_queue.h"
#include "softverbs/wire/wire.h"

namespace verbena::softverbs {
namespace {

constexpr int kHeldLooks =
    200;  // polls of an unfinished completion before checking whether its producer is alive

thread_local uint32_t empty_polls = 0;
bool is_idle() {
  return empty_polls >= static_cast<uint32_t>(get_config().spin_polls);
}

// Returns false for completions to drop: those of queue pairs that were destroyed or reset, and the second
// completion of a receive whose sender was killed while it wrote the first.
bool is_current(SharedQp& qp, const Completion& completion) {
  if (qp.number.load(std::memory_order_acquire) != completion.qp_number) return false;
  if (qp.life.get() != completion.life) return false;
  if (completion.receive == 0) {
    qp.send_retired.store(completion.send_retired, std::memory_order_release);
    return true;
  }
  if (completion.receive == kFlushedReceive) return true;
  if (qp.receive_polled.get() == completion.receive) return false;
  qp.receive_polled.set(completion.receive);
  return true;
}

// For a failed request only wr_id, status, vendor_err and qp_num are defined. The other fields are
// overwritten, because a device may leave any values there.
void spoil_undefined(Completion& completion) {
  completion.opcode = 0xFF;
  completion.byte_length = completion.immediate = completion.source_qp = UINT32_MAX;
}

void fill_work_completion(const Completion& completion, ibv_wc& wc) {
  wc.wr_id = completion.wr_id;
  wc.status = static_cast<ibv_wc_status>(completion.status);
  wc.opcode = static_cast<ibv_wc_opcode>(completion.opcode);
  wc.vendor_err = 0;
  wc.byte_len = completion.byte_length;
  wc.imm_data = completion.immediate;
  wc.qp_num = completion.qp_number;
  wc.src_qp = completion.source_qp;
  wc.wc_flags = completion.flags;
  wc.pkey_index = 0;
  wc.slid = 0;
  wc.sl = 0;
  wc.dlid_path_bits = 0;
}

void forget_dead(SteppedOver& stepped_over, SharedCq& shared) {
  Process* const process = Process::get();
  stepped_over.forget_dead(process->segment(), shared,
                           [&](uint32_t holder) { return process->is_claimer_dead(holder); });
}

// Steps over the slot at the head once its producer has been checked often enough.
bool step_over(SteppedOver& stepped_over, SharedCq& shared) {
  forget_dead(stepped_over, shared);
  if (stepped_over.is_full()) return false;
  stepped_over.step_over(shared);
  return true;
}

bool take_from_ring(uint32_t index, SteppedOver& stepped_over, Completion& completion) {
  Process* process = Process::get();
  Segment& segment = process->segment();
  SharedCq& shared = segment.cq(index);
  uint32_t holder = 0;
  const auto is_held = [](Polled result) { return result == Polled::kHeld || result == Polled::kHeldApart; };
  for (;;) {
    const bool was_late = !stepped_over.is_empty() && stepped_over.take(segment, shared, completion);
    Polled result = was_late ? Polled::kTaken : pop_completion(segment, shared, completion, holder);
    for (int looks = 0; is_held(result) && looks < kHeldLooks; ++looks) {
      result = pop_completion(segment, shared, completion, holder);
    }
    if (is_held(result) && process->is_claimer_dead(holder)) {
      skip_completion(segment, shared);
      continue;
    }
    if (result == Polled::kHeldApart && step_over(stepped_over, shared)) continue;
    // Only an idle thread has time to look up processes.
    if (result == Polled::kEmpty && is_idle()) forget_dead(stepped_over, shared);
    if (result != Polled::kTaken) return false;
    if (is_current(segment.qp(get_qp_index(completion.qp_number)), completion)) {
      if (completion.status != IBV_WC_SUCCESS) spoil_undefined(completion);
      return true;
    }
  }
}

}  // namespace

void yield_if_idle(bool has_polled) {
  empty_polls = has_polled ? 0 : empty_polls + 1;
  if (!is_idle()) return;
  empty_polls = static_cast<uint32_t>(get_config().spin_polls);
  sched_yield();
}

// A producer that looked up a former ring may still push there. A producer that has pushed to the newest ring
// has pushed its earlier completions before. So check the newest ring first, then empty the former ones, then
// take from the newest.
bool take_completion(Cq& cq, Completion& completion) {
  const uint32_t formers = cq.former_count.load(std::memory_order_acquire);
  const uint32_t newest = cq.index.load();
  if (formers == 0) return take_from_ring(newest, cq.stepped_over, completion);
  Segment& segment = Process::get()->segment();
  const bool is_ready = cq.stepped_over.has_completion(segment, segment.cq(newest));
  for (uint32_t i = 0; i < formers; ++i) {
    if (take_from_ring(cq.formers[i], cq.formers_stepped_over[i], completion)) return true;
  }
  return is_ready && take_from_ring(newest, cq.stepped_over, completion);
}

bool poll_wire(Cq& cq) {
  wire::Wire* wire = Process::get()->wire;
  if (wire == nullptr) return false;
  wire->poll(get_context(cq.base.context).device->index);
  return true;
}

namespace {
int poll_ring(Cq& cq, int count, ibv_wc* completions) {
  std::lock_guard lock(cq.poll_mutex);
  Completion completion;
  int polled = 0;
  while (polled < count && take_completion(cq, completion)) {
    fill_work_completion(completion, completions[polled++]);
  }
  return polled;
}
}  // namespace

int poll_cq(ibv_cq* base, int count, ibv_wc* completions) {
  Cq& cq = get_cq(base);
  int polled = poll_ring(cq, count, completions);
  if (polled == 0 && poll_wire(cq)) polled = poll_ring(cq, count, completions);
  yield_if_idle(polled != 0);
  return polled;
}

namespace {
void arm(SharedCq& shared, uint32_t wanted) {
  uint32_t present = shared.armed.load();
  while (!shared.armed.compare_exchange_weak(present, std::max(present, wanted))) {
  }
}
}  // namespace

int request_notification(ibv_cq* base, int solicited_only) {
  Cq& cq = get_cq(base);
  Segment& segment = Process::get()->segment();
  const uint32_t wanted = solicited_only != 0 ? kArmedSolicited : kArmedAny;
  for (uint32_t i = 0; i < cq.former_count.load(); ++i) arm(segment.cq(cq.formers[i]), wanted);
  arm(segment.cq(cq.index.load()), wanted);
  return 0;
}

}  // namespace verbena::softverbs
