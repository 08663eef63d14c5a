// Completions and failures: passes them from the queue pairs to the driver.
#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/service/observation.h"

namespace verbena::transport {

namespace {

constexpr uint32_t kMaxBatches = 8;           // batches of completions of one rail in one poll
constexpr uint32_t kIdlePollsPerLook = 4096;  // between readings of the clock, to detect silent devices

}  // namespace

Lane* OneSidedEndpoint::find_lane(uint32_t index) {
  const uint32_t peer = index / options_.lanes;
  return peer < options_.count_ranks && works(peer) ? peers_[peer].lanes[index % options_.lanes].get()
                                                    : nullptr;
}

void OneSidedEndpoint::list(Lane& lane) {
  if (lane.is_listed) return;
  lane.is_listed = true;
  listed_.push_back(&lane);
}

void OneSidedEndpoint::poll_rail(uint32_t rail) {
  verbs::Completion batch[verbs::CompletionQueue::kMaxPollEntries];
  for (uint32_t i = 0; i < kMaxBatches; ++i) {
    const int count = completions_[rail].poll(batch);
    if (count < 0) [[unlikely]]
      return fail_all(
          "rail " + name_rail(device(rail)) +
          ": the completion queue failed, because the queue overran or the device is gone. See dmesg");
    if (count > 0) idle_polls_ = 0;
    for (const verbs::Completion& completion : std::span(batch).first(static_cast<size_t>(count))) {
      const LaneCookie cookie = LaneCookie::parse(completion.cookie);
      Lane* const lane = find_lane(cookie.lane);
      if (lane != nullptr) [[likely]] {
        if (lane->take_completion(cookie, completion)) list(*lane);
      } else if (cookie.lane == kPushIndex && get_push_ != nullptr) {
        get_push_->take_completion(cookie.rail, completion);
        if (!get_push_->failure().empty()) [[unlikely]]
          fail_all(get_push_->failure());
      } else if (cookie.lane == kLoopIndex && agent_ != nullptr) {
        agent_->take_completion(cookie.rail, completion);
      }
    }
    if (count < static_cast<int>(std::size(batch))) return;
  }
}

uint32_t OneSidedEndpoint::tell_failures(std::span<EndpointCompletion> out) {
  const auto count = std::min(failures_.size(), out.size());
  std::copy_n(failures_.begin(), count, out.begin());
  failures_.erase(failures_.begin(), failures_.begin() + static_cast<ptrdiff_t>(count));
  return static_cast<uint32_t>(count);
}

// Reports one completion for each operation with a cookie. Operations without a cookie are combined into the
// next reported completion, or into one completion at the end.
uint32_t OneSidedEndpoint::tell_lane(Lane& lane, std::span<EndpointCompletion> out, bool* is_told) {
  uint32_t filled = 0;
  *is_told = false;
  std::optional<PushedPlace> place;
  bool has_more = false;
  const auto tell = [&](uint64_t cookie, uint64_t value, bool is_answer_lost) {
    const EndpointCompletion completion{lane.peer(), lane.number(), false,         lane.count_done(),
                                        cookie,      value,         is_answer_lost};
    if (get_push_ != nullptr && (place || !get_push_->is_empty())) {
      get_push_->hold(completion, std::exchange(place, std::nullopt));
    } else {
      out[filled++] = completion;
    }
    has_more = false;
  };
  while (filled < out.size()) {
    const Lane::Core::Operation* const operation = lane.find_told();
    if (operation == nullptr) {
      *is_told = true;
      break;
    }
    const uint32_t slot = lane.told_slot();
    const uint64_t cookie = operation->cookie;
    const bool is_answer_lost = operation->is_answer_lost;
    if (get_push_ != nullptr && operation->kind == protocol::LaneOperationKind::kGet &&
        (!operation->local->is_host || options_.pushes_all_gets)) {
      const uint32_t rail = lane.rail(lane.carrier(slot)).here;
      place = {operation->local->address + operation->local_offset,
               operation->local->registrations[rail].remote_key(), rail};
    }
    const uint64_t value = cookie != 0 && protocol::has_answer(operation->kind) ? lane.read_word(slot) : 0;
    lane.take_told();
    has_more = true;
    if (cookie != 0) tell(cookie, value, is_answer_lost);
  }
  if (has_more) tell(0, 0, false);  // in this case there is space for one more
  return filled;
}

uint32_t OneSidedEndpoint::tell_lanes(std::span<EndpointCompletion> out) {
  uint32_t filled = 0;
  size_t kept = 0;
  for (size_t i = 0; i < listed_.size(); ++i) {
    Lane& lane = *listed_[i];
    bool is_told = true;
    if (works(lane.peer())) [[likely]] {
      if (lane.has_unissued()) lane.issue();
      lane.ring();
      if (works(lane.peer())) filled += tell_lane(lane, out.subspan(filled), &is_told);
    }
    if (!is_told) {
      listed_[kept++] = &lane;
    } else {
      lane.is_listed = false;
    }
  }
  listed_.resize(kept);
  return filled;
}

uint32_t OneSidedEndpoint::release_held(std::span<EndpointCompletion> out) {
  if (get_push_ == nullptr || get_push_->is_empty()) return 0;
  const uint32_t filled = get_push_->release(out);
  if (!get_push_->failure().empty()) [[unlikely]]
    fail_all(get_push_->failure());
  return filled;
}

uint32_t OneSidedEndpoint::poll(std::span<EndpointCompletion> out) {
  uint32_t filled = tell_failures(out);
  ++idle_polls_;
  for (uint32_t rail = 0; rail < rails(); ++rail) poll_rail(rail);
  if (is_troubled_ || needs_attention_.load(std::memory_order_relaxed) || !links_->is_idle() ||
      idle_polls_ % kIdlePollsPerLook == 0) [[unlikely]]
    attend();
  if (agent_ != nullptr) [[unlikely]]
    serve_adds();
  if (!listed_.empty()) filled += tell_lanes(out.subspan(filled));
  filled += release_held(out.subspan(filled));
  if (!failures_.empty()) [[unlikely]]
    filled += tell_failures(out.subspan(filled));
  return filled;
}

// Serves the adds of peers as their agent, and takes answers from the agents of peers.
void OneSidedEndpoint::serve_adds() {
  agent_->finish([&](const Lane& lane, const std::string& problem) {
    fail_peer(lane.peer(), "rail " + describe_rail() + ": " + problem);
  });
  for_lanes([&](Lane& lane) {
    std::string problem;
    if (!agent_->serve(lane, &problem)) [[unlikely]]
      return fail_peer(lane.peer(), "rail " + describe_rail() + ": " + problem);
    if (!lane.take_answers() && !lane.has_answers()) return;
    if (lane.has_unissued()) lane.issue();  // words that wait for an idle queue pair come first
    lane.issue_answers();
    list(lane);
  });
  agent_->begin(word_rail_.rail());
  if (!agent_->failure().empty()) [[unlikely]]
    fail_all(agent_->failure());
}

// Answers the adds that were executed before this rank closes, because its peers cannot learn their results
// in another way.
void OneSidedEndpoint::finish_answers() {
  constexpr int64_t kPatienceMs = 500;
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  EndpointCompletion told[16];
  bool is_any = true;
  while (is_any && !deadline.has_passed()) {
    poll(told);
    is_any = agent_->is_busy();
    for_lanes([&](const Lane& lane) { is_any |= lane.owes_answers() && lane.peer() != options_.rank; });
  }
}

void OneSidedEndpoint::fail_peer(uint32_t peer, const std::string& cause) {
  Peer& failed = peers_[peer];
  if (!works(peer)) return;
  failed.state.store(State::kFailed, std::memory_order_release);
  if (get_push_ != nullptr) get_push_->drop(peer);
  failed.error = "rank " + std::to_string(peer) + ", " + cause;
  base::log_warn("endpoint of rank %u: %s", options_.rank, failed.error.c_str());
  for (const auto& lane : failed.lanes) {
    lane->stop();
    EndpointCompletion told[16];  // earlier completions come first
    for (bool is_told = false; !is_told;) {
      const uint32_t count = tell_lane(*lane, told, &is_told);
      failures_.insert(failures_.end(), told, told + count);
    }
    if (lane->observed() != nullptr) lane->observed()->note_failed();
    failures_.push_back({peer, lane->number(), true, lane->count_done(), 0, 0});
  }
  protocol::LaneRecord record;
  record.kind = protocol::LaneRecordKind::kGivenUp;
  send_record(peer, record);
}

void OneSidedEndpoint::fail_all(const std::string& cause) {
  for (uint32_t peer = 0; peer < options_.count_ranks; ++peer) fail_peer(peer, cause);
}

void OneSidedEndpoint::give_up(uint32_t peer, const std::string& cause) {
  if (peer < options_.count_ranks)
    fail_peer(peer, "rail " + describe_rail() + ": the connection was given up: " + cause);
}

}  // namespace verbena::transport
