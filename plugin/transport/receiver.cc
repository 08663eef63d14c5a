#include "transport/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hot_path.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/link/advice.h"
#include "transport/link/write_order.h"
#include "transport/recovery_times.h"
#include "transport/state_text.h"

namespace verbena::transport {

using base::append;
using protocol::CopyResult;
using protocol::Failure;

namespace {

constexpr char kCannotGrant[] =
    "cannot post a grant or credits; an earlier line of the log gives the device's error";

protocol::ReceiveOptions choose_options(const ReceiverParts& parts) {
  protocol::ReceiveOptions options;
  options.queue_pairs = parts.link.queue_pairs();
  for (uint32_t q = 0; q < options.queue_pairs; ++q) {
    options.window[q] = parts.reservations[q].entries;
    options.rail_of[q] = static_cast<uint8_t>(parts.link.rail_of(q));
  }
  options.primary = protocol::choose_primary(parts.link.pair(0).number(), options.queue_pairs);
  options.page_bytes = parts.pool->page_bytes();
  options.is_direct_only = parts.pool != parts.pages;
  options.waits_for_consumed = parts.waits_for_consumed;
  options.pushes_pages = parts.flushes && parts.pool->is_gpu_memory();
  options.out_of_order = parts.link.is_out_of_order();
  for (uint32_t q = 0; q < options.queue_pairs; ++q)
    options.out_of_order |= waits_for_writes(parts.link.device(parts.link.rail_of(q)));
  options.times = read_recovery_times();
  options.stall_ns = base::parameters().stall_warning_ms * base::kNsPerMs;
  return options;
}

std::optional<protocol::UnpackQueue> make_queue(const ReceiverParts& parts) {
  if (parts.unpack == nullptr) return std::nullopt;
  return protocol::UnpackQueue(parts.unpack->host_meta(), parts.unpack->descriptors());
}

}  // namespace

void ReceiverParts::give_back() {
  link.stop();
  std::vector<uint32_t> own_pages;
  for (auto& reservation : reservations) {
    own_pages.insert(own_pages.end(), reservation.pages.begin(), reservation.pages.end());
    reservation.pages.clear();
  }
  if (unpack != nullptr) pages->unpack_memories().give_back(std::move(unpack));
  if (pool != nullptr) pool->retire(std::move(link), queues, std::move(own_pages));
  give_back_entries();
}

void ReceiverParts::give_back_entries() {
  for (auto& reservation : reservations) {
    if (reservation.entries != 0) pool->release(*reservation.queue, reservation.entries);
    if (pool != nullptr) pool->free(reservation.pages);
    reservation = {};
  }
}

base::Outcome ReceiverParts::fill_own_queue(verbs::QueuePair& pair, uint32_t queue_pair,
                                            std::vector<uint32_t> held) {
  const BouncePool::Reservation& reservation = reservations[queue_pair];
  std::vector<uint32_t> posted;
  for (const uint32_t page : reservation.pages) {
    if (const auto found = std::ranges::find(held, page); found != held.end()) {
      held.erase(found);
    } else {
      posted.push_back(page);
    }
  }
  return pool->post_own(*reservation.queue, pair, posted);
}

Receiver::Receiver(Parts parts, const Peer& peer, std::unique_ptr<PeerChannel> channel)
    : ReceivingEnd(parts.unpack != nullptr, parts.unpack != nullptr ? 1 : protocol::kMaxGroup),
      Core(choose_options(parts), make_queue(parts)),
      Connection(observe::Direction::kReceive, std::move(parts.link), std::move(channel), recovery()),
      parts_(std::move(parts)),
      peer_(peer) {
  for (ReceiveMessage& message : ring_) {
    message.kind = RequestKind::kReceive;
    message.owner = this;
  }
  for (FlushRequest& flush : flushes_) {
    flush.kind = RequestKind::kFlush;
    flush.owner = this;
  }
  if (observed() != nullptr) observe();
}

Receiver::~Receiver() {
  Connection::close();
  parts_.loopback.reset();  // the loopback may be reading pages
  release_everything();
  parts_.link = std::move(link_);
  parts_.give_back();
}

// Flattened into one frame, because every message takes this path.
[[gnu::flatten]] VERBENA_HOT_PATH Posted Receiver::post(void* data, uint64_t length_bytes,
                                                        const Registration* memory,
                                                        ReceiveClass receive_class, int32_t tag) {
  ReceiveMessage* const message = Core::post(data, length_bytes, memory, receive_class, tag);
  return {message, outcome()};
}

base::Outcome Receiver::post_group(std::span<const Buffer> buffers, Request** request) {
  *request = Core::post_group(buffers);
  return outcome();
}

[[gnu::flatten]] VERBENA_HOT_PATH base::Outcome Receiver::test(ReceiveMessage& message, bool* done,
                                                               uint64_t* bytes) {
  *done = Core::test(message, bytes);
  return outcome();
}

[[gnu::flatten]] VERBENA_HOT_PATH base::Outcome Receiver::test(Request& request, int* done,
                                                               int* lengths_bytes) {
  if (request.kind == RequestKind::kFlush) [[unlikely]] {
    if (lengths_bytes != nullptr) *lengths_bytes = 0;
    bool is_flushed = false;
    const auto outcome = test_flush(static_cast<FlushRequest&>(request), &is_flushed);
    *done = is_flushed ? 1 : 0;
    return outcome;
  }
  auto& message = static_cast<ReceiveMessage&>(request);
  if (message.count != 1) [[unlikely]]
    return test_group(message, done, lengths_bytes);
  uint64_t bytes = 0;
  const bool is_done = Core::test(message, &bytes);
  *done = is_done ? 1 : 0;
  if (is_done && lengths_bytes != nullptr) *lengths_bytes = static_cast<int>(bytes);
  return outcome();
}

base::Outcome Receiver::test_group(ReceiveMessage& first, int* done, int* lengths_bytes) {
  const uint32_t count = first.count;
  uint64_t bytes[protocol::kMaxGroup];
  const bool is_done = Core::test(first, bytes);
  *done = is_done ? 1 : 0;
  for (uint32_t i = 0; is_done && lengths_bytes != nullptr && i < count; ++i)
    lengths_bytes[i] = static_cast<int>(bytes[i]);
  return outcome();
}

Statistics Receiver::close() {
  Connection::close();
  return statistics();
}

VERBENA_HOT_PATH base::Outcome Receiver::consume(ReceiveMessage& message) {
  if (parts_.waits_for_consumed && message.phase != ReceiveMessage::Phase::kReported) {
    return base::fail(base::Status::kInvalidUsage,
                      "%s: irecvConsumed was called for message %u, which is not complete",
                      describe_briefly().c_str(), message.sequence);
  }
  return Core::consume(message) ? base::Outcome() : outcome();
}

base::Outcome Receiver::flush(const void* data, const Registration* memory, Request** request) {
  *request = nullptr;
  if (!parts_.flushes || !memory->is_gpu_memory) return {};
  if (!parts_.loopback) {
    return base::fail(base::Status::kInternal,
                      "%s: cannot flush GPU memory, because the device does not support GPU memory",
                      describe_briefly().c_str());
  }
  FlushRequest* flush = Core::flush(data, memory);
  if (flush == nullptr) {
    return base::fail(base::Status::kInternal, "%s: too many flushes are outstanding (%zu)",
                      describe_briefly().c_str(), flushes_.size());
  }
  *request = flush;
  return outcome();
}

// While the flush is deferred, the service thread may hold the connection, so the first error must not be
// read.
base::Outcome Receiver::test_flush(FlushRequest& request, bool* done) {
  *done = Core::test_flush(request);
  if (!request.is_deferred) return outcome();
  const int64_t limit_ns = recovery().times().limit_ns;
  if (request.deferred_at_ns == 0 || now_ns() - request.deferred_at_ns < limit_ns) return {};
  return base::fail(
      base::Status::kInternal,
      "%s: cannot flush, because the service thread has not returned from a call to its device (%s)",
      describe_briefly().c_str(), base::show_duration(limit_ns).c_str());
}

// --- The port.

bool Receiver::poll_completions() {
  const auto take = [&](const verbs::Completion& completion, uint32_t queue_pair) {
    if (completion.error != 0) [[unlikely]] {
      take_back(completion, link_.rail_of(queue_pair));
      if (is_page_cookie(completion.cookie)) ++own_queues_[queue_pair].idle_entries;
      note_failed(completion, queue_pair, consumed());
      return;
    }
    const uint32_t page = cookie_page(completion.cookie);
    switch (completion.kind()) {
      case verbs::CompletionKind::kSend:
        return on_control_written(queue_pair, completion.cookie);
      case verbs::CompletionKind::kReceive:
        return on_arrived(queue_pair, {completion.imm(), completion.length, page, false});
      case verbs::CompletionKind::kReceiveWrite:
        return on_arrived(queue_pair, {completion.imm(), completion.length, page, true});
    }
  };
  const bool is_sound = link_.poll(
      take, [&](const verbs::Completion& completion, uint32_t rail) { take_back(completion, rail); });
  if (!is_sound) return fail_completion_queue();
  return parts_.loopback ? poll_loopback() : !has_failed();
}

bool Receiver::poll_loopback() {
  std::string failure;
  if (!parts_.loopback->poll(&failure)) {
    static_cast<void>(stick(
        base::fail(base::Status::kSystem, "%s: loopback: %s", describe_briefly().c_str(), failure.c_str())));
  }
  return !has_failed();
}

// Returns the page of a failed receive. A queue pair with its own receive queue posts all its pages again
// when it has a successor.
void Receiver::take_back(const verbs::Completion& completion, uint32_t rail) {
  BouncePool::Queue& queue = *parts_.queues[rail];
  if (!is_page_cookie(completion.cookie) || !queue.is_shared()) return;
  const uint32_t page = cookie_page(completion.cookie);
  static_cast<void>(parts_.pool->repost(queue, {&page, 1}));
}

bool Receiver::repost_own(uint32_t queue_pair, std::span<const uint32_t> pages) {
  OwnQueue& own = own_queues_[queue_pair];
  if (own.is_stopped) {
    own.idle_entries += static_cast<uint32_t>(pages.size());
    return true;
  }
  return parts_.pool->post_own(queue_of(queue_pair), link_.pair(queue_pair), pages).is_ok() || fail_repost();
}

bool Receiver::fail_repost() {
  static_cast<void>(stick({base::Status::kSystem}));  // the pool has logged the cause
  return false;
}

// ReceiveCore has checked that the send queue has space. The cookie of a write can be told from the cookie of
// a page (is_page_cookie).
VERBENA_HOT_PATH void Receiver::write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes,
                                              bool is_signaled) {
  if (parts_.control_ring != nullptr) [[unlikely]]
    return write_from_ring(queue_pair, line, offset_bytes, is_signaled);
  const verbs::WorkRequest request{.opcode = verbs::Opcode::kWrite,
                                   .signaled = is_signaled,
                                   .send_inline = true,
                                   .cookie = offset_bytes,
                                   .local = line,
                                   .length = sizeof(protocol::Grant),
                                   .remote_key = peer_.control_keys[queue_pair],
                                   .remote = peer_.control_address + offset_bytes};
  if (!link_.pair(queue_pair).post_unchecked(request)) give_up(queue_pair, kCannotGrant);
}

void Receiver::write_from_ring(uint32_t queue_pair, const void* line, uint64_t offset_bytes,
                               bool is_signaled) {
  const verbs::WorkRequest request{.opcode = verbs::Opcode::kWrite,
                                   .signaled = is_signaled,
                                   .cookie = offset_bytes,
                                   .local = parts_.control_ring->put(queue_pair, line),
                                   .local_key = parts_.control_ring->local_key(link_.rail_of(queue_pair)),
                                   .length = sizeof(protocol::Grant),
                                   .remote_key = peer_.control_keys[queue_pair],
                                   .remote = peer_.control_address + offset_bytes};
  if (!link_.pair(queue_pair).post(request)) give_up(queue_pair, kCannotGrant);
}

CopyResult Receiver::copy_page(uint32_t page, uint8_t* target, const Registration* memory, uint32_t bytes,
                               uint32_t* outstanding) {
  BouncePool& pool = *parts_.pool;
  if (!memory->is_gpu_memory && pool.host_page(0) != nullptr) {
    std::memcpy(target, pool.host_page(page), bytes);
    return CopyResult::kTaken;
  }
  if (!parts_.loopback) {
    static_cast<void>(stick(base::fail(
        base::Status::kInternal,
        "%s: cannot copy to GPU memory, because the device has no queue pair that is connected to itself",
        describe_briefly().c_str())));
    return CopyResult::kFailed;
  }
  const uint32_t rail = find_copy_rail();
  if (!parts_.loopback->has_room_to_copy(rail)) return CopyResult::kLater;
  parts_.loopback->copy(rail, pool.address_of(page), parts_.queues[rail]->local_key(page), target,
                        memory->regions[rail].remote_key(), bytes, outstanding);
  return CopyResult::kTaken;
}

// Returns the first working rail.
uint32_t Receiver::find_copy_rail() const {
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q)
    if (link_.is_healthy(q)) return link_.rail_of(q);
  return link_.rail_of(0);
}

void Receiver::flush_page(uint32_t rail, uint32_t page, uint32_t* outstanding) {
  parts_.loopback->flush(rail, parts_.pool->address_of(page), parts_.queues[rail]->remote_key(page),
                         outstanding);
}

// Reads through the key of the data itself, whether or not the region allows relaxed ordering. PCI Express
// lets writes with this attribute pass other writes, but no read request passes an earlier write.
void Receiver::flush_data(uint32_t rail, const void* data, const Registration* memory,
                          uint32_t* outstanding) {
  parts_.loopback->flush(rail, data, memory->regions[rail].remote_key(), outstanding);
}

void Receiver::stop_pair(uint32_t queue_pair) {
  Connection::stop_pair(queue_pair);
  stopped_at_ns_[queue_pair] = now_ns();
  own_queues_[queue_pair].is_stopped = true;
}

bool Receiver::is_drained(uint32_t queue_pair) {
  const bool is_drained = queue_of(queue_pair).is_shared()
                              ? link_.pair(queue_pair).is_drained()
                              : held(queue_pair) + own_queues_[queue_pair].idle_entries == window(queue_pair);
  return is_drained || now_ns() - stopped_at_ns_[queue_pair] >= kDrainMs * base::kNsPerMs;
}

bool Receiver::connect_pair(uint32_t queue_pair, const protocol::RecoveryRecord& peer) {
  if (!Connection::connect_pair(queue_pair, peer)) return false;
  if (queue_of(queue_pair).is_shared()) return true;
  own_queues_[queue_pair] = {};
  return parts_.fill_own_queue(link_.pair(queue_pair), queue_pair, list_held(queue_pair)).is_ok();
}

// --- Diagnosis.

std::string Receiver::explain(Failure fault, uint32_t number) const {
  const ReceiveMessage& message = ring()[number % protocol::kMessageRing];
  const auto bytes = as_ull(message.arrivals.bytes());
  std::string text;
  if (fault == Failure::kBroken) {
    append(text, "message %u: %s", number, broken_.c_str());
  } else if (fault == Failure::kPeerClosed) {
    append(text,
           "the peer closed the connection before message %u arrived (%llu bytes received). The peer's log "
           "says why",
           number, bytes);
  } else if (fault == Failure::kShortRoom) {
    append(text, "message %u is longer than its receive buffer (message %llu bytes, buffer %llu bytes)%s",
           number, bytes, as_ull(message.room_bytes), kLengthAdvice);
  } else if (fault == Failure::kLongStaged) {
    append(text, "message %u is too long for a staged message (%llu bytes)%s", number, bytes, kPeerAdvice);
  }
  return text;
}

std::string Receiver::describe_state(const Core& core, bool is_seen_from_outside) const {
  return describe_head(core.wait().waiting_since_ns(), core.open_requests(), is_seen_from_outside) +
         describe_messages(core);
}

std::string Receiver::describe_queue_pair(uint32_t q) {
  std::string text;
  append(text, "  queue pair %u: %s: %s, port %s, receive entries reserved %u, held %u (%u of them spare)", q,
         link_.describe(q).c_str(), describe_life(recovery(), q).c_str(), link_.is_healthy(q) ? "up" : "down",
         parts_.reservations[q].entries, held(q), spare(q));
  if (recovery().is_live(q))
    append(text, ", send queue of grants and credits %u of %u free", free_slots(q), protocol::kControlDepth);
  if (q == primary()) text += ", carries the grants";
  return text + failed_.describe_last(q);
}

StateDump Receiver::describe() {
  StateDump dump{describe_state(*this, false)};
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) dump.text += describe_queue_pair(q);
  for (uint32_t ahead = 0; ahead < protocol::kMessageRing; ++ahead) {
    const ReceiveMessage& early = ring()[(next() + ahead) % protocol::kMessageRing];
    if (early.is_posted || early.arrivals.is_empty()) continue;
    append(dump.text, "  message %u: %llu bytes arrived before its receive was posted\n", next() + ahead,
           as_ull(early.arrivals.bytes()));
  }
  dump.text += "  " + parts_.pool->describe() + "\n";
  if (is_broken())
    append(dump.text, "  this end of the connection receives nothing more: %s\n", broken_.c_str());
  if (has_unsent()) dump.text += "  control socket: its send buffer is full\n";
  dump.is_idle = is_idle(open_requests());
  return dump;
}

StateDump Receiver::dump_from_outside() const {
  const OutsideCopy<Core> copy(*this);
  return copy ? StateDump{describe_state(*copy, true)} : dump_nothing();
}

// Warns about the oldest request that waits for this end or for the peer.
void Receiver::warn_of_stall() {
  std::string cause;
  for_each_open([&](const ReceiveMessage& message) {
    const Wait wait = find_wait(message);
    if (!cause.empty() || wait == Wait::kTest || wait == Wait::kConsumption) return;
    append(cause, "message %u: %s, %llu of at most %llu bytes have arrived", message.sequence,
           explain_wait(*this, message), as_ull(message.arrivals.bytes()), as_ull(message.room_bytes));
  });
  for (const FlushRequest& flush : flushes()) {
    if (cause.empty() && flush.in_use)
      append(cause, "flush %u: waits for %u reads by the device", flush.number, flush.outstanding);
  }
  if (cause.empty()) return;
  ++statistics_.stalls;
  report_stall(cause, open_requests(), wait().waited_ns());
}

}  // namespace verbena::transport
