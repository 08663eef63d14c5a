#include "transport/setup/acceptor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "transport/link/advice.h"
#include "transport/setup/page_choice.h"

namespace verbena::transport {

namespace {

// A peer sends its request as soon as it is connected; other clients may never.
constexpr int64_t kMaxHelloMs = 10000;

int64_t choose_hello_ms() {
  return std::min(kMaxHelloMs, base::parameters().connect_timeout_ms);
}

// Returns the traffic class of this end: of grants, credits and acknowledgements. Data and grants share a
// queue pair, but each end chooses the traffic class of the packets that it sends.
int choose_traffic_class(const verbs::Device& device, int of_data) {
  const auto of_control = static_cast<int>(base::parameters().control_traffic_class);
  return of_control >= 0 && device.address().link_layer == verbs::kEthernet ? of_control : of_data;
}

}  // namespace

Acceptor::Acceptor(const Nic& nic, uint64_t nonce, base::Socket socket, bool* has_told_of_strangers)
    : nic_(nic),
      nonce_(nonce),
      has_told_of_strangers_(has_told_of_strangers),
      own_(PeerSocket::create(std::move(socket), ConnectionEnd::kReceiver)),
      peer_(base::describe(own_->socket().peer())),
      deadline_(base::Deadline::after_ms(choose_hello_ms())),
      placing_deadline_(deadline_) {
  own_->socket().set_silent(true);
  register_self();
}

Acceptor::~Acceptor() {
  unregister_self();
  give_back();
}

StateDump Acceptor::dump_from_outside() const {
  static constexpr const char* kWaits[] = {
      "waits for the peer's connect request", "waits for a control socket that it will share",
      "waits until the peer's port answers",  "waits for space in the socket's send buffer",
      "waits for the peer's ready message",   "connected"};
  return {describe("accept from " + peer_, kWaits[static_cast<size_t>(get_step())])};
}

// Returns to the pool what a Receiver would return, if no Receiver was created.
void Acceptor::give_back() {
  if (!parts_) return;
  parts_->give_back();
  parts_.reset();
}

base::Result<Acceptor::Verdict> Acceptor::poll(const AcceptOptions& options) {
  while (get_step() != Step::kStanding) {
    auto advanced = advance();
    if (!advanced && get_step() == Step::kJoining) return advanced.error();  // the error is this end's own
    if (!advanced && get_step() == Step::kAwaitingHello)
      return dismiss(own_->socket().explain_end() != nullptr
                         ? own_->socket().explain_end()
                         : "the peer closed the connection before it sent a connect request");
    if (!advanced) return turn_away(advanced.error());
    if (!*advanced) {
      if (!deadline_.has_passed()) {
        warn_if_stalled();
        return Verdict::kWaiting;
      }
      if (get_step() == Step::kAwaitingHello)
        return dismiss("handshake unfinished (no connect request for " + std::to_string(choose_hello_ms()) +
                       " ms)");
      return turn_away(base::fail(
          base::Status::kTimeout, "accept from %s: handshake unfinished (VERBENA_CONNECT_TIMEOUT_MS %lld ms)",
          peer_.c_str(), static_cast<long long>(base::parameters().connect_timeout_ms)));
    }
    if (get_step() == Step::kAwaitingHello) {
      auto verdict = judge_hello(options);
      if (!verdict || *verdict == Verdict::kStranger) return verdict;
      deadline_ = base::Deadline::after_ms(base::parameters().connect_timeout_ms);
      placing_deadline_ = base::Deadline::after_ms(kMaxPlacingMs);
    }
    step_.store(static_cast<Step>(static_cast<int>(get_step()) + 1), std::memory_order_relaxed);
    offset_bytes_ = 0;
  }
  return Verdict::kStanding;
}

// A client that only saw the nonce, which is sent unencrypted, must not make the handshake of another process
// fail.
base::Result<Acceptor::Verdict> Acceptor::turn_away(const base::Error& error) const {
  return auth_.is_keyed() ? Verdict::kStranger : base::Result<Verdict>(error);
}

base::Result<bool> Acceptor::advance() {
  switch (get_step()) {
    case Step::kAwaitingHello:
      return receive_hello();
    case Step::kPlacing:
      return place();
    case Step::kJoining: {
      auto joined = join();
      if (!joined) refuse(protocol::Refusal::kResources);  // this end reports its own cause
      return joined;
    }
    case Step::kSendingWelcome: {
      auto sent = own_->socket().send_all(&welcome_, sizeof(welcome_), offset_bytes_);
      if (sent && *sent) own_->open();
      return sent;
    }
    default: {
      auto received = own_->receive_ready(ready_);
      if (!received || !*received) return received;
      if (auto outcome = confirm_ready(); !outcome) return outcome.error();
      return true;
    }
  }
}

// A message of another version may be shorter. Such a message, or one of an unauthenticated client, is
// recognised by its header.
base::Result<bool> Acceptor::receive_hello() {
  if (offset_bytes_ < sizeof(hello_.header)) {
    auto received = own_->socket().receive_exact(&hello_, sizeof(hello_.header), offset_bytes_);
    if (!received || !*received) return received;
  }
  const auto error = protocol::check_header(hello_.header, sizeof(hello_), nonce_);
  if (error != protocol::HandshakeError::kNone) return true;  // judge_hello() names the error
  return own_->socket().receive_exact(&hello_, sizeof(hello_), offset_bytes_);
}

base::Outcome Acceptor::confirm_ready() {
  const auto error = protocol::check_ready(ready_, nonce_, channel_ != nullptr);
  if (error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(), protocol::describe(error));
  }
  if (!auth_.verify(hello_, welcome_, ready_)) {
    return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(),
                      describe_key_refusal(protocol::Refusal::kKeyWrong, true).c_str());
  }
  if (ready_.accepts_offer != 0 && channel_->socket().is_open()) return {};
  if (ready_.accepts_offer == 0) {
    if (channel_ != nullptr) PeerSockets::instance().add(own_, hello_.process, welcome_.id);
    channel_ = PeerChannel::join(own_, welcome_.id, peer_);
    own_->stand();
    if (channel_ != nullptr) return {};
  }
  return base::fail(
      base::Status::kRemote,
      "accept from %s: the peer refers to a control socket that belongs to another connection%s",
      peer_.c_str(), kPeerAdvice);
}

// Chooses the control socket of the connection: an existing one, else the socket of this handshake.
bool Acceptor::place() {
  const auto choice = PeerSockets::instance().find_to_offer(hello_.process);
  if (choice.is_late && choice.socket == nullptr && !placing_deadline_.has_passed()) return false;
  if (choice.socket != nullptr) channel_ = PeerChannel::join(choice.socket, welcome_.id, peer_);
  if (channel_ == nullptr) {
    PeerSockets::instance().add(own_, hello_.process, welcome_.id);
  } else {
    welcome_.offered = choice.socket->id();
  }
  return true;
}

// Later lines are not warnings, because a port scanner may connect as often as it likes.
Acceptor::Verdict Acceptor::dismiss(const std::string& cause) {
  if (std::exchange(*has_told_of_strangers_, true)) {
    base::log_info("accept from %s: %s", peer_.c_str(), cause.c_str());
  } else {
    base::log_warn("accept from %s: %s. Further such connections are logged only at level INFO",
                   peer_.c_str(), cause.c_str());
  }
  return Verdict::kStranger;
}

base::Result<Acceptor::Verdict> Acceptor::judge_hello(const AcceptOptions& options) {
  own_->socket().set_silent(false);
  auto error = protocol::check_hello(hello_, nonce_, static_cast<uint32_t>(nic_.rails.size()),
                                     count_queue_pairs_per_rail(nic_));
  if (error == protocol::HandshakeError::kNone && hello_.out_of_order != 0 && !nic_.takes_out_of_order)
    error = protocol::HandshakeError::kMalformed;  // this end's handle has not offered it
  welcome_.header = protocol::make_header(sizeof(welcome_), nonce_, protocol::agree(hello_.header.limits));
  auto auth = HandshakeAuth::create();
  if (!auth) {
    refuse(protocol::Refusal::kResources);
    return auth.error();
  }
  auth_ = std::move(*auth);
  if (error == protocol::HandshakeError::kNone) {
    if (const auto refusal = auth_.judge(hello_); refusal != protocol::Refusal::kNone) {
      refuse(refusal);
      return turn_away(base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(),
                                  describe_key_refusal(refusal, true).c_str()));
    }
    for (verbs::Device* device : nic_.rails) addresses_.push_back(device->refresh_address());
    choose_paths();
    if (paths_.empty()) return refuse_unreachable();
    base::Outcome outcome = build(options);
    while (!outcome && leave_failed_rails()) outcome = build(options);
    if (!outcome) {
      refuse(protocol::Refusal::kResources);  // this end reports its own cause
      return outcome.error();
    }
    return Verdict::kWaiting;
  }
  if (error == protocol::HandshakeError::kForeign || error == protocol::HandshakeError::kNonce)
    return dismiss(protocol::describe(error));
  auto logged = base::fail(base::Status::kRemote, "accept from %s: %s%s", peer_.c_str(),
                           protocol::describe(error), describe_versions(error, hello_.header).c_str());
  const bool version = error == protocol::HandshakeError::kVersion;
  refuse(version ? protocol::Refusal::kVersion : protocol::Refusal::kMalformed);
  return turn_away(logged);
}

void Acceptor::choose_paths() {
  welcome_.rails = static_cast<uint32_t>(nic_.rails.size());
  std::vector<verbs::PortAddress> own;
  for (size_t r = 0; r < addresses_.size(); ++r) {
    own.push_back(addresses_[r].port);
    std::memcpy(welcome_.rail[r].bytes, &own[r], sizeof(own[r]));
    welcome_.speed_mbps[r] = nic_.rails[r]->speed_mbps();
  }
  paths_ =
      pair_rails(read_addresses(hello_.rail, hello_.rails), own, hello_.queue_pairs, read_pairing_options());
}

// Call this after build() has failed. Returns true if build() may succeed without the rails on which no queue
// pair can be created.
bool Acceptor::leave_failed_rails() {
  bool has_left = false;
  for (const RailPath& path : paths_) {
    verbs::PortAddress& port = addresses_[path.receiver_rail].port;
    if (nic_.rails[path.receiver_rail]->has_failed()) port.link_layer = 0;
    has_left |= port.link_layer == 0;
  }
  if (has_left) choose_paths();
  return has_left && !paths_.empty();
}

base::Error Acceptor::refuse_unreachable() {
  refuse(protocol::Refusal::kUnreachable);
  const std::string cause =
      explain_no_path(read_addresses(welcome_.rail, welcome_.rails),
                      read_addresses(hello_.rail, hello_.rails), read_pairing_options());
  return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(), cause.c_str());
}

// Tells the peer at once that it waits for nothing.
void Acceptor::refuse(protocol::Refusal refusal) {
  welcome_.refusal = static_cast<uint32_t>(refusal);
  size_t sent_bytes = 0;
  static_cast<void>(own_->socket().send_all(&welcome_, sizeof(welcome_), sent_bytes));
}

base::Outcome Acceptor::build(const AcceptOptions& options) {
  // The traffic class of this rank's communicator, or else of the sender's, because acknowledgements and
  // credits should use the same class as the data.
  const int traffic_class = options.traffic_class >= 0 ? options.traffic_class : hello_.traffic_class;
  give_back();
  parts_.emplace();
  if (auto outcome = take_entries(options); !outcome) return outcome;
  if (auto outcome = make_link(traffic_class); !outcome) return outcome;
  if (options.unpacks) {
    if (auto outcome = set_up_unpack(); !outcome) return outcome;
  }
  offer_loopback();
  parts_->waits_for_consumed = options.unpacks;
  auto process = find_process_id();
  if (!process) return process.error();
  welcome_.process = *process;
  const std::span id(reinterpret_cast<uint8_t*>(&welcome_.id), sizeof(welcome_.id));
  if (auto drawn = base::draw_random(id, "handshake"); !drawn) return drawn;
  welcome_.id |= 1;  // not 0
  return {};
}

// Sends the connection's parameters to the peer, and connects the queue pairs.
base::Result<bool> Acceptor::join() {
  std::array<protocol::QueuePairRecord, protocol::kMaxQueuePairs> remote_pairs{};
  std::array<uint8_t, protocol::kMaxQueuePairs> remote_rails{};
  for (size_t q = 0; q < paths_.size(); ++q) {
    remote_pairs[q] = hello_.queue_pair[paths_[q].origin];
    remote_rails[q] = paths_[q].sender_rail;
  }
  auto joined = parts_->link.try_connect(hello_.rail, remote_pairs, remote_rails);
  if (!joined || !*joined) return joined;
  for (uint32_t q = 0; q < paths_.size(); ++q) {  // the peer sends nothing before it has the accept message
    if (nic_.rails[paths_[q].receiver_rail]->has_failed()) continue;
    if (auto filled = parts_->fill_own_queue(parts_->link.pair(q), q, {}); !filled) return filled.error();
  }
  describe_welcome();
  if (auto outcome = auth_.sign(hello_, welcome_); !outcome) return outcome.error();
  return true;
}

// Reserves pages if messages may be staged and the pool has enough pages. Otherwise reserves entries without
// pages, for direct messages only.
base::Outcome Acceptor::take_entries(const AcceptOptions& options) {
  if (options.unpacks) {
    const PageChoice choice = choose_pages(nic_);
    auto pages = BouncePool::acquire(choice.kind, choice.page_bytes);
    if (!pages) return pages.error();
    parts_->pages = std::move(*pages);
    if (base::parameters().unpack_threshold_bytes > 0) {
      const auto pairs = static_cast<uint32_t>(paths_.size());
      const bool wants_run = choice.wants_runs && parts_->pages->is_gpu_memory();
      const auto request = choose_window(pairs, parts_->pages->page_bytes(), wants_run);
      auto taken = take_entries_of(parts_->pages, request);
      if (!taken) return taken.error();
      if (*taken) return {};
      base::log_info(
          "the bounce pool of GPU %d is full, so messages from %s are not staged (VERBENA_BOUNCE_BYTES %lld "
          "bytes)",
          parts_->pages->gpu(), peer_.c_str(), static_cast<long long>(base::parameters().bounce_bytes));
    }
  }
  auto bare = BouncePool::acquire(BouncePool::Kind::kBareEntries);
  if (!bare) return bare.error();
  const auto request = choose_direct_window(options.connections_ahead);
  auto taken = take_entries_of(*bare, request);
  if (!taken) return taken.error();
  if (*taken) return {};
  return base::fail(base::Status::kSystem,
                    "accept from %s: each of the connection's %zu queue pairs needs %u receive entries, but "
                    "a receive queue of device %s has fewer entries. Lower VERBENA_QPS_PER_CONNECTION",
                    peer_.c_str(), paths_.size(), request.least, nic_.name.c_str());
}

// Returns false, and reserves nothing, if the pool has too few pages or entries.
base::Result<bool> Acceptor::take_entries_of(const std::shared_ptr<BouncePool>& pool,
                                             const BouncePool::WindowRequest& request) {
  parts_->give_back_entries();
  parts_->pool = pool;
  parts_->queues.clear();
  for (uint32_t rail = 0; rail < nic_.rails.size(); ++rail) {
    const uint32_t pairs = count_pairs(rail);
    parts_->queues.push_back(nullptr);
    if (pairs == 0) continue;
    BouncePool::WindowRequest of_rail = request;
    if (hello_.out_of_order != 0) of_rail.max_own = nic_.rails[rail]->max_out_of_order_receives();
    auto reservation = pool->reserve(*nic_.rails[rail], of_rail, pairs);
    if (!reservation) return reservation.error();
    if (reservation->entries == 0) return parts_->give_back_entries(), false;
    parts_->queues.back() = reservation->queue;
    auto page = reservation->pages.begin();
    for (size_t q = 0; q < paths_.size(); ++q) {
      if (paths_[q].receiver_rail != rail) continue;
      const auto end = page + (reservation->pages.empty() ? 0 : reservation->entries);
      parts_->reservations[q] = {reservation->queue, reservation->entries, {page, end}};
      page = end;
    }
  }
  return true;
}

uint32_t Acceptor::count_pairs(uint32_t rail) const {
  return static_cast<uint32_t>(
      std::ranges::count(paths_, rail, [](const RailPath& path) { return uint32_t{path.receiver_rail}; }));
}

base::Outcome Acceptor::make_link(int traffic_class) {
  std::vector<verbs::SharedReceiveQueue*> queues;
  for (auto* queue : parts_->queues) queues.push_back(queue != nullptr ? queue->shared() : nullptr);
  std::vector<uint8_t> rail_of;
  std::vector<uint32_t> entries;
  for (size_t q = 0; q < paths_.size(); ++q) {
    rail_of.push_back(paths_[q].receiver_rail);
    entries.push_back(parts_->reservations[q].entries);
  }
  Link::Options link_options;
  link_options.rails = nic_.rails;
  link_options.queue_pairs = static_cast<uint32_t>(paths_.size());
  link_options.send_depth = protocol::kControlDepth;
  link_options.inline_bytes = verbs::kInlineBytes;
  link_options.operations = {.send_imm = false, .write = true, .write_imm = false, .read = false};
  link_options.out_of_order = hello_.out_of_order != 0;
  link_options.receive_queues = queues;
  link_options.receive_entries = entries;
  link_options.traffic_class = choose_traffic_class(*nic_.rails[0], traffic_class);
  link_options.receives_to_gpu = parts_->pool == parts_->pages && parts_->pool->is_gpu_memory();
  link_options.rail_of = rail_of;
  link_options.addresses = addresses_;
  auto link = Link::create(link_options);
  bool is_whole = true;
  for (const RailPath& path : paths_) {
    if (link && link->has_rail(path.receiver_rail)) continue;
    addresses_[path.receiver_rail].port.link_layer = 0;
    is_whole = false;
  }
  if (!link) return link.error();
  parts_->link = std::move(*link);
  if (!is_whole) return base::Error{base::Status::kSystem, 0};  // the cause has been logged
  if (parts_->link.inline_bytes() >= sizeof(protocol::Grant)) return {};
  auto ring = ControlRing::create(nic_.rails, link_options.queue_pairs);
  if (!ring) return ring.error();
  parts_->control_ring = std::move(*ring);
  return {};
}

// The loopback has two uses. It flushes writes of real NICs to GPU memory, on each rail that carried data.
// (Softverbs completes a write only when its bytes are visible.) It also copies staged data to GPU memory, on
// the first working rail. Which GPU has the memory is not known before the memory is registered, so the
// loopback is always offered.
void Acceptor::offer_loopback() {
  parts_->flushes = !nic_.rails[0]->is_softverbs();
  const bool is_offered = nic_.supports_gpu_pointers || nic_.supports_dmabuf;
  const bool copies = parts_->pool == parts_->pages && base::has_gpu();
  if (copies || (parts_->flushes && is_offered))
    parts_->loopback = std::make_unique<LoopbackUser>(Loopback::acquire(parts_->pool->gpu(), nic_));
}

void Acceptor::describe_welcome() {
  welcome_.queue_pairs = parts_->link.queue_pairs();
  const bool stages = parts_->pool == parts_->pages;
  welcome_.page_bytes =
      static_cast<uint32_t>(stages ? parts_->pages->page_bytes() : base::parameters().page_bytes);
  parts_->link.describe(welcome_.rail, welcome_.queue_pair);
  for (size_t q = 0; q < paths_.size(); ++q) {
    welcome_.origin[q] = paths_[q].origin;
    welcome_.rail_of[q] = paths_[q].receiver_rail;
  }
  for (size_t q = 0; q < paths_.size(); ++q) welcome_.window[q] = parts_->reservations[q].entries;
  welcome_.staging_threshold_bytes = find_threshold_bytes();
  welcome_.joined_pairs = parts_->link.joined_pairs();
  welcome_.staging = parts_->waits_for_consumed && stages;
}

base::Outcome Acceptor::set_up_unpack() {
  auto& pages = *parts_->pages;
  const auto descriptors =
      static_cast<uint32_t>((find_threshold_bytes() + kUnpackPageBytes - 1) / kUnpackPageBytes);
  auto memory = pages.unpack_memories().take(descriptors, pages.device_base());
  if (!memory) return memory.error();
  parts_->unpack = std::move(*memory);
  device_handle_ = parts_->unpack->device_handle();
  return {};
}

base::Result<std::unique_ptr<Receiver>> Acceptor::finish() {
  auto auth = auth_.start_records(ConnectionEnd::kReceiver, hello_, welcome_);
  if (!auth) return auth.error();
  channel_->start(std::move(*auth));
  own_.reset();
  Receiver::Peer peer;
  peer.control_address = hello_.control_address;
  for (size_t q = 0; q < paths_.size(); ++q)
    peer.control_keys[q] = hello_.control_keys[paths_[q].sender_rail];
  auto receiver = std::make_unique<Receiver>(std::move(*parts_), peer, std::move(channel_));
  parts_.reset();
  if (auto outcome = receiver->open(); !outcome) return outcome.error();
  return receiver;
}

}  // namespace verbena::transport
