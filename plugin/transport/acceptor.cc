#include "transport/acceptor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kControlDepth = 64;  // grants and credit lines in flight on one queue pair
constexpr uint32_t kMinEntriesPerPair =
    8;  // NCCL keeps at most 8 receives open: each may bring one direct chunk
constexpr uint32_t kMinWindowPages = 32;
constexpr int64_t kMaxHelloMs = 10000;  // a peer says hello as soon as it is connected; a stranger may never

int64_t choose_hello_ms() {
  return std::min(kMaxHelloMs, base::parameters().connect_timeout_ms);
}

// The longest message that may be staged, as a slot and a window allow.
uint64_t find_threshold_bytes() {
  const auto wanted = static_cast<uint64_t>(base::parameters().unpack_threshold_bytes);
  return std::min<uint64_t>(wanted, kUnpackMaxSliceBytes);
}

// Eight of the longest staged messages, as NCCL keeps eight receives open; at least two, as a message may
// need half.
uint32_t choose_window_pages() {
  const auto& parameters = base::parameters();
  if (parameters.window_pages != 0) return static_cast<uint32_t>(parameters.window_pages);
  const auto page_bytes = static_cast<uint64_t>(parameters.page_bytes);
  const auto pages = static_cast<uint32_t>((find_threshold_bytes() + page_bytes - 1) / page_bytes);
  return std::clamp(8 * pages, kMinWindowPages, std::max(2 * pages, 256U));
}

BouncePool::Kind choose_pool(const Nic& nic, bool unpacks) {
  if (!unpacks) return BouncePool::Kind::kBareEntries;
  switch (base::parameters().bounce) {
    case base::BouncePlace::kHost:
      return BouncePool::Kind::kHostPages;
    case base::BouncePlace::kGpu:
      return BouncePool::Kind::kGpuPages;
    case base::BouncePlace::kAuto:
      break;
  }
  // A software device copies to GPU memory in microseconds, to host memory in less than one.
  const bool by_gpu = nic.supports_gpu_pointers && !nic.rails[0]->is_software();
  return by_gpu ? BouncePool::Kind::kGpuPages : BouncePool::Kind::kHostPages;
}

}  // namespace

Acceptor::Acceptor(const Nic& nic, uint64_t nonce, base::Socket socket)
    : nic_(nic),
      nonce_(nonce),
      socket_(std::move(socket)),
      peer_(base::describe(socket_.peer())),
      deadline_(base::Deadline::after_ms(choose_hello_ms())) {}

Acceptor::~Acceptor() {
  give_back();
}

// What a Receiver would have given back, had it come to that.
void Acceptor::give_back() {
  if (!parts_) return;
  parts_->give_back();
  parts_.reset();
}

base::Result<Acceptor::Verdict> Acceptor::poll(const AcceptOptions& options) {
  while (step_ != Step::kStanding) {
    auto advanced = advance();
    if (!advanced)
      return step_ == Step::kAwaitingHello ? Verdict::kStranger : base::Result<Verdict>(advanced.error());
    if (!*advanced) {
      if (!deadline_.has_passed()) return Verdict::kWaiting;
      const bool is_silent = step_ == Step::kAwaitingHello;
      const auto error = base::fail(
          base::Status::kTimeout, "accept from %s: handshake unfinished (%s %lld ms)", peer_.c_str(),
          is_silent ? "no hello for" : "VERBENA_CONNECT_TIMEOUT_MS",
          static_cast<long long>(is_silent ? choose_hello_ms() : base::parameters().connect_timeout_ms));
      return is_silent ? Verdict::kStranger : base::Result<Verdict>(error);
    }
    if (step_ == Step::kAwaitingHello) {
      auto verdict = judge_hello(options);
      if (!verdict || *verdict == Verdict::kStranger) return verdict;
      deadline_ = base::Deadline::after_ms(base::parameters().connect_timeout_ms);
    }
    step_ = static_cast<Step>(static_cast<int>(step_) + 1);
    offset_bytes_ = 0;
  }
  return Verdict::kStanding;
}

base::Result<bool> Acceptor::advance() {
  switch (step_) {
    case Step::kAwaitingHello:
      return socket_.receive_exact(&hello_, sizeof(hello_), offset_bytes_);
    case Step::kSendingWelcome:
      return socket_.send_all(&welcome_, sizeof(welcome_), offset_bytes_);
    default: {
      auto received = socket_.receive_exact(&ready_, sizeof(ready_), offset_bytes_);
      if (!received || !*received) return received;
      const auto error = protocol::check_header(ready_.header, sizeof(ready_), nonce_);
      if (error == protocol::HandshakeError::kNone) return true;
      return base::fail(base::Status::kRemote, "accept from %s: %s", peer_.c_str(),
                        protocol::describe(error));
    }
  }
}

base::Result<Acceptor::Verdict> Acceptor::judge_hello(const AcceptOptions& options) {
  const auto error = protocol::check_hello(hello_, nonce_, static_cast<uint32_t>(nic_.rails.size()),
                                           static_cast<uint32_t>(base::parameters().qps_per_connection));
  welcome_.header = protocol::make_header(sizeof(welcome_), nonce_);
  if (error == protocol::HandshakeError::kNone) {
    paths_ = choose_paths();
    if (paths_.empty()) return refuse_unreachable();
    if (auto outcome = build(options); !outcome) {
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

std::vector<RailPath> Acceptor::choose_paths() {
  for (verbs::Device* device : nic_.rails) addresses_.push_back(device->refresh_address());
  welcome_.rails = static_cast<uint32_t>(nic_.rails.size());
  std::vector<verbs::PortAddress> own;
  for (size_t r = 0; r < addresses_.size(); ++r) {
    own.push_back(addresses_[r].port);
    std::memcpy(welcome_.rail[r].bytes, &own[r], sizeof(own[r]));
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
  const uint32_t window = options.unpacks ? choose_window_pages() : 0;
  // Of our communicator, else of the sender's: acknowledgements and credits travel as the data does.
  const int traffic_class = options.traffic_class >= 0 ? options.traffic_class : hello_.traffic_class;
  if (auto outcome = make_link(options, window, traffic_class); !outcome) return outcome;
  if (auto outcome = promise_entries(window); !outcome) return outcome;
  if (options.unpacks) {
    if (auto outcome = set_up_unpack(); !outcome) return outcome;
  }
  if (parts_->pool->gpu() != base::kNoGpu) {
    auto loopback = Loopback::create(nic_.rails, addresses_, traffic_class);
    if (!loopback) return loopback.error();
    parts_->loopback = std::move(*loopback);
  }
  // softverbs says "done" when the bytes are there.
  parts_->flushes = parts_->pool->gpu() != base::kNoGpu && !nic_.rails[0]->is_softverbs();
  parts_->waits_for_consumed = options.unpacks;

  std::array<protocol::QueuePairRecord, protocol::kMaxQueuePairs> remote_pairs{};
  std::array<uint8_t, protocol::kMaxQueuePairs> remote_rails{};
  for (size_t q = 0; q < paths_.size(); ++q) {
    remote_pairs[q] = hello_.queue_pair[paths_[q].origin];
    remote_rails[q] = paths_[q].sender_rail;
  }
  if (auto outcome = parts_->link.connect(hello_.rail, remote_pairs, remote_rails); !outcome) return outcome;
  describe_welcome(options);
  return {};
}

base::Outcome Acceptor::make_link(const AcceptOptions& options, uint32_t window_pages, int traffic_class) {
  auto pool = BouncePool::acquire(choose_pool(nic_, options.unpacks));
  if (!pool) return pool.error();
  std::vector<BouncePool::Rail*> rails;
  std::vector<verbs::SharedReceiveQueue*> queues;
  for (verbs::Device* device : nic_.rails) {
    auto rail = (*pool)->open_rail(*device);
    if (!rail) return rail.error();
    rails.push_back(*rail);
    queues.push_back(&(*rail)->queue());
  }
  std::vector<uint8_t> rail_of;
  for (const RailPath& path : paths_) rail_of.push_back(path.receiver_rail);
  Link::Options link_options;
  link_options.rails = nic_.rails;
  link_options.queue_pairs = static_cast<uint32_t>(paths_.size());
  link_options.send_depth = kControlDepth;
  link_options.receive_queues = queues;
  link_options.receive_entries = window_pages + kMinEntriesPerPair * link_options.queue_pairs;
  link_options.traffic_class = traffic_class;
  link_options.rail_of = rail_of;
  link_options.addresses = addresses_;
  auto link = Link::create(link_options);
  if (!link) return link.error();
  parts_.emplace();
  parts_->link = std::move(*link);
  parts_->pool = std::move(*pool);
  parts_->rails = std::move(rails);
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
  std::copy(parts_->promised.begin(), parts_->promised.end(), std::begin(welcome_.window));
  welcome_.staging_threshold_bytes = find_threshold_bytes();
  welcome_.staging = options.unpacks && base::parameters().unpack_threshold_bytes > 0;
}

base::Outcome Acceptor::promise_entries(uint32_t window_pages) {
  const uint32_t pairs = parts_->link.queue_pairs();
  const uint32_t wanted = std::max(kMinEntriesPerPair, (window_pages + pairs - 1) / pairs);
  for (uint32_t q = 0; q < pairs; ++q) {
    auto promised =
        parts_->pool->reserve(*parts_->rails[parts_->link.rail_of(q)], wanted, kMinEntriesPerPair);
    if (!promised) return promised.error();
    parts_->promised[q] = *promised;
  }
  return {};
}

base::Outcome Acceptor::set_up_unpack() {
  auto memory = parts_->pool->take_unpack_memory();
  if (!memory) return memory.error();
  parts_->unpack = std::move(*memory);
  const UnpackDeviceHandle handle{static_cast<NetUnpackMeta*>(parts_->unpack->meta.device()),
                                  parts_->pool->device_base(), kUnpackFreshHead};
  device_handle_ = parts_->unpack->handle.device();
  return base::write_buffer(parts_->unpack->handle, 0, &handle, sizeof(handle));
}

base::Result<std::unique_ptr<Receiver>> Acceptor::finish() {
  auto watch = PeerWatch::start(std::move(socket_), peer_);
  if (!watch) return watch.error();
  Receiver::Peer peer;
  peer.control_address = hello_.control_address;
  for (size_t q = 0; q < paths_.size(); ++q)
    peer.control_keys[q] = hello_.control_keys[paths_[q].sender_rail];
  auto receiver = std::make_unique<Receiver>(std::move(*parts_), peer, std::move(*watch));
  parts_.reset();
  return receiver;
}

}  // namespace verbena::transport
