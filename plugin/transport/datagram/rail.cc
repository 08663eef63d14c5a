#include "transport/datagram/rail.h"

#include <bit>
#include <utility>

#include "base/hot_path.h"
#include "base/log.h"

namespace verbena::transport::datagram {
namespace {

using base::Outcome;
using base::Result;
using protocol::datagram::kGrantedPairs;
using protocol::datagram::PageQueue;

// Length of a buffer for control packets, with the GRH: any datagram fits. A datagram that does not fit makes
// the queue pair fail, and any sender that knows its number and key could send one. On a device whose
// datagrams may be longer than an MTU, buffers are short, and the rest of a longer datagram is written to
// memory that is never read.
constexpr uint32_t kControlBufferBytes = 4160, kShortControlBufferBytes = 704;
constexpr uint32_t kDataHeaderBytes = 32;
static_assert(kControlBufferBytes >= verbs::kGrhBytes + PagePool::kLeastPageBytes);
static_assert(kShortControlBufferBytes >= verbs::kGrhBytes + Rail::kMaxControlBytes);
static_assert(kDataHeaderBytes >= sizeof(protocol::datagram::PacketHeader));

constexpr size_t kHeadersBytes =
    size_t{SendQueue::kDepth} * (Rail::kMaxControlBytes + (Rail::kPairs - 1) * kDataHeaderBytes);

}  // namespace

VERBENA_HOT_PATH void SendQueue::add(verbs::Datagram datagram, uint32_t owner) {
  datagram.header_key = header_key_;
  owners_[added_++ % kDepth] = owner;
  batch_[batched_++] = datagram;
  if (batched_ == kBatch) flush();
}

void SendQueue::flush() {
  const uint32_t count = std::exchange(batched_, 0);
  if (count != 0 && !is_broken_ && !pair_.post({batch_.data(), count})) is_broken_ = true;
}

bool SendQueue::holds(uint32_t first_owner, uint32_t owners) const {
  for (uint32_t at = departures_.count(); at != added_; ++at)
    if (owners_[at % kDepth] - first_owner < owners) return true;
  return false;
}

Result<std::unique_ptr<Rail>> Rail::create(verbs::Device& device, const PagePool& pool, uint32_t queue_key) {
  std::unique_ptr<Rail> rail(new Rail(device));
  Outcome outcome =
      device.has_failed() ? base::Error{base::Status::kSystem, 0} : rail->prepare(pool, queue_key);
  if (outcome) return rail;
  if (!device.has_failed()) return outcome.error();
  rail.reset(new Rail(device));
  rail->set_given_up();
  return rail;
}

Outcome Rail::check(const verbs::Device& device) {
  if (device.max_srq_entries() >= kControlBuffers) return {};
  return base::fail(base::Status::kSystem,
                    "device %s:%d: the device's shared receive queues have too few entries for datagrams (%u "
                    "entries, at least %u needed). Set VERBENA_TRANSPORT=connected on all ranks, or leave "
                    "the device out of VERBENA_HCA",
                    device.name().c_str(), device.port_number(), device.max_srq_entries(), kControlBuffers);
}

Outcome Rail::prepare(const PagePool& pool, uint32_t queue_key) {
  if (Outcome outcome = check(device_); !outcome) return outcome;
  waste_bytes_ = device_.long_datagram_bytes();
  control_bytes_ = waste_bytes_ != 0 ? kShortControlBufferBytes : kControlBufferBytes;
  const size_t buffers_bytes = size_t{kControlBuffers} * control_bytes_;
  const size_t length_bytes = buffers_bytes + kHeadersBytes + waste_bytes_;
  memory_ = verbs::take_near_memory(device_, length_bytes);
  headers_ = memory_.get() + buffers_bytes;
  waste_ = headers_ + kHeadersBytes;
  const auto take = [](auto made, auto& into) -> Outcome {
    if (!made) return made.error();
    into = std::move(*made);
    return {};
  };
  const auto make_region = [&](void* memory, size_t bytes, verbs::MemoryRegion& into) {
    return take(verbs::MemoryRegion::register_memory(device_, memory, bytes, {}), into);
  };
  if (Outcome outcome = make_region(memory_.get(), length_bytes, region_); !outcome) return outcome;
  if (Outcome outcome = make_region(pool.pages().data(), pool.pages().size(), pool_region_); !outcome)
    return outcome;
  if (pool.short_count() != 0) {
    const std::span<std::byte> pages = pool.short_pages();
    if (Outcome outcome = make_region(pages.data(), pages.size(), short_region_); !outcome) return outcome;
  }
  if (Outcome outcome = make_region(pool.lines().data(), pool.lines().size(), lines_region_); !outcome)
    return outcome;
  struct {
    verbs::CompletionQueue& queue;
    uint32_t entries;
  } const completions[] = {{sends, kPairs * SendQueue::kDepth},
                           {control_receives, kControlBuffers},
                           {page_receives, 2 * pool.long_count() + pool.short_count()}};
  for (const auto& [queue, entries] : completions) {
    if (Outcome outcome = take(verbs::CompletionQueue::create(device_, entries), queue); !outcome)
      return outcome;
  }
  const uint32_t wastes = waste_bytes_ != 0 ? 1 : 0;
  struct {
    verbs::SharedReceiveQueue& queue;
    uint32_t entries, pieces;
  } const receives[] = {{control_queue_, kControlBuffers, 1 + wastes},
                        {granted_queue_, pool.long_count(), 2 + wastes},
                        {eager_queue_, pool.long_count(), 2 + wastes},
                        {short_queue_, pool.short_count(), 2 + wastes}};
  for (const auto& [queue, entries, pieces] : receives) {
    if (entries == 0) continue;
    if (Outcome outcome = take(verbs::SharedReceiveQueue::create(device_, entries, pieces), queue); !outcome)
      return outcome;
  }
  if (Outcome outcome = take(make_pair(kControlMark, control_receives, control_queue_, queue_key), control);
      !outcome)
    return outcome;
  if (Outcome outcome = take(make_pair(kEagerMark, page_receives, eager_queue_, queue_key), eager); !outcome)
    return outcome;
  for (uint32_t i = 0; i < kGrantedPairs; ++i) {
    const bool is_for_short = i + 1 == kGrantedPairs && pool.short_count() != 0;
    verbs::SharedReceiveQueue& queue = is_for_short ? short_queue_ : granted_queue_;
    if (Outcome outcome = take(make_pair(kFirstGrantedMark + i, page_receives, queue, queue_key), granted[i]);
        !outcome)
      return outcome;
  }
  for (uint32_t buffer = 0; buffer < kControlBuffers; ++buffer) {
    if (Outcome outcome = post_control(buffer); !outcome) return outcome;
  }
  return {};
}

// Creates a queue pair with the headers of its packets.
Result<SendQueue> Rail::make_pair(uint32_t mark, verbs::CompletionQueue& receives,
                                  verbs::SharedReceiveQueue& queue, uint32_t queue_key) {
  auto pair = verbs::DatagramPair::create(device_, sends, receives, queue,
                                          {.send_depth = SendQueue::kDepth,
                                           .key = queue_key,
                                           .mark = static_cast<uint16_t>(mark),
                                           .bond_turn = mark});
  if (!pair) return pair.error();
  const uint32_t header_bytes = mark == kControlMark ? kMaxControlBytes : kDataHeaderBytes;
  std::byte* const headers = std::exchange(headers_, headers_ + size_t{SendQueue::kDepth} * header_bytes);
  return SendQueue(std::move(*pair), headers, header_bytes, region_.local_key());
}

protocol::datagram::EngineRail Rail::describe() const {
  protocol::datagram::EngineRail rail{
      std::bit_cast<protocol::RailRecord>(device_.address()), control.number(), eager.number(), {}};
  for (uint32_t i = 0; i < kGrantedPairs; ++i) rail.granted[i] = granted[i].number();
  return rail;
}

bool Rail::has_room() const {
  for (const SendQueue& pair : granted) {
    if (pair.room() == 0) return false;
  }
  return eager.room() != 0;
}

bool Rail::flush() {
  bool is_whole = true;
  for (uint32_t mark = 0; mark < kPairs; ++mark) {
    pair(mark).flush();
    is_whole &= !pair(mark).is_broken();
  }
  return is_whole;
}

VERBENA_HOT_PATH Outcome Rail::post_page(PageQueue queue, const PagePool& pool,
                                         std::span<const uint32_t> pages) {
  std::array<verbs::SplitReceive, 16> receives;
  verbs::SharedReceiveQueue& target = queue == PageQueue::kGranted ? granted_queue_
                                      : queue == PageQueue::kEager ? eager_queue_
                                                                   : short_queue_;
  const bool are_short = queue == PageQueue::kShort;
  const uint32_t page_bytes = are_short ? protocol::datagram::kShortBytes : pool.page_bytes();
  while (!pages.empty()) {
    const size_t count = std::min(pages.size(), receives.size());
    for (size_t i = 0; i < count; ++i) {
      receives[i] = {{pool.line(pages[i]), PagePool::kLineBytes, lines_region_.local_key(),
                      make_cookie(queue, pages[i], pool[pages[i]].posts)},
                     {pool.data(pages[i]), page_bytes, page_key(are_short), 0},
                     {waste_, waste_bytes_, region_.local_key(), 0}};
    }
    if (Outcome outcome = verbs::post_split(target, {receives.data(), count}); !outcome) return outcome;
    pages = pages.subspan(count);
  }
  return {};
}

Outcome Rail::post_control(uint32_t buffer) {
  const verbs::SplitReceive receive{
      {memory_.get() + size_t{buffer} * control_bytes_, control_bytes_, region_.local_key(), buffer},
      {waste_, waste_bytes_, region_.local_key(), 0}};
  return verbs::post_split(control_queue_, {&receive, 1});
}

std::span<const uint8_t> Rail::control_bytes(uint32_t buffer, uint32_t length_bytes) const {
  const std::byte* const start = memory_.get() + size_t{buffer} * control_bytes_ + verbs::kGrhBytes;
  return {reinterpret_cast<const uint8_t*>(start), length_bytes};
}

SendQueue* Rail::find_pair(uint64_t cookie) {
  const uint16_t mark = verbs::DatagramPair::mark_of(cookie);
  return mark < kPairs ? &pair(mark) : nullptr;
}

}  // namespace verbena::transport::datagram
