#include "transport/acceptor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/page_choice.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kDirectEntries =
    32;                                 // NCCL keeps at most 8 receives open: each may bring one direct chunk
constexpr int64_t kMaxHelloMs = 10000;  // a peer says hello as soon as it is connected; a stranger may never

int64_t choose_hello_ms() {
  return std::min(kMaxHelloMs, base::parameters().connect_timeout_ms);
}

}  // namespace

Acceptor::Acceptor(const Nic& nic, uint64_t nonce, base::Socket socket)
    : nic_(nic),
      nonce_(nonce),
      socket_(std::move(socket)),
      peer_(base::describe(socket_.peer())),
      deadline_(base::Deadline::after_ms(choose_hello_ms())) {
  join_roster();
}

Acceptor::~Acceptor() {
  leave_roster();
  give_back();
}

Telling Acceptor::tell_from_outside() const {
  static constexpr const char* kWaits[] = {"waits for the caller to say who it is",
                                           "waits for the socket to take its welcome",
                                           "waits for the peer to say that it is ready", "stands"};
  return {describe("accept from " + peer_, kWaits[static_cast<size_t>(get_step())])};
}

// What a Receiver would have given back, had it come to that.
void Acceptor::give_back() {
  if (!parts_) return;
  parts_->give_back();
  parts_.reset();
}

base::Result<Acceptor::Verdict> Acceptor::poll(const AcceptOptions& options) {
  while (get_step() != Step::kStanding) {
    auto advanced = advance();
    if (!advanced)
      return get_step() == Step::kAwaitingHello ? Verdict::kStranger
                                                : base::Result<Verdict>(advanced.error());
    if (!*advanced) {
      if (!deadline_.has_passed()) {
        warn_if_stalled();
        return Verdict::kWaiting;
      }
      const bool is_silent = get_step() == Step::kAwaitingHello;
      const auto error = base::fail(
          base::Status::kTimeout, "accept from %s: handshake unfinished (%s %lld ms)", peer_.c_str(),
          is_silent ? "no hello for" : "VERBENA_CONNECT_TIMEOUT_MS",
          static_cast<long long>(is_silent ? choose_hello_ms() : base::parameters().connect_timeout_ms));
      return is_silent ? Verdict::kStranger : base::Result<Verdict>(error);
    }
    if (get_step() == Step::kAwaitingHello) {
      auto verdict = judge_hello(options);
      if (!verdict || *verdict == Verdict::kStranger) return verdict;
      deadline_ = base::Deadline::after_ms(base::parameters().connect_timeout_ms);
    }
    step_.store(static_cast<Step>(static_cast<int>(get_step()) + 1), std::memory_order_relaxed);
    offset_bytes_ = 0;
  }
  return Verdict::kStanding;
}

base::Result<bool> Acceptor::advance() {
  switch (get_step()) {
    case Step::kAwaitingHello:
      return receive_hello();
    case Step::kSendingWelcome:
      return socket_.send_all(&welcome_, sizeof(welcome_), offset_bytes_);
    default: {
      auto received = socket_.receive_exact(&ready_, sizeof(ready_), offset_bytes_);
      if (!received || !*received) return received;
      if (auto outcome = confirm_ready(); !outcome) return outcome.error();
      return true;
    }
  }
}

// A message of another version, which may be shorter, or a stranger's, is known by its header.
base::Result<bool> Acceptor::receive_hello() {
  if (offset_bytes_ < sizeof(hello_.header)) {
    auto received = socket_.receive_exact(&hello_, sizeof(hello_.header), offset_bytes_);
    if (!received || !*received) return received;
  }
  const auto error = protocol::check_header(hello_.header, sizeof(hello_), nonce_);
  if (error != protocol::HandshakeError::kNone) return true;  // judge_hello() says what it is
  return socket_.receive_exact(&hello_, sizeof(hello_), offset_bytes_);
}

base::Outcome Acceptor::confirm_ready() {
  const auto error = protocol::check_header(ready_.header, sizeof(ready_), nonce_);
  if (error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(), protocol::describe(error));
  }
  if (auth_.verify(hello_, welcome_, ready_)) return {};
  return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(),
                    describe_key_refusal(protocol::Refusal::kKeyWrong, true).c_str());
}

base::Result<Acceptor::Verdict> Acceptor::judge_hello(const AcceptOptions& options) {
  const auto error = protocol::check_hello(hello_, nonce_, static_cast<uint32_t>(nic_.rails.size()),
                                           static_cast<uint32_t>(base::parameters().qps_per_connection));
  welcome_.header = protocol::make_header(sizeof(welcome_), nonce_);
  if (error == protocol::HandshakeError::kNone) {
    if (auto outcome = check_key(); !outcome) return outcome.error();
    paths_ = choose_paths();
    if (paths_.empty()) return refuse_unreachable();
    if (auto outcome = make_welcome(options); !outcome) {
      refuse(protocol::Refusal::kResources);  // we report our own cause
      return outcome.error();
    }
    return Verdict::kWaiting;
  }
  auto logged = base::fail(base::Status::kRemote, "accept from %s: %s%s", peer_.c_str(),
                           protocol::describe(error), describe_versions(error, hello_.header).c_str());
  if (error == protocol::HandshakeError::kForeign || error == protocol::HandshakeError::kNonce)
    return Verdict::kStranger;
  const bool version = error == protocol::HandshakeError::kVersion;
  refuse(version ? protocol::Refusal::kVersion : protocol::Refusal::kMalformed);
  return logged;
}

// Before anything is made for the peer.
base::Outcome Acceptor::check_key() {
  auto auth = HandshakeAuth::create();
  if (!auth) {
    refuse(protocol::Refusal::kResources);
    return auth.error();
  }
  auth_ = std::move(*auth);
  const auto refusal = auth_.judge(hello_);
  if (refusal == protocol::Refusal::kNone) return {};
  refuse(refusal);
  return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(),
                    describe_key_refusal(refusal, true).c_str());
}

base::Outcome Acceptor::make_welcome(const AcceptOptions& options) {
  if (auto outcome = build(options); !outcome) return outcome;
  describe_welcome(options);
  return auth_.sign(hello_, welcome_);
}

std::vector<RailPath> Acceptor::choose_paths() {
  for (verbs::Device* device : nic_.rails) addresses_.push_back(device->refresh_address());
  welcome_.rails = static_cast<uint32_t>(nic_.rails.size());
  std::vector<verbs::PortAddress> own;
  for (size_t r = 0; r < addresses_.size(); ++r) {
    own.push_back(addresses_[r].port);
    std::memcpy(welcome_.rail[r].bytes, &own[r], sizeof(own[r]));
    welcome_.speed_mbps[r] = nic_.rails[r]->speed_mbps();
  }
  return pair_rails(read_addresses(hello_.rail, hello_.rails), own, hello_.queue_pairs,
                    read_pairing_options());
}

base::Error Acceptor::refuse_unreachable() {
  refuse(protocol::Refusal::kUnreachable);
  const std::string cause =
      explain_no_path(read_addresses(welcome_.rail, welcome_.rails),
                      read_addresses(hello_.rail, hello_.rails), read_pairing_options());
  return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(), cause.c_str());
}

// The peer learns at once that waiting is in vain.
void Acceptor::refuse(protocol::Refusal refusal) {
  welcome_.refusal = static_cast<uint32_t>(refusal);
  size_t sent_bytes = 0;
  static_cast<void>(socket_.send_all(&welcome_, sizeof(welcome_), sent_bytes));
}

base::Outcome Acceptor::build(const AcceptOptions& options) {
  // Of our communicator, else of the sender's: acknowledgements and credits travel as the data does.
  const int traffic_class = options.traffic_class >= 0 ? options.traffic_class : hello_.traffic_class;
  parts_.emplace();
  if (auto outcome = take_entries(options); !outcome) return outcome;
  if (auto outcome = make_link(traffic_class); !outcome) return outcome;
  if (options.unpacks) {
    if (auto outcome = set_up_unpack(); !outcome) return outcome;
  }
  if (auto outcome = make_loopback(traffic_class); !outcome) return outcome;
  parts_->waits_for_consumed = options.unpacks;

  std::array<protocol::QueuePairRecord, protocol::kMaxQueuePairs> remote_pairs{};
  std::array<uint8_t, protocol::kMaxQueuePairs> remote_rails{};
  for (size_t q = 0; q < paths_.size(); ++q) {
    remote_pairs[q] = hello_.queue_pair[paths_[q].origin];
    remote_rails[q] = paths_[q].sender_rail;
  }
  return parts_->link.connect(hello_.rail, remote_pairs, remote_rails);
}

// Pages if anything will be staged and there are enough; else entries for direct messages only.
base::Outcome Acceptor::take_entries(const AcceptOptions& options) {
  if (options.unpacks) {
    auto pages = BouncePool::acquire(choose_page_pool(nic_));
    if (!pages) return pages.error();
    parts_->pages = std::move(*pages);
    if (base::parameters().unpack_threshold_bytes > 0) {
      auto taken = take_entries_of(parts_->pages, choose_window());
      if (!taken) return taken.error();
      if (*taken) return {};
      base::log_info(
          "bounce pool of GPU %d: full: nothing is staged for %s (VERBENA_BOUNCE_BYTES %lld bytes)",
          parts_->pages->gpu(), peer_.c_str(), static_cast<long long>(base::parameters().bounce_bytes));
    }
  }
  auto bare = BouncePool::acquire(BouncePool::Kind::kBareEntries);
  if (!bare) return bare.error();
  const uint32_t entries = kDirectEntries * static_cast<uint32_t>(paths_.size());
  auto taken = take_entries_of(*bare, {.wanted = entries, .modest = kLeastEntries, .least = kLeastEntries});
  if (!taken) return taken.error();
  if (*taken) return {};
  return base::fail(base::Status::kSystem,
                    "accept from %s: too many connections: no receive entry is left; fewer channels "
                    "(NCCL_MAX_NCHANNELS) need fewer",
                    peer_.c_str());
}

// False, and nothing taken, if the pool has too few.
base::Result<bool> Acceptor::take_entries_of(const std::shared_ptr<BouncePool>& pool,
                                             const BouncePool::Wish& wish) {
  parts_->give_back_entries();
  parts_->pool = pool;
  parts_->rails.clear();
  for (verbs::Device* device : nic_.rails) {
    auto rail = pool->open_rail(*device);
    if (!rail) return rail.error();
    parts_->rails.push_back(*rail);
  }
  const auto share = divide(wish, static_cast<uint32_t>(paths_.size()));
  for (size_t q = 0; q < paths_.size(); ++q) {
    auto& promise = parts_->promises[q];
    promise.rail = parts_->rails[paths_[q].receiver_rail];
    auto promised = pool->reserve(*promise.rail, share);
    if (!promised) return promised.error();
    promise.entries = *promised;
    if (promise.entries == 0) return parts_->give_back_entries(), false;
  }
  return true;
}

base::Outcome Acceptor::make_link(int traffic_class) {
  std::vector<verbs::SharedReceiveQueue*> queues;
  for (auto* rail : parts_->rails) queues.push_back(&rail->queue());
  std::vector<uint8_t> rail_of;
  std::vector<uint32_t> entries(queues.size());
  for (size_t q = 0; q < paths_.size(); ++q) {
    rail_of.push_back(paths_[q].receiver_rail);
    entries[paths_[q].receiver_rail] += parts_->promises[q].entries;
  }
  Link::Options link_options;
  link_options.rails = nic_.rails;
  link_options.queue_pairs = static_cast<uint32_t>(paths_.size());
  link_options.send_depth = Receiver::kControlDepth;
  link_options.inline_bytes = verbs::kInlineBytes;
  link_options.operations = {.send_imm = false, .write = true, .write_imm = false, .read = false};
  link_options.receive_queues = queues;
  link_options.receive_entries = entries;
  link_options.traffic_class = traffic_class;
  link_options.rail_of = rail_of;
  link_options.addresses = addresses_;
  auto link = Link::create(link_options);
  if (!link) return link.error();
  parts_->link = std::move(*link);
  return {};
}

// Where a GPU is current: a message may have to be copied to its memory, on the first rail, and real NICs
// need a push on every rail before the GPU sees what they wrote. softverbs says "done" when the bytes are
// there.
base::Outcome Acceptor::make_loopback(int traffic_class) {
  if (parts_->pool->gpu() == base::kNoGpu) return {};
  parts_->flushes = !nic_.rails[0]->is_softverbs();
  const size_t rails = parts_->flushes ? nic_.rails.size() : 1;
  auto loopback =
      Loopback::create(std::span(nic_.rails).first(rails), std::span(addresses_).first(rails), traffic_class);
  if (!loopback) return loopback.error();
  parts_->loopback = std::move(*loopback);
  return {};
}

void Acceptor::describe_welcome(const AcceptOptions& options) {
  welcome_.queue_pairs = parts_->link.queue_pairs();
  welcome_.page_bytes = static_cast<uint32_t>(base::parameters().page_bytes);
  parts_->link.describe(welcome_.rail, welcome_.queue_pair);
  for (size_t q = 0; q < paths_.size(); ++q) {
    welcome_.origin[q] = paths_[q].origin;
    welcome_.rail_of[q] = paths_[q].receiver_rail;
  }
  for (size_t q = 0; q < paths_.size(); ++q) welcome_.window[q] = parts_->promises[q].entries;
  welcome_.staging_threshold_bytes = find_threshold_bytes();
  welcome_.staging = options.unpacks && parts_->pool == parts_->pages;
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
  auto channel = PeerChannel::start(std::move(socket_), peer_, std::move(*auth));
  Receiver::Peer peer;
  peer.control_address = hello_.control_address;
  for (size_t q = 0; q < paths_.size(); ++q)
    peer.control_keys[q] = hello_.control_keys[paths_[q].sender_rail];
  auto receiver = std::make_unique<Receiver>(std::move(*parts_), peer, std::move(channel));
  parts_.reset();
  if (auto outcome = receiver->open(); !outcome) return outcome.error();
  return receiver;
}

}  // namespace verbena::transport
