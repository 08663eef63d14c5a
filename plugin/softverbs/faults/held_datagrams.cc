#include "softverbs/faults/held_datagrams.h"

#include <algorithm>
#include <utility>

#include "softverbs/engine/datagram.h"
#include "softverbs/engine/queue_pair.h"
#include "softverbs/engine/rail_worker.h"
#include "softverbs/faults/injector.h"
#include "softverbs/faults/request_count.h"
#include "softverbs/gpu/gpu_copy.h"
#include "softverbs/shared/clock.h"
#include "softverbs/wire/requester.h"

namespace verbena::softverbs::faults {
namespace {

// Time to wait for each datagram that may overtake, if none is sent: about the time that a datagram takes on
// a busy rail. Without a limit, an acknowledgement could be held back by many more datagrams than the plan
// says, because few are sent.
constexpr uint64_t kOvertakerNs = 2'000;
// On an idle rail, datagrams are sent at most this much later, because waking a thread costs CPU time.
constexpr uint64_t kSlackNs = 200'000;
constexpr uint64_t kBusyNs = 500'000;  // between two checks of a busy rail
constexpr size_t kMostSpare = 256;     // buffers of a rail

}  // namespace

void HeldDatagrams::take(Operation& op, const Fate& fate) {
  if (fate.is_lost) return;
  Rail& rail = rails_[op.qp->device];
  const std::lock_guard lock(rail.mutex);
  for (uint32_t copies = fate.copies; copies != 0; --copies) hold(rail, op, fate, 0);
  // The held datagram itself has not been sent, so it does not count.
  hold(rail, op, fate, fate.overtakers == 0 ? 0 : rail.left + 1 + fate.overtakers);
}

// Needs the mutex.
void HeldDatagrams::hold(Rail& rail, Operation& op, const Fate& fate, uint64_t leaves_at) {
  std::unique_ptr<Datagram> datagram;
  if (rail.spare.empty()) {
    datagram = std::make_unique<Datagram>();
  } else {
    datagram = std::move(rail.spare.back());
    rail.spare.pop_back();
  }
  datagram->qp = op.qp;
  datagram->request = *op.request;
  datagram->handle = *reinterpret_cast<const Ah*>(op.request->address_handle);
  datagram->bytes.resize(op.request->length);
  datagram->header_flips = {};
  if (!read_local(op, datagram->bytes.data())) return;
  flip(*datagram, fate);
  const auto behind = std::upper_bound(rail.held.begin(), rail.held.end(), leaves_at,
                                       [](uint64_t at, const Held& held) { return at < held.leaves_at; });
  rail.held.insert(behind,
                   {leaves_at, read_clock_ns() + fate.overtakers * kOvertakerNs, std::move(datagram)});
}

void HeldDatagrams::note_left(uint32_t index) {
  rails_[index].left.fetch_add(1, std::memory_order_relaxed);
}

void HeldDatagrams::forget(Qp& qp) {
  Rail& rail = rails_[qp.device];
  const std::lock_guard lock(rail.mutex);
  std::erase_if(rail.held, [&](const Held& held) { return held.datagram->qp == &qp; });
}

// Needs the mutex, so that the queue pairs are not destroyed.
void HeldDatagrams::send_due(uint32_t index) {
  Rail& rail = rails_[index];
  const std::lock_guard lock(rail.mutex);
  if (rail.held.empty()) return;
  const uint64_t now_ns = read_clock_ns();
  size_t kept = 0;
  for (Held& held : rail.held) {
    const bool is_due = held.leaves_at <= rail.left || held.leaves_ns <= now_ns;
    is_due ? rail.due.push_back(std::move(held.datagram)) : std::swap(rail.held[kept++], held);
  }
  rail.held.erase(rail.held.begin() + static_cast<std::ptrdiff_t>(kept), rail.held.end());
  for (const auto& datagram : rail.due) begin(rail, *datagram);
  rail.chain.flush();
  for (auto& datagram : rail.due) {
    finish(datagram->op);
    if (rail.spare.size() < kMostSpare) rail.spare.push_back(std::move(datagram));
  }
  rail.due.clear();
  wake_later(index, 0);
}

// Needs the mutex. One wake-up serves all held datagrams.
void HeldDatagrams::wake_later(uint32_t index, uint64_t not_before_ns) {
  Rail& rail = rails_[index];
  if (rail.held.empty() || std::exchange(rail.wakes, true)) return;
  uint64_t first_ns = UINT64_MAX;
  for (const Held& held : rail.held) first_ns = std::min(first_ns, held.leaves_ns);
  schedule_.add(std::max(first_ns + kSlackNs, not_before_ns), [this, index] { look_for_due(index); });
}

// On a busy rail, other threads have sent the held datagrams by now, or are just sending them, so no thread
// waits for this one.
void HeldDatagrams::look_for_due(uint32_t index) {
  Rail& rail = rails_[index];
  const uint64_t now_ns = read_clock_ns();
  {
    const std::unique_lock lock(rail.mutex, std::try_to_lock);
    if (!lock) return schedule_.add(now_ns + kBusyNs, [this, index] { look_for_due(index); });
    rail.wakes = false;
    const bool is_idle = std::any_of(rail.held.begin(), rail.held.end(),
                                     [&](const Held& held) { return held.leaves_ns + kSlackNs <= now_ns; });
    if (!is_idle) return wake_later(index, now_ns + kBusyNs);
  }
  get_worker(index).run_soon([this, index] { send_due(index); });
}

void HeldDatagrams::flip(Datagram& datagram, const Fate& fate) {
  uint64_t draw = fate.draw;
  for (uint32_t i = 0; i < fate.wrong_bytes; ++i) {
    draw = mix(draw, i);
    const size_t at = draw % (datagram.header_flips.size() + datagram.bytes.size());
    const bool is_in_header = at < datagram.header_flips.size();
    uint8_t& byte =
        is_in_header ? datagram.header_flips[at] : datagram.bytes[at - datagram.header_flips.size()];
    byte ^= static_cast<uint8_t>(1 + (draw >> 32) % 255);
  }
}

// Begins the datagram's copies, except those that are shared with other datagrams.
void HeldDatagrams::begin(Rail& rail, Datagram& datagram) {
  Operation& op = datagram.op;
  op.reset();
  op.qp = datagram.qp;
  op.request = &datagram.request;
  op.source_qp = datagram.qp->base.qp_num;
  op.is_datagram = true;
  op.local.add(reinterpret_cast<uint64_t>(datagram.bytes.data()), datagram.bytes.size(), 0, 0);
  datagram.request.address_handle = &datagram.handle.base;
  prepare_datagram(op);
  if (op.is_wired) return wire::send_datagram(op);
  for (size_t i = 0; i < datagram.header_flips.size(); ++i) op.header[i] ^= datagram.header_flips[i];
  if (!op.uses_gpu()) {
    rail.chain.begin(op);
  } else if (op.bytes != 0) {
    settle(op, copy_staged(op));
  }
}

}  // namespace verbena::softverbs::faults
