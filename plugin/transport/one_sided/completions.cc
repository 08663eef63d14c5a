// Completions and failures: from the queue pair to the driver.
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "base/log.h"
#include "transport/one_sided/one_sided_endpoint.h"

namespace verbena::transport {

uint32_t OneSidedEndpoint::tell_failures(std::span<EndpointCompletion> out) {
  const auto count = std::min(failures_.size(), out.size());
  std::copy_n(failures_.begin(), count, out.begin());
  failures_.erase(failures_.begin(), failures_.begin() + static_cast<ptrdiff_t>(count));
  return static_cast<uint32_t>(count);
}

// False if there is nothing to tell now: what was flushed behind a failure, or waits for a push.
bool OneSidedEndpoint::tell(const verbs::Completion& completion, EndpointCompletion* out) {
  const auto index = static_cast<uint32_t>(completion.cookie);
  const uint32_t peer = index / options_.lanes, lane = index % options_.lanes;
  if (index == index_of_push()) return note_push(completion);
  if (peer >= options_.count_ranks || !works(peer)) [[unlikely]]
    return false;
  if (completion.error != 0) [[unlikely]] {
    char cause[384];
    std::snprintf(cause, sizeof(cause), "rail %s, qp %u: %s (status %d, vendor error 0x%x)",
                  describe_rail().c_str(), completion.qp_number,
                  verbs::describe_completion_error(completion.error), completion.error,
                  completion.vendor_error);
    fail_peer(peer, cause);
    return false;
  }
  const auto ended = lane_at(index).retire();
  if (!ended) [[unlikely]]
    return false;
  *out = {peer, lane, false, ended->count_done, ended->cookie, ended->value};
  if (get_push_ == nullptr || (get_push_->is_empty() && !ended->unpushed)) return true;
  get_push_->hold(*out, ended->unpushed);
  return false;
}

// A queue pair of ours to ourselves that fails says nothing about a peer: nobody's gets can be trusted.
bool OneSidedEndpoint::note_push(const verbs::Completion& completion) {
  if (completion.error == 0) {
    get_push_->note_done();
  } else {
    fail_all("rail " + describe_rail() + ": what a get brought cannot be pushed into GPU memory: " +
             verbs::describe_completion_error(completion.error));
  }
  return false;
}

uint32_t OneSidedEndpoint::release_held(std::span<EndpointCompletion> out) {
  if (get_push_ == nullptr || get_push_->is_empty()) return 0;
  const auto released = get_push_->release(out);
  if (!released)
    fail_all("rail " + describe_rail() + ": the device refused to push what a get brought; see dmesg");
  return released ? *released : 0;
}

uint32_t OneSidedEndpoint::poll(std::span<EndpointCompletion> out) {
  uint32_t filled = tell_failures(out);
  verbs::Completion batch[verbs::CompletionQueue::kMaxPollEntries];
  while (filled < out.size()) {
    const size_t wanted = std::min(std::size(batch), out.size() - filled);
    const int count = completions_.poll(std::span(batch).first(wanted));
    if (count < 0) [[unlikely]]
      fail_all("rail " + describe_rail() +
               ": the completion queue failed: it overran or the device is gone; see dmesg");
    for (int i = 0; i < count; ++i) {
      if (tell(batch[i], &out[filled])) ++filled;
    }
    if (!failures_.empty()) [[unlikely]]
      filled += tell_failures(out.subspan(filled));
    if (count < static_cast<int>(wanted)) break;
  }
  filled += release_held(out.subspan(filled));
  return filled;
}

void OneSidedEndpoint::fail_peer(uint32_t peer, const std::string& cause) {
  Peer& failed = peers_[peer];
  if (!works(peer)) return;
  failed.state.store(State::kFailed, std::memory_order_release);
  if (get_push_ != nullptr) get_push_->drop(peer);
  failed.error = "rank " + std::to_string(peer) + ", " + cause;
  base::log_warn("endpoint of rank %u: %s", options_.rank, failed.error.c_str());
  for (uint32_t lane = 0; lane < options_.lanes; ++lane) {
    failed.lanes[lane].pair().stop();
    failures_.push_back({peer, lane, true, failed.lanes[lane].count_done(), 0, 0});
  }
}

void OneSidedEndpoint::fail_all(const std::string& cause) {
  for (uint32_t peer = 0; peer < options_.count_ranks; ++peer) fail_peer(peer, cause);
}

void OneSidedEndpoint::give_up(uint32_t peer, const std::string& cause) {
  if (peer < options_.count_ranks) fail_peer(peer, "rail " + describe_rail() + ": given up: " + cause);
}

}  // namespace verbena::transport
