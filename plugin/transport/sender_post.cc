// From a posted message to work requests: which path, which queue pair carries what, and the posting itself.
#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "transport/advice.h"
#include "transport/sender.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kPostBatch = 16;  // work requests in one chain
constexpr uint64_t kUnlimitedBytes = UINT64_MAX / (2 * protocol::kMaxQueuePairs);

using protocol::kMessageRing;

}  // namespace

void Sender::observe_chunk(const SendMessage& message, uint32_t queue_pair, uint32_t bytes) {
  if (observed_ == nullptr) return;
  const bool is_staged = message.path == SendMessage::Path::kStaged;
  observed_->note_chunk(message.sequence, is_staged ? observe::Path::kStaged : observe::Path::kDirect,
                        link_.rail_of(queue_pair), link_.pair(queue_pair).number(), bytes);
}

// One signaled work request, the last of what it stands for.
inline void Sender::note_posted(SendMessage& message, uint32_t queue_pair, uint32_t bytes) {
  ++message.outstanding[queue_pair];
  statistics_.sent_rail_bytes[link_.rail_of(queue_pair)] += bytes;
  if (is_watched_) [[unlikely]]
    observe_chunk(message, queue_pair, bytes);
  if (!has_choice_) return;
  // Some devices move what they are given before post() returns. Short messages go without a clock.
  if (bytes >= protocol::RailRate::kSampleBytes) now_ns_ = base::monotonic_ns();
  share_.note_posted(queue_pair, bytes, now_ns_);
}

inline bool Sender::is_for_home(const SendMessage& message, uint64_t chunks) {
  return !has_choice_ ||
         (share_.is_for_home(message.length_bytes) && count_free(message, peer_.home) >= chunks);
}

// Decided once: whatever a queue pair cannot take yet waits for its credits, which always come, as nothing
// that is posted waits for this message, and no share is more than staged_limit. False: no queue pair lives.
[[gnu::always_inline]] inline bool Sender::cut(SendMessage& message) {
  const bool is_staged = message.path == SendMessage::Path::kStaged;
  const uint64_t chunk_bytes = is_staged ? peer_.page_bytes : protocol::kMaxStripeBytes;
  message.is_whole = message.length_bytes <= chunk_bytes && is_for_home(message, 1);
  message.whole_on = static_cast<uint8_t>(peer_.home);
  if (message.is_whole) return true;
  if (!recovery_.is_any_live()) return false;
  const uint32_t page_bytes = is_staged ? peer_.page_bytes : 0;
  const uint64_t chunks = is_staged ? protocol::count_pages(message.length_bytes, page_bytes) : 1;
  if (is_for_home(message, chunks)) {
    message.cut.start_one(message.length_bytes, page_bytes, peer_.home);
    return true;
  }
  now_ns_ = base::monotonic_ns();
  const uint32_t unit_bytes = is_staged ? page_bytes : protocol::kDirectAlignBytes;
  message.cut.start(message.length_bytes, page_bytes,
                    share_.split(message.length_bytes, unit_bytes, find_room(message, unit_bytes), now_ns_));
  return true;
}

// The work request of one chunk, signaled.
[[gnu::always_inline]] inline verbs::WorkRequest Sender::make_request(const SendMessage& message,
                                                                      uint32_t queue_pair,
                                                                      const protocol::Chunk& chunk) const {
  const bool is_direct = message.path == SendMessage::Path::kDirect;
  return {.opcode = is_direct ? verbs::Opcode::kWriteImm : verbs::Opcode::kSendImm,
          .signaled = true,
          .imm = protocol::encode_tag(
              {static_cast<uint16_t>(message.sequence), chunk.index, chunk.last, is_direct}),
          .cookie = make_send_cookie(message.sequence, chunk.length_bytes),
          .local = message.data + chunk.offset_bytes,
          .local_key =
              message.memory == nullptr ? 0 : message.memory->regions[link_.rail_of(queue_pair)].local_key(),
          .length = chunk.length_bytes,
          .remote_key = is_direct ? message.grant.remote_keys[peer_.rail_of[queue_pair]] : 0,
          .remote = is_direct ? message.grant.address + chunk.offset_bytes : 0};
}

[[gnu::always_inline]] inline base::Outcome Sender::post_whole(SendMessage& message) {
  const uint32_t q = message.whole_on;
  if (count_free(message, q) == 0) return {};
  const auto length = static_cast<uint32_t>(message.length_bytes);
  const verbs::WorkRequest request = make_request(message, q, {0, length, 0, true});
  credits_.take(q);
  note_posted(message, q, length);
  message.is_posted = true;
  auto outcome = link_.pair(q).post(request);
  return outcome ? outcome : fail_post(q);
}

inline bool Sender::decide_path(SendMessage& message) {
  if (message.length_bytes <= (message.may_stage ? max_staged_bytes_ : 0)) {  // nothing needs no place
    message.path = SendMessage::Path::kStaged;
    return true;
  }
  if (!control_.read_grant(message.sequence, message.grant)) return false;
  message.path = SendMessage::Path::kDirect;
  return true;
}

// Credits ride on the grants of a connection where nothing is staged; a note makes up for those before it.
inline base::Outcome Sender::take_note(const SendMessage& message) {
  if (peer_.staging) return {};
  if (protocol::is_before(next_note_, message.sequence + 1)) next_note_ = message.sequence + 1;
  return absorb_note(message.grant.note);
}

inline base::Outcome Sender::post_chunks(SendMessage& message) {
  if (message.path == SendMessage::Path::kUndecided) {
    if (is_too_far_ahead(message) || !decide_path(message)) return {};
    if (message.path == SendMessage::Path::kDirect) {
      if (message.grant.length_bytes < message.length_bytes) return fail_grant(message);
      if (auto outcome = take_note(message); !outcome) return outcome;
    }
    if (!cut(message)) {
      message.path = SendMessage::Path::kUndecided;
      return {};
    }
  }
  if (message.is_whole) return post_whole(message);
  auto outcome = message.path == SendMessage::Path::kStaged ? post_staged(message) : post_direct(message);
  message.is_posted = message.cut.is_empty() && !has_replays(message);
  return outcome;
}

// In order. The functions above are its parts, in one frame: this is what every message takes.
base::Outcome Sender::post_waiting() {
  if (has_any_replays()) [[unlikely]]
    return {};  // they come first: what is new could take what they need
  while (posting_ != next_) {
    SendMessage& message = ring_[posting_ % kMessageRing];
    if (may_lack_credits(message)) [[unlikely]] {
      if (auto outcome = absorb_credits(); !outcome) return outcome;
    }
    if (auto outcome = post_chunks(message); !outcome) return outcome;
    if (!message.is_posted) break;
    ++posting_;
  }
  return {};
}

base::Outcome Sender::fail_grant(const SendMessage& message) {
  return stick(base::fail(base::Status::kInvalidUsage,
                          "send to %s: message %u is longer than its receive (%llu bytes, room %llu bytes)%s",
                          channel_->peer().c_str(), message.sequence,
                          static_cast<unsigned long long>(message.length_bytes),
                          static_cast<unsigned long long>(message.grant.length_bytes), kLengthAdvice));
}

// A short message should leave at once: over any queue pair that can take it, rather than wait for its home.
protocol::Shares Sender::find_room(const SendMessage& message, uint32_t unit_bytes) {
  const bool is_staged = message.takes_pages();
  protocol::Shares now{}, later{};
  uint64_t sum_now = 0;
  for (uint32_t q = 0; q < link_.queue_pairs(); ++q) {
    const uint64_t free = count_free(message, q);
    const uint64_t unlimited = recovery_.is_live(q) ? kUnlimitedBytes : 0;
    later[q] = is_staged ? uint64_t{staged_limit(q)} * unit_bytes : unlimited;
    now[q] = is_staged ? std::min(free * unit_bytes, later[q]) : free != 0 ? unlimited : 0;
    sum_now += now[q];
  }
  const bool leaves_now =
      share_.is_short(message.length_bytes) && sum_now >= std::max<uint64_t>(1, message.length_bytes);
  return leaves_now ? now : later;
}

// As far as credits and send queues reach.
base::Outcome Sender::post_staged(SendMessage& message) {
  for (uint32_t q = 0; q < link_.queue_pairs() && !message.cut.is_empty(); ++q) {
    uint32_t run = std::min(message.cut.left_chunks(q), count_free(message, q));
    while (run != 0) {
      const uint32_t batch = std::min(run, kPostBatch);
      if (auto outcome = post_staged_run(message, q, batch); !outcome) return outcome;
      run -= batch;
    }
  }
  return {};
}

base::Outcome Sender::post_staged_run(SendMessage& message, uint32_t queue_pair, uint32_t count) {
  verbs::WorkRequest requests[kPostBatch];
  uint32_t bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const protocol::Chunk chunk = message.cut.take(queue_pair);
    bytes += chunk.length_bytes;
    requests[i] = make_request(message, queue_pair, chunk);
    requests[i].signaled = i + 1 == count;
    requests[i].cookie = make_send_cookie(message.sequence, bytes);
    credits_.take(queue_pair);
  }
  note_posted(message, queue_pair, bytes);
  auto outcome = link_.pair(queue_pair).post({requests, count});
  return outcome ? outcome : fail_post(queue_pair);
}

base::Outcome Sender::post_direct(SendMessage& message) {
  for (uint32_t q = 0; q < link_.queue_pairs() && !message.cut.is_empty(); ++q) {
    while (message.cut.left_bytes(q) != 0 && count_free(q) != 0) {
      if (auto outcome = post_chunk(message, q, message.cut.take(q)); !outcome) return outcome;
    }
  }
  return {};
}

base::Outcome Sender::post_chunk(SendMessage& message, uint32_t queue_pair, const protocol::Chunk& chunk) {
  return post_one(message, queue_pair, make_request(message, queue_pair, chunk));
}

// What was to be staged goes to its place instead: no page may be free until it is there. It keeps its
// number.
base::Outcome Sender::post_again(SendMessage& message, uint32_t queue_pair, const protocol::Chunk& chunk) {
  verbs::WorkRequest request = make_request(message, queue_pair, chunk);
  if (chunk.length_bytes != 0) {
    request.opcode = verbs::Opcode::kWriteImm;
    request.remote_key = message.grant.remote_keys[peer_.rail_of[queue_pair]];
    request.remote = message.grant.address + chunk.offset_bytes;
  }
  return post_one(message, queue_pair, request);
}

inline base::Outcome Sender::post_one(SendMessage& message, uint32_t queue_pair,
                                      const verbs::WorkRequest& request) {
  credits_.take(queue_pair);
  note_posted(message, queue_pair, request.length);
  auto outcome = link_.pair(queue_pair).post(request);
  return outcome ? outcome : fail_post(queue_pair);
}

}  // namespace verbena::transport
