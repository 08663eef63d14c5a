// Received packets: pages with data, and control datagrams. A packet is processed only if it has the tag of a
// peer, or is a greeting with a valid MAC.
#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/greeting_keys.h"
#include "transport/datagram/meeting.h"

namespace verbena::transport::datagram {

using namespace protocol::datagram;

uint32_t Engine::find_peer(const Immediate& immediate) const {
  return immediate.slot < peers_of_.size() && peers_of_[immediate.slot]->is_met ? immediate.slot : kNoObject;
}

void Engine::take_page(uint32_t rail, uint64_t cookie, uint32_t bits, uint32_t length_bytes) {
  const auto page = static_cast<uint32_t>(cookie);
  // The page was taken back: its completion was queued behind a completion that another process had not
  // written.
  if (!pool_[page].is_posted || pool_[page].posts != Rail::posts_of(cookie)) [[unlikely]]
    return;
  pool_[page].is_posted = false;
  const PageQueue queue = Rail::queue_of(cookie);
  const Immediate immediate = Immediate::decode(bits);
  const uint32_t id = find_peer(immediate);
  PacketHeader header;
  std::memcpy(&header, pool_.line(page) + verbs::kGrhBytes, sizeof(header));
  std::memset(pool_.line(page) + verbs::kGrhBytes, 0, sizeof(header.tag));  // see take_back_pages()
  if (length_bytes < PagePool::kLineBytes || id == kNoObject || !carries_data(immediate.kind) ||
      header.tag != make_tag(peers_of_[id]->receive_keys, header, immediate)) {
    core_.count_stray();
    return core_.drop_page(page, rail, queue);
  }
  if (peers_of_[id]->failure.has_failed()) [[unlikely]] {
    answer_given_up(id);
    return core_.drop_page(page, rail, queue);
  }
  heard_ns_ = now_ns_;
  const Place place = Place::decode(header.place);
  const InPacket packet{
      .page = page,
      .psn = header.psn,
      .channel = header.channel,
      .place = place,
      .backlog = static_cast<uint16_t>(immediate.is_last ? 0 : header.backlog & kMostBacklog),
      .took_credit = (header.backlog & kTookCredit) != 0,
      .is_last = immediate.is_last,
      .asks = immediate.asks,
      .path = immediate.path,
      .was_marked = rails_[rail]->is_ethernet() && verbs::has_congestion_mark(pool_.line(page)),
      .rail = static_cast<uint8_t>(rail),
      .queue = queue,
      .time = header.time,
      .length_bytes = length_bytes - PagePool::kLineBytes};
  const Placed placed = core_.on_data(id, packet);
  if (placed.verdict != Verdict::kTaken && placed.verdict != Verdict::kTooLong) [[unlikely]]
    return;
  ReceiveEnd* const end = receive_channels_[core_.peer(id).receive_channels[header.channel]].end;
  if (end == nullptr) return;
  if (placed.verdict == Verdict::kTooLong) [[unlikely]] {
    refuse_too_long(*end, placed.message == kNoObject ? 0 : core_.receive_message(placed.message).room_bytes);
  } else if (end->observed() != nullptr) [[unlikely]] {
    end->observed()->note_packet(rail, packet.length_bytes, false);
  }
}

// Takes back pages that a peer's process took before it ended. Senders of softverbs take receives themselves,
// so the pages that such a process took would never complete. Their headers are in the pages, because the
// header is written first. The tag identifies them: pages that were posted since have no such tag.
void Engine::take_back_pages(uint32_t id) {
  const auto is_of_peer = [&](uint32_t page) {
    PacketHeader header;
    std::memcpy(&header, pool_.line(page) + verbs::kGrhBytes, sizeof(header));
    for (const PacketKind kind : {PacketKind::kGranted, PacketKind::kEager})
      for (const bool is_last : {false, true}) {
        Immediate immediate;
        immediate.kind = kind;
        immediate.is_last = is_last;
        if (header.tag == make_tag(peers_of_[id]->receive_keys, header, immediate)) return true;
      }
    return false;
  };
  for (uint32_t i = 0; i < rails_.size(); ++i) poll_pages(i, INT_MAX);  // takes the pages that had completed
  uint32_t pages = 0;
  for (uint32_t page = 0; page < pool_.count(); ++page) {
    const PagePool::Page posted = pool_[page];
    if (!posted.is_posted || !is_of_peer(page)) continue;
    std::memset(pool_.line(page) + verbs::kGrhBytes, 0, sizeof(PacketHeader::tag));
    core_.drop_page(page, posted.rail, posted.queue);
    ++pages;
  }
  if (pages != 0)
    base::log_info(
        "datagrams: %s: the peer's process has ended. The %u bounce pages that were posted for this peer are "
        "free again",
        peers_of_[id]->text.c_str(), pages);
}

void Engine::take_control(uint32_t bits, std::span<const uint8_t> bytes) {
  const Immediate immediate = Immediate::decode(bits);
  if (bytes.size() < sizeof(PacketHeader)) return;
  if (immediate.kind == PacketKind::kHello || immediate.kind == PacketKind::kWelcome)
    return take_greeting(immediate.kind, bytes);
  const uint32_t id = find_peer(immediate);
  PacketHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const std::span<const uint8_t> body = bytes.subspan(sizeof(header));
  if (id == kNoObject || header.tag != make_tag(peers_of_[id]->receive_keys, header, immediate, body)) {
    core_.count_stray();
    return;
  }
  if (immediate.kind == PacketKind::kReset) return take_reset(id, body);
  if (peers_of_[id]->failure.has_failed()) return answer_given_up(id);
  heard_ns_ = now_ns_;
  switch (immediate.kind) {
    case PacketKind::kAck: {
      AckBody ack;
      std::array<GrantRecord, kMaxGrantsPerAck> grants;
      if (body.size() < sizeof(ack) || body.size() > sizeof(ack) + sizeof(grants)) return;
      std::memcpy(&ack, body.data(), sizeof(ack));
      const size_t count = (body.size() - sizeof(ack)) / sizeof(GrantRecord);
      std::memcpy(grants.data(), body.data() + sizeof(ack), count * sizeof(GrantRecord));
      return core_.on_ack(id, header.psn, header.place, ack, {grants.data(), count});
    }
    case PacketKind::kRequest: {
      std::array<Wish, kMaxWishesPerRequest> wishes;
      if (body.size() > sizeof(wishes)) return;
      const size_t count = body.size() / sizeof(Wish);
      std::memcpy(wishes.data(), body.data(), count * sizeof(Wish));
      return core_.on_request(id, {wishes.data(), count});
    }
    case PacketKind::kClose: {
      Farewell farewell;
      if (body.size() != sizeof(farewell)) return;
      std::memcpy(&farewell, body.data(), sizeof(farewell));
      return take_farewell(id, farewell);
    }
    default:
      core_.count_stray();
  }
}

void Engine::take_greeting(PacketKind kind, std::span<const uint8_t> bytes) {
  const auto greeting = read_greeting(bytes.subspan(sizeof(PacketHeader)));
  if (!greeting || greeting->other_id != name_.id || greeting->engine.is_keyed != name_.is_keyed) {
    core_.count_stray();
    return;
  }
  const auto mac = make_greeting_mac(name_.secret, kind, bytes.first(bytes.size() - kGreetingMacBytes));
  if (!mac || !base::is_same_mac(*mac, greeting->mac)) {
    core_.count_stray();
    return;
  }
  const auto id_of_name = make_engine_id(greeting->engine);
  const auto known = peers_by_id_.find(greeting->engine.id);
  const bool is_known = known != peers_by_id_.end();
  if (!id_of_name || *id_of_name != greeting->engine.id ||
      (is_known && peers_of_[known->second]->name != greeting->engine)) {
    core_.count_stray();  // an engine that uses another engine's id
    return;
  }
  heard_ns_ = now_ns_;
  if (is_known && peers_of_[known->second]->is_gone()) return core_.count_stray();  // a delayed packet
  const auto [standing, id] = judge(*greeting);
  if (kind == PacketKind::kWelcome) {
    const bool is_first = is_known && standing == Standing::kNew && !peers_of_[known->second]->is_met;
    const bool is_refusal = is_known && greeting->refusal != GreetingRefusal::kNone;
    if (standing != Standing::kMet && !is_first && !is_refusal) return;
    peers_of_[known->second]->doubted_ns = 0;  // it is alive, although another engine reported it dead
    for (Connector* connector : connectors_) connector->note_welcome(known->second, *greeting);
    return;
  }
  switch (standing) {
    case Standing::kOld:
      core_.count_stray();
      return;
    case Standing::kGivenUp:
      return answer_given_up(id);  // it connects again
    case Standing::kNew:
      if (is_known && peers_of_[known->second]->is_met) note_given_up(known->second);
      break;
    case Standing::kMet: {
      const auto& channels = core_.peer(id).receive_channels;
      const uint32_t channel = greeting->channel < channels.size() ? channels[greeting->channel] : kNoObject;
      if (channel != kNoObject && receive_channels_[channel].nonce == greeting->nonce)
        return welcome(id, greeting->channel, greeting->nonce);  // the first accept message was lost
      if (listeners_.count(greeting->nonce) == 0)
        return welcome(id, greeting->channel, greeting->nonce, GreetingRefusal::kNobodyListens);
    }
  }
  const auto listener = listeners_.find(greeting->nonce);
  if (listener != listeners_.end()) return listener->second->note_hello(*greeting);
  refused_ = *greeting;
  want();
}

Engine::Judgement Engine::judge(const Greeting& greeting) const {
  const auto known = peers_by_id_.find(greeting.engine.id);
  if (known == peers_by_id_.end()) return {Standing::kNew};
  const Peer& newest = *peers_of_[known->second];
  const uint32_t id = newest.is_met ? known->second : newest.former;
  if (id == kNoObject) return {Standing::kNew};
  const Peer& met = *peers_of_[id];
  if (greeting.engine.secret != met.name.secret || greeting.slot < met.slot) return {Standing::kOld};
  if (greeting.slot > met.slot) return {Standing::kNew};
  return {met.failure.has_failed() ? Standing::kGivenUp : Standing::kMet, id};
}

// Releases the token while the kernel finds the way to the client. If several clients call at the same time,
// only the last one is answered; the others call again.
void Engine::refuse_caller() {
  const Greeting hello = *std::exchange(refused_, std::nullopt);
  const uint32_t turn = refusals_++;
  const EngineRail& theirs = hello.rail[turn % hello.engine.rails];
  GreetingWay found;
  leave_as_service();
  const auto is_found =
      find_greeting_way(rails_, name_, theirs.port, turn, verbs::AddressHandles::Purpose::kAnswer, &found);
  return_as_service();
  if (!is_found || !*is_found || failure_.has_failed()) return;
  constexpr uint16_t kAnySlot = 0;  // the client gets no slot
  Greeting refusal = make_greeting(kAnySlot, hello.engine.id, hello.channel, hello.nonce);
  refusal.refusal = GreetingRefusal::kNobodyListens;
  post_greeting(PacketKind::kWelcome, refusal, hello.engine, found, theirs.control);
  retire_way(std::move(found));
  pass();
}

void Engine::take_farewell(uint32_t id, const Farewell& farewell) {
  const bool is_question = farewell.kind == FarewellKind::kQuestion;
  const bool is_of_ours = (farewell.of_sender != 0) == is_question;  // the sending end
  const auto& channels = is_of_ours ? core_.peer(id).send_channels : core_.peer(id).receive_channels;
  const uint32_t channel = farewell.channel < channels.size() ? channels[farewell.channel] : kNoObject;
  if (is_question) {
    const bool is_closed =
        channel == kNoObject ||
        (farewell.of_sender == 0 ? core_.receive_channel(channel).is_closed()
                                 : std::ranges::any_of(connectors_, [channel](const Connector* connector) {
                                     return connector->has_timed_out(channel);
                                   }));
    const bool refuses = !is_closed && farewell.of_sender == 0 &&
                         core_.receive_channel(channel).gate != ReceiveChannel::Gate::kOpen;
    if (is_closed) post_farewell(id, {farewell.channel, farewell.of_sender, FarewellKind::kClosed});
    if (refuses) post_farewell(id, {farewell.channel, 0, FarewellKind::kTooLong});
    return;
  }
  if (farewell.channel == kNoChannel) return note_departure(id);
  if (channel == kNoObject) return;
  if (farewell.of_sender == 0) {
    const bool has_end = channel < send_ends_.size() && send_ends_[channel] != nullptr;
    if (has_end && farewell.kind == FarewellKind::kTooLong) return note_too_long(*send_ends_[channel]);
    if (has_end) return send_ends_[channel]->note_peer_closed(now_ns_);
    // The channel has no end yet.
    for (Connector* connector : connectors_) connector->note_farewell(channel, now_ns_);
  } else if (core_.receive_channel(channel).is_closed()) {
    core_.forget_receive(channel);
  } else if (receive_channels_[channel].end != nullptr) {
    receive_channels_[channel].end->note_peer_closed(now_ns_);
  }
}

}  // namespace verbena::transport::datagram
