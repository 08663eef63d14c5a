#include "transport/datagram/meeting.h"

#include <bit>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/greeting_keys.h"

namespace verbena::transport::datagram {

using base::Outcome;
using base::Result;
using base::Status;
using protocol::datagram::DatagramHandle;
using protocol::datagram::Greeting;
using protocol::datagram::GreetingRefusal;
using protocol::datagram::PacketKind;

namespace {

constexpr int64_t kFirstHelloDelayNs = 500'000, kLongestHelloDelayNs = 64'000'000;
constexpr uint32_t kMaxPeers = protocol::datagram::kStrangerSlot;

std::string describe_fullness() {
  return "this device has had " + std::to_string(kMaxPeers) +
         " peers, the maximum with datagrams. Set VERBENA_TRANSPORT=connected on all ranks";
}

base::Deadline make_deadline() {
  return base::Deadline::after_ms(base::parameters().connect_timeout_ms);
}

uint32_t divide_up(uint64_t value, uint64_t by) {
  return static_cast<uint32_t>((value + by - 1) / by);
}

// Chooses the longest message that a kernel unpacks, if a packet carries `data_bytes`; longer messages are
// copied. Each piece needs a descriptor in each of 16 slots. The descriptors need up to 128 KiB for a channel
// if there are few channels, and a fixed total for all channels together. At least one page always fits.
LendingQueue::Limits find_limits(uint32_t connections, uint32_t data_bytes) {
  constexpr uint32_t kFew = 256, kMany = 2048;
  const uint32_t descriptors = connections <= kFew ? 512 : connections <= kMany ? 128 : 16;
  LendingQueue::Limits limits;
  limits.piece_bytes = divide_up(divide_up(data_bytes, descriptors), kUnpackPageBytes) * kUnpackPageBytes;
  limits.pieces = divide_up(data_bytes, limits.piece_bytes);
  limits.pages = descriptors / limits.pieces;
  if (base::parameter_origin("VERBENA_UNPACK_THRESHOLD") != base::kDefaultOrigin) {
    const auto longest = static_cast<uint64_t>(base::parameters().unpack_threshold_bytes);
    limits.pages = static_cast<uint32_t>(
        std::min<uint64_t>(longest / data_bytes + (longest % data_bytes != 0), limits.pages));
  }
  return limits;
}

// Returns the rails in the greeting that its sender really has.
std::span<const protocol::datagram::EngineRail> rails_of(const Greeting& greeting) {
  return {greeting.rail.data(), greeting.engine.rails};
}

}  // namespace

// --- Listener.

Listener::Listener(std::shared_ptr<Engine> engine, uint64_t nonce)
    : engine_(std::move(engine)), nonce_(nonce), deadline_(make_deadline()) {}

Result<std::unique_ptr<Listener>> Listener::open(const std::shared_ptr<Engine>& engine,
                                                 DatagramHandle* handle) {
  uint64_t nonce = 0;
  if (Outcome drawn = base::draw_random({reinterpret_cast<uint8_t*>(&nonce), sizeof(nonce)}, "listen");
      !drawn)
    return drawn.error();
  const auto rails = engine->rails();
  const auto live = std::find_if(rails.begin(), rails.end(), [](const std::unique_ptr<Rail>& rail) {
    return rail->device().is_healthy() && rail->device().refresh_address().port.link_layer != 0;
  });
  if (live == rails.end())
    return base::fail(Status::kSystem,
                      "listen on %s: all ports of the device are down. Check cables and switch; ibv_devinfo "
                      "shows each port's state",
                      engine->nic().name.c_str());
  const protocol::datagram::EngineRail rail = (*live)->describe();
  *handle = {};
  handle->control = rail.control;
  handle->nonce = nonce;
  handle->engine = engine->name();
  handle->port = rail.port;
  handle->process = engine->process();
  protocol::datagram::seal_handle(*handle);
  std::unique_ptr<Listener> listener(new Listener(engine, nonce));
  const EngineGuard guard(*engine, EngineGuard::Waits{});
  engine->listen(nonce, listener.get());
  return listener;
}

Listener::~Listener() {
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  engine_->forget_listener(nonce_);
}

Result<std::unique_ptr<ReceiveEnd>> Listener::poll(bool unpacks, uint32_t connections) {
  if (!std::exchange(is_polled_, true)) deadline_ = make_deadline();
  std::optional<Greeting> hello;
  bool has_many = false, is_met = false;
  if (const EngineGuard guard(*engine_); guard) {
    engine_->pass();
    if (engine_->failure().has_failed()) return engine_->failure().error();
    hello = hello_;
    has_many = engine_->has_many_peers();
    if (hello) is_met = engine_->has_met(*hello);
  }
  if (!hello) {
    if (!deadline_.has_passed()) return std::unique_ptr<ReceiveEnd>();
    return base::fail(Status::kTimeout,
                      "accept on %s: timed out, because no peer connected by datagrams "
                      "(VERBENA_CONNECT_TIMEOUT_MS %lld ms)",
                      engine_->nic().name.c_str(),
                      static_cast<long long>(base::parameters().connect_timeout_ms));
  }
  if (unpacks && lending_ == nullptr && engine_->space() != nullptr) {  // allocates memory, like make_ways()
    const uint32_t data_bytes = std::min(engine_->name().data_bytes(), hello->engine.data_bytes());
    auto made = LendingQueue::create(engine_->space(), find_limits(connections, data_bytes));
    if (!made) return made.error();
    lending_ = std::move(*made);
  }
  Ways ways;
  if (!is_met) {  // releases the token, because the kernel is called
    auto made =
        make_ways(engine_->rails(), engine_->name(), hello->engine, rails_of(*hello), has_many, &ways);
    if (!made) {
      const EngineGuard guard(*engine_, EngineGuard::Waits{});
      forget_hello(hello->engine.id);  // other clients can be accepted
      return made.error();
    }
    if (!*made) return std::unique_ptr<ReceiveEnd>();
  }
  const EngineGuard guard(*engine_);
  if (!guard) return std::unique_ptr<ReceiveEnd>();
  const bool is_the_same = hello_ && hello_->engine.id == hello->engine.id && hello_->slot == hello->slot;
  if (!is_the_same) return std::unique_ptr<ReceiveEnd>();  // meanwhile its sender was given up
  const uint32_t peer = engine_->take_peer(hello->engine, hello->rail[0].port, hello->process);
  if (peer >= kMaxPeers)
    return base::fail(Status::kSystem, "accept on %s: %s", engine_->nic().name.c_str(),
                      describe_fullness().c_str());
  if (const Outcome failure = engine_->failure_of(peer); failure.has_failed()) return failure.error();
  if (Outcome outcome = engine_->meet(peer, *hello, std::move(ways)); !outcome) return outcome.error();
  const uint32_t channel = engine_->open_receive_of(peer, hello->channel, nonce_);
  if (channel == protocol::datagram::kNoObject)
    return base::fail(Status::kRemote, "accept on %s: %s has opened channel %u twice",
                      engine_->nic().name.c_str(), engine_->peer_of(peer).text.c_str(), hello->channel);
  auto end = std::make_unique<ReceiveEnd>(engine_, peer, channel, hello->channel,
                                          unpacks ? std::move(lending_) : nullptr);
  engine_->attach(end.get());
  engine_->welcome(peer, hello->channel, nonce_);
  engine_->pass();
  hello_.reset();  // the next client gets a separate channel
  is_polled_ = false;
  return end;
}

// --- Connector.

Connector::Connector(std::shared_ptr<Engine> engine, const DatagramHandle& handle)
    : engine_(std::move(engine)), handle_(handle), deadline_(make_deadline()) {}

std::string Connector::describe() const {
  return "connect to " + describe_engine(handle_.engine, handle_.port);
}

Result<std::unique_ptr<Connector>> Connector::start(std::shared_ptr<Engine> engine,
                                                    const DatagramHandle& handle) {
  std::unique_ptr<Connector> connector(new Connector(std::move(engine), handle));
  const auto id = make_engine_id(handle.engine);
  if (!id) return id.error();
  if (*id != handle.engine.id)
    return base::fail(
        Status::kRemote,
        "%s: the handle is damaged, because its engine id does not match the rest of the handle",
        connector->describe().c_str());
  const bool are_we_keyed = connector->engine_->name().is_keyed != 0;
  if (are_we_keyed != (handle.engine.is_keyed != 0)) {
    return base::fail(Status::kInvalidUsage, "%s: %s", connector->describe().c_str(),
                      protocol::datagram::describe(are_we_keyed ? GreetingRefusal::kKeyUnknown
                                                                : GreetingRefusal::kKeyMissing));
  }
  return connector;
}

Connector::~Connector() {
  const EngineGuard guard(*engine_, EngineGuard::Waits{});
  if (is_calling_ && !is_done_) engine_->forget_connector(this, peer_);
  engine_->retire_way(std::move(last_));
  if (is_calling_ && !is_done_) engine_->core().close_send(channel_);
}

Result<std::unique_ptr<SendEnd>> Connector::poll() {
  if (deadline_.has_passed()) {
    return base::fail(Status::kTimeout,
                      "%s from %s: no answer (VERBENA_CONNECT_TIMEOUT_MS %lld ms). Check that the ports "
                      "reach each other and that the peer's process is alive",
                      describe().c_str(), engine_->nic().name.c_str(),
                      static_cast<long long>(base::parameters().connect_timeout_ms));
  }
  const bool is_due = base::monotonic_ns() >= next_hello_ns_;
  if (is_due && !next_.way) {  // releases the token, because the kernel is called
    const auto found = find_greeting_way(engine_->rails(), engine_->name(), handle_.port, hellos_,
                                         verbs::AddressHandles::Purpose::kPeer, &next_);
    if (!found) {
      const verbs::Device& device = engine_->rails()[next_.rail]->device();
      return device.address_handles().explain(found.error(), std::bit_cast<verbs::PortAddress>(handle_.port));
    }
    if (!*found) return std::unique_ptr<SendEnd>();
  }
  std::optional<Greeting> welcome;
  bool has_many = false, is_met = false;
  {
    const EngineGuard guard(*engine_);
    if (!guard) return std::unique_ptr<SendEnd>();
    if (!is_calling_) {
      peer_ = engine_->take_peer(handle_.engine, handle_.port, handle_.process);
      if (peer_ >= kMaxPeers)
        return base::fail(Status::kSystem, "%s: %s", describe().c_str(), describe_fullness().c_str());
      wire_ = engine_->choose_wire(peer_);
      if (wire_ == protocol::datagram::kNoChannel)
        return base::fail(Status::kSystem,
                          "%s: the maximum of %u channels to this peer is reached. Close a channel first",
                          describe().c_str(), wire_);
      channel_ = engine_->core().open_send(peer_, wire_);
      engine_->await(this, peer_);
      is_calling_ = true;
    }
    engine_->pass();
    if (engine_->peer_of(peer_).has_left)
      return base::fail(Status::kRemote,
                        "%s: the peer's process has closed all connections on its device. See the peer's log",
                        describe().c_str());
    if (const Outcome failure = engine_->failure_of(peer_); failure.has_failed()) {
      if (engine_->failure().has_failed() || !engine_->peer_of(peer_).has_given_us_up) return failure.error();
      call_again();
      return std::unique_ptr<SendEnd>();
    }
    if (!welcome_ && is_due) {
      engine_->retire_way(std::exchange(last_, std::move(next_)));
      ++hellos_;
      engine_->post_greeting(PacketKind::kHello, engine_->make_greeting(peer_, wire_, handle_.nonce),
                             handle_.engine, last_, handle_.control);
      delay_ns_ = delay_ns_ == 0 ? kFirstHelloDelayNs : std::min(2 * delay_ns_, kLongestHelloDelayNs);
      next_hello_ns_ = engine_->now_ns() + delay_ns_;
      engine_->pass();
    }
    if (!welcome_) return std::unique_ptr<SendEnd>();
    welcome = welcome_;
    has_many = engine_->has_many_peers();
    is_met = engine_->peer_of(peer_).is_met;
  }
  return finish(*welcome, is_met, has_many);
}

// Restarts the attempt: the peer had given up this end, and is not connected to it again yet.
void Connector::call_again() {
  engine_->forget_connector(this, peer_);
  engine_->core().close_send(channel_);
  is_calling_ = false;
  welcome_.reset();
  closed_ns_ = next_hello_ns_ = delay_ns_ = 0;
}

Result<std::unique_ptr<SendEnd>> Connector::finish(const Greeting& welcome, bool is_met, bool has_many) {
  if (welcome.refusal != GreetingRefusal::kNone)
    return base::fail(Status::kRemote, "%s: the peer refuses: %s", describe().c_str(),
                      protocol::datagram::describe(welcome.refusal));
  Ways ways;
  if (!is_met) {  // without the token, as in the listener
    auto made =
        make_ways(engine_->rails(), engine_->name(), welcome.engine, rails_of(welcome), has_many, &ways);
    if (!made) return made.error();
    if (!*made) return std::unique_ptr<SendEnd>();
  }
  const EngineGuard guard(*engine_);
  if (!guard) return std::unique_ptr<SendEnd>();
  if (engine_->failure_of(peer_).has_failed()) return std::unique_ptr<SendEnd>();  // poll() reports it
  if (Outcome outcome = engine_->meet(peer_, welcome, std::move(ways)); !outcome) return outcome.error();
  auto end = std::make_unique<SendEnd>(engine_, peer_, channel_, wire_);
  engine_->attach(end.get());
  if (closed_ns_ != 0) end->note_peer_closed(closed_ns_);
  engine_->forget_connector(this, peer_);
  is_done_ = true;
  return end;
}

}  // namespace verbena::transport::datagram
