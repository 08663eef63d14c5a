#include "transport/setup/connector.h"

#include <algorithm>
#include <bit>

#include "base/job_key.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/link/advice.h"
#include "transport/link/rail_pairing.h"

namespace verbena::transport {

namespace {

std::string describe_refusal(uint32_t refusal) {
  switch (static_cast<protocol::Refusal>(refusal)) {
    case protocol::Refusal::kVersion:
      return "it speaks a different protocol version. Use the same Verbena release on all hosts";
    case protocol::Refusal::kResources:
      return "it could not create its end of the connection. The peer's log says why";
    case protocol::Refusal::kKeyMissing:
    case protocol::Refusal::kKeyUnknown:
    case protocol::Refusal::kKeyWrong:
      return describe_key_refusal(static_cast<protocol::Refusal>(refusal), false);
    default:
      return "it received a malformed connect request";
  }
}

}  // namespace

Connector::Connector(const Nic& nic, const protocol::Handle& handle, base::Socket socket)
    : nic_(nic),
      handle_(handle),
      own_(PeerSocket::create(std::move(socket), ConnectionEnd::kSender)),
      peer_(base::describe(own_->socket().peer())),
      deadline_(base::Deadline::after_ms(base::parameters().connect_timeout_ms)),
      placing_deadline_(deadline_) {
  PeerSockets::instance().add(own_, handle_.process, 0);
  register_self();
}

Connector::~Connector() {
  unregister_self();
}

StateDump Connector::dump_from_outside() const {
  static constexpr const char* kWaits[] = {"waits for the TCP connection to the peer",
                                           "waits until the socket has sent the connect request",
                                           "waits for the peer's reply: the peer has not called accept",
                                           "waits until the peer's port answers",
                                           "waits for a control socket that it will share",
                                           "waits until the socket has sent the ready message",
                                           "connected"};
  return {describe("connect to " + peer_, kWaits[static_cast<size_t>(get_step())])};
}

base::Result<std::unique_ptr<Connector>> Connector::start(const Nic& nic, const protocol::Handle& handle,
                                                          int traffic_class) {
  auto socket = base::Socket::start_connect(std::bit_cast<base::SocketAddress>(handle.address));
  if (!socket) return socket.error();
  if (auto outcome = base::encrypt_if_asked(*socket, base::ConnectionEnd::kSender); !outcome)
    return outcome.error();
  auto connector = std::unique_ptr<Connector>(new Connector(nic, handle, std::move(*socket)));
  if (auto outcome = connector->prepare(traffic_class); !outcome) return outcome.error();
  return connector;
}

base::Outcome Connector::prepare(int traffic_class) {
  const auto rails = static_cast<uint32_t>(nic_.rails.size());
  Link::Options options;
  options.rails = nic_.rails;
  options.queue_pairs = protocol::count_queue_pairs(rails, count_queue_pairs_per_rail(nic_), handle_.rails,
                                                    handle_.queue_pairs_per_rail);
  options.send_depth = protocol::kSendDepth;
  options.operations = {.send_imm = true, .write = true, .write_imm = true, .read = false};
  options.traffic_class = traffic_class;
  options.out_of_order = nic_.takes_out_of_order && handle_.out_of_order != 0;
  auto link = Link::create(options);
  if (!link) return link.error();
  link_ = std::move(*link);
  auto control = ControlMemory::create(nic_.rails);
  if (!control) return control.error();
  control_ = std::move(*control);

  auto process = find_process_id();
  if (!process) return process.error();
  const auto limits = protocol::agree(handle_.header.limits);
  hello_.header = protocol::make_header(sizeof(hello_), handle_.header.nonce, limits);
  hello_.rails = rails;
  hello_.queue_pairs = options.queue_pairs;
  link_.describe(hello_.rail, hello_.queue_pair);
  hello_.traffic_class = std::max(traffic_class, -1);
  hello_.out_of_order = options.out_of_order;
  hello_.process = *process;
  hello_.control_address = control_.address();
  for (uint32_t r = 0; r < rails; ++r) hello_.control_keys[r] = control_.remote_key(r);
  ready_.header = protocol::make_header(sizeof(ready_), handle_.header.nonce, limits);
  auto auth = HandshakeAuth::create();
  if (!auth) return auth.error();
  auth_ = std::move(*auth);
  return auth_.sign(hello_);
}

base::Result<std::unique_ptr<Sender>> Connector::poll() {
  while (get_step() != Step::kStanding) {
    auto advanced = advance();
    if (!advanced) return advanced.error();
    if (!*advanced) {
      if (!deadline_.has_passed()) {
        warn_if_stalled();
        return std::unique_ptr<Sender>();
      }
      return base::fail(base::Status::kTimeout,
                        "connect to %s: no answer (VERBENA_CONNECT_TIMEOUT_MS %lld ms). Check that the peer "
                        "is alive and that firewalls let the handshake's port through",
                        peer_.c_str(), static_cast<long long>(base::parameters().connect_timeout_ms));
    }
    step_.store(static_cast<Step>(static_cast<int>(get_step()) + 1), std::memory_order_relaxed);
    offset_bytes_ = 0;
  }
  return finish();
}

// Returns true if the step is complete.
base::Result<bool> Connector::advance() {
  switch (get_step()) {
    case Step::kConnecting:
      return own_->socket().finish_connect();
    case Step::kSendingHello:
      return own_->socket().send_all(&hello_, sizeof(hello_), offset_bytes_);
    case Step::kAwaitingWelcome: {
      auto received = receive_welcome();
      if (!received || !*received) return received;
      if (auto outcome = accept_welcome(); !outcome) return outcome.error();
      return true;
    }
    case Step::kJoining: {
      auto joined =
          link_.try_connect(welcome_.rail, welcome_.queue_pair, welcome_.rail_of, welcome_.joined_pairs);
      if (joined && *joined) placing_deadline_ = base::Deadline::after_ms(kMaxPlacingMs);
      return joined;
    }
    case Step::kPlacing:
      return place();
    default: {
      auto sent = own_->socket().send_all(&ready_, sizeof(ready_), offset_bytes_);
      if (sent && *sent && channel_ == nullptr) own_->stand();
      return sent;
    }
  }
}

// Continues on the control socket that the peer offers, if this process has it too.
base::Result<bool> Connector::place() {
  if (welcome_.offered != 0) {
    auto choice = PeerSockets::instance().find_offered(welcome_.process, welcome_.offered);
    if (choice.is_late && !placing_deadline_.has_passed()) return false;
    if (choice.socket != nullptr) channel_ = PeerChannel::join(std::move(choice.socket), welcome_.id, peer_);
  }
  ready_.accepts_offer = channel_ != nullptr;
  if (auto outcome = auth_.sign(hello_, welcome_, ready_); !outcome) return outcome.error();
  return true;
}

// A message of another version may be shorter. Its header is enough to recognise it.
base::Result<bool> Connector::receive_welcome() {
  if (offset_bytes_ < sizeof(welcome_.header)) {
    auto received = own_->socket().receive_exact(&welcome_, sizeof(welcome_.header), offset_bytes_);
    if (!received || !*received) return received;
  }
  const auto error = protocol::check_header(welcome_.header, sizeof(welcome_), handle_.header.nonce);
  if (error != protocol::HandshakeError::kNone) return true;  // accept_welcome() names the error
  return own_->socket().receive_exact(&welcome_, sizeof(welcome_), offset_bytes_);
}

base::Outcome Connector::accept_welcome() {
  const auto error = protocol::check_welcome(welcome_, handle_.header.nonce, hello_.queue_pairs);
  if (error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kRemote, "connect to %s: %s%s", peer_.c_str(), protocol::describe(error),
                      describe_versions(error, welcome_.header).c_str());
  }
  if (welcome_.refusal != 0) return fail_refused();  // a refusal needs no authentication
  if (!auth_.verify(hello_, welcome_)) {
    return base::fail(base::Status::kRemote, "connect to %s: %s", peer_.c_str(),
                      describe_key_refusal(protocol::Refusal::kKeyWrong, true).c_str());
  }
  if (welcome_.process != handle_.process) {
    return base::fail(
        base::Status::kRemote,
        "connect to %s: the process that answered is not the process that created the handle, so "
        "the peer has probably been restarted. Restart all ranks together",
        peer_.c_str());
  }
  PeerSockets::instance().add(own_, handle_.process, welcome_.id);
  if (welcome_.queue_pairs < hello_.queue_pairs) {
    base::log_info("connect to %s: only %u of %u queue pairs reach a rail of the peer", peer_.c_str(),
                   welcome_.queue_pairs, hello_.queue_pairs);
  }
  for (uint32_t q = 0; q < welcome_.queue_pairs; ++q) {
    if (!link_.has_rail(link_.rail_of(welcome_.origin[q])))
      return base::fail(base::Status::kRemote,
                        "connect to %s: the accept message selects a queue pair that this rank does not have",
                        peer_.c_str());
  }
  link_.keep({welcome_.origin, welcome_.queue_pairs});
  return {};
}

base::Error Connector::fail_refused() const {
  const auto refusal = static_cast<protocol::Refusal>(welcome_.refusal);
  const std::string cause =
      refusal == protocol::Refusal::kUnreachable
          ? explain_no_path(link_.addresses(), read_addresses(welcome_.rail, welcome_.rails),
                            read_pairing_options())
          : describe_refusal(welcome_.refusal);
  return base::fail(base::Status::kRemote, "connect to %s: the peer refused: %s", peer_.c_str(),
                    cause.c_str());
}

base::Result<std::unique_ptr<Sender>> Connector::finish() {
  protocol::SendOptions peer;
  std::copy(std::begin(welcome_.rail_of), std::end(welcome_.rail_of), peer.peer_rail_of.begin());
  peer.page_bytes = welcome_.page_bytes;
  std::copy(std::begin(welcome_.window), std::end(welcome_.window), peer.window.begin());
  peer.staging_threshold_bytes = welcome_.staging_threshold_bytes;
  peer.staging = welcome_.staging != 0;
  peer.speed_mbps = find_speeds();
  peer.primary = protocol::choose_primary(welcome_.queue_pair[0].number, welcome_.queue_pairs);
  peer.min_stripe_bytes = static_cast<uint64_t>(base::parameters().min_stripe_bytes);
  auto auth = auth_.start_records(ConnectionEnd::kSender, hello_, welcome_);
  if (!auth) return auth.error();
  if (channel_ == nullptr) channel_ = PeerChannel::join(own_, welcome_.id, peer_);
  if (channel_ == nullptr) {
    return base::fail(base::Status::kRemote, "connect to %s: the peer gave two connections the same id%s",
                      peer_.c_str(), kPeerAdvice);
  }
  own_.reset();
  channel_->start(std::move(*auth));
  auto sender = std::make_unique<Sender>(std::move(link_), std::move(control_), peer, std::move(channel_));
  if (auto outcome = sender->open(); !outcome) return outcome.error();
  return sender;
}

// Returns the speed of each queue pair: the slower of both ends' links, divided by the number of queue pairs
// that share the link.
protocol::RailShare::Speeds Connector::find_speeds() {
  const uint32_t pairs = link_.queue_pairs();
  std::array<uint32_t, protocol::kMaxQueuePairs> here{}, there{};
  for (uint32_t q = 0; q < pairs; ++q) {
    ++here[link_.rail_of(q)];
    ++there[welcome_.rail_of[q]];
  }
  protocol::RailShare::Speeds speeds{};
  for (uint32_t q = 0; q < pairs; ++q) {
    const uint32_t rail = link_.rail_of(q), peer_rail = welcome_.rail_of[q];
    const uint32_t peer_mbps = welcome_.speed_mbps[peer_rail] / there[peer_rail];
    speeds[q] = link_.device(rail).speed_mbps() / here[rail];
    if (peer_mbps != 0) speeds[q] = std::min(speeds[q], peer_mbps);
  }
  return speeds;
}

}  // namespace verbena::transport
