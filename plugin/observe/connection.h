// Observes one end of a connection: counters, latencies, its last events. It exists only if a setting asks
// for it; otherwise the transport has a null pointer and tests nothing else.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "observe/counter.h"
#include "observe/flight_recorder.h"
#include "observe/net_events.h"
#include "observe/totals.h"

namespace verbena::observe {

inline constexpr uint32_t kMaxRails = 8;
// Open messages of a connection at a time; their numbers differ modulo this.
inline constexpr uint32_t kOpenMessages = 32;

struct Labels {
  Direction direction = Direction::kSend;
  std::string peer;                // `10.0.0.7:51514`
  std::vector<std::string> rails;  // `mlx5_0:1`; at most kMaxRails
};

// The rails that carried a message in packets, one bit each.
struct Carried {
  uint8_t rails = 0;
  uint16_t resent = 0;  // packets
};

class Connection {
 public:
  // `open_messages`: a power of two.
  Connection(Labels labels, uint32_t trace_events, uint32_t open_messages = kOpenMessages);

  // --- For the thread that has the connection's progress token; nothing here allocates or locks.
  // Makes this event of NCCL's profiler the parent of the next message.
  void name_parent(void* parent) { next_parent_ = parent; }
  void note_post(uint32_t sequence, uint64_t bytes, uint32_t qp_number);
  // Call it when the call that posted a message returns. Events before that get the time of the post, because
  // reading the clock may take longer than the call.
  void end_post() { call_ns_ = 0; }
  void note_grant(uint32_t sequence);
  // Records a work request, or a chain of work requests that completes as one.
  void note_chunk(uint32_t sequence, Path path, uint32_t rail, uint32_t qp_number, uint64_t bytes);
  void note_done(uint32_t sequence, uint64_t bytes);

  // --- For messages in packets. The thread that posts messages and finds them done calls note_post() and the
  // first two functions, without a token. The thread with the packets' token calls the others. The two
  // threads write to disjoint data.
  void begin_whole(uint32_t sequence, uint64_t bytes, uint32_t qp_number);
  void note_done(uint32_t sequence, uint64_t bytes, const Carried& carried);
  void note_packet(uint32_t rail, uint64_t bytes, bool is_resent) {
    ChunkCounters& chunks = rails_[rail].chunks[static_cast<size_t>(Path::kStaged)];
    chunks.chunks.add(1);
    chunks.bytes.add(bytes);
    if (is_resent) replayed_chunks_.add(1);
  }
  void count_rail(uint32_t rail, bool is_up) {
    (is_up ? rails_[rail].revivals : rails_[rail].failures).add(1);
  }

  // --- As above.
  void note_consumed(uint32_t sequence);
  void note_flush(uint32_t number);
  void note_flush_done(uint32_t number);
  void note_rail_down(uint32_t rail, uint32_t queue_pair);
  void note_rail_up(uint32_t rail, uint32_t queue_pair);
  void note_replay(uint32_t sequence, uint32_t rail, uint64_t bytes);
  void note_stall(int64_t waited_ns);
  void note_failed();

  // --- Before the first message.
  void serve(NetEvents* net_events) { net_events_ = net_events; }

  // --- Any thread.
  const Labels& labels() const { return labels_; }
  uint64_t id() const { return id_; }
  void set_id(uint64_t id) { id_ = id; }  // once, before other threads know the object
  const FlightRecorder& recorder() const { return recorder_; }
  // The counts of this end, under the name `peer`.
  Totals read(const std::string& peer) const;

 private:
  static constexpr uint8_t kNoRail = 0xFF;
  static constexpr size_t kMaxNetEvents = 8;  // of one message; further work requests are not reported
  static constexpr size_t kPaths = 2;

  // Moving a message in host memory has just filled the caches, so counting it should touch few cache lines.
  // Latencies below 16 us are in the first line of their path.
  static constexpr size_t kLineBytes = 64;

  struct Message {
    int64_t posted_ns = 0;
    uint8_t rail = kNoRail;  // kMaxRails: several
    Path path = Path::kStaged;
    bool is_profiled = false;  // reported to NCCL's profiler: see profiled_
  };
  struct ProfiledMessage {
    void* parent = nullptr;
    std::array<void*, kMaxNetEvents> net_events{};
    size_t net_event_count = 0;
  };
  struct alignas(kLineBytes) PathCounters {
    Counter messages, bytes;
    Histogram latency;
  };
  struct ChunkCounters {
    Counter chunks, bytes;
  };
  struct alignas(kLineBytes) RailCounters {
    std::array<ChunkCounters, kPaths> chunks;
    Counter failures, revivals;
  };

  Message& message(uint32_t sequence) { return messages_[sequence & message_mask_]; }
  PathCounters& counters(uint8_t rail, Path path) {
    return paths_[std::min<size_t>(rail, rail_count_) * kPaths + static_cast<size_t>(path)];
  }
  std::string rail_name(size_t place) const {
    return place < labels_.rails.size() ? labels_.rails[place] : "several";
  }
  int64_t now_ns() const { return call_ns_ != 0 ? call_ns_ : base::monotonic_ns(); }
  void begin_profiled(uint32_t sequence);
  void begin_net_event(const NetEvent& event);
  void end_net_events(Message& message, uint32_t sequence);

  const Labels labels_;
  uint64_t id_ = 0;
  std::vector<ProfiledMessage> profiled_;
  NetEvents* net_events_ = nullptr;
  Counter stalls_, replayed_chunks_, failures_;

  // Members below are used for every message.
  alignas(kLineBytes) const size_t rail_count_;
  Counter posted_;
  void* next_parent_ = nullptr;
  int64_t call_ns_ = 0;              // 0: no post is under way
  std::vector<PathCounters> paths_;  // a rail and then a path each; after the rails: several
  alignas(kLineBytes) FlightRecorder recorder_;
  const uint32_t message_mask_;
  std::vector<Message> messages_;
  std::array<RailCounters, kMaxRails> rails_;
};

}  // namespace verbena::observe
