#include "protocol/datagram/simulation/world.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace verbena::protocol::datagram::sim {
namespace {

constexpr uint32_t kHeaderBytes = 86;   // of Ethernet, IP, UDP, IB and ICRC, with the gap; the rest is ours
constexpr uint32_t kBatchPackets = 64;  // that a pass looks at
constexpr size_t kMostLatencies = 4'000'000;

uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9;
  x ^= x >> 27;
  x *= 0x94D049BB133111EB;
  return x ^ x >> 31;
}

}  // namespace

Host::Host(World& world, uint32_t number, const EngineOptions& options)
    : EngineCore(*this, options),
      world_(world),
      number_(number),
      live_rails_((1U << options.rails) - 1),
      pages_(options.pages.pages + options.pages.short_pages) {
  add_idle(options.pages.pages);
  add_idle(options.pages.short_pages, true);
}

uint32_t Host::rooms() {
  uint32_t rooms = 0;
  const Fabric& fabric = world_.fabric_;
  const int64_t limit_ns = int64_t{world_.temper_.nic_packets} * options().packet_ns * options().rails;
  for (uint32_t rail = 0; rail < options().rails; ++rail) {
    if ((live_rails_ >> rail & 1) == 0) continue;
    if (fabric.busy_until_ns(number_, rail) - now_ns_ < limit_ns) rooms |= 1U << rail;
  }
  return rooms;
}

void Host::put(uint32_t peer, uint32_t path, uint32_t bytes, uint32_t cargo_id) {
  const RemotePeer& remote = remotes_[peer];
  Cargo& cargo = world_.cargo(cargo_id);
  cargo.slot = remote.slot;
  cargo.path = static_cast<uint8_t>(path);
  cargo.time = make_stamp(now_ns_);
  ++packets_;
  const Parcel parcel{.source = number_,
                      .target = remote.host,
                      .label = remote.labels + path,
                      .bytes = bytes,
                      .owner = cargo_id,
                      .plane = static_cast<uint8_t>(options().rail_of(path)),
                      .is_marked = false,
                      .is_damaged = false,
                      .hops = 0};
  world_.fabric_.send(parcel, std::max(now_ns_, busy_until_ns_));
}

uint32_t Host::post_data(uint32_t peer, const OutPacket& packet) {
  const uint32_t id = world_.take_cargo();
  Cargo& cargo = world_.cargo(id);
  cargo.kind = packet.kind;
  cargo.queue = packet.kind == PacketKind::kGranted ? PageQueue::kGranted : PageQueue::kEager;
  cargo.is_last = packet.is_last;
  cargo.asks = packet.asks;
  cargo.took_credit = packet.took_credit;
  cargo.psn = packet.psn;
  cargo.backlog = packet.backlog;
  if (packet.message == kNoObject) {
    cargo.channel = kNoChannel;
    cargo.length_bytes = 0;
    put(peer, packet.path, kHeaderBytes + 24, id);
    return 0;
  }
  const SendMessage& message = send_message(packet.message);
  const uint64_t offset = uint64_t{packet.index} * this->peer(peer).data_bytes;
  cargo.channel = send_channel(message.channel).wire;
  cargo.place = Place{static_cast<uint16_t>(message.number % kMessageNumbers), packet.index}.encode();
  cargo.length_bytes =
      static_cast<uint32_t>(std::min<uint64_t>(message.length_bytes - offset, this->peer(peer).data_bytes));
  const bool is_short = message.packets == 1 && message.length_bytes <= kShortBytes;
  if (is_short && packet.kind == PacketKind::kEager && options().pages.short_pages != 0)
    cargo.queue = PageQueue::kShort;
  cargo.content = world_.content_of(flow_of_send_[message.channel], message.number, packet.index);
  put(peer, packet.path, kHeaderBytes + 24 + cargo.length_bytes, id);
  return 0;
}

void Host::post_ack(uint32_t peer, uint32_t path, const Ack& ack) {
  const uint32_t id = world_.take_cargo();
  Cargo& cargo = world_.cargo(id);
  cargo.kind = PacketKind::kAck;
  cargo.ack = ack;
  put(peer, path, kHeaderBytes + 80 + ack.grant_count * 8, id);
}

void Host::post_request(uint32_t peer, uint32_t path, std::span<const Wish> wishes) {
  const uint32_t id = world_.take_cargo();
  Cargo& cargo = world_.cargo(id);
  cargo.kind = PacketKind::kRequest;
  cargo.wishes = static_cast<uint16_t>(wishes.size());
  std::copy(wishes.begin(), wishes.end(), cargo.wish);
  put(peer, path, kHeaderBytes + 24 + static_cast<uint32_t>(wishes.size()) * 8, id);
}

// Those of a message that are copied now are one call, whose pages end one after the other.
bool Host::copy_page(uint32_t message, uint32_t page, uint64_t, uint32_t) {
  const bool is_same_call = copied_message_ == message && copied_ns_ == now_ns_;
  copied_pages_ = is_same_call ? copied_pages_ + 1 : 1;
  copied_message_ = message;
  copied_ns_ = now_ns_;
  uint32_t move = 0;
  if (world_.free_moves_.empty()) {
    move = static_cast<uint32_t>(world_.moves_.size());
    world_.moves_.push_back({});
  } else {
    move = world_.free_moves_.back();
    world_.free_moves_.pop_back();
  }
  world_.moves_[move] = {message, page};
  world_.add_event(now_ns_ + world_.temper_.copy_ns + copied_pages_ * world_.temper_.copy_page_ns,
                   World::kMoved, number_, move);
  return false;
}

void Host::note_sent(uint32_t message) {
  world_.note_sent(*this, flow_of_send_[send_message(message).channel], message);
}
void Host::note_received(uint32_t message) {
  world_.note_received(*this, flow_of_receive_[receive_message(message).channel], message);
}
void Host::note_silent(uint32_t peer) {
  ++world_.totals_.silent;
  mute_peer(peer);
}

void Host::want_wake(int64_t at_ns) {
  at_ns = std::max({at_ns, stopped_until_ns_, world_.now_ns_});
  if (at_ns >= next_wake_ns_) return;
  next_wake_ns_ = at_ns;
  world_.add_event(at_ns, World::kWake, number_, 0);
}

void Host::wake(int64_t now_ns) {
  now_ns_ = now_ns;
  packets_ = 0;
  tick(now_ns);
  for (uint32_t left = kBatchPackets; left != 0 && !arrived_.empty(); --left) {
    const Arrived arrived = arrived_.front();
    arrived_.pop_front();
    take(arrived);
    ++packets_;
  }
  pump();
  busy_until_ns_ = std::max(busy_until_ns_, now_ns) + packets_ * world_.temper_.packet_ns;
  int64_t next_ns = next_timer_ns();
  if (!arrived_.empty()) next_ns = std::min(next_ns, busy_until_ns_);
  if (has_packets_to_send()) {
    int64_t room_ns = kNeverNs;  // when a rail that is full has half its room again
    for (uint32_t rail = 0; rail < options().rails; ++rail) {
      const int64_t at_ns = world_.fabric_.busy_until_ns(number_, rail) -
                            int64_t{world_.temper_.nic_packets / 2} * options().packet_ns * options().rails;
      if ((live_rails_ >> rail & 1) != 0 && at_ns > now_ns) room_ns = std::min(room_ns, at_ns);
    }
    next_ns = std::min(next_ns, std::max(busy_until_ns_, room_ns));
  }
  if (next_ns != kNeverNs) want_wake(std::max(next_ns, busy_until_ns_));
}

void Host::take(const Arrived& arrived) {
  const Cargo& cargo = world_.cargo(arrived.cargo);
  const uint32_t peer = cargo.slot;
  const bool is_data = carries_data(cargo.kind);
  if (is_data) {
    const Place place = Place::decode(cargo.place);
    const Placed placed = on_data(peer, {.page = pages_.take(),
                                         .psn = cargo.psn,
                                         .channel = cargo.channel,
                                         .place = place,
                                         .backlog = cargo.backlog,
                                         .took_credit = cargo.took_credit,
                                         .is_last = cargo.is_last,
                                         .asks = cargo.asks,
                                         .path = cargo.path,
                                         .was_marked = arrived.is_marked,
                                         .rail = arrived.plane,
                                         .queue = cargo.queue,
                                         .time = cargo.time,
                                         .length_bytes = cargo.length_bytes});
    if (placed.verdict == Verdict::kTaken) {
      const ReceiveMessage& message = receive_message(placed.message);
      world_.note_bytes(flow_of_receive_[message.channel], cargo.length_bytes);
      if (cargo.content != world_.content_of(flow_of_receive_[message.channel], message.number, place.index))
        ++world_.totals_.wrong;
      if (world_.temper_.checks_all) {
        if (placed_.size() <= placed.message) placed_.resize(placed.message + 1);
        if (placed_[placed.message] == nullptr) placed_[placed.message] = std::make_unique<Indexes>();
        auto& has = placed_[placed.message]->has;
        if (message.received == 1) has.clear();
        if (has.size() <= place.index) has.resize(place.index + 1);
        if (has[place.index]) ++world_.totals_.wrong;
        has[place.index] = true;
      }
    } else if (placed.verdict == Verdict::kTooLong || placed.verdict == Verdict::kStray) {
      ++world_.totals_.wrong;
    }
  } else if (cargo.kind == PacketKind::kAck) {
    on_ack(peer, cargo.ack.cumulative, cargo.ack.base, cargo.ack.body,
           {cargo.ack.grants.data(), cargo.ack.grant_count});
  } else {
    on_request(peer, {cargo.wish, cargo.wishes});
  }
  world_.give_back_cargo(arrived.cargo);
}

World::World(const FabricShape& shape, const FabricTemper& temper, const HostTemper& host,
             const EngineOptions& engine, uint64_t seed)
    : temper_(host),
      engine_(engine),
      random_(seed),
      fabric_(
          shape, temper, seed * 3 + 1, events_,
          {.deliver =
               [this](const Parcel& parcel) {
                 Host& target = *hosts_[parcel.target];
                 const Cargo& cargo = cargo_[parcel.owner];
                 // Into a page if there is one; damage is found by the check of the link.
                 const bool is_data = carries_data(cargo.kind);
                 const uint32_t queue = is_data ? static_cast<uint32_t>(cargo.queue) : 0;
                 uint32_t& posted = target.posted_[queue][parcel.plane];
                 if (parcel.is_damaged || (is_data && posted == 0)) return give_back_cargo(parcel.owner);
                 if (is_data) --posted;
                 target.arrived_.push_back({parcel.owner, parcel.plane, parcel.is_marked});
                 const int64_t gap_ns =
                     temper_.poll_gap_ns == 0
                         ? 0
                         : static_cast<int64_t>(random_.next() % static_cast<uint64_t>(temper_.poll_gap_ns));
                 target.want_wake(std::max(now_ns_ + gap_ns, target.busy_until_ns_));
               },
           .discard = [this](uint32_t owner) { give_back_cargo(owner); },
           .duplicate =
               [this](uint32_t owner) {
                 const uint32_t copy = take_cargo();
                 cargo_[copy] = cargo_[owner];
                 return copy;
               }},
          kFabric),
      seed_(seed) {
  engine_.rails = shape.planes;
  engine_.pages.rails = shape.planes;
  engine_.pages.pages = host.pages;
  engine_.pages.short_pages = host.short_pages;
  if (engine_.packet_ns == 0) {  // as a plugin would choose
    engine_.fit(fabric_.packet_ns(shape.full_bytes) / shape.planes);
  } else {
    engine_.packet_ns = fabric_.packet_ns(shape.full_bytes) / shape.planes;
  }
  hosts_.resize(shape.hosts());
  peer_of_.resize(shape.hosts());
}

Host& World::host(uint32_t number) {
  if (hosts_[number] == nullptr) {
    EngineOptions options = engine_;
    options.random = static_cast<uint32_t>(mix(seed_ ^ number));
    hosts_[number] = std::make_unique<Host>(*this, number, options);
    hosts_[number]->now_ns_ = now_ns_;
    hosts_[number]->pump();
  }
  return *hosts_[number];
}

uint32_t World::find_peer(Host& from, uint32_t to) {
  for (const auto& [other, peer] : peer_of_[from.number_])
    if (other == to) return peer;
  return kNoObject;
}

uint32_t World::add_flow(const Flow& flow) {
  Host& source = host(flow.source);
  Host& target = host(flow.target);
  source.now_ns_ = target.now_ns_ = now_ns_;
  uint32_t there = find_peer(source, flow.target), here = find_peer(target, flow.source);
  if (there == kNoObject) {
    const uint32_t paths = ~0U >> (kPaths - temper_.paths);
    there = source.add_peer(paths, temper_.data_bytes);
    here = target.add_peer(paths, temper_.data_bytes);
    peer_of_[flow.source].emplace_back(flow.target, there);
    peer_of_[flow.target].emplace_back(flow.source, here);
    const auto link = [&](Host& host, uint32_t peer, uint32_t other, uint32_t slot) {
      if (host.remotes_.size() <= peer) host.remotes_.resize(peer + 1);
      host.remotes_[peer] = {other, static_cast<uint16_t>(slot), static_cast<uint32_t>(random_.next())};
    };
    link(source, there, flow.target, here);
    link(target, here, flow.source, there);
  }
  const auto id = static_cast<uint32_t>(flows_.size());
  flows_.push_back(flow);
  Flow& added = flows_.back();
  const auto wire = static_cast<uint16_t>(source.peer(there).send_channels.size());
  added.send_channel = source.open_send(there, wire);
  added.receive_channel = target.open_receive(here, wire);
  const auto note = [id](std::vector<uint32_t>& flows, uint32_t channel) {
    if (flows.size() <= channel) flows.resize(channel + 1);
    flows[channel] = id;
  };
  note(source.flow_of_send_, added.send_channel);
  note(target.flow_of_receive_, added.receive_channel);
  return id;
}

uint64_t World::content_of(uint32_t flow, uint64_t number, uint32_t index) const {
  return mix(seed_ ^ mix(uint64_t{flow} << 32 | (number & 0xFFFFFFFF)) ^
             uint64_t{index} * 0x9E3779B97F4A7C15);
}

uint64_t World::draw_bytes(const Flow& flow, uint64_t number) const {
  if (flow.bytes != 0) return flow.bytes;
  const uint64_t dice =
      mix(seed_ ^ (uint64_t{flow.source} << 40 | uint64_t{flow.target} << 20) ^ number * 77);
  switch (dice % 8) {
    case 0:
      return 0;
    case 1:
      return 1 + dice / 8 % 64;
    case 2:
      return (1 + dice / 8 % 4) * temper_.data_bytes;
    default:
      return 1 + dice / 8 % flow.most_bytes;
  }
}

void World::send_one(uint32_t id) {
  Flow& flow = flows_[id];
  Host& source = *hosts_[flow.source];
  source.now_ns_ = now_ns_;
  const uint64_t bytes = draw_bytes(flow, flow.sent);
  const uint32_t message = source.send(flow.send_channel, bytes);
  if (message == kNoObject) return;
  flow.began_ns[flow.sent % kRing] = now_ns_;
  ++flow.sent;
  source.want_wake(std::max(now_ns_, source.busy_until_ns_));
}

void World::fill(uint32_t id) {
  Flow& flow = flows_[id];
  post_receives(id);
  if (flow.is_stepped) return;
  while (flow.sent < flow.limit && flow.sent - flow.done < flow.depth) {
    const uint64_t before = flow.sent;
    send_one(id);
    if (flow.sent == before) return;
  }
}

void World::begin_steps(uint32_t id, bool sends_first) {
  flows_[id].is_stepped = true;
  post_receives(id);
  if (sends_first) send_one(id);
}

void World::post_receives(uint32_t id) {
  Flow& flow = flows_[id];
  Host& target = *hosts_[flow.target];
  target.now_ns_ = now_ns_;
  while (flow.posted < flow.limit && flow.posted - flow.consumed < flow.depth) {
    const uint64_t bytes = draw_bytes(flow, flow.posted);
    const bool is_copied = temper_.checks_all && mix(flow.posted + id) % 5 == 0;
    const uint32_t message = target.post(flow.receive_channel, bytes, is_copied ? 0 : 2048);
    if (message == kNoObject) break;
    ++flow.posted;
    target.settle(message);
  }
  target.want_wake(std::max(now_ns_, target.busy_until_ns_));
}

void World::note_sent(Host& host, uint32_t id, uint32_t message) {
  Flow& flow = flows_[id];
  ++flow.done;
  host.forget(message);
  add_event(host.now_ns_, kPost, id, 0);
}

void World::note_received(Host& host, uint32_t id, uint32_t message) {
  Flow& flow = flows_[id];
  const ReceiveMessage& state = host.receive_message(message);
  const uint64_t number = state.number;
  if (state.bytes != draw_bytes(flow, number)) ++totals_.wrong;
  if (is_measuring_ && totals_.latencies_ns.size() < kMostLatencies)
    totals_.latencies_ns.push_back(host.now_ns_ - flow.began_ns[number % kRing]);
  ++flow.received;
  flow.received_bytes += state.bytes;
  flow.last_ns = host.now_ns_;
  ++totals_.messages;
  totals_.bytes += state.bytes;
  if (flow.hoards && is_hoarding_) {
    hoarded_.emplace_back(host.number_, message);
    if (on_received) on_received(id, number);
    return;
  }
  const int64_t consume_ns =
      temper_.consume_ns == 0
          ? 0
          : static_cast<int64_t>(random_.next() % static_cast<uint64_t>(2 * temper_.consume_ns));
  add_event(host.now_ns_ + consume_ns, kConsume, host.number_, message);
  if (on_received) on_received(id, number);
}

void World::stop_hoarding() {
  is_hoarding_ = false;
  for (const auto& [host, message] : hoarded_) add_event(now_ns_, kConsume, host, message);
  hoarded_.clear();
}

void World::stop_host(uint32_t number, int64_t until_ns) {
  Host& stopped = host(number);
  stopped.stopped_until_ns_ = until_ns;
  stopped.next_wake_ns_ = kNeverNs;
  stopped.want_wake(until_ns);
}

void World::at(int64_t at_ns, std::function<void()> action) {
  add_event(at_ns, kAction, 0, static_cast<uint32_t>(actions_.size()));
  actions_.push_back(std::move(action));
}

uint32_t World::take_cargo() {
  if (free_cargo_.empty()) {
    cargo_.emplace_back();
    return static_cast<uint32_t>(cargo_.size() - 1);
  }
  const uint32_t id = free_cargo_.back();
  free_cargo_.pop_back();
  return id;
}

void World::on_event(const Event& event) {
  const uint32_t place = event.kind_and_place & 0x0FFFFFFF;
  switch (static_cast<EventKind>(event.kind_and_place >> 28)) {
    case kFabric:
      return fabric_.on_event(event);
    case kWake: {
      Host& woken = *hosts_[place];
      if (woken.next_wake_ns_ != event.at_ns) return;
      woken.next_wake_ns_ = kNeverNs;
      return woken.wake(event.at_ns);
    }
    case kMoved: {
      Host& host = *hosts_[place];
      host.now_ns_ = now_ns_;
      const Move move = moves_[event.payload];
      free_moves_.push_back(event.payload);
      host.pages_.put_back(move.page);
      host.note_moved(move.message, 1);
      return host.want_wake(std::max(now_ns_, host.busy_until_ns_));
    }
    case kConsume: {
      Host& host = *hosts_[place];
      host.now_ns_ = now_ns_;
      const uint32_t id = host.flow_of_receive_[host.receive_message(event.payload).channel];
      host.release(event.payload);
      ++flows_[id].consumed;
      if (temper_.receive_delay_percent != 0 && random_.happens(temper_.receive_delay_percent)) {
        add_event(now_ns_ + static_cast<int64_t>(random_.next() % 200'000), kPost, id, 0);
      } else {
        post_receives(id);
      }
      return host.want_wake(std::max(now_ns_, host.busy_until_ns_));
    }
    case kPost:
      return fill(place);
    case kAction:
      return actions_[event.payload]();
  }
}

void World::run(int64_t until_ns, const std::function<bool()>& is_over) {
  constexpr uint64_t kLookEvery = 4096;
  while (!events_.is_empty()) {
    if (is_over && taken_events_ % kLookEvery == 0 && is_over()) return;
    const Event event = events_.take();
    if (event.at_ns > until_ns) {
      events_.add(event);
      now_ns_ = until_ns;
      return;
    }
    now_ns_ = event.at_ns;
    ++taken_events_;
    on_event(event);
  }
}

EngineStatistics World::sum_statistics() const {
  EngineStatistics sum;
  auto* into = reinterpret_cast<uint64_t*>(&sum);
  for (const auto& host : hosts_) {
    if (host == nullptr) continue;
    const auto* from = reinterpret_cast<const uint64_t*>(&host->statistics());
    for (size_t i = 0; i < sizeof(sum) / sizeof(uint64_t); ++i) into[i] += from[i];
  }
  return sum;
}

void World::close_flow(uint32_t id) {
  const Flow& flow = flows_[id];
  Host& source = *hosts_[flow.source];
  Host& target = *hosts_[flow.target];
  source.now_ns_ = target.now_ns_ = now_ns_;
  source.close_send(flow.send_channel);
  target.close_receive(flow.receive_channel);
  target.forget_receive(flow.receive_channel);
  for (Host* host : {&source, &target}) host->want_wake(std::max(now_ns_, host->busy_until_ns_));
}

std::string World::find_leftovers(uint32_t stopped) {
  std::string text;
  const auto tell = [&](uint32_t host, const char* what, uint64_t count) {
    if (count != 0 && text.size() < 400)
      text += " host " + std::to_string(host) + ": " + what + " " + std::to_string(count) + ";";
  };
  for (const auto& host : hosts_) {
    if (host == nullptr) continue;
    const uint32_t n = host->number_;
    if (n == stopped) continue;
    PageBudget& budget = host->budget();
    tell(n, "held", budget.held());
    tell(n, "parked", budget.parked());
    tell(n, "lent", budget.lent());
    tell(n, "moving", budget.moving());
    tell(n, "granted", host->outstanding());
    uint64_t posted = host->idle();
    for (uint32_t rail = 0; rail < engine_.rails; ++rail)
      posted += budget.posted(rail, PageQueue::kGranted) + budget.posted(rail, PageQueue::kEager);
    if (posted != budget.pages()) tell(n, "pages are lost or found:", posted);
    const PageBudget& shorts = host->short_budget();
    tell(n, "short ones held", shorts.held());
    tell(n, "short ones parked", shorts.parked());
    tell(n, "short ones moving", shorts.moving());
    tell(n, "pages not put back", engine_.pages.pages + engine_.pages.short_pages - host->pages_.count());
    posted = host->short_idle();
    for (uint32_t rail = 0; rail < engine_.rails; ++rail) posted += shorts.posted(rail, PageQueue::kEager);
    if (posted != shorts.pages()) tell(n, "short pages are lost or found:", posted);
    for (const auto& [other, peer] : peer_of_[n]) {
      if (other == stopped) continue;
      const Peer& state = host->peer(peer);
      tell(n, "in flight", state.in_flight);
      tell(n, "eager packets not acknowledged", state.eager_next - state.eager_unacked);
      tell(n, "not acknowledged", state.sent_span());
      tell(n, "parked packets", state.parked);
      tell(n, "paths on trial without a packet", static_cast<uint64_t>(std::popcount(state.paths.tried())));
      const Peer& far = hosts_[other]->peer(find_peer(*hosts_[other], n));
      if (state.eager_reserved != far.eager_settled)
        tell(n, "eager credits used and not settled", state.eager_reserved - far.eager_settled);
    }
  }
  for (uint32_t f = 0; f < flows_.size(); ++f) {
    const Flow& flow = flows_[f];
    if (flow.source == stopped || flow.target == stopped) continue;
    if (flow.received != flow.sent || flow.done != flow.sent)
      tell(flow.source, "messages open", flow.sent - std::min(flow.received, flow.done));
  }
  return text;
}

}  // namespace verbena::protocol::datagram::sim
