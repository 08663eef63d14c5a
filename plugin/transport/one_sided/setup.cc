// Making an endpoint, its lanes and its regions.
#include <algorithm>

#include "base/cuda_driver.h"
#include "base/log.h"
#include "topology/topology.h"
#include "transport/one_sided/device_choice.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "verbs/route.h"

namespace verbena {

namespace {

constexpr uint32_t kMinDepth = 16, kMaxDepth = 32768;
constexpr uint32_t kMaxRegions = 65536;

struct Limit {
  const char* name;
  uint64_t value, minimum, maximum;
};

bool check(const EndpointOptions& options, std::string* error) {
  const Limit limits[] = {{"rank", options.rank, 0, uint64_t{options.count_ranks} - 1},
                          {"lanes", options.lanes, 1, transport::kMaxLanes},
                          {"send_depth", options.send_depth, kMinDepth, kMaxDepth},
                          {"max_regions", options.max_regions, 1, kMaxRegions}};
  for (const Limit& limit : limits) {
    if (options.count_ranks != 0 && limit.value >= limit.minimum && limit.value <= limit.maximum) continue;
    *error = std::string("endpoint: ") + limit.name + " is out of range (" + std::to_string(limit.value) +
             " of " + std::to_string(limit.minimum) + " to " + std::to_string(limit.maximum) + ")";
    base::log_warn("%s", error->c_str());
    return false;
  }
  return true;
}

}  // namespace

std::unique_ptr<Endpoint> Endpoint::open(const EndpointOptions& options, std::string* error) {
  if (!check(options, error)) return nullptr;
  auto device = transport::choose_device(options.device_filter, options.gpu);
  if (!device) {
    *error = "endpoint: no usable port, the log says why";
    return nullptr;
  }
  // A failure flushes all that is under way: there is room for every request of every lane.
  const uint64_t depth =
      uint64_t{options.count_ranks} * options.lanes * options.send_depth + transport::GetPush::kSendDepth;
  if (depth > (*device)->max_cq_entries()) {
    *error = "endpoint: " + (*device)->name() +
             " cannot hold so many completions (ranks * lanes * send_depth " + std::to_string(depth) +
             ", limit " + std::to_string((*device)->max_cq_entries()) + ")";
    base::log_warn("%s", error->c_str());
    return nullptr;
  }
  auto completions = verbs::CompletionQueue::create(**device, static_cast<uint32_t>(depth));
  if (!completions) {
    *error = "endpoint: " + (*device)->name() + " makes no completion queue, the log says why";
    return nullptr;
  }
  auto endpoint =
      std::make_unique<transport::OneSidedEndpoint>(options, std::move(*device), std::move(*completions));
  if (!endpoint->open_get_push()) {
    *error = "endpoint: " + endpoint->describe_rail() + " has no queue pair to itself, the log says why";
    return nullptr;
  }
  return endpoint;
}

}  // namespace verbena

namespace verbena::transport {

namespace {

bool fail(std::string* error, const std::string& text) {
  *error = "endpoint: " + text;
  base::log_warn("%s", error->c_str());
  return false;
}

// Where a frame below has logged the cause.
bool pass(std::string* error, const std::string& text) {
  *error = "endpoint: " + text + ", the log says why";
  return false;
}

std::string name_rank(uint32_t rank) {
  return "rank " + std::to_string(rank);
}

// Words of it are polled: no relaxed ordering.
verbs::Access choose_access(const verbs::Device& device) {
  return {.remote_read = true, .remote_write = true, .remote_atomic = device.supports_atomics()};
}

}  // namespace

OneSidedEndpoint::OneSidedEndpoint(const EndpointOptions& options, std::unique_ptr<verbs::Device> device,
                                   verbs::CompletionQueue completions)
    : options_(options),
      device_(std::move(device)),
      max_message_bytes_(std::max<uint64_t>(device_->max_message_bytes(), 1)),
      outstanding_reads_(device_->max_outstanding_reads()),
      completions_(std::move(completions)),
      regions_(options.count_ranks, options.max_regions),
      peers_(options.count_ranks) {
  if (options.max_message_bytes != 0)
    max_message_bytes_ = std::min(max_message_bytes_, options.max_message_bytes);
  pending_.reserve(size_t{options.count_ranks} * options.lanes);
}

// softverbs tells of a get when the bytes are in the GPU's memory.
base::Outcome OneSidedEndpoint::open_get_push() {
  if (device_->is_softverbs() && !options_.pushes_all_gets) return {};
  auto made = GetPush::create(*device_, completions_, index_of_push());
  if (!made) return made.error();
  get_push_ = std::move(*made);
  return {};
}

// Nothing may reach memory that its owner frees next.
OneSidedEndpoint::~OneSidedEndpoint() {
  if (get_push_ != nullptr) get_push_->stop();
  for (Peer& peer : peers_) {
    for (Lane& lane : peer.lanes) lane.pair().stop();
  }
}

std::string OneSidedEndpoint::describe_rail() const {
  return device_->name() + ":" + std::to_string(device_->port_number());
}

bool OneSidedEndpoint::bind_thread() const {
  return topology::Topology::system().bind_thread(device_->sysfs_path());
}

BlobNames OneSidedEndpoint::name_blob(uint32_t from, uint32_t to) const {
  return {options_.nonce, from, to, options_.count_ranks};
}

bool OneSidedEndpoint::make_lanes(uint32_t peer, std::string* error) {
  Peer& made = peers_[peer];
  made.told = device_->refresh_address();
  if (made.told.port.link_layer == 0) return pass(error, "rail " + describe_rail() + " is down");
  std::vector<Lane> lanes;
  for (uint32_t lane = 0; lane < options_.lanes; ++lane) {
    auto created = Lane::create(*device_, completions_,
                                {.index = index_of(peer, lane),
                                 .send_depth = options_.send_depth,
                                 .outstanding_reads = outstanding_reads_,
                                 .has_atomics = device_->supports_atomics(),
                                 .local = &made.told});
    if (!created) return pass(error, "no lane to " + name_rank(peer));
    lanes.push_back(std::move(*created));
  }
  made.lanes = std::move(lanes);
  made.state.store(State::kAddressed, std::memory_order_relaxed);
  return true;
}

std::vector<std::byte> OneSidedEndpoint::local_address(uint32_t peer, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  if (peer >= options_.count_ranks) {
    fail(error, "there is no " + name_rank(peer));
    return {};
  }
  Peer& of = peers_[peer];
  if (of.state.load(std::memory_order_relaxed) == State::kNew && !make_lanes(peer, error)) return {};
  PeerAddress address{.names = name_blob(options_.rank, peer), .port = of.told.port, .lanes = {}};
  for (const Lane& lane : of.lanes) address.lanes.push_back(lane.pair().address());
  return encode(address);
}

bool OneSidedEndpoint::connect_lanes(Peer& peer, const PeerAddress& address, std::string* error) {
  if (!device_->confirm_address(peer.told)) return pass(error, "rail " + describe_rail() + " has moved");
  for (uint32_t lane = 0; lane < options_.lanes; ++lane) {
    if (!peer.lanes[lane].pair().connect(address.port, address.lanes[lane]))
      return pass(error, name_rank(address.names.from) + " cannot be reached on rail " + describe_rail());
  }
  return true;
}

bool OneSidedEndpoint::connect(uint32_t peer, std::span<const std::byte> bytes, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const bool is_due =
      peer < options_.count_ranks && peers_[peer].state.load(std::memory_order_relaxed) == State::kAddressed;
  if (!is_due) return fail(error, name_rank(peer) + " is not waiting to be connected");
  PeerAddress address;
  std::string problem;
  if (!decode(bytes, name_blob(peer, options_.rank), options_.lanes, &address, &problem))
    return fail(error, "the address of " + name_rank(peer) + " " + problem);
  if (!connect_lanes(peers_[peer], address, error)) return false;
  peers_[peer].state.store(State::kConnected, std::memory_order_release);
  return true;
}

bool OneSidedEndpoint::add_region(uint32_t id, const EndpointMemory& memory, std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const std::string name = "region " + std::to_string(id);
  if (id >= options_.max_regions || regions_.find_local(id) != nullptr)
    return fail(error, name + " is taken, or there is no such id");
  if (memory.address == nullptr || memory.bytes == 0) return fail(error, name + " has no memory");
  const verbs::Access access = choose_access(*device_);
  const bool is_gpu = memory.dmabuf_fd >= 0 || base::find_owning_gpu(memory.address) != base::kNoGpu;
  auto registration =
      memory.dmabuf_fd >= 0 && device_->supports_dmabuf()
          ? verbs::MemoryRegion::register_dmabuf(*device_, memory.address, memory.bytes, memory.dmabuf_offset,
                                                 memory.dmabuf_fd, access)
          : verbs::MemoryRegion::register_memory(*device_, memory.address, memory.bytes, access);
  if (!registration) return pass(error, name + " cannot be registered with rail " + describe_rail());
  regions_.add_local(
      id, {static_cast<std::byte*>(memory.address), memory.bytes, !is_gpu, std::move(*registration)});
  return true;
}

std::vector<std::byte> OneSidedEndpoint::region_address(uint32_t id) const {
  const LocalRegion* region = regions_.find_local(id);
  if (region == nullptr) return {};
  RegionAddress address{.names = name_blob(options_.rank, 0)};
  address.id = id;
  address.remote_key = region->registration.remote_key();
  address.base = reinterpret_cast<uintptr_t>(region->address);
  address.bytes = region->bytes;
  return encode(address);
}

bool OneSidedEndpoint::add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> bytes,
                                         std::string* error) {
  const std::lock_guard lock(setup_mutex_);
  const std::string name = "region " + std::to_string(id) + " of " + name_rank(peer);
  if (peer >= options_.count_ranks || id >= options_.max_regions || regions_.find_remote(peer, id) != nullptr)
    return fail(error, name + " is known already, or there is no such");
  RegionAddress address;
  std::string problem;
  if (!decode(bytes, name_blob(peer, 0), id, &address, &problem))
    return fail(error, "the address of " + name + " " + problem);
  regions_.add_remote(peer, id, {address.base, address.bytes, address.remote_key});
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
