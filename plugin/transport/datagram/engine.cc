#include "transport/datagram/engine.h"

#include <bit>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/hot_path.h"
#include "base/job_key.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "base/text.h"
#include "transport/datagram/engine_options.h"
#include "transport/datagram/greeting_keys.h"
#include "transport/datagram/meeting.h"

namespace verbena::transport::datagram {

using base::Outcome;
using base::Result;
using base::Status;
using namespace protocol::datagram;

namespace {

constexpr uint32_t kLooksBetweenQuestions = 16;
constexpr int64_t kMaxLingerMs = 500;

// A GPU may be reading lines of NCCL's LL128 there: the last word of each says that the rest is there.
// memcpy() stores in any order.
VERBENA_HOT_PATH void copy_lines(std::byte* to, const std::byte* from, uint32_t length_bytes) {
  constexpr uint32_t kRestBytes = kDataLineBytes - sizeof(uint64_t);
  const bool has_lines = reinterpret_cast<uintptr_t>(to) % kDataLineBytes == 0;
  for (; has_lines && length_bytes >= kDataLineBytes;
       length_bytes -= kDataLineBytes, to += kDataLineBytes, from += kDataLineBytes) {
    uint64_t last = 0;
    std::memcpy(to, from, kRestBytes);
    std::memcpy(&last, from + kRestBytes, sizeof(last));
    std::atomic_ref(*reinterpret_cast<uint64_t*>(to + kRestBytes)).store(last, std::memory_order_release);
  }
  if (length_bytes != 0) std::memcpy(to, from, length_bytes);
}

template <typename Entry>
Entry& reach(std::vector<Entry>& entries, uint32_t at) {
  if (entries.size() <= at) entries.resize(at + 1);
  return entries[at];
}

struct Engines {
  std::mutex mutex;
  std::map<const Nic*, std::weak_ptr<Engine>> by_nic;
  bool is_idle() {
    const std::lock_guard lock(mutex);
    return std::all_of(by_nic.begin(), by_nic.end(),
                       [](const auto& entry) { return entry.second.expired(); });
  }
  static Engines& instance() {
    static const base::Lasting<Engines> engines;
    return *engines;
  }
};

}  // namespace

Result<std::shared_ptr<Engine>> Engine::find(const Nic& nic, std::shared_ptr<NicRegistry> nics,
                                             bool unpacks) {
  Engines& engines = Engines::instance();
  const std::lock_guard lock(engines.mutex);
  if (auto known = engines.by_nic[&nic].lock(); known != nullptr && !known->has_failed()) return known;
  uint32_t random = 0;
  if (Outcome drawn = base::draw_random({reinterpret_cast<uint8_t*>(&random), sizeof(random)}, "datagrams");
      !drawn)
    return drawn.error();
  const EngineShape shape = choose_shape(nic, nics.get(), unpacks, random);
  std::shared_ptr<Engine> engine(new Engine(nic, std::move(nics), shape.options));
  if (Outcome outcome = engine->prepare(unpacks, shape.page_bytes); !outcome) return outcome.error();
  engines.by_nic[&nic] = engine;
  Registry::instance().add(engine.get());
  engine->want();
  return engine;
}

Engine::Engine(const Nic& nic, std::shared_ptr<NicRegistry> nics, const EngineOptions& options)
    : core_(*this, options), nic_(nic), nics_(std::move(nics)) {}

Engine::~Engine() {
  Registry::instance().remove(this);
  if (rails_.size() == nic_.rails.size()) linger();
  if (core_.statistics().sent_packets + core_.statistics().received_packets != 0) {
    const std::string counts = describe_counts();
    base::log_info("%s", counts.c_str());
  }
  retire();  // at last: whoever gives the token away may wake the service
}

void Engine::retire_way(GreetingWay used) {
  std::erase_if(used_ways_,
                [&](const UsedWay& way) { return rails_[way.used.rail]->control.has_left(way.added); });
  const uint32_t added = rails_[used.rail]->control.added();
  if (used.way) used_ways_.push_back({std::move(used), added});
}

Outcome Engine::prepare(bool unpacks, uint32_t page_bytes) {
  constexpr uint32_t kLeastMtuBytes = 1024;
  constexpr uint64_t kLongestBytes = uint64_t{1} << 30;  // of NCCL's messages
  static_assert((kLeastMtuBytes - sizeof(PacketHeader)) / kDataLineBytes * kDataLineBytes *
                    (kMaxPacketIndex - 1) >=
                kLongestBytes);
  const uint32_t mtu_bytes = find_mtu_bytes(nic_);
  if (mtu_bytes < kLeastMtuBytes)
    return base::fail(Status::kSystem,
                      "device %s: datagrams need an MTU of at least %u bytes on all ports (%u); use "
                      "VERBENA_TRANSPORT=connected",
                      nic_.name.c_str(), kLeastMtuBytes, mtu_bytes);
  if (core_.options().pages.pages < PageBudget::kLeastPages * core_.options().rails)
    return base::fail(Status::kSystem,
                      "device %s: too few pages for datagrams (%u): its shared receive queues are too small; "
                      "use VERBENA_TRANSPORT=connected",
                      nic_.name.c_str(), core_.options().pages.pages);
  auto key = base::job_key();
  if (!key) return key.error();
  name_.is_keyed = *key != nullptr ? 1 : 0;
  name_.rails = static_cast<uint8_t>(nic_.rails.size());
  name_.data_lines = static_cast<uint16_t>(
      (page_bytes != PagePool::kLeastPageBytes ? page_bytes : mtu_bytes - uint32_t{sizeof(PacketHeader)}) /
      kDataLineBytes);
  struct {
    EngineSecret secret;
    uint32_t queue_key;
  } drawn{};
  if (Outcome outcome = base::draw_random({reinterpret_cast<uint8_t*>(&drawn), sizeof(drawn)}, "datagrams");
      !outcome)
    return outcome;
  process_ = name_own_process();
  name_.secret = drawn.secret;
  name_.queue_key = drawn.queue_key & ~(1U << 31);  // with the top bit a device takes its own
  std::shared_ptr<PageSpace> space;
  if (unpacks || takes_gpu_pages(nic_, unpacks)) {
    auto acquired = PageSpace::acquire(wants_gpu_pages(nic_));
    if (!acquired) return acquired.error();
    space = std::move(*acquired);
  }
  name_.has_short_pages = core_.options().pages.short_pages != 0 ? 1 : 0;
  auto id = make_engine_id(name_);
  if (!id) return id.error();
  name_.id = *id;
  auto pool = PagePool::create(*nic_.rails[0], core_.options().pages.pages, page_bytes, std::move(space),
                               core_.options().pages.short_pages);
  if (!pool) return pool.error();
  pool_ = std::move(*pool);
  std::vector<std::unique_ptr<Rail>> rails;
  for (verbs::Device* device : nic_.rails) {
    auto rail = Rail::create(*device, pool_, name_.queue_key);
    if (!rail) return rail.error();
    rails.push_back(std::move(*rail));
  }
  rails_ = std::move(rails);
  placer_ = std::make_unique<Placer>(nic_, pool_, rails_);
  core_.add_idle(pool_.long_count());
  core_.add_idle(pool_.short_count(), true);
  const EngineGuard guard(*this, EngineGuard::Waits{});
  pass();
  return failure_;
}

// Whoever has the token may have lost its processor to threads that ask for it again and again.
void Engine::give_way() {
  constexpr uint32_t kSpins = 16;
  thread_local uint32_t refusals = 0;
  if (++refusals % kSpins == 0) std::this_thread::yield();
}

void Engine::enter_soon() {
  constexpr uint32_t kYields = 64;
  constexpr timespec kNap{0, 20'000};
  for (uint32_t tries = 0; !enter(); ++tries)
    tries < kYields ? std::this_thread::yield() : static_cast<void>(nanosleep(&kNap, nullptr));
}

// --- A pass.

void Engine::pass() {
  now_ns_ = base::monotonic_ns();
  if (is_asked_.load(std::memory_order_relaxed)) [[unlikely]] {
    is_asked_.store(false, std::memory_order_relaxed);
    Registry::instance().answer(this, dump());
  }
  if (failure_.has_failed()) return;
  uint32_t live = 0;
  for (uint32_t i = 0; i < rails_.size(); ++i) live |= uint32_t{rails_[i]->is_usable()} << i;
  if (live != live_rails_) [[unlikely]]
    note_live_rails(live);
  for (uint32_t i = 0; i < rails_.size(); ++i) poll_rail(i);
  place_pages();
  if (now_ns_ - looked_ns_ > kLookNs) look_around();
  core_.tick(now_ns_);
  core_.pump();
  for (uint32_t i = 0; i < rails_.size(); ++i)
    if (!rails_[i]->flush()) [[unlikely]]
      mend(i);
}

void Engine::note_live_rails(uint32_t live) {
  const uint32_t lost = live_rails_ & ~live, found = live & ~live_rails_;
  live_rails_ = live;
  if (lost != 0) placer_->leave_rails(lost, now_ns_);
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    if (((lost | found) >> rail & 1) == 0) continue;
    for_each_end([&](const ChannelEnd& end) {
      if (end.observed() != nullptr) end.observed()->count_rail(rail, (found >> rail & 1) != 0);
    });
  }
  for (uint32_t path = 0; path < kPaths; ++path) {
    const uint32_t rail = core_.options().rail_of(path);
    for (uint32_t id = 0; id < peers_of_.size(); ++id) {
      if ((lost >> rail & 1) != 0) core_.peer(id).paths.rest_all(1U << path, make_stamp(now_ns_));
      if ((found >> rail & 1) != 0) core_.peer(id).paths.wake_all(1U << path);
    }
  }
}

// What goes to memory of GPUs.
void Engine::place_pages() {
  std::string cause;
  if (!placer_->progress(live_rails_, now_ns_, &cause,
                         [this](uint32_t message) { core_.note_moved(message, 1); })) [[unlikely]]
    note_placement_failure(cause);
}

// As long as there are some, `rounds` times at most.
template <typename Take>
void Engine::poll(uint32_t rail, verbs::CompletionQueue& queue, int rounds, const Take& take) {
  verbs::Completion completions[verbs::CompletionQueue::kMaxPollEntries];
  for (int round = 0; round < rounds; ++round) {
    const int count = queue.poll(completions);
    for (int i = 0; i < count; ++i) take(completions[i]);
    if (count < 0) [[unlikely]]
      return give_up_rail(rail, "a completion queue cannot be polled");
    if (count < verbs::CompletionQueue::kMaxPollEntries) return;
  }
}

void Engine::note_left(uint32_t message) {
  if (message == kNoObject || sends_of_[message] == nullptr) return;
  SendRequest& request = *sends_of_[message];
  if (request.posted != 0) --request.posted;
  if (request.posted == 0 && request.is_acked) finish(message, request);
}

void Engine::poll_sends(uint32_t number) {
  Rail& rail = *rails_[number];
  const Stamp polled = std::exchange(rail.polled_sends, make_stamp(now_ns_));
  poll(number, rail.sends, INT_MAX, [&](const verbs::Completion& completion) {
    SendQueue* const pair = rail.find_pair(completion.cookie);
    if (pair == nullptr) return;
    if (completion.error != 0) [[unlikely]]
      note_send_failure(number, *pair, completion);
    else
      rail.mendings = 0;
    pair->retire(completion.cookie, polled, [this](uint32_t message) { note_left(message); });
  });
}

void Engine::poll_rail(uint32_t number) {
  constexpr int kRounds = 8;  // of one kind of receives; then the next has its turn
  Rail& rail = *rails_[number];
  if (rail.is_given_up()) [[unlikely]]
    return;
  poll_sends(number);
  poll(number, rail.control_receives, kRounds, [&](const verbs::Completion& completion) {
    const auto buffer = static_cast<uint32_t>(completion.cookie);
    if (completion.error != 0) [[unlikely]] {
      note_receive_failure(number, completion);
    } else if (completion.length > verbs::kGrhBytes &&
               completion.length <= verbs::kGrhBytes + Rail::kMaxControlBytes)
      take_control(completion.imm(), rail.control_bytes(buffer, completion.length - verbs::kGrhBytes));
    if (!rail.post_control(buffer)) give_up_rail(number, "receives cannot be posted");
  });
  poll_pages(number, kRounds);
}

void Engine::poll_pages(uint32_t number, int rounds) {
  Rail& rail = *rails_[number];
  poll(number, rail.page_receives, rounds, [&](const verbs::Completion& completion) {
    if (completion.error != 0) [[unlikely]]
      note_receive_failure(number, completion);
    take_page(number, completion.cookie, completion.imm(), completion.error == 0 ? completion.length : 0);
  });
}

// --- What comes.

uint32_t Engine::find_peer(const Immediate& immediate) const {
  return immediate.slot < peers_of_.size() && peers_of_[immediate.slot]->is_met ? immediate.slot : kNoObject;
}

void Engine::take_page(uint32_t rail, uint64_t cookie, uint32_t bits, uint32_t length_bytes) {
  const auto page = static_cast<uint32_t>(cookie);
  // Taken back: what said that a packet is there lay behind a completion that some process had not written.
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

// Of a peer whose process ended a while ago. softverbs' senders take receives themselves: what it had taken
// then is nobody's, and its header is there, as that lands first. It is taken for what it is by its tag, of
// which none is left in pages that were posted since.
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
  for (uint32_t i = 0; i < rails_.size(); ++i) poll_pages(i, INT_MAX);  // what it had completed is taken
  uint32_t pages = 0;
  for (uint32_t page = 0; page < pool_.count(); ++page) {
    const PagePool::Page posted = pool_[page];
    if (!posted.is_posted || !is_of_peer(page)) continue;
    std::memset(pool_.line(page) + verbs::kGrhBytes, 0, sizeof(PacketHeader::tag));
    core_.drop_page(page, posted.rail, posted.queue);
    ++pages;
  }
  if (pages != 0)
    base::log_info("datagrams: %s: its process has ended with %u pages of this engine, which are back",
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
    core_.count_stray();  // one engine poses as another: it would have the number of its next channel
    return;
  }
  heard_ns_ = now_ns_;
  const auto [standing, id] = judge(*greeting);
  if (kind == PacketKind::kWelcome) {
    const bool is_first = is_known && standing == Standing::kNew && !peers_of_[known->second]->is_met;
    const bool is_refusal = is_known && greeting->refusal != GreetingRefusal::kNone;
    if (standing != Standing::kMet && !is_first && !is_refusal) return;
    peers_of_[known->second]->doubted_ns = 0;  // it is there, whatever another one says
    for (Connector* connector : connectors_) connector->note_welcome(known->second, *greeting);
    return;
  }
  switch (standing) {
    case Standing::kOld:
      core_.count_stray();
      return;
    case Standing::kGivenUp:
      return answer_given_up(id);  // it calls again
    case Standing::kNew:
      if (is_known && peers_of_[known->second]->is_met) note_given_up(known->second);
      break;
    case Standing::kMet: {
      const auto& channels = core_.peer(id).receive_channels;
      const uint32_t channel = greeting->channel < channels.size() ? channels[greeting->channel] : kNoObject;
      if (channel != kNoObject && receive_channels_[channel].nonce == greeting->nonce)
        return welcome(id, greeting->channel, greeting->nonce);  // the first one was lost
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

// The kernel is asked for a way to the caller, so that others have the engine meanwhile. Of several callers
// at a time the last one is answered; the others call again.
void Engine::refuse_caller() {
  const Greeting hello = *std::exchange(refused_, std::nullopt);
  const uint32_t turn = refusals_++;
  const EngineRail& theirs = hello.rail[turn % hello.engine.rails];
  GreetingWay found;
  leave_as_service();
  const auto is_found = find_greeting_way(rails_, theirs.port, turn, &found);
  while (!enter_as_service()) std::this_thread::yield();
  if (!is_found || !*is_found || failure_.has_failed()) return;
  constexpr uint16_t kAnySlot = 0;  // the caller is given none
  Greeting refusal = make_greeting(kAnySlot, hello.engine.id, hello.channel, hello.nonce);
  refusal.refusal = GreetingRefusal::kNobodyListens;
  post_greeting(PacketKind::kWelcome, refusal, hello.engine, found, theirs.control);
  retire_way(std::move(found));
  pass();
}

void Engine::take_farewell(uint32_t id, const Farewell& farewell) {
  const bool is_question = farewell.kind == FarewellKind::kQuestion;
  const bool is_of_ours = (farewell.of_sender != 0) == is_question;  // the end that sends
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
  if (channel == kNoObject) return;
  if (farewell.of_sender == 0) {
    const bool has_end = channel < send_ends_.size() && send_ends_[channel] != nullptr;
    if (has_end && farewell.kind == FarewellKind::kTooLong) return note_too_long(*send_ends_[channel]);
    if (has_end) return send_ends_[channel]->note_peer_closed(now_ns_);
    for (Connector* connector : connectors_) connector->note_farewell(channel, now_ns_);  // it has no end yet
  } else if (core_.receive_channel(channel).is_closed()) {
    core_.forget_receive(channel);
  } else if (receive_channels_[channel].end != nullptr) {
    receive_channels_[channel].end->note_peer_closed(now_ns_);
  }
}

// --- What leaves.

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
  // Long packets of a message follow each other on one pair, so that one call copies many of them.
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
                           .key = to.name.queue_key,
                           .imm = immediate.encode(),
                           .header_length = sizeof(header)};
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
  header.tag = make_tag(to.send_keys, header, immediate);
  std::byte* const place = queue.next_header();
  std::memcpy(place, &header, sizeof(header));
  datagram.header = place;
  const uint32_t number = core_.options().rail_of(packet.path) * Rail::kPairs + mark;
  const uint32_t index = queue.added() & ((1U << Departures::kIndexBits) - 1);
  queue.add(datagram, packet.message);
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
  if (!to.is_met) return;
  Rail& rail = *rails_[core_.options().rail_of(path)];
  if (rail.control.room() == 0 || rail.is_given_up()) return;  // whoever needs it sends it again
  const Immediate immediate{.slot = to.slot,
                            .path = static_cast<uint8_t>(path),
                            .is_last = false,
                            .asks = false,
                            .is_resent = false,
                            .kind = kind};
  header.channel = kNoChannel;
  header.time = make_stamp(now_ns_);
  header.tag = make_tag(to.send_keys, header, immediate, body);
  std::byte* const place = rail.control.next_header();
  std::memcpy(place, &header, sizeof(header));
  if (!body.empty()) std::memcpy(place + sizeof(header), body.data(), body.size());
  rail.control.add({.way = to.ways.find(path),
                    .pair_number = to.rail[path % to.name.rails].control,
                    .key = to.name.queue_key,
                    .imm = immediate.encode(),
                    .header_length = static_cast<uint32_t>(sizeof(header) + body.size()),
                    .header = place},
                   kNoObject);
}

// Also of a rail that is given up, which takes nothing any more.
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

void Engine::post_pages(uint32_t rail, PageQueue queue, uint32_t count) {
  std::array<uint32_t, 64> pages;
  while (count != 0) {
    const uint32_t now = std::min(count, static_cast<uint32_t>(pages.size()));
    for (uint32_t i = 0; i < now; ++i) pages[i] = pool_.take(rail, queue);
    if (!rails_[rail]->post_page(queue, pool_, {pages.data(), now}))
      give_up_rail(rail, "receives cannot be posted");
    count -= now;
  }
}

// By the CPU, at once; to and from memory of a GPU by the device, in its time.
bool Engine::copy_page(uint32_t message, uint32_t page, uint64_t offset, uint32_t length_bytes) {
  const ReceiveRequest& request = *receives_of_[message];
  if (request.memory->is_gpu_memory || pool_.is_gpu_memory(page)) {
    placer_->add(page, message, request.data + offset, length_bytes, request.memory);
    return false;
  }
  copy_lines(request.data + offset, pool_.data(page), length_bytes);
  return true;
}

void Engine::note_sent(uint32_t message) {
  SendRequest* const request = sends_of_[message];
  if (request == nullptr) return;
  request->is_acked = true;
  if (request->posted == 0) finish(message, *request);
}

// Only now may its memory go: a copy of a packet that had arrived may still have been leaving.
void Engine::finish(uint32_t message, SendRequest& request) {
  core_.forget(message);
  sends_of_[message] = nullptr;
  request.state.store(ChannelRequest::State::kDone, std::memory_order_release);
}

void Engine::note_received(uint32_t message) {
  ReceiveRequest* const request = std::exchange(receives_of_[message], nullptr);
  const protocol::datagram::ReceiveMessage& state = core_.receive_message(message);
  request->length_bytes = state.bytes;
  request->rails = state.rails;
  --peers_of_[core_.receive_channel(state.channel).peer]->open_receives;
  state.lent != 0 ? lend(message, *request) : core_.release(message);
  request->state.store(ChannelRequest::State::kDone, std::memory_order_release);
}

// Until release(): the kernel reads the pages. Descriptors, then the count, then "done", each with release
// order; what NCCL tells its kernel comes after.
void Engine::lend(uint32_t message, ReceiveRequest& request) {
  auto& end = *static_cast<ReceiveEnd*>(request.owner);
  core_.for_each_page(message, [&](uint32_t page, uint64_t offset, uint32_t length_bytes) {
    end.describe_page(request, pool_.offset_of(page), offset, length_bytes);
  });
  end.publish(request);
}

void Engine::note_silent(uint32_t id) {
  give_up(id, base::fail(Status::kRemote,
                         "datagrams: %s does not answer for %lld ms (VERBENA_FAILOVER_TIMEOUT_MS): has its "
                         "process ended, or is "
                         "the network to it down?",
                         peers_of_[id]->text.c_str(),
                         static_cast<long long>(core_.options().silence_ns / base::kNsPerMs)));
}

void Engine::note(const Outcome& outcome) {
  if (outcome || failure_.has_failed()) return;
  failure_ = outcome;
  has_failed_.store(true, std::memory_order_release);
  for_each_end([&](ChannelEnd& end) { end.fail(failure_); });
}

// --- Peers and channels.

uint32_t Engine::take_peer(const EngineName& name, const protocol::RailRecord& port,
                           const ProcessName& process) {
  uint32_t former = kNoObject;
  if (const auto known = peers_by_id_.find(name.id); known != peers_by_id_.end()) {
    Peer& newest = *peers_of_[known->second];
    if (!newest.failure.has_failed() || newest.is_dead) return known->second;
    if (!newest.is_met) {  // given up by another's word alone: it has sent nothing, and keeps its number
      newest.failure = {};
      newest.doubted_ns = 0;
      core_.unmute_peer(known->second);
      return known->second;
    }
    former = known->second;
  }
  const uint32_t id = core_.add_peer(1, std::min(name.data_bytes(), name_.data_bytes()));
  auto made = std::make_unique<Peer>();
  made->name = name;
  made->process = process;
  made->former = former;
  made->text = describe_engine(name, port);
  peers_of_.push_back(std::move(made));  // peers are not removed: their numbers go up
  peers_by_id_[name.id] = id;
  return id;
}

Outcome Engine::meet(uint32_t id, const Greeting& greeting, Ways ways) {
  Peer& met = *peers_of_[id];
  if (met.is_met) return {};
  auto send_keys = make_tag_keys(name_, greeting.engine),
       receive_keys = make_tag_keys(greeting.engine, name_);
  if (!send_keys) return send_keys.error();
  if (!receive_keys) return receive_keys.error();
  met.name = greeting.engine;
  met.rail.assign(greeting.rail.begin(), greeting.rail.begin() + greeting.engine.rails);
  met.process = greeting.process;
  if (met.process.space != 0) peers_of_host_[met.process.space].push_back(id);
  met.slot = greeting.slot;
  met.send_keys = *send_keys;
  met.receive_keys = *receive_keys;
  met.ways = std::move(ways);
  met.is_met = true;
  met.doubted_ns = 0;
  core_.set_paths(id, met.ways.paths, met.ways.reachable);
  return {};
}

uint16_t Engine::choose_wire(uint32_t id) {
  Peer& to = *peers_of_[id];
  const auto& channels = core_.peer(id).send_channels;
  for (uint32_t left = kNoChannel; left != 0; --left) {
    const uint16_t wire = to.next_channel;
    to.next_channel = static_cast<uint16_t>((wire + 1) % kNoChannel);
    if (wire >= channels.size() || channels[wire] == kNoObject) return wire;
  }
  return kNoChannel;
}

uint32_t Engine::open_receive_of(uint32_t id, uint16_t wire, uint64_t nonce) {
  const auto& channels = core_.peer(id).receive_channels;
  if (wire < channels.size() && channels[wire] != kNoObject) {
    if (!core_.receive_channel(channels[wire]).is_closed()) return kNoObject;
    core_.forget_receive(channels[wire]);
  }
  const uint32_t channel = core_.open_receive(id, wire);
  reach(receive_channels_, channel).nonce = nonce;
  return channel;
}

void Engine::await(Connector* connector, uint32_t id) {
  connectors_.push_back(connector);
  ++peers_of_[id]->connectors;
}

void Engine::forget_connector(Connector* connector, uint32_t id) {
  std::erase(connectors_, connector);
  --peers_of_[id]->connectors;
}

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

void Engine::attach(SendEnd* end) {
  reach(send_ends_, end->channel()) = end;
  if (const Outcome failure = failure_of(end->peer()); failure.has_failed()) end->fail(failure);
}
void Engine::attach(ReceiveEnd* end) {
  reach(receive_channels_, end->channel()).end = end;
  if (const Outcome failure = failure_of(end->peer()); failure.has_failed()) end->fail(failure);
}
void Engine::attach(uint32_t message, SendRequest* request) {
  reach(sends_of_, message) = request;
}
void Engine::attach(uint32_t message, ReceiveRequest* request) {
  reach(receives_of_, message) = request;
  ++peers_of_[core_.receive_channel(core_.receive_message(message).channel).peer]->open_receives;
}

// Datagrams that still read messages leave first, or never.
void Engine::detach(SendEnd* end) {
  constexpr int64_t kPatienceMs = 50;
  const uint32_t channel = end->channel(), ring = core_.send_channel(channel).ring;
  core_.close_send(channel);
  for (uint32_t i = 0; ring != kNoObject && i < kRing; ++i) {
    SendRequest* const request = reach(sends_of_, ring * kRing + i);
    if (request != nullptr) request->is_acked = false;  // the core knows nothing of them any more
  }
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  while (end->is_read() && !failure_.has_failed() && !deadline.has_passed()) pass();
  if (end->is_read()) empty_pairs_of(ring * kRing, kRing);
  for (uint32_t i = 0; ring != kNoObject && i < kRing; ++i) reach(sends_of_, ring * kRing + i) = nullptr;
  send_ends_[channel] = nullptr;
  post_farewell(end->peer(), {end->wire(), 1, FarewellKind::kClosed});
  pass();
}

void Engine::detach(ReceiveEnd* end) {
  const uint32_t channel = end->channel(), ring = core_.receive_channel(channel).ring;
  for (uint32_t i = 0; ring != kNoObject && i < kRing; ++i) {
    const uint32_t message = ring * kRing + i;
    if (std::exchange(reach(receives_of_, message), nullptr) != nullptr)
      --peers_of_[end->peer()]->open_receives;
  }
  placer_->drop(ring != kNoObject ? ring * kRing : 0, ring != kNoObject ? kRing : 0, end);
  core_.close_receive(channel);
  receive_channels_[channel].end = nullptr;
  if (peers_of_[end->peer()]->is_met) core_.must_ack(end->peer());
  post_farewell(end->peer(), {end->wire(), 0, FarewellKind::kClosed});
  if (end->has_peer_closed()) core_.forget_receive(channel);
  pass();
}

// --- Between NCCL's calls.

// Who waits asks whether the other end is there.
void Engine::look_around() {
  const bool asks_all = now_ns_ / kLookNs % kLooksBetweenQuestions == 0;
  looked_ns_ = now_ns_;
  for (uint32_t i = 0; i < rails_.size(); ++i)
    if (rails_[i]->has_failed_queue())
      give_up_rail(i, "a completion queue of datagrams failed: it overran or its device is gone");
  look_for_ended();
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    const bool is_quiet = now_ns_ - core_.peer(id).heard_ns > kLookNs,
               is_called = peers_of_[id]->connectors != 0;
    if (peers_of_[id]->failure.has_failed()) continue;
    if (peers_of_[id]->doubted_ns != 0) {
      look_at_doubt(id);
      if (peers_of_[id]->failure.has_failed()) continue;
    }
    if (!peers_of_[id]->is_met) {
      if (is_called && is_quiet) look_for_life(id);
      continue;
    }
    const bool waits = is_called || peers_of_[id]->open_receives != 0 || core_.peer(id).is_active;
    if (waits && is_quiet) core_.ask(id);
    if (is_quiet && (waits || core_.peer(id).owed_since_ns != kNeverNs)) {
      look_for_life(id);
      if (peers_of_[id]->failure.has_failed()) continue;
    }
    if (!is_quiet && !asks_all) continue;
    const auto& channels = core_.peer(id).receive_channels;
    for (uint32_t wire = 0; wire < channels.size(); ++wire) {
      if (channels[wire] == kNoObject) continue;
      const ReceiveChannel& channel = core_.receive_channel(channels[wire]);
      if (channel.is_closed() || channel.open != 0)
        post_farewell(id, {static_cast<uint16_t>(wire), 1, FarewellKind::kQuestion});
    }
    for (const uint32_t channel : core_.peer(id).send_channels) {
      // One without its end is not the peer's yet.
      const bool has_end = channel < send_ends_.size() && send_ends_[channel] != nullptr;
      if (has_end && core_.send_channel(channel).open != 0)
        post_farewell(id, {send_ends_[channel]->wire(), 0, FarewellKind::kQuestion});
    }
  }
}

// Peers whose ends are open may still wait for our last acknowledgement.
void Engine::linger() {
  constexpr int64_t kQuestionNs = 20 * base::kNsPerMs;
  const EngineGuard guard(*this, EngineGuard::Waits{});
  take_request();
  const auto deadline =
      base::Deadline::after_ms(std::min<int64_t>(base::parameters().peer_grace_ms, kMaxLingerMs));
  int64_t asked_ns = 0;
  while (!failure_.has_failed() && !deadline.has_passed()) {
    pass();
    bool is_awaited = false;
    const bool asks = now_ns_ - asked_ns > kQuestionNs;
    for (uint32_t id = 0; id < peers_of_.size(); ++id) {
      if (!peers_of_[id]->is_met || peers_of_[id]->failure.has_failed()) continue;
      const auto& channels = core_.peer(id).receive_channels;
      for (uint32_t wire = 0; wire < channels.size(); ++wire) {
        if (channels[wire] == kNoObject) continue;
        is_awaited = true;
        if (asks) post_farewell(id, {static_cast<uint16_t>(wire), 1, FarewellKind::kQuestion});
      }
    }
    if (!is_awaited) break;
    if (asks) asked_ns = now_ns_;
    const timespec pause{0, 50'000};
    nanosleep(&pause, nullptr);
  }
  pass();
}

int64_t Engine::progress_idle() {
  constexpr int64_t kBusyNs = 100 * base::kNsPerMs;
  take_request();
  pass();
  if (refused_) refuse_caller();
  const int64_t rest_ns = !placer_->is_idle()             ? 0
                          : now_ns_ - heard_ns_ < kBusyNs ? 2 * base::kNsPerMs
                                                          : 20 * base::kNsPerMs;
  return std::max(std::min(core_.next_timer_ns(), now_ns_ + rest_ns), now_ns_ + base::kNsPerMs / 5);
}

int64_t Engine::find_next_try() {
  return base::monotonic_ns() + 2 * base::kNsPerMs;
}

std::string Engine::describe_counts() const {
  const EngineStatistics& counts = core_.statistics();
  char line[512];
  std::snprintf(line, sizeof(line),
                "datagrams on %s: engine %016" PRIx64 ", %zu peers; packets sent %" PRIu64 ", again %" PRIu64
                ", spurious %" PRIu64 ", received %" PRIu64 ", twice %" PRIu64 ", refused %" PRIu64
                ", strays %" PRIu64 ", late or marked by a switch %" PRIu64 "; timeouts %" PRIu64
                ", paths rested %" PRIu64,
                nic_.name.c_str(), name_.id, peers_of_.size(), counts.sent_packets, counts.resent_packets,
                counts.in_vain, counts.received_packets, counts.duplicates, counts.refused_packets,
                counts.strays, counts.late_marks, counts.timeouts, counts.rested_paths);
  return line;
}

std::string Engine::describe() const {
  std::string text = describe_counts() + '\n';
  const protocol::datagram::PageBudget& pages = core_.budget();
  base::append(
      text,
      "  pages: %u held, %u parked, %u lent, %u being copied, %u idle of %u; %u packets granted and not "
      "here, %llu grants taken back from peers that did not send\n",
      pages.held(), pages.parked(), pages.lent(), pages.moving(), core_.idle(), pages.pages(),
      core_.outstanding(), static_cast<unsigned long long>(core_.grants().taken_back()));
  const protocol::datagram::PageBudget& shorts = core_.short_budget();
  if (shorts.pages() != 0)
    base::append(text, "  small-message buffers: %u parked, %u being copied, %u idle of %u\n",
                 shorts.parked(), shorts.held() + shorts.moving(), core_.short_idle(), shorts.pages());
  for (uint32_t i = 0; i < rails_.size(); ++i)
    base::append(text, "  rail %u: %u pages posted for granted packets, %u for eager ones\n", i,
                 pages.posted(i, PageQueue::kGranted), pages.posted(i, PageQueue::kEager));
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    const auto& state = core_.peer(id);
    base::append(
        text,
        "  %s: %s, heard %.1f s ago, %u packets under way of a window of %u, %u paths of %u rest, %u "
        "receives open%s%s\n",
        peers_of_[id]->text.c_str(),
        peers_of_[id]->failure.has_failed() ? "does not answer"
        : peers_of_[id]->is_met             ? "met"
                                            : "not met yet",
        static_cast<double>(now_ns_ - state.heard_ns) / 1e9, state.in_flight, state.guard.window(),
        static_cast<unsigned>(std::popcount(state.paths.resting())),
        static_cast<unsigned>(std::popcount(state.paths.all())), peers_of_[id]->open_receives,
        state.fresh.is_empty() && state.waiting.is_empty() ? "" : ", messages wait for grants",
        state.lost.is_empty() ? "" : ", packets wait to be sent again");
  }
  return text;
}

// The thread that has the engine answers in its next pass.
bool Engine::dump_state(StateDump& answer) {
  if (!enter_as_service()) {
    is_asked_.store(true, std::memory_order_relaxed);
    return false;
  }
  is_asked_.store(false, std::memory_order_relaxed);
  answer = dump();
  leave_as_service();
  return true;
}

StateDump Engine::dump() const {
  return {describe(), peers_of_.empty() && !failure_.has_failed()};
}

StateDump Engine::dump_from_outside() const {
  char line[160];
  std::snprintf(line, sizeof(line), "datagrams on %s: engine %016" PRIx64 " is being worked on\n",
                nic_.name.c_str(), name_.id);
  return {line};
}

}  // namespace verbena::transport::datagram
