#include "transport/link/link.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "verbs/gid_choice.h"
#include "verbs/self_test.h"

namespace verbena::transport {

static_assert(verbs::kMaxRails == protocol::kMaxRails);
static_assert(sizeof(verbs::PortAddress) == sizeof(protocol::RailRecord));

static_assert(sizeof(verbs::EceOptions) == sizeof(protocol::EceRecord));

std::vector<verbs::PortAddress> read_addresses(const protocol::RailRecord* rails, uint32_t count) {
  std::vector<verbs::PortAddress> addresses(count);
  for (uint32_t r = 0; r < count; ++r) std::memcpy(&addresses[r], rails[r].bytes, sizeof(addresses[r]));
  return addresses;
}

std::string describe_versions(protocol::HandshakeError error, const protocol::HandshakeHeader& theirs) {
  if (error != protocol::HandshakeError::kVersion) return {};
  return " (the protocol version of this rank is " + std::to_string(protocol::kProtocolVersion) +
         ", the peer's is " + std::to_string(theirs.version) + ")";
}

namespace {

// Additional completion entries. With them, a peer that sends more than its credits allow is detected before
// the completion queue overruns.
constexpr uint32_t kUncreditedEntries = 4;

constexpr int64_t kRetiredMs = 1000;  // far longer than a device needs to flush

// Number of tries if a peer's address does not answer, as in NCCL's own transport.
constexpr uint32_t kAddressTries = 34;
constexpr int64_t kAddressRetryMs = 100;
// The time limit of these tries if the connection can begin without the queue pair. Both ends may wait this
// long, one after the other.
constexpr int64_t kPatienceBesideOthersMs = 900;
// The time limit of one call while no queue pair is connected, because the caller's thread has other work.
constexpr int64_t kLongRoundMs = 1000;

std::pair<verbs::PortAddress, verbs::QueuePairAddress> read_remote(const protocol::RailRecord& rail,
                                                                   const protocol::QueuePairRecord& pair) {
  verbs::PortAddress port;
  std::memcpy(&port, rail.bytes, sizeof(port));
  return {port, {pair.number, pair.first_psn, std::bit_cast<verbs::EceOptions>(pair.ece)}};
}

}  // namespace

base::Result<Link> Link::create(const Options& options) {
  Link link;
  link.rails_.assign(options.rails.begin(), options.rails.end());
  link.addresses_.assign(options.addresses.begin(), options.addresses.end());
  if (options.addresses.empty()) {
    for (verbs::Device* device : link.rails_) link.addresses_.push_back(device->refresh_address());
  }
  for (uint32_t q = 0; q < options.queue_pairs; ++q) {
    link.rail_of_.push_back(options.rail_of.empty() ? static_cast<uint8_t>(q % link.rails())
                                                    : options.rail_of[q]);
  }
  link.receive_queues_.assign(options.receive_queues.begin(), options.receive_queues.end());
  link.receive_entries_.assign(options.receive_entries.begin(), options.receive_entries.end());
  link.pair_options_.send_depth = options.send_depth;
  link.pair_options_.inline_bytes = options.inline_bytes;
  link.pair_options_.operations = options.operations;
  link.pair_options_.out_of_order = options.out_of_order;
  link.pair_options_.receives_to_gpu = options.receives_to_gpu;
  link.pair_options_.traffic_class = options.traffic_class;
  link.pairs_.resize(options.queue_pairs);
  base::Outcome failure;
  for (uint32_t rail = 0; rail < link.rails(); ++rail) {
    base::Outcome made = link.make_rail(rail);
    if (made) continue;
    failure = made;
    link.leave_rail(rail);
  }
  if (!link.completions_.empty() || !failure.has_failed()) return link;
  if (!std::ranges::all_of(link.rails_, &verbs::Device::has_failed)) return failure.error();
  return base::fail(base::Status::kSystem, "device %s:%d%s: cannot create queue pairs: the device has failed",
                    link.device(0).name().c_str(), link.device(0).port_number(),
                    link.rails() > 1 ? " and the other ports of its network device" : "");
}

// A rail without queue pairs needs no completion queue.
base::Outcome Link::make_rail(uint32_t rail) {
  verbs::Device& device = *rails_[rail];
  uint32_t depth = receive_entries_.empty() ? 0 : kUncreditedEntries;
  bool has_pairs = false;
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (rail_of(q) != rail) continue;
    has_pairs = true;
    depth += pair_options_.send_depth + (receive_entries_.empty() ? 0 : receive_entries_[q]);
  }
  if (!has_pairs) return {};
  // create() logs the cause if necessary.
  if (device.has_failed()) return base::Error{base::Status::kSystem, 0};
  auto queue = verbs::CompletionQueue::create(device, std::min(depth, device.max_cq_entries()));
  if (!queue) return queue.error();
  completions_.push_back({.queue = std::move(*queue), .rail = rail});
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (rail_of(q) != rail) continue;
    auto pair = make_pair(q);
    if (!pair) return pair.error();
    pairs_[q] = std::move(*pair);
  }
  return {};
}

void Link::leave_rail(uint32_t rail) {
  for (uint32_t q = 0; q < queue_pairs(); ++q)
    if (rail_of(q) == rail) pairs_[q] = {};
  std::erase_if(completions_, [&](const RailQueue& queue) { return queue.rail == rail; });
  addresses_[rail].port.link_layer = 0;
  if (rails() > 1 && !rails_[rail]->has_failed())
    base::log_warn(
        "device %s:%d: a connection does not use this rail, because the rail's queue pairs cannot be created",
        rails_[rail]->name().c_str(), rails_[rail]->port_number());
}

bool Link::is_replaceable(uint32_t queue_pair) const {
  return rails_[rail_of_[queue_pair]]->may_replace_pairs();
}

base::Result<verbs::QueuePair> Link::make_pair(uint32_t queue_pair) {
  const uint32_t rail = rail_of(queue_pair);
  verbs::QueuePairOptions options = pair_options_;
  if (!rails_[rail]->abilities().inline_writes) options.inline_bytes = 0;
  options.receive_queue = receive_queues_.empty() ? nullptr : receive_queues_[rail];
  if (options.receive_queue == nullptr && !receive_entries_.empty())
    options.receive_depth = receive_entries_[queue_pair];
  options.bond_turn = static_cast<uint32_t>(
      std::count(rail_of_.begin(), rail_of_.begin() + queue_pair, rail_of_[queue_pair]));
  options.local = &addresses_[rail];
  verbs::CompletionQueue& completions = std::ranges::find(completions_, rail, &RailQueue::rail)->queue;
  return verbs::QueuePair::create(*rails_[rail], completions, options);
}

Link& Link::operator=(Link&& other) noexcept {
  pairs_ = std::move(other.pairs_);
  retired_ = std::move(other.retired_);
  completions_ = std::move(other.completions_);
  rails_ = std::move(other.rails_);
  addresses_ = std::move(other.addresses_);
  rail_of_ = std::move(other.rail_of_);
  pair_options_ = other.pair_options_;
  receive_queues_ = std::move(other.receive_queues_);
  receive_entries_ = std::move(other.receive_entries_);
  joining_ = other.joining_;
  return *this;
}

void Link::describe(std::span<protocol::RailRecord> rails, std::span<protocol::QueuePairRecord> pairs) const {
  for (size_t r = 0; r < rails_.size(); ++r) {
    std::memcpy(rails[r].bytes, &addresses_[r].port, sizeof(rails[r].bytes));
  }
  for (size_t q = 0; q < pairs_.size(); ++q) {
    const auto address = pairs_[q].address();
    pairs[q] = {address.number, address.first_psn, std::bit_cast<protocol::EceRecord>(address.ece)};
  }
}

std::vector<verbs::PortAddress> Link::addresses() const {
  std::vector<verbs::PortAddress> ports;
  ports.reserve(addresses_.size());
  for (const auto& address : addresses_) ports.push_back(address.port);
  return ports;
}

void Link::keep(std::span<const uint8_t> queue_pairs) {
  std::vector<verbs::QueuePair> kept;
  std::vector<uint8_t> kept_rails;
  for (const uint8_t q : queue_pairs) {
    kept.push_back(std::move(pairs_[q]));
    kept_rails.push_back(rail_of_[q]);
  }
  pairs_ = std::move(kept);
  rail_of_ = std::move(kept_rails);
  std::erase_if(completions_,
                [&](const RailQueue& queue) { return !std::ranges::count(rail_of_, queue.rail); });
  forget_last_pairs();
}

base::Outcome Link::connect(std::span<const protocol::RailRecord> rails,
                            std::span<const protocol::QueuePairRecord> pairs,
                            std::span<const uint8_t> remote_rail_of) {
  if (auto outcome = confirm_addresses(); !outcome) return outcome;
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (auto outcome = connect_one(q, rails[remote_rail_of[q]], pairs[q]); !outcome) return outcome;
  }
  return {};
}

base::Outcome Link::confirm_addresses() const {
  for (uint32_t rail = 0; rail < rails(); ++rail) {
    if (auto outcome = rails_[rail]->confirm_address(addresses_[rail]); !outcome) return outcome;
  }
  return {};
}

bool Link::has_other_rails() const {
  return std::ranges::adjacent_find(rail_of_, std::not_equal_to()) != rail_of_.end();
}

base::Result<bool> Link::try_connect(std::span<const protocol::RailRecord> rails,
                                     std::span<const protocol::QueuePairRecord> pairs,
                                     std::span<const uint8_t> remote_rail_of, uint32_t wanted_pairs) {
  const int64_t now_ns = base::monotonic_ns();
  if (now_ns < joining_.retry_at_ns) return false;
  if (joining_.began_at_ns == 0) joining_.began_at_ns = now_ns;
  joining_.wanted_pairs = wanted_pairs & all_pairs();
  if (auto outcome = check_wanted(); !outcome) return outcome.error();
  if (auto outcome = confirm_addresses(); !outcome) return outcome.error();
  if (auto outcome = join_missing(rails, pairs, remote_rail_of); !outcome) return outcome.error();
  if (missing_pairs() == 0 || may_begin_without_missing()) {
    leave_missing_to_failover();
    return true;
  }
  if (joining_.asked_pairs == 0 && joining_.tries++ == 0)
    base::log_info("%s: the peer's address does not answer. The plugin tries again",
                   describe(static_cast<uint32_t>(std::countr_zero(missing_pairs()))).c_str());
  joining_.retry_at_ns = base::monotonic_ns() + kAddressRetryMs * base::kNsPerMs;
  return false;
}

base::Outcome Link::join_missing(std::span<const protocol::RailRecord> rails,
                                 std::span<const protocol::QueuePairRecord> pairs,
                                 std::span<const uint8_t> remote_rail_of) {
  const bool is_last = joining_.tries + 1 == kAddressTries;
  const int64_t began_at_ns = base::monotonic_ns();
  // The kernel may wait a second for an address. If a path to the same address was tried in this round, the
  // queue pair is not tried again.
  const auto is_asked = [&](uint32_t q) {
    for (uint32_t earlier = 0; earlier < queue_pairs(); ++earlier) {
      if ((joining_.asked_pairs >> earlier & 1) != 0 && rail_of_[earlier] == rail_of_[q] &&
          remote_rail_of[earlier] == remote_rail_of[q])
        return true;
    }
    return false;
  };
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (!is_missing(q) || is_asked(q)) continue;
    const bool is_long = base::monotonic_ns() - began_at_ns > kLongRoundMs * base::kNsPerMs;
    if (is_long && joining_.joined_pairs == 0) return {};
    const auto [port, pair] = read_remote(rails[remote_rail_of[q]], pairs[q]);
    if (is_last && !may_begin_without_missing()) {
      if (auto outcome = pairs_[q].connect(port, pair, has_other_rails()); !outcome) return outcome;
      joining_.joined_pairs |= 1U << q;
      continue;
    }
    const auto connected = may_go_without(q) ? false : pairs_[q].try_connect(port, pair, has_other_rails());
    if (!connected && !may_go_without(q)) return connected.error();
    (connected && *connected ? joining_.joined_pairs : joining_.asked_pairs) |= 1U << q;
  }
  joining_.asked_pairs = 0;
  return {};
}

bool Link::may_go_without(uint32_t queue_pair) const {
  if (!base::parameters().failover || !rails_[rail_of_[queue_pair]]->has_failed()) return false;
  for (uint32_t q = 0; q < queue_pairs(); ++q)
    if ((joining_.wanted_pairs >> q & 1) != 0 && !rails_[rail_of_[q]]->has_failed()) return true;
  return false;
}

bool Link::may_begin_without_missing() const {
  if (joining_.joined_pairs == 0 || !base::parameters().failover) return false;
  if (base::monotonic_ns() - joining_.began_at_ns >= kPatienceBesideOthersMs * base::kNsPerMs) return true;
  for (uint32_t q = 0; q < queue_pairs(); ++q)
    if (is_missing(q) && !rails_[rail_of_[q]]->has_failed()) return false;
  return true;
}

// For the case that only the peer has enabled failover.
base::Outcome Link::check_wanted() const {
  if (joining_.wanted_pairs == all_pairs() || base::parameters().failover) return {};
  const auto left = static_cast<uint32_t>(std::countr_one(joining_.wanted_pairs));
  return base::fail(
      base::Status::kRemote,
      "%s: the peer cannot reach the address of this queue pair and continues without the queue pair, but "
      "this rank cannot continue, because its VERBENA_FAILOVER is 0. Set VERBENA_FAILOVER=1 on this rank too",
      describe(left).c_str());
}

void Link::leave_missing_to_failover() {
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (is_joined(q)) continue;
    base::log_warn("%s: %s. The connection starts with its other queue pairs", describe(q).c_str(),
                   rails_[rail_of_[q]]->has_failed() ? "the device has failed"
                   : is_missing(q)                   ? "the peer's address does not answer"
                                   : "the peer cannot reach the address of this queue pair");
    pairs_[q].abandon();
    joining_.left_pairs |= 1U << q;
  }
}

base::Outcome Link::renew(uint32_t queue_pair, protocol::QueuePairRecord* pair, protocol::RailRecord* rail) {
  const uint32_t r = rail_of(queue_pair);
  addresses_[r] = rails_[r]->refresh_address();
  auto made = make_pair(queue_pair);
  if (!made) return made.error();
  pairs_[queue_pair] = std::move(*made);
  forget_last_pairs();
  const auto address = pairs_[queue_pair].address();
  *pair = {address.number, address.first_psn, std::bit_cast<protocol::EceRecord>(address.ece)};
  std::memcpy(rail->bytes, &addresses_[r].port, sizeof(rail->bytes));
  return {};
}

base::Outcome Link::connect_one(uint32_t queue_pair, const protocol::RailRecord& rail,
                                const protocol::QueuePairRecord& pair) {
  const auto [port, remote] = read_remote(rail, pair);
  return pairs_[queue_pair].connect(port, remote, has_other_rails());
}

void Link::retire_pair(uint32_t queue_pair) {
  std::erase_if(retired_, [](const Retired& retired) { return retired.until.has_passed(); });
  retired_.push_back({std::move(pairs_[queue_pair]), base::Deadline::after_ms(kRetiredMs)});
  pairs_[queue_pair] = {};
  forget_last_pairs();
}

void Link::forget_last_pairs() {
  for (RailQueue& source : completions_) source.last_number = kNoNumber;
}

// Compares the rail too, because two devices may assign the same queue pair number.
bool Link::find_pair(RailQueue& source, uint32_t number) {
  for (uint32_t q = 0; q < queue_pairs(); ++q) {
    if (pairs_[q].number() != number || rail_of_[q] != source.rail) continue;
    source.last_number = number;
    source.last_pair = q;
    return true;
  }
  return false;
}

void Link::stop() {
  for (auto& pair : pairs_) pair.stop();
}

bool Link::is_drained() const {
  return std::all_of(pairs_.begin(), pairs_.end(), [](const auto& pair) { return pair.is_drained(); });
}

bool Link::has_lost_address(uint32_t queue_pair, int64_t waited_ns) {
  return waited_ns >= base::parameters().peer_grace_ms * base::kNsPerMs &&
         pairs_[queue_pair].has_lost_address();
}

std::string Link::describe(uint32_t queue_pair) const {
  const verbs::Device& device = *rails_[rail_of(queue_pair)];
  return "rail " + device.name() + ":" + std::to_string(device.port_number()) + ", qp " +
         std::to_string(pairs_[queue_pair].number());
}

std::string Link::describe_lost_address(uint32_t queue_pair) const {
  return describe(queue_pair) + ": its address " + verbs::format_gid(pairs_[queue_pair].source_gid()) +
         " is gone";
}

std::string Link::describe_failure(const verbs::Completion& completion, uint32_t queue_pair) const {
  const verbs::Device& device = *rails_[rail_of(queue_pair)];
  char text[384];
  std::snprintf(text, sizeof(text), "rail %s:%d, qp %u: %s (status %d, vendor error 0x%x)",
                device.name().c_str(), device.port_number(), completion.qp_number,
                verbs::describe_completion_error(completion.error), completion.error,
                completion.vendor_error);
  return text;
}

}  // namespace verbena::transport
