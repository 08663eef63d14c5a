// The reaction of an endpoint to failures: records from peers, rails that are given up, the rail of words,
// and the state dump. Called in the driver's poll(), and only after a failure.
#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "base/text.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/recovery_times.h"
#include "transport/service/observation.h"
#include "transport/state_text.h"

namespace verbena::transport {

using protocol::LaneFailure;
using protocol::LaneRecordKind;

namespace {

constexpr int64_t kAttendNs = 100'000;               // between checks for records from peers
constexpr int64_t kLookNs = 1'000 * base::kNsPerMs;  // between checks for silent devices

}  // namespace

void OneSidedEndpoint::attend() {
  const int64_t now_ns = base::monotonic_ns();
  if (needs_attention_.exchange(false, std::memory_order_acquire)) {
    is_troubled_ = true;
    attended_at_ns_ = 0;
    if (is_asked_.exchange(false)) Registry::instance().answer(this, describe());
  }
  const bool is_anyone_down = std::any_of(rails_.devices.begin(), rails_.devices.end(),
                                          [](const auto* one) { return !one->is_healthy(); });
  is_troubled_ |= is_anyone_down;
  if (now_ns - looked_at_ns_ >= kLookNs) {
    looked_at_ns_ = now_ns;
    look_for_silence();
  }
  if ((!is_troubled_ && links_->is_idle()) || now_ns - attended_at_ns_ < kAttendNs) return;
  attended_at_ns_ = now_ns;
  links_->advance(now_ns);
  absorb_records();
  if (is_troubled_) step(now_ns);
}

// --- Records.

void OneSidedEndpoint::send_record(uint32_t peer, const protocol::LaneRecord& record) {
  if (peer != options_.rank) links_->send(peer, record);
}

void OneSidedEndpoint::absorb_records() {
  while (const auto arrival = links_->take()) {
    Peer& peer = peers_[arrival->peer];
    if (peer.state.load(std::memory_order_acquire) < State::kConnected) {
      peer.early.push_back(arrival->record);
    } else {
      absorb(arrival->peer, arrival->record);
    }
  }
}

void OneSidedEndpoint::absorb(uint32_t peer, const protocol::LaneRecord& record) {
  Peer& from = peers_[peer];
  if (!works(peer)) return;
  is_troubled_ = true;
  const auto shared = static_cast<uint32_t>(from.rails.size());
  const bool is_of_endpoint = record.kind >= LaneRecordKind::kWordRail;
  if (!is_sane(record, options_.lanes, is_of_endpoint ? options_.rails : shared))
    return fail_peer(peer, "invalid recovery record: both ranks need the same release of Verbena");
  switch (record.kind) {
    case LaneRecordKind::kGivenUp:
      return fail_peer(
          peer, "rail " + describe_rail() +
                    ": the peer has closed its connection to this rank; the peer's log gives the cause");
    case LaneRecordKind::kWordRail: {
      const auto found = std::find_if(from.rails.begin(), from.rails.end(),
                                      [&](const RailPair& rail) { return rail.there == record.rail; });
      if (found == from.rails.end() || record.generation <= from.word_moves_heard)
        return fail_peer(peer,
                         "the peer has moved the accesses to its words (such as signals) to a rail that does "
                         "not reach this rank");
      from.word_moves_heard = record.generation;
      for (const auto& lane : from.lanes) lane->set_main(static_cast<uint32_t>(found - from.rails.begin()));
      return;
    }
    default:
      from.lanes[record.lane]->absorb(record);
  }
}

// --- Rails.

bool OneSidedEndpoint::is_whole(uint32_t rail) const {
  bool is_whole = true;
  for_lanes([&](const Lane& lane) {
    bool is_live = false;
    for (uint32_t q = 0; q < lane.rails(); ++q)
      is_live |= lane.rail(q).here == rail && lane.recovery().is_live(q);
    is_whole &= is_live;
  });
  return is_whole;
}

void OneSidedEndpoint::stop_rail(uint32_t rail) {
  for_lanes([&](Lane& lane) {
    for (uint32_t q = 0; q < lane.rails(); ++q) {
      if (lane.rail(q).here != rail) continue;
      if (lane.recovery().is_live(q))
        lane.note_cause(q, lane.describe(q) + ": this rank moves the accesses to its words to another rail");
      lane.fail_queue_pair(q);
    }
  });
}

void OneSidedEndpoint::tell_word_rail(uint32_t rail, uint32_t moves) {
  base::log_info(
      "endpoint of rank %u: peers now access the signals and other words of this rank over rail %s",
      options_.rank, name_rail(device(rail)).c_str());
  told_word_rail_.store(rail, std::memory_order_release);
  protocol::LaneRecord record;
  record.kind = LaneRecordKind::kWordRail;
  record.rail = static_cast<uint8_t>(rail);
  record.generation = moves;
  for (uint32_t peer = 0; peer < options_.count_ranks; ++peer) {
    if (!works(peer)) continue;
    peers_[peer].word_moves_told = moves;
    if (peer != options_.rank) {
      send_record(peer, record);
      continue;
    }
    for (const auto& lane : peers_[peer].lanes) {
      for (uint32_t q = 0; q < lane->rails(); ++q)
        if (lane->rail(q).here == rail) lane->set_main(q);
    }
  }
}

// Gives up queue pairs with outstanding requests whose port is down: at once if another rail works, otherwise
// after the time limit of the device.
void OneSidedEndpoint::give_up_dying(int64_t now_ns) {
  for (uint32_t rail = 0; rail < rails(); ++rail) {
    int64_t& since_ns = down_since_ns_[rail];
    if (device(rail).is_healthy()) {
      since_ns = 0;
      continue;
    }
    if (since_ns == 0) since_ns = now_ns;
    const bool is_in_vain = now_ns - since_ns >= find_down_patience_ns();
    for_lanes([&](Lane& lane) {
      bool has_other = false;
      for (uint32_t q = 0; q < lane.rails(); ++q)
        has_other |= lane.recovery().is_live(q) && device(lane.rail(q).here).is_healthy();
      for (uint32_t q = 0; q < lane.rails() && !lane.has_failed(); ++q) {
        if (lane.rail(q).here != rail || !lane.recovery().is_live(q)) continue;
        if (!is_in_vain && (!has_other || !base::parameters().failover)) continue;
        lane.note_cause(q, lane.describe(q) + ": the port is down");
        if (base::parameters().failover) {
          lane.fail_queue_pair(q);
        } else {
          fail_lane(lane, LaneFailure::kRequest, q);
        }
      }
    });
  }
}

void OneSidedEndpoint::step(int64_t now_ns) {
  give_up_dying(now_ns);
  if (rails() > 1) word_rail_.reconsider(*this);
  bool is_all_well = true;
  for (uint32_t peer = 0; peer < options_.count_ranks; ++peer) {
    Peer& of = peers_[peer];
    for (const auto& record : std::exchange(of.early, {})) {
      if (works(peer)) {
        absorb(peer, record);
      } else {
        of.early.push_back(record);
      }
    }
    if (!works(peer)) continue;
    if (of.word_moves_told != word_rail_.moves()) {  // the peer has connected since the last move
      of.word_moves_told = word_rail_.moves();
      protocol::LaneRecord record;
      record.kind = LaneRecordKind::kWordRail;
      record.rail = static_cast<uint8_t>(word_rail_.rail());
      record.generation = word_rail_.moves();
      send_record(peer, record);
    }
    for (const auto& lane : of.lanes) {
      if (!works(peer)) break;
      if (!lane->recovery().are_all_live()) lane->step();
      if (works(peer) && links_->is_gone(peer)) lane->lose_peer();
      if (!works(peer)) break;
      is_all_well &= lane->recovery().are_all_live();
      if (lane->has_unissued()) list(*lane);
    }
  }
  is_troubled_ = !is_all_well || std::any_of(down_since_ns_.begin(), down_since_ns_.end(),
                                             [](int64_t since_ns) { return since_ns != 0; });
}

// Detects a device that no longer completes requests, and an address that is gone, because some devices
// neither retransmit nor fail then. Also logs stalls.
void OneSidedEndpoint::look_for_silence() {
  const int64_t now_ns = base::monotonic_ns();
  for_lanes([&](Lane& lane) {
    int64_t longest_ns = 0;
    for (uint32_t q = 0; q < lane.rails() && works(lane.peer()); ++q) {
      const int64_t waited_ns = now_ns - lane.find_silent_since(q, now_ns);
      longest_ns = std::max(longest_ns, waited_ns);
      const bool is_lost =
          waited_ns >= base::parameters().peer_grace_ms * base::kNsPerMs && lane.has_lost_address(q);
      if (!is_lost && waited_ns < find_device_patience_ns()) continue;
      lane.note_cause(q, lane.describe(q) +
                             (is_lost ? ": the address of the queue pair was removed from its interface"
                                      : ": the device reports no completions of the queue pair's requests"));
      is_troubled_ = true;
      if (base::parameters().failover) {
        lane.fail_queue_pair(q);
      } else {
        fail_lane(lane, LaneFailure::kRequest, q);
      }
    }
    if (agent_ != nullptr) {
      longest_ns = std::max(longest_ns, now_ns - lane.find_unanswered_since(now_ns));
      lane.probe_agent();
      list(lane);
    }
    protocol::StallClock& stall = stalls_[lane.index()];
    if (lane.open_operations() == 0 || longest_ns < kLookNs) return stall.restart();
    if (!stall.is_line_due(longest_ns)) return;
    if (lane.observed() != nullptr) lane.observed()->note_stall(longest_ns);
    base::log_warn(
        "endpoint of rank %u: operations on rank %u (lane %u) stall: %u operations are open, and none has "
        "completed for %s (VERBENA_STALL_WARNING_MS)",
        options_.rank, lane.peer(), lane.number(), lane.open_operations(),
        base::show_duration(longest_ns).c_str());
  });
}

// --- Words.

void OneSidedEndpoint::fail_lane(const Lane& lane, LaneFailure failure, uint32_t q) {
  fail_peer(lane.peer(), describe_failure(lane, failure, q));
}

std::string OneSidedEndpoint::describe_failure(const Lane& lane, LaneFailure failure, uint32_t q) const {
  const std::string causes = lane.describe_causes();
  const std::string& rails = causes.empty() ? lane.describe(q) : causes;
  switch (failure) {
    case LaneFailure::kRequest:
      return lane.cause(q);
    case LaneFailure::kOverdue:
    case LaneFailure::kNoWordRail:
      return rails +
             (failure == LaneFailure::kOverdue
                  ? ""
                  : "; no other rail reaches the words (such as signals) of this rank") +
             " (VERBENA_FAILOVER_TIMEOUT_MS " + std::to_string(base::parameters().failover_timeout_ms) +
             " ms)";
    case LaneFailure::kPeerGone:
      return rails + "; the process of the peer has exited";
    case LaneFailure::kUncertain:
      return lane.cause(q) +
             "; writes of words were in flight, and the device does not report which of these writes were "
             "executed";
    case LaneFailure::kDeviceLoss:
      return lane.cause(q) + "; and the peer's device lost data that it had acknowledged";
    case LaneFailure::kRecord:
    case LaneFailure::kGivenUp:
      break;
  }
  return lane.describe(q) + ": invalid recovery record: both ranks need the same release of Verbena";
}

// Called on the service thread. The driver answers in its next poll.
bool OneSidedEndpoint::dump_state(StateDump&) {
  is_asked_.store(true);
  needs_attention_.store(true, std::memory_order_release);
  return false;
}

StateDump OneSidedEndpoint::dump_from_outside() const {
  return {"endpoint of rank " + std::to_string(options_.rank) +
          ": the state is unknown, because the endpoint's thread does not poll\n"};
}

StateDump OneSidedEndpoint::describe() const {
  StateDump dump;
  dump.is_idle = !is_troubled_;
  std::string& text = dump.text;
  base::append(text, "endpoint of rank %u of %u on %s", options_.rank, options_.count_ranks,
               describe_rail().c_str());
  if (communicator_id() != 0) base::append(text, ", communicator 0x%llx", as_ull(communicator_id()));
  text += ", open" + describe_since(opened_at_ns_);
  base::append(text, "; peers access the words of this rank over %s\n",
               name_rail(device(word_rail_.rail())).c_str());
  for (uint32_t peer = 0; peer < options_.count_ranks; ++peer) {
    if (!peers_[peer].error.empty()) {
      dump.is_idle = false;
      base::append(text, "  failed: %s\n", peers_[peer].error.c_str());
    }
  }
  for_lanes([&](const Lane& lane) {
    const bool is_idle = lane.open_operations() == 0 && lane.recovery().are_all_live();
    dump.is_idle &= is_idle;
    if (is_idle) return;
    base::append(text, "  rank %u, lane %u: %u operations open, %u of them not issued%s; %llu complete",
                 lane.peer(), lane.number(), lane.open_operations(), lane.unissued_operations(),
                 lane.waits_for_word_rail() ? " (an access to a word waits until the rail for words works)"
                 : lane.awaits_answers()    ? " (adds wait for the peer to poll)"
                                            : "",
                 as_ull(lane.count_done()));
    const protocol::LaneCounts& counts = lane.counts();
    if (counts.failed_queue_pairs != 0)
      base::append(text, "; queue pairs failed %llu, revived %llu, requests repeated %llu",
                   as_ull(counts.failed_queue_pairs), as_ull(counts.revived_queue_pairs),
                   as_ull(counts.replayed_requests));
    text += "\n";
    for (uint32_t q = 0; q < lane.rails(); ++q) {
      base::append(text, "    %s%s: %s, %u requests in flight", lane.describe(q).c_str(),
                   q == lane.main() ? " (words)" : "", describe_life(lane.recovery(), q).c_str(),
                   lane.under_way(q));
      if (!lane.cause(q).empty()) base::append(text, "; failed last because: %s", lane.cause(q).c_str());
      text += "\n";
    }
  });
  return dump;
}

protocol::LaneCounts OneSidedEndpoint::count_failures() const {
  protocol::LaneCounts sum;
  for (const Peer& peer : peers_) {
    for (const auto& lane : peer.lanes) {
      sum.replayed_requests += lane->counts().replayed_requests;
      sum.failed_queue_pairs += lane->counts().failed_queue_pairs;
      sum.revived_queue_pairs += lane->counts().revived_queue_pairs;
    }
  }
  return sum;
}

std::shared_ptr<observe::Connection> OneSidedEndpoint::observe_lane(const Lane& lane) const {
  if (!options_.is_observed) return nullptr;
  std::vector<std::string> names;
  names.reserve(rails_.devices.size());
  for (const verbs::Device* device : rails_.devices) names.push_back(name_rail(*device));
  return observe_end(observe::Direction::kOneSided, "rank " + std::to_string(lane.peer()), std::move(names),
                     2 * std::bit_ceil(options_.send_depth));
}

void OneSidedEndpoint::end_observation_of(std::shared_ptr<observe::Connection>& observed) const {
  end_observation(observed);
}

}  // namespace verbena::transport
