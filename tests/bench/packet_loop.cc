// What a packet of datagrams costs the two ends that decide about it (protocol/datagram): messages from one
// engine to another in one process, over a port that does next to nothing. Each kind of call has a function
// of its own, whose instructions packet_costs_test.py counts.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "protocol/datagram/engine_core.h"

namespace verbena::protocol::datagram {
namespace {

constexpr uint32_t kPacketBytes = 3'968, kChannels = 4, kMessagesAtOnce = 2;
constexpr int64_t kPacketTime_ns = 80;  // of a line of 400 Gb/s

struct Data {
  OutPacket packet;
  uint16_t channel;
  Place place;
  uint32_t length_bytes, page;
};

class End : public EngineCore<End> {
 public:
  explicit End(const EngineOptions& options) : EngineCore(*this, options) {}

  int64_t now_ns() const { return now; }
  uint32_t rooms() const { return data.size() < kQueue ? 1 : 0; }
  uint32_t live_rails() const { return 1; }
  uint32_t post_data(uint32_t, const OutPacket& packet) {
    Data one{packet, kNoChannel, {}, 0, 0};
    if (packet.message != kNoObject) {
      const SendMessage& message = send_message(packet.message);
      const uint64_t left_bytes = message.length_bytes - uint64_t{packet.index} * kPacketBytes;
      one.channel = send_channel(message.channel).wire;
      one.place = {static_cast<uint16_t>(message.number % kMessageNumbers), packet.index};
      one.length_bytes = static_cast<uint32_t>(left_bytes < kPacketBytes ? left_bytes : kPacketBytes);
    }
    data.push_back(one);
    return 0;
  }
  bool has_left(uint32_t, Stamp& when) const {
    when = make_stamp(now);
    return true;
  }
  bool has_room_for_ack(uint32_t) const { return true; }
  void post_ack(uint32_t, uint32_t, const Ack& ack) { acks.push_back(ack); }
  void post_request(uint32_t, uint32_t, std::span<const Wish> some) {
    wishes.insert(wishes.end(), some.begin(), some.end());
  }
  void post_pages(uint32_t, PageQueue, uint32_t) {}
  // Done when messages end.
  void put_back(uint32_t) {}
  bool copy_page(uint32_t message, uint32_t, uint64_t, uint32_t) {
    moves.push_back(message);
    return false;
  }
  void note_sent(uint32_t message) { sent.push_back(message); }
  void note_received(uint32_t message) { received.push_back(message); }
  void note_silent(uint32_t) { std::abort(); }
  void note_stuck(uint32_t, uint32_t) { std::abort(); }

  static constexpr size_t kQueue = 64;
  int64_t now = 1'000'000;
  std::vector<Data> data;
  std::vector<Ack> acks;
  std::vector<Wish> wishes;
  std::vector<uint32_t> moves;  // a message for each page
  std::vector<uint32_t> sent, received;
};

EngineOptions make_options() {
  EngineOptions options;
  options.pages.pages = 16'384;
  return options;
}

End left(make_options()), right(make_options());
uint32_t there, here, sending[kChannels], receiving[kChannels];

}  // namespace

// Names that a profiler finds.
#define BENCH extern "C" __attribute__((noinline, used)) void
BENCH bench_packets_leave() {
  left.tick(left.now);
  left.pump();
}
BENCH bench_packets_arrive() {
  for (const Data& one : left.data) {
    const Placed placed = right.on_data(
        here, {.page = one.page,
               .psn = one.packet.psn,
               .channel = one.channel,
               .place = one.place,
               .backlog = one.packet.backlog,
               .took_credit = one.packet.took_credit,
               .is_last = one.packet.is_last,
               .asks = one.packet.asks,
               .path = one.packet.path,
               .was_marked = false,
               .rail = 0,
               .queue = one.packet.kind == PacketKind::kGranted ? PageQueue::kGranted : PageQueue::kEager,
               .time = make_stamp(left.now),
               .length_bytes = one.length_bytes});
    if (placed.verdict != Verdict::kTaken) std::abort();
  }
}
BENCH bench_answers_leave() {
  right.tick(right.now);
  right.pump();
}
BENCH bench_answers_arrive() {
  for (const Ack& ack : right.acks)
    left.on_ack(there, ack.cumulative, ack.base, ack.body, {ack.grants.data(), ack.grant_count});
}
BENCH bench_messages_begin(uint32_t channel, uint64_t length_bytes) {
  const uint32_t id = right.post(receiving[channel], length_bytes, 2'048);
  if (id == kNoObject) std::abort();
  right.settle(id);
  left.send(sending[channel], length_bytes);
}
BENCH bench_messages_end() {
  for (const uint32_t message : right.moves) right.note_moved(message, 1);
  right.moves.clear();
  for (const uint32_t message : left.sent) left.forget(message);
  for (const uint32_t message : right.received) right.release(message);
}

}  // namespace verbena::protocol::datagram

int main(int argc, char** argv) {
  using namespace verbena::protocol::datagram;
  if (argc != 3) return std::fputs("usage: packet_loop MESSAGES BYTES\n", stderr), 2;
  const uint64_t messages = std::strtoull(argv[1], nullptr, 10), bytes = std::strtoull(argv[2], nullptr, 10);
  for (End* const end : {&left, &right}) {
    end->add_idle(make_options().pages.pages);
    end->data.reserve(2 * End::kQueue);
    end->acks.reserve(2 * End::kQueue);
  }
  there = left.add_peer(~0U, kPacketBytes);
  here = right.add_peer(~0U, kPacketBytes);
  for (uint32_t i = 0; i < kChannels; ++i) {
    sending[i] = left.open_send(there, static_cast<uint16_t>(i));
    receiving[i] = right.open_receive(here, static_cast<uint16_t>(i));
  }
  right.pump();
  left.pump();
  uint64_t begun = 0, ended = 0;
  uint32_t page = 0;
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t rounds = 0; ended < messages; ++rounds) {
    if (rounds > messages * (bytes / kPacketBytes + 100)) return std::fputs("it stands still\n", stderr), 1;
    for (; begun < messages && begun - ended < kChannels * kMessagesAtOnce; ++begun)
      bench_messages_begin(static_cast<uint32_t>(begun % kChannels), bytes);
    bench_packets_leave();
    for (Data& one : left.data) one.page = page++ % make_options().pages.pages;
    bench_packets_arrive();
    left.now = right.now += static_cast<int64_t>(left.data.size() + 1) * kPacketTime_ns;
    if (!left.wishes.empty()) right.on_request(here, left.wishes);
    left.data.clear();
    left.wishes.clear();
    bench_answers_leave();
    bench_answers_arrive();
    right.acks.clear();
    bench_messages_end();
    ended += right.received.size();
    left.sent.clear();
    right.received.clear();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const uint64_t packets = left.statistics().sent_packets;
  std::printf("packets %llu, again %llu, %.1f million a second and core\n",
              static_cast<unsigned long long>(packets),
              static_cast<unsigned long long>(left.statistics().resent_packets),
              static_cast<double>(packets) / seconds.count() / 1e6);
  return 0;
}
