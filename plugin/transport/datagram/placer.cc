#include "transport/datagram/placer.h"

#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/hot_path.h"

namespace verbena::transport::datagram {

Placer::Placer(const Nic& nic, PagePool& pool, std::span<const std::unique_ptr<Rail>> rails)
    : nic_(nic),
      pool_(pool),
      rails_(rails),
      has_to_flush_(!nic.rails[0]->is_softverbs()),
      placements_(pool.count()),
      queue_(pool.count()),
      loopback_(std::make_unique<LoopbackUser>(Loopback::acquire(base::kNoGpu, nic))) {
  under_way_.reserve(pool.count());
}

VERBENA_HOT_PATH void Placer::add(uint32_t page, uint32_t message, std::byte* target, uint32_t length_bytes,
                                  const Registration* memory) {
  placements_[page] = {.target = target, .memory = memory, .length_bytes = length_bytes, .message = message};
  wait(page);
}

void Placer::flush(ChannelFlush* request) {
  request->rails = written_rails_;
  request->outstanding = 0;
  flushes_.push_back(request);
}

// Uses the rails in turn.
VERBENA_HOT_PATH void Placer::begin(uint32_t live_rails) {
  const auto rails = static_cast<uint32_t>(rails_.size());
  for (uint32_t full = 0; waiting_ != 0 && full < rails;) {
    const uint32_t rail = turn_++ % rails;
    if ((live_rails >> rail & 1) == 0 || !loopback_->has_room_to_copy(rail)) {
      ++full;
      continue;
    }
    full = 0;
    const uint32_t page = take_waiting();
    Placement& placement = placements_[page];
    placement.rail = rail;
    under_way_.push_back(page);
    written_rails_ |= 1U << rail;
    loopback_->copy(rail, pool_.data(page), rails_[rail]->page_key(pool_.is_short(page)), placement.target,
                    placement.memory->regions[rail].remote_key(), placement.length_bytes,
                    &placement.outstanding);
  }
}

// Posts a read on each rail that has ever written, which flushes the earlier writes. Skips a rail that
// stopped working so long ago that none of its PCI Express transactions can be outstanding.
void Placer::progress_flushes(uint32_t live_rails, int64_t now_ns) {
  constexpr int64_t kTransactionNs = 100 * base::kNsPerMs;
  std::erase_if(flushes_, [&](ChannelFlush* flush) {
    for (uint32_t rails = flush->rails; rails != 0; rails &= rails - 1) {
      const auto rail = static_cast<uint32_t>(std::countr_zero(rails));
      const bool is_live = (live_rails >> rail & 1) != 0;
      if (is_live && !loopback_->has_room(rail)) continue;
      if (!is_live && now_ns - left_ns_[rail] < kTransactionNs) continue;
      flush->rails &= ~(1U << rail);
      if (is_live)
        loopback_->flush(rail, flush->data, flush->memory->regions[rail].remote_key(), &flush->outstanding);
    }
    if (flush->rails != 0 || flush->outstanding != 0) return false;
    flush->state.store(ChannelRequest::State::kDone, std::memory_order_release);
    return true;
  });
}

// Copies and reads may be repeated, so all of them begin again. After the call returns, none of
// them is outstanding.
void Placer::restart() {
  loopback_.reset();
  loopback_ = std::make_unique<LoopbackUser>(Loopback::acquire(base::kNoGpu, nic_));
  for (const uint32_t page : under_way_) {
    placements_[page].outstanding = 0;
    wait(page);
  }
  under_way_.clear();
  for (ChannelFlush* flush : flushes_) {
    flush->rails = written_rails_;
    flush->outstanding = 0;
  }
}

void Placer::leave_rails(uint32_t rails, int64_t now_ns) {
  for (uint32_t rail = 0; rail < rails_.size(); ++rail)
    if ((rails >> rail & 1) != 0) left_ns_[rail] = now_ns;
  const bool is_there = std::any_of(under_way_.begin(), under_way_.end(), [&](uint32_t page) {
    return (rails >> placements_[page].rail & 1) != 0;
  });
  if (is_there || !flushes_.empty()) restart();
}

Placer::Failed Placer::find_failed() const {
  const uint32_t* const failed = loopback_->failed();
  for (const uint32_t page : under_way_)
    if (&placements_[page].outstanding == failed) return {.message = placements_[page].message};
  for (const ChannelFlush* flush : flushes_)
    if (&flush->outstanding == failed) return {.flush = flush};
  return {};
}

void Placer::drop(uint32_t first_message, uint32_t messages, const MessageEnd* flushes_owner) {
  const auto is_theirs = [&](uint32_t page) { return placements_[page].message - first_message < messages; };
  const auto flushes = [&](const ChannelFlush* flush) { return flush->owner == flushes_owner; };
  if (std::any_of(under_way_.begin(), under_way_.end(), is_theirs) ||
      std::any_of(flushes_.begin(), flushes_.end(), flushes))
    restart();
  std::erase_if(flushes_, flushes);
  for (uint32_t left = waiting_; left != 0; --left) {
    const uint32_t page = take_waiting();
    is_theirs(page) ? pool_.put_back(page) : wait(page);
  }
}

}  // namespace verbena::transport::datagram
