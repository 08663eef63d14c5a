// Setup of an endpoint, its lanes and its regions.
#include <algorithm>

#include "base/clock.h"
#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/parameters.h"
#include "topology/topology.h"
#include "transport/link/rail_pairing.h"
#include "transport/one_sided/device_choice.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/service/observation.h"
#include "verbs/route.h"
#include "verbs/self_test.h"

namespace verbena {

std::unique_ptr<Endpoint> Endpoint::open(const EndpointOptions& options, std::string* error) {
  auto devices = transport::choose_devices(options.device_filter, options.gpu, std::max(options.rails, 1U));
  if (!devices) {
    *error = "endpoint: there is no usable port. Earlier lines of the log say why";
    return nullptr;
  }
  transport::EndpointRails rails;
  for (const auto& device : *devices) rails.devices.push_back(device.get());
  rails.owned = std::move(*devices);
  return transport::OneSidedEndpoint::open_on(options, std::move(rails), error);
}

}  // namespace verbena

namespace verbena::transport {

namespace {

// Requests of this rank to itself.
constexpr uint32_t kOwnRequests = GetPush::kSendDepth + WordLoop::kMaxWords;
constexpr uint32_t kMinDepth = 16, kMaxDepth = 32768;
constexpr uint32_t kMaxRegions = 65536;

bool fail(std::string* error, const std::string& text) {
  *error = "endpoint: " + text;
  base::log_warn("%s", error->c_str());
  return false;
}

// For errors that a called function has logged already.
bool pass(std::string* error, const std::string& text) {
  *error = "endpoint: " + text + "; the log says why";
  return false;
}

struct Limit {
  const char* name;
  uint64_t value, minimum, maximum;
};

bool check(const EndpointOptions& options, std::string* error) {
  const Limit limits[] = {{"rank", options.rank, 0, uint64_t{options.count_ranks} - 1},
                          {"rails", options.rails, 1, protocol::kMaxRails},
                          {"lanes", options.lanes, 1, kMaxLanes},
                          {"ranks * lanes", uint64_t{options.count_ranks} * options.lanes, 1, kLoopIndex},
                          {"send_depth", options.send_depth, kMinDepth, kMaxDepth},
                          {"max_regions", options.max_regions, 1, kMaxRegions}};
  for (const Limit& limit : limits) {
    if (options.count_ranks != 0 && limit.value >= limit.minimum && limit.value <= limit.maximum) continue;
    return fail(error, std::string(limit.name) + " is out of range (" + std::to_string(limit.value) +
                           ", range " + std::to_string(limit.minimum) + " to " +
                           std::to_string(limit.maximum) + ")");
  }
  return true;
}

std::string name_rank(uint32_t rank) {
  return "rank " + std::to_string(rank);
}

verbs::Access choose_access(const verbs::Device& device, bool is_ordered) {
  return {.remote_read = true,
          .remote_write = true,
          .relaxed_ordering = !is_ordered && base::parameters().pci_relaxed_ordering != 0,
          .remote_atomic = device.supports_atomics()};
}

uint32_t find_first_up(const EndpointRails& rails) {
  const auto is_up = [](verbs::Device* device) { return device->refresh_address().port.link_layer != 0; };
  const auto found = std::find_if(rails.devices.begin(), rails.devices.end(), is_up);
  return found == rails.devices.end() ? 0 : static_cast<uint32_t>(found - rails.devices.begin());
}

}  // namespace

uint32_t OneSidedEndpoint::fit_send_depth(uint64_t max_cq_entries, uint32_t count_ranks, uint32_t lanes,
                                          uint32_t wished) {
  const uint64_t left = max_cq_entries - std::min<uint64_t>(kOwnRequests, max_cq_entries);
  const uint64_t each = left / (uint64_t{count_ranks} * lanes);
  return static_cast<uint32_t>(std::clamp<uint64_t>(each, kMinDepth, wished));
}

std::unique_ptr<OneSidedEndpoint> OneSidedEndpoint::open_on(const EndpointOptions& options,
                                                            EndpointRails rails, std::string* error) {
  if (!check(options, error)) return nullptr;
  // A failure flushes all outstanding requests, so the completion queue has space for every request of every
  // lane.
  const uint64_t depth = uint64_t{options.count_ranks} * options.lanes * options.send_depth + kOwnRequests;
  std::vector<verbs::CompletionQueue> completions;
  for (verbs::Device*& device : rails.devices) {
    if (device->has_failed()) {
      device = nullptr;
      continue;
    }
    if (depth > device->max_cq_entries()) {
      fail(error, device->name() + " cannot hold all completions (ranks * lanes * send_depth " +
                      std::to_string(depth) + ", limit " + std::to_string(device->max_cq_entries()) + ")");
      return nullptr;
    }
    auto queue = verbs::CompletionQueue::create(*device, static_cast<uint32_t>(depth));
    if (!queue && device->has_failed()) {
      device = nullptr;
      continue;
    }
    if (!queue) {
      pass(error, device->name() + " cannot create a completion queue");
      return nullptr;
    }
    completions.push_back(std::move(*queue));
    device->tells_carried_out();  // tests it now, because a failure is too late for the test
  }
  std::erase(rails.devices, nullptr);
  if (rails.devices.empty()) {
    fail(error, "every device has failed");
    return nullptr;
  }
  auto links = RecordLinks::open(options.rank, options.count_ranks);
  if (!links) {
    pass(error, "cannot create the socket on which this rank receives records from its peers");
    return nullptr;
  }
  std::unique_ptr<OneSidedEndpoint> endpoint(
      new OneSidedEndpoint(options, std::move(rails), std::move(completions), std::move(*links)));
  if (!endpoint->open_get_push()) {
    pass(error, endpoint->describe_rail() + " cannot register memory");
    return nullptr;
  }
  if (options.is_observed) {
    Registry::instance().add(endpoint.get());
    endpoint->is_registered_ = true;
  }
  return endpoint;
}

OneSidedEndpoint::OneSidedEndpoint(const EndpointOptions& options, EndpointRails rails,
                                   std::vector<verbs::CompletionQueue> completions,
                                   std::unique_ptr<RecordLinks> links)
    : options_(options),
      rails_(std::move(rails)),
      max_message_bytes_(options.max_message_bytes == 0 ? UINT64_MAX : options.max_message_bytes),
      outstanding_reads_(UINT8_MAX),
      completions_(std::move(completions)),
      regions_(options.count_ranks, options.max_regions),
      links_(std::move(links)),
      peers_(options.count_ranks),
      word_rail_(find_first_up(rails_)),
      down_since_ns_(rails_.devices.size()),
      stalls_(size_t{options.count_ranks} * options.lanes,
              protocol::StallClock(base::parameters().stall_warning_ms * base::kNsPerMs)),
      opened_at_ns_(base::monotonic_ns()),
      told_word_rail_(word_rail_.rail()) {
  if (!has_atomics()) add_by_agents();
  constexpr uint64_t kLongestRequest = uint64_t{1} << 30, kLeastMtuBytes = 256;
  static_assert(kLongestRequest / kLeastMtuBytes <=
                protocol::PacketNumbers(protocol::PacketNumbers::kBits).max_under_way());
  for (const verbs::Device* device : rails_.devices) {
    max_message_bytes_ =
        std::min({max_message_bytes_, std::max<uint64_t>(device->max_message_bytes(), 1), kLongestRequest});
    outstanding_reads_ = std::min(outstanding_reads_, device->max_outstanding_reads());
  }
  listed_.reserve(size_t{options.count_ranks} * options.lanes);
}

// With softverbs no flush is needed: it completes a get only after the bytes are in GPU memory.
base::Outcome OneSidedEndpoint::open_get_push() {
  const bool is_softverbs = std::all_of(rails_.devices.begin(), rails_.devices.end(),
                                        [](const auto* device) { return device->is_softverbs(); });
  if (is_softverbs && !options_.pushes_all_gets) return {};
  std::vector<uint64_t> cookies;
  for (uint32_t rail = 0; rail < rails(); ++rail)
    cookies.push_back(LaneCookie{kPushIndex, rail, 0, 0}.pack());
  auto made = GetPush::create(rails_.devices, completions_, std::move(cookies));
  if (!made) return made.error();
  get_push_ = std::move(*made);
  return {};
}

// After the destructor returns, no device accesses memory that its owner may free next.
OneSidedEndpoint::~OneSidedEndpoint() {
  if (is_registered_) Registry::instance().remove(this);
  if (agent_ != nullptr) finish_answers();
  for (Peer& peer : peers_) {
    for (const auto& lane : peer.lanes) lane->stop();
  }
  get_push_.reset();
  agent_.reset();
  peers_.clear();  // lanes are destroyed before completion queues
}

std::string OneSidedEndpoint::describe_rail() const {
  std::string text;
  for (const verbs::Device* device : rails_.devices) text += (text.empty() ? "" : ", ") + name_rail(*device);
  return text;
}

bool OneSidedEndpoint::bind_thread() const {
  return topology::Topology::system().bind_thread(device(0).sysfs_path());
}

bool OneSidedEndpoint::wants_dmabuf() const {
  return std::any_of(rails_.devices.begin(), rails_.devices.end(),
                     [](const auto* device) { return device->supports_dmabuf(); });
}

bool OneSidedEndpoint::has_atomics() const {
  return std::all_of(rails_.devices.begin(), rails_.devices.end(),
                     [](const auto* device) { return device->supports_atomics(); });
}

void OneSidedEndpoint::add_by_agents() {
  if (agent_ != nullptr) return;
  agent_ =
      std::make_unique<AddAgent>(regions_, AddAgentOptions{.devices = rails_.devices,
                                                           .completions = completions_,
                                                           .lanes = options_.count_ranks * options_.lanes,
                                                           .loops_all = options_.pushes_all_gets});
}

BlobNames OneSidedEndpoint::name_blob(uint32_t from, uint32_t to) const {
  return {options_.nonce, from, to, options_.count_ranks};
}

base::Result<verbs::QueuePair> OneSidedEndpoint::make_pair(uint32_t rail, uint32_t lane,
                                                           const verbs::LocalAddress& told) {
  verbs::QueuePairOptions pair;
  pair.send_depth = options_.send_depth;
  pair.operations = {.send_imm = false,
                     .write = true,
                     .write_imm = false,
                     .read = true,
                     .fetch_add = device(rail).supports_atomics()};
  if (!device(rail).abilities().inline_writes) pair.inline_bytes = 0;
  pair.outstanding_reads = outstanding_reads_;
  pair.traffic_class = traffic_class_.load(std::memory_order_relaxed);
  pair.bond_turn = lane;
  pair.local = &told;
  return verbs::QueuePair::create(device(rail), completions_[rail], pair);
}

// Creates the queue pairs to a peer. Omits a rail that is down or whose device has failed.
bool OneSidedEndpoint::make_pairs(uint32_t peer, std::string* error) {
  Peer& made = peers_[peer];
  std::vector<std::vector<verbs::QueuePair>> pairs(options_.lanes);
  made.told.clear();
  bool is_any_up = false;
  for (uint32_t rail = 0; rail < rails(); ++rail) {
    verbs::LocalAddress& told = made.told.emplace_back(device(rail).refresh_address());
    for (auto& lane : pairs) {
      verbs::QueuePair& place = lane.emplace_back();
      if (told.port.link_layer == 0) continue;
      auto pair = make_pair(rail, static_cast<uint32_t>(&lane - pairs.data()), told);
      if (pair) {
        place = std::move(*pair);
      } else if (device(rail).has_failed()) {
        told.port.link_layer = 0;
      } else {
        return pass(error, "cannot create a queue pair to " + name_rank(peer));
      }
    }
    is_any_up |= told.port.link_layer != 0;
  }
  if (!is_any_up) return pass(error, "rail " + describe_rail() + " is down");
  if (agent_ != nullptr) {
    auto rings = AddRings::create(rails_.devices, options_.lanes);
    if (!rings) return pass(error, "cannot register the memory for the adds requested by " + name_rank(peer));
    made.add_rings = std::move(*rings);
  }
  choose_word_rail(made.told);
  made.pairs = std::move(pairs);
  made.address = encode(describe_to(peer), options_.lanes, options_.rails);
  made.state.store(State::kAddressed, std::memory_order_relaxed);
  return true;
}

// Chooses the rail of words. The rail chosen before may have gone down since. Peers that know it already are
// notified of a move by a record.
void OneSidedEndpoint::choose_word_rail(std::span<const verbs::LocalAddress> told) {
  const auto is_up = [](const verbs::LocalAddress& rail) { return rail.port.link_layer != 0; };
  const auto is_new = [](const Peer& peer) {
    return peer.state.load(std::memory_order_relaxed) == State::kNew;
  };
  if (is_up(told[word_rail_.rail()]) || !std::ranges::all_of(peers_, is_new)) return;
  word_rail_ = protocol::WordRail(static_cast<uint32_t>(std::ranges::find_if(told, is_up) - told.begin()));
  told_word_rail_.store(word_rail_.rail(), std::memory_order_release);
}

PeerAddress OneSidedEndpoint::describe_to(uint32_t peer) const {
  PeerAddress address{.names = name_blob(options_.rank, peer),
                      .word_rail = told_word_rail_.load(std::memory_order_acquire),
                      .records = links_->address(),
                      .nonce = links_->nonce(),
                      .secret = links_->secret()};
  const AddRings* adds = peers_[peer].add_rings.get();
  if (adds != nullptr) address.add_rings = reinterpret_cast<uintptr_t>(adds->rings.get());
  for (uint32_t rail = 0; rail < rails(); ++rail) {
    if (adds != nullptr) address.add_keys[rail] = adds->registrations[rail].remote_key();
    RailAddress& one = address.rails.emplace_back(RailAddress{peers_[peer].told[rail].port, {}});
    if (one.port.link_layer == 0) continue;
    for (const auto& lane : peers_[peer].pairs) one.lanes.push_back(lane[rail].address());
  }
  return address;
}

std::vector<std::byte> OneSidedEndpoint::local_address(uint32_t peer, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  if (peer >= options_.count_ranks) {
    fail(error, "there is no " + name_rank(peer));
    return {};
  }
  Peer& of = peers_[peer];
  if (of.state.load(std::memory_order_relaxed) == State::kNew && !make_pairs(peer, error)) return {};
  return of.address;
}

// Both ends compute the same list: the rails of the lower rank are paired, in turn, with the rails of the
// higher rank.
std::vector<RailPair> OneSidedEndpoint::pair_rails(uint32_t peer, const PeerAddress& address) const {
  std::vector<RailPair> pairs;
  std::vector<verbs::PortAddress> ours, theirs;
  for (const verbs::LocalAddress& told : peers_[peer].told) ours.push_back(told.port);
  for (const RailAddress& rail : address.rails) theirs.push_back(rail.port);
  if (peer == options_.rank) {
    for (size_t rail = 0; rail < ours.size(); ++rail) {
      const auto index = static_cast<uint8_t>(rail);
      if (ours[rail].link_layer != 0) pairs.push_back({index, index});
    }
    return pairs;
  }
  const bool is_lower = options_.rank < peer;
  const auto& lower = is_lower ? ours : theirs;
  const auto& higher = is_lower ? theirs : ours;
  uint32_t used = 0;  // of the higher rank's rails
  for (const RailPath& path :
       transport::pair_rails(lower, higher, static_cast<uint32_t>(lower.size()), read_pairing_options())) {
    if ((used >> path.receiver_rail & 1) != 0) continue;
    used |= 1U << path.receiver_rail;
    pairs.push_back(is_lower ? RailPair{path.sender_rail, path.receiver_rail}
                             : RailPair{path.receiver_rail, path.sender_rail});
  }
  return pairs;
}

bool OneSidedEndpoint::join(uint32_t peer, const PeerAddress& address, std::string* error) {
  Peer& joined = peers_[peer];
  const std::vector<RailPair> shared = pair_rails(peer, address);
  const auto words = std::find_if(shared.begin(), shared.end(),
                                  [&](const RailPair& rail) { return rail.there == address.word_rail; });
  if (words == shared.end()) {
    std::vector<verbs::PortAddress> ours, theirs;
    for (const verbs::LocalAddress& told : joined.told) ours.push_back(told.port);
    for (const RailAddress& rail : address.rails) theirs.push_back(rail.port);
    return fail(error, name_rank(peer) +
                           " cannot be reached on the rail over which peers access its words: " +
                           explain_no_path(ours, theirs, read_pairing_options()));
  }
  if ((address.add_rings != 0) != (agent_ != nullptr)) {
    return fail(
        error, name_rank(peer) +
                   (agent_ != nullptr ? " adds to words (such as signals) by RDMA atomics, but this rank adds"
                                      : " adds to words (such as signals) in software, but this rank adds") +
                   (agent_ != nullptr ? " in software" : " by RDMA atomics") +
                   ". The two methods cannot be mixed for one word");
  }
  if (agent_ != nullptr) {
    joined.add_rings->remote = address.add_rings;
    joined.add_rings->remote_keys = address.add_keys;
  }
  const auto role = peer == options_.rank  ? protocol::LaneRole::kOwn
                    : options_.rank < peer ? protocol::LaneRole::kOffers
                                           : protocol::LaneRole::kAnswers;
  joined.rails = shared;
  joined.outstanding_reads = address.rails[words->there].lanes[0].outstanding_reads;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (uint32_t number = 0; number < options_.lanes; ++number) {
    std::vector<verbs::QueuePair> pairs;
    for (const RailPair& rail : shared) {
      if (!device(rail.here).confirm_address(joined.told[rail.here]))
        return pass(error, "rail " + name_rail(device(rail.here)) + " has changed its address");
      verbs::QueuePair& pair = pairs.emplace_back(std::move(joined.pairs[number][rail.here]));
      const RailAddress& there = address.rails[rail.there];
      // Few ranks put data to themselves. If the port's own address does not answer, only such puts fail.
      const bool is_own = peer == options_.rank;
      const bool is_connected = (!is_own || device(rail.here).abilities().reaches_itself) &&
                                pair.connect(there.port, there.lanes[number], shared.size() > 1);
      if (!is_connected && (is_own || device(rail.here).has_failed())) {
        pair.abandon();
      } else if (!is_connected)
        return pass(error, name_rank(peer) + " cannot be reached on rail " + name_rail(device(rail.here)));
    }
    auto lane = Lane::create(*this,
                             {.peer = peer,
                              .lane = number,
                              .index = index_of(peer, number),
                              .rails = shared,
                              .role = role,
                              .send_depth = options_.send_depth,
                              .max_request_bytes = max_message_bytes_,
                              .add_rings = joined.add_rings.get()},
                             std::move(pairs));
    if (!lane) return pass(error, "cannot create a lane to " + name_rank(peer));
    (*lane)->set_main(static_cast<uint32_t>(words - shared.begin()));
    lanes.push_back(std::move(*lane));
  }
  joined.lanes = std::move(lanes);
  joined.pairs.clear();
  links_->know(peer, address.records, address.nonce, address.secret);
  return true;
}

bool OneSidedEndpoint::connect(uint32_t peer, std::span<const std::byte> bytes, std::string* error) {
  if (!prepare(peer, bytes, error)) return false;
  publish(peer);
  return true;
}

bool OneSidedEndpoint::prepare(uint32_t peer, std::span<const std::byte> bytes, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const bool is_due = peer < options_.count_ranks &&
                      peers_[peer].state.load(std::memory_order_relaxed) == State::kAddressed &&
                      peers_[peer].lanes.empty();
  if (!is_due)
    return fail(error, name_rank(peer) +
                           " cannot be connected. Either the rank is not in this group, or the rank is "
                           "already connected, or local_address() was not called for this rank");
  PeerAddress address;
  std::string problem;
  if (!decode(bytes, name_blob(peer, options_.rank), options_.lanes, options_.rails, &address, &problem))
    return fail(error, "the address of " + name_rank(peer) + " " + problem);
  if (join(peer, address, error)) return true;
  forget(peer);
  return false;
}

void OneSidedEndpoint::publish(uint32_t peer) {
  peers_[peer].state.store(State::kConnected, std::memory_order_release);
  needs_attention_.store(true, std::memory_order_release);
}

void OneSidedEndpoint::drop(uint32_t peer) {
  const std::lock_guard lock(setup_mutex_);
  forget(peer);
}

// Some queue pairs of a failed attempt cannot be used again, so the next attempt creates new ones.
void OneSidedEndpoint::forget(uint32_t peer) {
  peers_[peer].lanes.clear();
  peers_[peer].pairs.clear();
  peers_[peer].add_rings.reset();
  peers_[peer].state.store(State::kNew, std::memory_order_relaxed);
}

bool OneSidedEndpoint::add_region(uint32_t id, const EndpointMemory& memory, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const std::string name = "region " + std::to_string(id);
  if (id >= options_.max_regions || regions_.find_local(id) != nullptr)
    return fail(error, name + " already exists, or its id is out of range");
  if (memory.address == nullptr || memory.bytes == 0) return fail(error, name + " has no memory");
  const bool is_gpu = memory.dmabuf_fd >= 0 || base::find_owning_gpu(memory.address) != base::kNoGpu;
  LocalRegion region{static_cast<std::byte*>(memory.address), memory.bytes, !is_gpu};
  for (verbs::Device* device : rails_.devices) {
    verbs::MemoryRegion& made = region.registrations.emplace_back();
    if (device->has_failed()) continue;
    const verbs::Access access = choose_access(*device, memory.is_ordered);
    auto registration =
        memory.dmabuf_fd >= 0 && device->supports_dmabuf()
            ? verbs::MemoryRegion::register_dmabuf(*device, memory.address, memory.bytes,
                                                   memory.dmabuf_offset, memory.dmabuf_fd, access)
            : verbs::MemoryRegion::register_memory(*device, memory.address, memory.bytes, access);
    if (!registration && device->has_failed()) continue;
    if (!registration) return pass(error, name + " cannot be registered with rail " + name_rail(*device));
    made = std::move(*registration);
  }
  regions_.add_local(id, std::move(region));
  return true;
}

std::vector<std::byte> OneSidedEndpoint::region_address(uint32_t id) const {
  const LocalRegion* region = regions_.find_local(id);
  if (region == nullptr) return {};
  RegionAddress address{.names = name_blob(options_.rank, 0)};
  address.id = id;
  for (size_t rail = 0; rail < region->registrations.size(); ++rail)
    address.keys[rail] = region->registrations[rail].remote_key();
  address.base = reinterpret_cast<uintptr_t>(region->address);
  address.bytes = region->bytes;
  return encode(address);
}

bool OneSidedEndpoint::add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> bytes,
                                         std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const std::string name = "region " + std::to_string(id) + " of " + name_rank(peer);
  if (peer >= options_.count_ranks || id >= options_.max_regions || regions_.find_remote(peer, id) != nullptr)
    return fail(error, name + " already exists, or its rank or id is out of range");
  RegionAddress address;
  std::string problem;
  if (!decode(bytes, name_blob(peer, 0), id, &address, &problem))
    return fail(error, "the address of " + name + " " + problem);
  regions_.add_remote(peer, id, {address.base, address.bytes, address.keys, id});
  return true;
}

void OneSidedEndpoint::remove_region(uint32_t id) {
  const std::lock_guard lock(setup_mutex_);
  if (id < options_.max_regions) regions_.remove_local(id);
}

void OneSidedEndpoint::remove_remote_regions(uint32_t id) {
  const std::lock_guard lock(setup_mutex_);
  if (id < options_.max_regions) regions_.remove_remotes(id);
}

}  // namespace verbena::transport
