#include "softverbs/faults/held_datagrams.h"

#include <algorithm>
#include <utility>

#include "softverbs/clock.h"
#include "softverbs/datagram.h"
#include "softverbs/faults/injector.h"
#include "softverbs/faults/stream.h"
#include "softverbs/gpu_copy.h"
#include "softverbs/queue_pair.h"
#include "softverbs/rail_worker.h"
#include "softverbs/wire/requester.h"

namespace verbena::softverbs::faults {
namespace {

// For each that may overtake, where nothing comes: about what one takes on a busy rail. Acknowledgements are
// few, and would otherwise be behind many more packets than the plan says.
constexpr uint64_t kOvertakerNs = 2'000;
// On a rail where nothing is sent any more, so much later at most: waking costs a processor's time.
constexpr uint64_t kSlackNs = 200'000;
constexpr size_t kMostSpare = 256;  // buffers of a rail

}  // namespace

std::vector<uint8_t> HeldDatagrams::Rail::take_buffer(size_t bytes) {
  std::vector<uint8_t> buffer;
  if (!spare.empty()) {
    buffer = std::move(spare.back());
    spare.pop_back();
  }
  buffer.resize(bytes);
  return buffer;
}

void HeldDatagrams::take(Operation& op, const Fate& fate) {
  if (fate.is_lost) return;
  Rail& rail = rails_[op.qp->device];
  const std::lock_guard lock(rail.mutex);
  Datagram datagram{.qp = op.qp,
                    .request = *op.request,
                    .handle = *reinterpret_cast<const Ah*>(op.request->address_handle),
                    .bytes = rail.take_buffer(op.request->length),
                    .header_flips = {},
                    .leaves_ns = read_clock_ns() + fate.overtakers * kOvertakerNs};
  if (!read_local(op, datagram.bytes.data())) return;
  flip(datagram, fate);
  for (uint32_t copies = fate.copies; copies != 0; --copies) rail.held.emplace(0, datagram);
  // It has not left itself yet.
  rail.held.emplace(fate.overtakers == 0 ? 0 : rail.left + 1 + fate.overtakers, std::move(datagram));
}

void HeldDatagrams::note_left(uint32_t index) {
  const std::lock_guard lock(rails_[index].mutex);
  ++rails_[index].left;
}

void HeldDatagrams::forget(Qp& qp) {
  Rail& rail = rails_[qp.device];
  const std::lock_guard lock(rail.mutex);
  std::erase_if(rail.held, [&](const auto& entry) { return entry.second.qp == &qp; });
}

// With the mutex: their queue pairs stay.
void HeldDatagrams::send_due(uint32_t index) {
  Rail& rail = rails_[index];
  const std::lock_guard lock(rail.mutex);
  if (rail.held.empty()) return;
  const uint64_t now_ns = read_clock_ns();
  std::deque<Datagram> due;
  for (auto entry = rail.held.begin(); entry != rail.held.end();) {
    const bool is_due = entry->first <= rail.left || entry->second.leaves_ns <= now_ns;
    const auto next = std::next(entry);
    if (is_due) due.push_back(std::move(rail.held.extract(entry).mapped()));
    entry = next;
  }
  for (Datagram& datagram : due) begin(rail, datagram);
  rail.chain.flush();
  for (Operation& op : rail.operations) finish(op);
  rail.operations.clear();
  for (Datagram& datagram : due)
    if (rail.spare.size() < kMostSpare) rail.spare.push_back(std::move(datagram.bytes));
  wake_later(index);
}

// With the mutex. Once for all, not for each.
void HeldDatagrams::wake_later(uint32_t index) {
  Rail& rail = rails_[index];
  if (rail.held.empty() || std::exchange(rail.wakes, true)) return;
  const auto next = std::min_element(rail.held.begin(), rail.held.end(), [](const auto& a, const auto& b) {
    return a.second.leaves_ns < b.second.leaves_ns;
  });
  schedule_.add(next->second.leaves_ns + kSlackNs, [this, index] {
    get_worker(index).run_soon([this, index] {
      {
        const std::lock_guard lock(rails_[index].mutex);
        rails_[index].wakes = false;
      }
      send_due(index);
    });
  });
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

// Its copies, but those that are one with others'.
void HeldDatagrams::begin(Rail& rail, Datagram& datagram) {
  Operation& op = rail.operations.emplace_back();
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
