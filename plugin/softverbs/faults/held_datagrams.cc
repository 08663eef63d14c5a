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
constexpr uint64_t kOvertakerNs = 10'000;

}  // namespace

void HeldDatagrams::carry(Operation& op, const Fate& fate) {
  if (fate.is_lost) return;
  const uint32_t index = op.qp->device;
  Rail& rail = rails_[index];
  const std::lock_guard lock(rail.mutex);
  Datagram datagram{.qp = op.qp,
                    .request = *op.request,
                    .handle = *reinterpret_cast<const Ah*>(op.request->address_handle),
                    .bytes = std::vector<uint8_t>(op.request->length),
                    .header_flips = {},
                    .leaves_at = rail.left + 1 + fate.overtakers,
                    .leaves_ns = read_clock_ns() + fate.overtakers * kOvertakerNs};
  if (!read_local(op, datagram.bytes.data())) return;
  flip(datagram, fate);
  for (uint32_t copies = fate.copies; copies != 0; --copies) send(datagram);
  if (fate.overtakers == 0) return send(datagram);
  rail.held.push_back(std::move(datagram));
  wake_later(index);
}

// With the mutex. Once for all, not for each: most leave because others have overtaken them.
void HeldDatagrams::wake_later(uint32_t index) {
  Rail& rail = rails_[index];
  if (rail.held.empty() || std::exchange(rail.wakes, true)) return;
  const auto next =
      std::min_element(rail.held.begin(), rail.held.end(),
                       [](const Datagram& a, const Datagram& b) { return a.leaves_ns < b.leaves_ns; });
  schedule_.add(next->leaves_ns, [this, index] {
    get_worker(index).run_soon([this, index] {
      {
        const std::lock_guard lock(rails_[index].mutex);
        rails_[index].wakes = false;
      }
      send_due(index);
    });
  });
}

void HeldDatagrams::note_left(uint32_t index) {
  {
    const std::lock_guard lock(rails_[index].mutex);
    ++rails_[index].left;
  }
  send_due(index);
}

void HeldDatagrams::forget(Qp& qp) {
  Rail& rail = rails_[qp.device];
  const std::lock_guard lock(rail.mutex);
  std::erase_if(rail.held, [&](const Datagram& datagram) { return datagram.qp == &qp; });
}

// With the mutex: its queue pair stays.
void HeldDatagrams::send_due(uint32_t index) {
  Rail& rail = rails_[index];
  const std::lock_guard lock(rail.mutex);
  const uint64_t now_ns = rail.held.empty() ? 0 : read_clock_ns();
  for (auto datagram = rail.held.begin(); datagram != rail.held.end();) {
    if (datagram->leaves_at > rail.left && datagram->leaves_ns > now_ns) {
      ++datagram;
      continue;
    }
    send(*datagram);
    datagram = rail.held.erase(datagram);
  }
  wake_later(index);
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

void HeldDatagrams::send(Datagram& datagram) {
  Operation op;
  op.qp = datagram.qp;
  op.request = &datagram.request;
  op.source_qp = datagram.qp->base.qp_num;
  op.is_datagram = true;
  op.local.add(reinterpret_cast<uint64_t>(datagram.bytes.data()), datagram.bytes.size(), 0, 0);
  datagram.request.address_handle = &datagram.handle.base;
  prepare_datagram(op);
  if (op.is_wired) return wire::send_datagram(op);
  for (size_t i = 0; i < datagram.header_flips.size(); ++i) op.header[i] ^= datagram.header_flips[i];
  if (op.bytes != 0) settle(op, op.uses_gpu() ? copy_staged(op) : copy_host(op));
  finish(op);
}

}  // namespace verbena::softverbs::faults
