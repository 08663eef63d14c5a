#include "bootstrap/callers.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace verbena::bootstrap {
namespace {

constexpr int64_t kPauseMs = 100;  // pause after accept() found no free descriptor

// A rank may authenticate itself, send its frames and leave before its link is advanced once. Its frames are
// kept.
bool has_proven_itself(const FrameLink& link) {
  return link.is_standing() || link.has_arrivals();
}

}  // namespace

size_t Callers::find_limit() {
  constexpr size_t kLeast = 8, kMost = 256;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeast;
  return std::clamp<size_t>(limit.rlim_cur / 8, kLeast, kMost);
}

void Callers::close() {
  if (refused_ > 1) {
    base::log_info("%s: in total, %llu connections were refused at %s", owner_.c_str(),
                   static_cast<unsigned long long>(refused_), base::describe(address()).c_str());
  }
  refused_ = 0;
  callers_.clear();
  paused_until_ns_ = 0;
  listener_ = {};
}

void Callers::advance(const Judge& judge) {
  accept_all(judge);
  for (Caller& caller : callers_) serve(caller, judge);
  std::erase_if(callers_, [](const Caller& caller) {
    if (has_proven_itself(caller.link)) return false;
    return caller.link.is_closed() || caller.deadline.has_passed();
  });
}

bool Callers::has_welcomed(uint32_t rank) const {
  return std::ranges::any_of(callers_, [rank](const Caller& caller) {
    return caller.link.has_welcomed() && caller.link.hello().rank == rank;
  });
}

std::optional<FrameLink> Callers::take() {
  const auto found =
      std::ranges::find_if(callers_, [](const Caller& caller) { return has_proven_itself(caller.link); });
  if (found == callers_.end()) return std::nullopt;
  std::optional<FrameLink> link(std::move(found->link));
  callers_.erase(found);
  return link;
}

void Callers::accept_all(const Judge& judge) {
  if (is_paused() && base::monotonic_ns() < paused_until_ns_) return;
  paused_until_ns_ = 0;
  const size_t limit = find_limit();
  while (is_open()) {
    auto socket = listener_.accept();
    if (!socket || listener_.is_out_of_room()) {
      drop_oldest(judge);  // the next one may be a rank
      paused_until_ns_ = base::monotonic_ns() + kPauseMs * base::kNsPerMs;
      return;
    }
    if (!*socket) return;
    if (callers_.size() >= limit) drop_oldest(judge);
    callers_.push_back(
        {FrameLink::accept(std::move(**socket), proof_), base::Deadline::after_ms(kIntroductionMs)});
  }
}

// Drops the oldest client, unless it authenticates itself in this last step.
void Callers::drop_oldest(const Judge& judge) {
  const auto oldest =
      std::ranges::find_if(callers_, [](const Caller& caller) { return caller.link.is_stranger(); });
  if (oldest == callers_.end()) return;
  serve(*oldest, judge);
  if (oldest->link.is_stranger())
    oldest->link.close("the peer sent nothing, and too many connections were waiting");
  if (oldest->link.is_closed()) callers_.erase(oldest);
}

void Callers::serve(Caller& caller, const Judge& judge) {
  caller.link.advance();
  if (const Hello* hello = caller.link.asking()) {
    const Verdict verdict = judge(*hello);
    caller.link.answer(verdict.refusal, verdict.detail);
    if (caller.link.refusal() != Refusal::kNone) note_refusal(caller.link);
    caller.link.advance();
  }
}

void Callers::note_refusal(const FrameLink& link) {
  if (++refused_.get() > 1) return;
  base::log_warn("%s: connection from %s refused: %s (further refusals are counted but not logged)",
                 owner_.c_str(), base::describe(link.peer()).c_str(), describe_caller(link.refusal()));
}

void Callers::add_poll_entries(std::vector<pollfd>& polled) const {
  if (is_open() && !is_paused()) polled.push_back({listener_.fd(), POLLIN, 0});
  for (const Caller& caller : callers_) polled.push_back(caller.link.poll_entry());
}

int64_t Callers::limit_wait_ms(int64_t wanted_ms) const {
  return is_paused() ? std::min(wanted_ms, kPauseMs) : wanted_ms;
}

}  // namespace verbena::bootstrap
