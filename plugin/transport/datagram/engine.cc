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

// Copies in ascending order. A GPU may be polling lines of NCCL's LL128 in this memory, and the last word of
// a line marks the line as complete. memcpy() may store in any order.
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

// Waits a while, depending on how often the caller was refused the token.
void rest(uint32_t tries) {
  constexpr uint32_t kYields = 64;
  constexpr timespec kNap{0, 20'000};
  tries < kYields ? std::this_thread::yield() : static_cast<void>(nanosleep(&kNap, nullptr));
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
  retire();  // last, because releasing the token may wake the service
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
                      "device %s: datagrams need an MTU of at least %u bytes on all ports, but the smallest "
                      "MTU is %u. Set VERBENA_TRANSPORT=connected on all ranks",
                      nic_.name.c_str(), kLeastMtuBytes, mtu_bytes);
  if (core_.options().pages.pages < PageBudget::kLeastPages * core_.options().rails)
    return base::fail(Status::kSystem,
                      "device %s: datagrams would have only %u bounce pages, because the device's shared "
                      "receive queues are too small. Set VERBENA_TRANSPORT=connected on all ranks",
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
  // If the top bit is set, a device uses its own key instead.
  name_.queue_key = drawn.queue_key & ~(1U << 31);
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
  if (std::ranges::all_of(rails, &Rail::is_given_up))
    return base::fail(Status::kSystem, "device %s: cannot send datagrams: the device has failed",
                      nic_.name.c_str());
  rails_ = std::move(rails);
  placer_ = std::make_unique<Placer>(nic_, pool_, rails_);
  core_.add_idle(pool_.long_count());
  core_.add_idle(pool_.short_count(), true);
  const EngineGuard guard(*this, EngineGuard::Waits{});
  pass();
  return failure_;
}

// Yields the processor: threads that ask for the token repeatedly may keep the thread that holds it from
// running.
void Engine::give_way() {
  constexpr uint32_t kSpins = 16;
  thread_local uint32_t refusals = 0;
  if (++refusals % kSpins == 0) std::this_thread::yield();
}

void Engine::enter_soon() {
  for (uint32_t tries = 0; !enter(); ++tries) rest(tries);
}
void Engine::return_as_service() {
  for (uint32_t tries = 0; !enter_as_service(); ++tries) rest(tries);
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

// Starts the copies to GPU memory.
void Engine::place_pages() {
  std::string cause;
  if (!placer_->progress(live_rails_, now_ns_, &cause,
                         [this](uint32_t message) { core_.note_moved(message, 1); })) [[unlikely]]
    note_placement_failure(cause);
}

// Calls `take` as long as it finds completions, at most `rounds` times.
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
  constexpr int kRounds = 8;  // for one kind of receives, before the next kind is polled
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
  if (rail.is_given_up()) return;  // it may have no queues
  poll(number, rail.page_receives, rounds, [&](const verbs::Completion& completion) {
    if (completion.error != 0) [[unlikely]]
      note_receive_failure(number, completion);
    take_page(number, completion.cookie, completion.imm(), completion.error == 0 ? completion.length : 0);
  });
}

// --- Pages.

void Engine::post_pages(uint32_t rail, PageQueue queue, uint32_t count) {
  std::array<uint32_t, 64> pages;
  while (count != 0) {
    const uint32_t now = std::min(count, static_cast<uint32_t>(pages.size()));
    for (uint32_t i = 0; i < now; ++i) pages[i] = pool_.take(rail, queue);
    if (!rails_[rail]->is_given_up() && !rails_[rail]->post_page(queue, pool_, {pages.data(), now}))
      give_up_rail(rail, "receives cannot be posted");
    count -= now;
  }
}

// The CPU copies to and from host memory, and the copy is complete when the call returns. The device copies
// to and from GPU memory, and the copy completes later.
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

// The message's memory may be freed only now, because a retransmitted copy of a packet that had already
// arrived may still have been in a send queue.
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

// Lends the pages to the kernel, until release(). Writes the descriptors, then the count, then marks the
// request as done, each with release order. NCCL notifies its kernel afterwards.
void Engine::lend(uint32_t message, ReceiveRequest& request) {
  auto& end = *static_cast<ReceiveEnd*>(request.owner);
  core_.for_each_page(message, [&](uint32_t page, uint64_t offset, uint32_t length_bytes) {
    end.describe_page(request, pool_.offset_of(page), offset, length_bytes);
  });
  end.publish(request);
}

void Engine::note_silent(uint32_t id) {
  give_up(id, base::fail(Status::kRemote,
                         "datagrams: %s has not answered for %lld ms (VERBENA_FAILOVER_TIMEOUT_MS). Check "
                         "the peer's process and the network to the peer",
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
    if (!newest.failure.has_failed() || newest.is_gone()) return known->second;
    // Only another engine has reported that this peer is gone. The peer has sent no packet, so it keeps its
    // number.
    if (!newest.is_met) {
      newest.failure = {};
      newest.doubted_ns = 0;
      core_.unmute_peer(known->second);
      return known->second;
    }
    former = known->second;
  }
  const uint32_t least = former == kNoObject ? 0 : former + 1;
  const uint32_t id = core_.add_peer(1, std::min(name.data_bytes(), name_.data_bytes()), least);
  auto made = std::make_unique<Peer>();
  made->name = name;
  made->process = process;
  made->former = former;
  made->text = describe_engine(name, port);
  reach(peers_of_, id) = std::move(made);
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

void Engine::attach(SendEnd* end) {
  reach(send_ends_, end->channel()) = end;
  note_state(*end);
}
void Engine::attach(ReceiveEnd* end) {
  reach(receive_channels_, end->channel()).end = end;
  note_state(*end);
}
// Copies the state of the end's peer to the end.
void Engine::note_state(ChannelEnd& end) const {
  if (const Outcome failure = failure_of(end.peer()); failure.has_failed()) end.fail(failure);
  if (peers_of_[end.peer()]->has_left) end.note_peer_closed(now_ns_);
}
void Engine::attach(uint32_t message, SendRequest* request) {
  reach(sends_of_, message) = request;
}
void Engine::attach(uint32_t message, ReceiveRequest* request) {
  reach(receives_of_, message) = request;
  ++peers_of_[core_.receive_channel(core_.receive_message(message).channel).peer]->open_receives;
}

// Datagrams that still read messages of this end are sent first or are discarded.
void Engine::detach(SendEnd* end) {
  constexpr int64_t kPatienceMs = 50;
  const uint32_t channel = end->channel(), ring = core_.send_channel(channel).ring;
  core_.close_send(channel);
  for (uint32_t i = 0; ring != kNoObject && i < kRing; ++i) {
    SendRequest* const request = reach(sends_of_, ring * kRing + i);
    if (request != nullptr) request->is_acked = false;  // the core no longer knows them
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

// While requests wait, checks whether their peers are alive.
void Engine::look_around() {
  const bool asks_all = now_ns_ / kLookNs % kLooksBetweenQuestions == 0;
  looked_ns_ = now_ns_;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    const verbs::Device& device = rails_[i]->device();
    if (rails_[i]->has_failed_queue())
      give_up_rail(i, "a completion queue for datagrams failed: the queue overran, or the device is gone");
    else if (!device.is_healthy() && device.has_failed())
      give_up_rail(i, "the device has failed");
  }
  retire_way({});
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
      // A channel without its end does not belong to the peer yet.
      const bool has_end = channel < send_ends_.size() && send_ends_[channel] != nullptr;
      if (has_end && core_.send_channel(channel).open != 0)
        post_farewell(id, {send_ends_[channel]->wire(), 0, FarewellKind::kQuestion});
    }
  }
}

// Stays alive for a while, because peers with open ends may still wait for this engine's last
// acknowledgement.
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
  tell_departure(deadline);
}

// A peer that does not receive this message keeps its state of this engine until its own engine ends.
void Engine::tell_departure(const base::Deadline& deadline) {
  constexpr uint32_t kFarewells = 2;      // sent over different paths, because one may be lost
  constexpr uint32_t kPeersAtATime = 16;  // they all fit into a send queue
  const auto have_left = [this] {
    return std::ranges::all_of(
        rails_, [](const auto& rail) { return !rail->is_usable() || rail->control.is_empty(); });
  };
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    for (uint32_t i = 0; i < kFarewells; ++i) post_farewell(id, {kNoChannel, 1, FarewellKind::kClosed});
    if (id % kPeersAtATime != kPeersAtATime - 1 && id + 1 != peers_of_.size()) continue;
    pass();
    while (!have_left() && !failure_.has_failed() && !deadline.has_passed()) pass();
  }
}

int64_t Engine::progress_idle() {
  constexpr int64_t kBusyNs = 100 * base::kNsPerMs;
  take_request();
  pass();
  if (refused_) refuse_caller();
  if (!suspects_.empty()) look_at_suspects();
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
                "datagrams on %s: engine %016" PRIx64 ", %u peers; packets sent %" PRIu64
                ", retransmitted %" PRIu64 ", spurious retransmits %" PRIu64 ", received %" PRIu64
                ", duplicates %" PRIu64 ", rejected %" PRIu64 ", unmatched %" PRIu64
                ", delayed or ECN-marked %" PRIu64 "; timeouts %" PRIu64 ", paths quarantined %" PRIu64,
                nic_.name.c_str(), name_.id, core_.peers(), counts.sent_packets, counts.resent_packets,
                counts.in_vain, counts.received_packets, counts.duplicates, counts.refused_packets,
                counts.strays, counts.late_marks, counts.timeouts, counts.rested_paths);
  return line;
}

std::string Engine::describe() const {
  std::string text = describe_counts() + '\n';
  const protocol::datagram::PageBudget& pages = core_.budget();
  base::append(text,
               "  pages: %u in matched messages, %u in unexpected messages, %u on loan to kernels, %u being "
               "copied, %u idle of %u; %u packets granted but not "
               "received, %llu grants revoked because their peers did not send\n",
               pages.held(), pages.parked(), pages.lent(), pages.moving(), core_.idle(), pages.pages(),
               core_.outstanding(), static_cast<unsigned long long>(core_.grants().taken_back()));
  const protocol::datagram::PageBudget& shorts = core_.short_budget();
  if (shorts.pages() != 0)
    base::append(text,
                 "  small-message buffers: %u in unexpected messages, %u being copied,  %u idle of %u\n",
                 shorts.parked(), shorts.held() + shorts.moving(), core_.short_idle(), shorts.pages());
  for (uint32_t i = 0; i < rails_.size(); ++i)
    base::append(text,
                 "  rail %u: %u pages posted for granted packets, %u for eager packets, %u address handles\n",
                 i, pages.posted(i, PageQueue::kGranted), pages.posted(i, PageQueue::kEager),
                 rails_[i]->device().address_handles().count());
  for (uint32_t id = 0; id < peers_of_.size(); ++id) {
    const auto& state = core_.peer(id);
    if (!state.is_open) continue;
    base::append(text,
                 "  %s: %s, last packet received %.1f s ago, %u packets in flight (congestion window %u "
                 "packets), %u of %u paths quarantined, %u receives open%s%s\n",
                 peers_of_[id]->text.c_str(),
                 peers_of_[id]->failure.has_failed() ? "does not answer"
                 : peers_of_[id]->is_met             ? "connected"
                                                     : "not connected yet",
                 static_cast<double>(now_ns_ - state.heard_ns) / 1e9, state.in_flight, state.guard.window(),
                 static_cast<unsigned>(std::popcount(state.paths.resting())),
                 static_cast<unsigned>(std::popcount(state.paths.all())), peers_of_[id]->open_receives,
                 state.fresh.is_empty() && state.waiting.is_empty() ? "" : ", messages wait for grants",
                 state.lost.is_empty() ? "" : ", packets wait for retransmission");
  }
  return text;
}

// If another thread holds the engine, that thread answers in its next pass.
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
  return {describe(), core_.peers() == 0 && !failure_.has_failed()};
}

StateDump Engine::dump_from_outside() const {
  char line[160];
  std::snprintf(line, sizeof(line),
                "datagrams on %s: engine %016" PRIx64 ": state unknown: another thread uses the engine\n",
                nic_.name.c_str(), name_.id);
  return {line};
}

}  // namespace verbena::transport::datagram
