#include "observe/connection.h"

#include <bit>
#include <utility>

namespace verbena::observe {

namespace {

// Selects one message in eight. A hash of its number decides, so that a periodic pattern of the job does not
// always select the same messages. Reading a clock waits for all earlier loads while a message is being
// moved, and is most of the cost of the counters.
bool is_timed(uint32_t sequence) {
  constexpr uint32_t kSpread = 0x9E3779B1;  // 2^32 over the golden ratio
  return sequence * kSpread >> 29 == 0;
}

}  // namespace

Connection::Connection(Labels labels, uint32_t trace_events, uint32_t open_messages)
    : labels_(std::move(labels)),
      profiled_(open_messages),
      rail_count_(labels_.rails.size()),
      paths_((rail_count_ + 1) * kPaths),
      recorder_(trace_events),
      message_mask_(open_messages - 1),
      messages_(open_messages) {}

void Connection::note_post(uint32_t sequence, uint64_t bytes, uint32_t qp_number) {
  const int64_t now_ns = recorder_.is_on() || is_timed(sequence) ? base::monotonic_ns() : 0;
  Message& m = message(sequence);  // for a receive, chunks that arrived earlier are already noted there
  m.posted_ns = call_ns_ = now_ns;
  posted_.add(1);
  m.is_profiled = next_parent_ != nullptr;
  if (m.is_profiled) {
    begin_profiled(sequence);
    if (labels_.direction == Direction::kReceive)
      begin_net_event({0, qp_number, sequence, bytes, NetEvent::Kind::kReceive});
  }
  recorder_.record({now_ns, bytes, sequence, EventKind::kPost});
}

void Connection::note_grant(uint32_t sequence) {
  if (recorder_.is_on()) recorder_.record({now_ns(), 0, sequence, EventKind::kGrant});
}

void Connection::note_chunk(uint32_t sequence, Path path, uint32_t rail, uint32_t qp_number, uint64_t bytes) {
  Message& m = message(sequence);
  if (m.rail == kNoRail) {
    m.path = path;
    m.rail = static_cast<uint8_t>(rail);
  } else if (m.rail != rail) {
    m.rail = kMaxRails;
  }
  ChunkCounters& chunks = rails_[rail].chunks[static_cast<size_t>(path)];
  chunks.chunks.add(1);
  chunks.bytes.add(bytes);
  if (m.is_profiled && labels_.direction == Direction::kSend) {
    begin_net_event({rail, qp_number, sequence, bytes,
                     path == Path::kDirect ? NetEvent::Kind::kWrite : NetEvent::Kind::kSend});
  }
  if (recorder_.is_on()) {
    recorder_.record({now_ns(), bytes, sequence, EventKind::kChunk, static_cast<uint8_t>(rail), path});
  }
}

void Connection::note_done(uint32_t sequence, uint64_t bytes) {
  Message& m = message(sequence);
  const int64_t now_ns = m.posted_ns != 0 ? base::monotonic_ns() : 0;
  PathCounters& path = counters(m.rail, m.path);
  path.messages.add(1);
  path.bytes.add(bytes);
  if (m.posted_ns != 0) path.latency.add(now_ns - m.posted_ns);
  recorder_.record({now_ns, bytes, sequence, EventKind::kDone, m.rail, m.path});
  if (m.is_profiled) end_net_events(m, sequence);
  m.rail = kNoRail;
}

// NCCL's profiler gets one event for the whole message, because any thread may send its packets.
void Connection::begin_whole(uint32_t sequence, uint64_t bytes, uint32_t qp_number) {
  if (message(sequence).is_profiled) begin_net_event({0, qp_number, sequence, bytes, NetEvent::Kind::kSend});
}

void Connection::note_done(uint32_t sequence, uint64_t bytes, const Carried& carried) {
  Message& m = message(sequence);
  m.path = Path::kStaged;
  m.rail = std::has_single_bit(carried.rails) ? static_cast<uint8_t>(std::countr_zero(carried.rails))
                                              : static_cast<uint8_t>(kMaxRails);
  if (carried.resent != 0 && recorder_.is_on())
    recorder_.record({base::monotonic_ns(), carried.resent, sequence, EventKind::kResent, m.rail});
  note_done(sequence, bytes);
}

void Connection::note_consumed(uint32_t sequence) {
  if (recorder_.is_on()) recorder_.record({base::monotonic_ns(), 0, sequence, EventKind::kConsumed});
}

void Connection::note_flush(uint32_t number) {
  if (recorder_.is_on()) recorder_.record({base::monotonic_ns(), 0, number, EventKind::kFlush});
}

void Connection::note_flush_done(uint32_t number) {
  if (recorder_.is_on()) recorder_.record({base::monotonic_ns(), 0, number, EventKind::kFlushDone});
}

void Connection::note_rail_down(uint32_t rail, uint32_t queue_pair) {
  rails_[rail].failures.add(1);
  recorder_.record({base::monotonic_ns(), queue_pair, 0, EventKind::kRailDown, static_cast<uint8_t>(rail)});
}

void Connection::note_rail_up(uint32_t rail, uint32_t queue_pair) {
  rails_[rail].revivals.add(1);
  recorder_.record({base::monotonic_ns(), queue_pair, 0, EventKind::kRailUp, static_cast<uint8_t>(rail)});
}

void Connection::note_replay(uint32_t sequence, uint32_t rail, uint64_t bytes) {
  replayed_chunks_.add(1);
  recorder_.record({base::monotonic_ns(), bytes, sequence, EventKind::kReplay, static_cast<uint8_t>(rail)});
}

void Connection::note_stall(int64_t waited_ns) {
  stalls_.add(1);
  recorder_.record({base::monotonic_ns(), static_cast<uint64_t>(waited_ns), 0, EventKind::kStall});
}

void Connection::note_failed() {
  failures_.add(1);
  recorder_.record({base::monotonic_ns(), 0, 0, EventKind::kFailed});
}

void Connection::begin_profiled(uint32_t sequence) {
  profiled_[sequence & message_mask_] = {std::exchange(next_parent_, nullptr), {}, 0};
}

void Connection::begin_net_event(const NetEvent& event) {
  ProfiledMessage& profiled = profiled_[event.sequence & message_mask_];
  if (net_events_ == nullptr || profiled.net_event_count == kMaxNetEvents) return;
  void* const begun = net_events_->begin(profiled.parent, event);
  if (begun != nullptr) profiled.net_events[profiled.net_event_count++] = begun;
}

void Connection::end_net_events(Message& message, uint32_t sequence) {
  const ProfiledMessage& profiled = profiled_[sequence & message_mask_];
  for (size_t i = 0; i < profiled.net_event_count; ++i) net_events_->end(profiled.net_events[i]);
  message.is_profiled = false;
}

Totals Connection::read(const std::string& peer) const {
  Totals totals;
  const EndKey end{labels_.direction, peer};
  uint64_t done = 0;
  for (size_t place = 0; place <= labels_.rails.size(); ++place) {
    const RailKey rail{end, rail_name(place)};
    for (size_t p = 0; p < kPaths; ++p) {
      const PathKey key{rail, static_cast<Path>(p)};
      const PathCounters& path = paths_[place * kPaths + p];
      if (const uint64_t messages = path.messages.read(); messages != 0) {
        PathTotals& to = totals.messages[key];
        to.messages = messages;
        done += messages;
        to.bytes = path.bytes.read();
        for (size_t b = 0; b < kBuckets; ++b) to.latency[b] = path.latency.counts[b].read();
        to.latency_sum_ns = path.latency.sum_ns.read();
      }
      if (place == labels_.rails.size()) continue;
      const ChunkCounters& chunks = rails_[place].chunks[p];
      if (chunks.chunks.read() != 0) totals.chunks[key] = {chunks.chunks.read(), chunks.bytes.read()};
    }
    if (place != labels_.rails.size())
      totals.rails[rail] = {rails_[place].failures.read(), rails_[place].revivals.read()};
  }
  const uint64_t posted = posted_.read();  // read after `done`, so that it is usually not below it
  totals.ends[end] = {stalls_.read(), replayed_chunks_.read(), failures_.read(),
                      posted < done ? 0 : posted - done, 1};
  return totals;
}

}  // namespace verbena::observe
