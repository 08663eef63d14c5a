#include "protocol/datagram/simulation/baseline.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace verbena::protocol::datagram::sim {
namespace {

constexpr int64_t kTimeoutNs = 500'000;
constexpr uint32_t kWindowPackets = 256;  // of all queue pairs of a flow
constexpr uint32_t kChunkPackets = 16;    // 64 KiB
constexpr uint32_t kChunksInFlight = 8;   // of a flow: two of each of four engines
constexpr uint32_t kDataBytes = 4096, kWireBytes = 4182, kAckBytes = 90;

// What travels: data, or its acknowledgement.
struct Note {
  uint32_t stream;
  uint32_t number;  // of a packet; of an acknowledgement: what is expected next
  uint32_t chunk_index = 0;
  bool is_ack, is_nak = false;
};

// One queue pair, or one path's place for a chunk.
struct Stream {
  uint32_t flow = 0, source = 0, target = 0, label = 0;
  // Sender.
  uint64_t to_send = 0;  // packets in all
  uint32_t next = 0, acked = 0, window = kWindowPackets;
  int64_t last_heard_ns = 0;
  // Receiver.
  uint32_t expected = 0;
  bool has_naked = false;
};

// A chunk of kChunks.
struct Chunk {
  uint32_t number = 0, label = 0, generation = 0;
  uint32_t arrived = 0;  // packets, in order
  bool is_broken = false, is_done = false;
  int64_t sent_ns = 0;
};

struct FlowState {
  uint32_t source = 0, target = 0;
  std::vector<uint32_t> streams;
  uint64_t measured_bytes = 0;
  // kChunks.
  std::deque<Chunk> chunks;
  uint32_t first_chunk = 0, next_chunk = 0;
  // When each message's last packet of each stream arrived.
  uint64_t messages_done = 0;
};

class Model {
 public:
  Model(const Scenario& scenario, Baseline baseline)
      : scenario_(scenario),
        baseline_(baseline),
        random_(scenario.seed),
        fabric_(scenario.shape, scenario.temper, scenario.seed * 3 + 1, events_,
                {.deliver = [this](const Parcel& parcel) { arrive(parcel); },
                 .discard = [this](uint32_t owner) { free_.push_back(owner); },
                 .duplicate =
                     [this](uint32_t owner) {
                       const uint32_t copy = put(notes_[owner]);
                       return copy;
                     }},
                0) {}

  Report run();

 private:
  enum EventKind : uint32_t { kFabricEvent, kSend, kTimer, kAction };

  uint32_t put(const Note& note) {
    if (free_.empty()) {
      notes_.push_back(note);
      return static_cast<uint32_t>(notes_.size() - 1);
    }
    const uint32_t id = free_.back();
    free_.pop_back();
    notes_[id] = note;
    return id;
  }
  void post(uint32_t source, uint32_t target, uint32_t label, uint32_t bytes, const Note& note) {
    fabric_.send({.source = source,
                  .target = target,
                  .label = label,
                  .bytes = bytes,
                  .owner = put(note),
                  .plane = 0,
                  .is_marked = false,
                  .is_damaged = false,
                  .hops = 0},
                 now_ns_);
  }
  bool has_room(uint32_t host) {
    return fabric_.busy_until_ns(host, 0) - now_ns_ < 32 * fabric_.packet_ns(kWireBytes);
  }
  void arrive(const Parcel& parcel);
  void arrive_in_order(const Parcel& parcel, const Note& note);
  void arrive_chunk(const Parcel& parcel, const Note& note);
  void pump(uint32_t host);
  bool pump_stream(Stream& stream, uint32_t id);
  bool pump_chunks(uint32_t flow);
  void send_chunk(uint32_t flow, Chunk& chunk);
  void want_pump(uint32_t host, int64_t at_ns) {
    if (at_ns >= pump_at_[host]) return;
    pump_at_[host] = at_ns;
    events_.add({at_ns, static_cast<uint32_t>(kSend) << 28 | host, 0});
  }
  void check_timeouts();
  void count(uint32_t flow, uint32_t bytes) {
    if (is_measuring_) flows_[flow].measured_bytes += bytes;
    received_bytes_ += bytes;
  }

  const Scenario& scenario_;
  Baseline baseline_;
  Random random_;
  EventQueue events_;
  std::vector<Note> notes_;
  std::vector<uint32_t> free_;
  Fabric fabric_;
  int64_t now_ns_ = 0;
  std::vector<FlowState> flows_;
  std::vector<Stream> streams_;
  std::vector<std::vector<uint32_t>> flows_of_;  // by source
  std::vector<uint32_t> turn_;
  std::vector<int64_t> pump_at_;
  std::vector<std::function<void()>> actions_;
  bool is_measuring_ = false;
  uint64_t received_bytes_ = 0;
};

void Model::arrive(const Parcel& parcel) {
  const Note note = notes_[parcel.owner];
  free_.push_back(parcel.owner);
  if (parcel.is_damaged) return;
  baseline_ == Baseline::kChunks ? arrive_chunk(parcel, note) : arrive_in_order(parcel, note);
}

void Model::arrive_in_order(const Parcel& parcel, const Note& note) {
  Stream& stream = streams_[note.stream];
  if (note.is_ack) {
    stream.last_heard_ns = now_ns_;
    if (static_cast<int32_t>(note.number - stream.acked) > 0) stream.acked = note.number;
    if (note.is_nak) stream.next = note.number;
    return want_pump(stream.source, now_ns_);
  }
  const auto ahead = static_cast<int32_t>(note.number - stream.expected);
  Note answer{note.stream, stream.expected, 0, true};
  if (ahead == 0) {
    ++stream.expected;
    stream.has_naked = false;
    count(stream.flow, kDataBytes);
    answer.number = stream.expected;
    if (stream.expected % 8 != 0 && stream.expected != stream.to_send)
      return;  // acknowledgements are coalesced
  } else if (ahead > 0) {
    if (std::exchange(stream.has_naked, true)) return;
    answer.is_nak = true;
  }
  post(parcel.target, parcel.source, stream.label, kAckBytes, answer);
}

// A message of an unreliable connection is lost with its first packet that is missing or out of order.
void Model::arrive_chunk(const Parcel& parcel, const Note& note) {
  FlowState& flow = flows_[note.stream];
  const uint32_t number = note.number & 0xFFFFFF, generation = note.number >> 24;
  if (number < flow.first_chunk || number >= flow.next_chunk) return;
  Chunk& chunk = flow.chunks[number - flow.first_chunk];
  if (note.is_ack) {
    chunk.is_done = true;
    while (!flow.chunks.empty() && flow.chunks.front().is_done) flow.chunks.pop_front(), ++flow.first_chunk;
    return want_pump(flow.source, now_ns_);
  }
  if (chunk.is_done || (chunk.generation & 0xFF) != generation) return;
  if (note.chunk_index == 0) chunk.arrived = 0, chunk.is_broken = false;
  if (note.chunk_index != chunk.arrived) chunk.is_broken = true;
  if (chunk.is_broken) return;
  if (++chunk.arrived != kChunkPackets) return;
  count(note.stream, kChunkPackets * kDataBytes);
  post(parcel.target, parcel.source, parcel.label, kAckBytes, {note.stream, note.number, 0, true});
}

bool Model::pump_stream(Stream& stream, uint32_t id) {
  if (stream.next - stream.acked >= stream.window || stream.next >= stream.to_send) return false;
  if (stream.next == stream.acked) stream.last_heard_ns = now_ns_;
  post(stream.source, stream.target, stream.label, kWireBytes, {id, stream.next++, 0, false});
  return true;
}

void Model::send_chunk(uint32_t id, Chunk& chunk) {
  FlowState& flow = flows_[id];
  chunk.label = static_cast<uint32_t>(random_.next() % 32);
  chunk.sent_ns = now_ns_;
  ++chunk.generation;
  for (uint32_t i = 0; i < kChunkPackets; ++i)
    post(flow.source, flow.target, id * 64 + chunk.label, kWireBytes,
         {id, chunk.number | (chunk.generation & 0xFF) << 24, i, false});
}

bool Model::pump_chunks(uint32_t id) {
  FlowState& flow = flows_[id];
  if (flow.next_chunk - flow.first_chunk >= kChunksInFlight) return false;
  flow.chunks.push_back({.number = flow.next_chunk++});
  send_chunk(id, flow.chunks.back());
  return true;
}

void Model::pump(uint32_t host) {
  auto& flows = flows_of_[host];
  if (flows.empty()) return;
  for (size_t idle = 0; idle < flows.size() && has_room(host);) {
    const uint32_t id = flows[turn_[host]++ % flows.size()];
    bool has_sent = false;
    if (baseline_ == Baseline::kChunks) {
      has_sent = pump_chunks(id);
    } else {
      for (const uint32_t s : flows_[id].streams) has_sent = pump_stream(streams_[s], s) || has_sent;
    }
    idle = has_sent ? 0 : idle + 1;
  }
  if (!has_room(host)) want_pump(host, fabric_.busy_until_ns(host, 0) - 16 * fabric_.packet_ns(kWireBytes));
}

void Model::check_timeouts() {
  if (baseline_ == Baseline::kChunks) {
    for (uint32_t f = 0; f < flows_.size(); ++f) {
      auto& chunks = flows_[f].chunks;
      const auto oldest =
          std::find_if(chunks.begin(), chunks.end(), [](const Chunk& chunk) { return !chunk.is_done; });
      if (oldest != chunks.end() && now_ns_ - oldest->sent_ns >= kTimeoutNs)
        send_chunk(f, *oldest);  // the oldest alone
    }
  } else {
    for (Stream& stream : streams_) {
      if (stream.next == stream.acked || now_ns_ - stream.last_heard_ns < kTimeoutNs ||
          scenario_.shape.is_lossless)
        continue;
      stream.next = stream.acked;
      stream.last_heard_ns = now_ns_;
      want_pump(stream.source, now_ns_);
    }
  }
  events_.add({now_ns_ + 50'000, static_cast<uint32_t>(kTimer) << 28, 0});
}

Report Model::run() {
  const uint32_t hosts = scenario_.shape.hosts();
  flows_of_.resize(hosts);
  turn_.resize(hosts);
  pump_at_.assign(hosts, kNeverNs);
  const uint32_t pairs = baseline_ == Baseline::kFourPairs ? 4 : 1;
  for (const auto& [source, target] : pair_up(scenario_, random_)) {
    const auto id = static_cast<uint32_t>(flows_.size());
    flows_.emplace_back();
    flows_[id].source = source;
    flows_[id].target = target;
    flows_of_[source].push_back(id);
    for (uint32_t p = 0; p < pairs && baseline_ != Baseline::kChunks; ++p) {
      flows_[id].streams.push_back(static_cast<uint32_t>(streams_.size()));
      streams_.push_back({.flow = id,
                          .source = source,
                          .target = target,
                          .label = static_cast<uint32_t>(random_.next()),
                          .to_send = UINT32_MAX / 2,
                          .window = kWindowPackets / pairs});
    }
  }
  if (scenario_.fault == "spine") events_.add({scenario_.fault_ns, static_cast<uint32_t>(kAction) << 28, 0});
  for (uint32_t host = 0; host < hosts; ++host) want_pump(host, 0);
  events_.add({50'000, static_cast<uint32_t>(kTimer) << 28, 0});
  const int64_t end_ns = scenario_.warm_ns + scenario_.run_ns;
  Report report;
  uint64_t before = 0;
  int64_t bin_end_ns = scenario_.bin_ns;
  const double line_rate = scenario_.shape.gigabits / 8 * kDataBytes / scenario_.shape.full_bytes;
  std::vector<bool> is_target(hosts);
  for (const FlowState& flow : flows_) is_target[flow.target] = true;
  const double capacity =
      line_rate * static_cast<double>(std::count(is_target.begin(), is_target.end(), true));
  while (!events_.is_empty()) {
    const Event event = events_.take();
    if (event.at_ns > end_ns) break;
    now_ns_ = event.at_ns;
    ++report.events;
    while (now_ns_ >= bin_end_ns) {
      report.bins.push_back(static_cast<double>(received_bytes_ - before) /
                            static_cast<double>(scenario_.bin_ns) / capacity);
      before = received_bytes_;
      bin_end_ns += scenario_.bin_ns;
    }
    is_measuring_ = now_ns_ >= scenario_.warm_ns;
    switch (event.kind_and_place >> 28) {
      case kFabricEvent:
        fabric_.on_event(event);
        break;
      case kSend: {
        const uint32_t host = event.kind_and_place & 0x0FFFFFFF;
        if (pump_at_[host] != event.at_ns) break;
        pump_at_[host] = kNeverNs;
        pump(host);
        break;
      }
      case kTimer:
        check_timeouts();
        break;
      default:
        fabric_.set_spine(0, 0, 0, true, false);
    }
  }
  double sum = 0, squares = 0, least = 1e300, most = 0;
  for (const FlowState& flow : flows_) {
    const auto bytes = static_cast<double>(flow.measured_bytes);
    sum += bytes, squares += bytes * bytes;
    least = std::min(least, bytes), most = std::max(most, bytes);
  }
  report.goodput = sum / static_cast<double>(scenario_.run_ns) / capacity;
  if (sum > 0) report.jain = sum * sum / (static_cast<double>(flows_.size()) * squares);
  report.least = sum > 0 ? least : 0;
  report.most = most;
  report.dropped = fabric_.dropped();
  report.last_hop_queue = fabric_.take_longest_queue(flows_.empty() ? 0 : flows_[0].target);
  report.core_queue = fabric_.longest_core_queue();
  return report;
}

}  // namespace

const char* describe(Baseline baseline) {
  switch (baseline) {
    case Baseline::kOnePair:
      return "one queue pair";
    case Baseline::kFourPairs:
      return "four queue pairs";
    case Baseline::kChunks:
      return "chunks of 64 KiB";
  }
  return "?";
}

Report run_baseline(const Scenario& scenario, Baseline baseline) {
  return Model(scenario, baseline).run();
}

}  // namespace verbena::protocol::datagram::sim
