// Sent packets: data, acknowledgements, requests, close messages and greetings, each with its header, its tag
// or MAC, and its immediate.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hot_path.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/greeting_keys.h"

namespace verbena::transport::datagram {

using namespace protocol::datagram;

namespace {

// Adds a datagram with a tag, to a connected peer.
VERBENA_HOT_PATH void add_tagged(SendQueue& queue, const Peer& to, verbs::Datagram datagram,
                                 PacketHeader header, const Immediate& immediate,
                                 std::span<const uint8_t> body, uint32_t owner) {
  header.tag = make_tag(to.send_keys, header, immediate, body);
  std::byte* const place = queue.next_header();
  std::memcpy(place, &header, sizeof(header));
  if (!body.empty()) std::memcpy(place + sizeof(header), body.data(), body.size());
  datagram.imm = immediate.encode();
  datagram.header_length = static_cast<uint32_t>(sizeof(header) + body.size());
  datagram.header = place;
  queue.add(datagram, owner);
}

}  // namespace

uint32_t Engine::rooms() const {
  uint32_t rooms = 0;
  for (uint32_t i = 0; i < rails_.size(); ++i) rooms |= uint32_t{rails_[i]->has_room()} << i;
  return rooms & live_rails_;
}

VERBENA_HOT_PATH uint32_t Engine::post_data(uint32_t id, const OutPacket& packet) {
  const Peer& to = *peers_of_[id];
  Rail& rail = *rails_[core_.options().rail_of(packet.path)];
  const EngineRail& target = to.rail[packet.path % to.name.rails];
  const bool is_granted = packet.kind == PacketKind::kGranted;
  const bool is_short = !is_granted && to.name.has_short_pages != 0 && packet.message != kNoObject &&
                        core_.send_message(packet.message).packets == 1 &&
                        core_.send_message(packet.message).length_bytes <= kShortBytes;
  // Long packets of a message use the same queue pair consecutively, so that one call copies many of them.
  const uint32_t pair = is_short ? kGrantedPairs - 1
                        : pool_.has_long_pages()
                            ? 0
                            : choose_granted_pair(id, packet.path, core_.options().rails, to.name);
  const uint32_t mark = is_granted || is_short ? Rail::kFirstGrantedMark + pair : Rail::kEagerMark;
  SendQueue& queue = rail.pair(mark);
  const Immediate immediate{.slot = to.slot,
                            .path = packet.path,
                            .is_last = packet.is_last,
                            .asks = packet.asks,
                            .is_resent = packet.is_resent,
                            .kind = packet.kind};
  PacketHeader header{
      .tag = 0,
      .psn = packet.psn,
      .place = 0,
      .channel = kNoChannel,
      .backlog = static_cast<uint16_t>(packet.backlog | (packet.took_credit ? kTookCredit : 0)),
      .time = make_stamp(now_ns_)};
  verbs::Datagram datagram{.way = to.ways.find(packet.path),
                           .pair_number = is_granted || is_short ? target.granted[pair] : target.eager,
                           .key = to.name.queue_key};
  if (packet.message != kNoObject) [[likely]] {
    const protocol::datagram::SendMessage& message = core_.send_message(packet.message);
    SendRequest& request = *sends_of_[packet.message];
    const uint32_t data_bytes = core_.peer(id).data_bytes;
    const uint64_t offset = uint64_t{packet.index} * data_bytes;
    header.place = Place{static_cast<uint16_t>(message.number % kMessageNumbers), packet.index}.encode();
    header.channel = core_.send_channel(message.channel).wire;
    datagram.data_length =
        static_cast<uint32_t>(std::min<uint64_t>(message.length_bytes - offset, data_bytes));
    if (datagram.data_length != 0) {
      datagram.data = request.data + offset;
      datagram.data_key = request.memory->regions[core_.options().rail_of(packet.path)].local_key();
    }
    ++request.posted;
    request.rails |= static_cast<uint8_t>(1U << core_.options().rail_of(packet.path));
    if (packet.is_resent && request.resent != UINT16_MAX) ++request.resent;
    if (auto* observed = static_cast<SendEnd*>(request.owner)->observed(); observed != nullptr) [[unlikely]]
      observed->note_packet(core_.options().rail_of(packet.path), datagram.data_length, packet.is_resent);
  }
  const uint32_t number = core_.options().rail_of(packet.path) * Rail::kPairs + mark;
  const uint32_t index = queue.added() & ((1U << Departures::kIndexBits) - 1);
  add_tagged(queue, to, datagram, header, immediate, {}, packet.message);
  return number << Departures::kIndexBits | index;
}

bool Engine::has_left(uint32_t posted, Stamp& when) const {
  const uint32_t number = posted >> Departures::kIndexBits, rail = number / Rail::kPairs;
  return (live_rails_ >> rail & 1) == 0 ||
         rails_[rail]->pair(number % Rail::kPairs).departures().has_left(posted, when);
}

void Engine::post_control(uint32_t id, uint32_t path, PacketKind kind, PacketHeader header,
                          std::span<const uint8_t> body) {
  const Peer& to = *peers_of_[id];
  if (!to.is_met || to.is_gone()) return;
  Rail& rail = *rails_[core_.options().rail_of(path)];
  if (rail.control.room() == 0 || rail.is_given_up()) return;  // the sender of a control packet repeats it
  const Immediate immediate{.slot = to.slot,
                            .path = static_cast<uint8_t>(path),
                            .is_last = false,
                            .asks = false,
                            .is_resent = false,
                            .kind = kind};
  header.channel = kNoChannel;
  header.time = make_stamp(now_ns_);
  add_tagged(rail.control, to,
             {.way = to.ways.find(path),
              .pair_number = to.rail[path % to.name.rails].control,
              .key = to.name.queue_key},
             header, immediate, body, kNoObject);
}

// Also returns true for a rail that was given up; such a rail discards the packet.
bool Engine::has_room_for_ack(uint32_t path) const {
  const Rail& rail = *rails_[core_.options().rail_of(path)];
  return rail.control.room() != 0 || rail.is_given_up();
}

void Engine::post_ack(uint32_t id, uint32_t path, const Ack& ack) {
  struct {
    AckBody body;
    std::array<GrantRecord, kMaxGrantsPerAck> grants;
  } content{ack.body, ack.grants};
  PacketHeader header{};
  header.psn = ack.cumulative;
  header.place = ack.base;
  post_control(
      id, path, PacketKind::kAck, header,
      {reinterpret_cast<const uint8_t*>(&content), sizeof(AckBody) + ack.grant_count * sizeof(GrantRecord)});
}

void Engine::post_request(uint32_t id, uint32_t path, std::span<const Wish> wishes) {
  post_control(id, path, PacketKind::kRequest, {},
               {reinterpret_cast<const uint8_t*>(wishes.data()), wishes.size_bytes()});
}

void Engine::post_farewell(uint32_t id, const Farewell& farewell) {
  const Peer& to = *peers_of_[id];
  if (!to.is_met || to.failure.has_failed()) return;
  post_control(id, core_.pick_control_path(core_.peer(id)), PacketKind::kClose, {},
               {reinterpret_cast<const uint8_t*>(&farewell), sizeof(farewell)});
}

// --- Greetings.

Greeting Engine::make_greeting(uint16_t slot, uint64_t other_id, uint16_t channel, uint64_t nonce) const {
  Greeting greeting{};
  greeting.version = kDatagramVersion;
  greeting.slot = slot;
  greeting.channel = channel;
  greeting.nonce = nonce;
  greeting.other_id = other_id;
  greeting.engine = name_;
  greeting.process = process_;
  for (size_t i = 0; i < rails_.size(); ++i) greeting.rail[i] = rails_[i]->describe();
  return greeting;
}

void Engine::post_greeting(PacketKind kind, const Greeting& greeting, const EngineName& to,
                           uint32_t rail_number, ibv_ah* way, uint32_t pair_number) {
  Rail& rail = *rails_[rail_number];
  if (rail.control.room() == 0 || rail.is_given_up()) return;
  std::byte* const place = rail.control.next_header();
  const PacketHeader header{};
  const uint32_t covered = greeting.covered_bytes(), length = sizeof(header) + covered;
  std::memcpy(place, &header, sizeof(header));
  std::memcpy(place + sizeof(header), &greeting, covered);
  const auto mac = make_greeting_mac(to.secret, kind, {reinterpret_cast<const uint8_t*>(place), length});
  if (!mac) return note(mac.error());
  std::memcpy(place + length, mac->data(), mac->size());
  const Immediate immediate{
      .slot = kStrangerSlot, .path = 0, .is_last = false, .asks = false, .is_resent = false, .kind = kind};
  rail.control.add({.way = way,
                    .pair_number = pair_number,
                    .key = to.queue_key,
                    .imm = immediate.encode(),
                    .header_length = length + kGreetingMacBytes,
                    .header = place},
                   kNoObject);
}

void Engine::welcome(uint32_t id, uint16_t channel, uint64_t nonce, GreetingRefusal refusal) {
  const Peer& to = *peers_of_[id];
  Greeting greeting = make_greeting(id, channel, nonce);
  greeting.refusal = refusal;
  const uint32_t path = core_.pick_control_path(core_.peer(id));
  post_greeting(PacketKind::kWelcome, greeting, to.name, core_.options().rail_of(path), to.ways.find(path),
                to.rail[path % to.name.rails].control);
}

void Engine::retire_way(GreetingWay used) {
  std::erase_if(used_ways_,
                [&](const UsedWay& way) { return rails_[way.used.rail]->control.has_left(way.added); });
  const uint32_t added = rails_[used.rail]->control.added();
  if (used.way) used_ways_.push_back({std::move(used), added});
}

}  // namespace verbena::transport::datagram
