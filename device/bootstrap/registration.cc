#include "device/bootstrap/registration.h"

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/log.h"
#include "device/bootstrap/failure_note.h"
#include "device/bootstrap/link.h"

namespace verbena::bootstrap {
namespace {

constexpr int64_t kStepMs = 100;
constexpr int64_t kRetryMs = 50;
constexpr int64_t kVerdictMs = 1000;  // for the rendezvous to say who is missing

class Asking {
 public:
  Asking(const Meeting& meeting, const TreeLinks::Place& place, const base::SocketAddress& own,
         base::Deadline deadline)
      : meeting_(meeting), place_(place), own_(own), deadline_(deadline) {}

  // One attempt. Empty: it failed for a reason that time may heal, which is in `problem`.
  base::Result<std::optional<base::SocketAddress>> ask(std::string& problem);
  // The last attempt was: where too many strangers call, a rank may be taken for one of them.
  bool was_sent_away() const { return was_sent_away_; }
  base::Error fail(base::Status status, const std::string& text) const {
    return base::fail(status, "bootstrap: rank %u of %u: rendezvous at %s: %s", place_.rank,
                      place_.shape.count_ranks, base::describe(meeting_.address).c_str(), text.c_str());
  }

 private:
  base::Result<std::optional<base::SocketAddress>> read(const Record& record) const;

  Meeting meeting_;
  TreeLinks::Place place_;
  base::SocketAddress own_;
  base::Deadline deadline_;
  bool was_sent_away_ = false;
};

base::Result<std::optional<base::SocketAddress>> Asking::ask(std::string& problem) {
  was_sent_away_ = false;
  Hello hello;
  hello.rank = place_.rank;
  hello.count_ranks = place_.shape.count_ranks;
  hello.nonce = place_.nonce;
  auto connected = Link::connect(meeting_.address, hello, place_.secret);
  if (!connected) {
    problem = std::string("it cannot be reached: ") + std::strerror(connected.error().errno_value);
    return std::optional<base::SocketAddress>();
  }
  Link link = std::move(*connected);
  const Registration registration{own_, place_.rank == 0 ? 0 : place_.shape.parent_of(place_.rank), 0};
  link.send(make_record({.kind = FrameKind::kRegistration, .rank = place_.rank},
                        {as_bytes(&registration, sizeof(registration))}));
  bool is_overdue = false;
  while (true) {
    link.advance();
    if (const Record record = link.take()) return read(record);
    if (link.is_closed() && (!link.was_answered() || link.refusal() != Refusal::kNone)) {
      problem = link.problem();
      was_sent_away_ = link.was_connected() && !link.was_answered();
      const Refusal refusal = link.refusal();
      const bool may_heal =
          refusal == Refusal::kNone || refusal == Refusal::kOtherJob || refusal == Refusal::kRankTaken;
      if (may_heal) return std::optional<base::SocketAddress>();
      if (refusal == Refusal::kOtherCount) problem += " (" + std::to_string(link.refusal_detail()) + ")";
      return fail(base::Status::kRemote, problem);
    }
    if (link.is_closed()) return fail(base::Status::kRemote, "it has gone: " + link.problem());
    if (deadline_.has_passed()) {
      if (is_overdue || !link.is_standing())
        return fail(base::Status::kTimeout, problem.empty() ? "it does not answer" : problem);
      link.send(make_record({.kind = FrameKind::kOverdue, .rank = place_.rank}));
      is_overdue = true;
      deadline_ = base::Deadline::after_ms(kVerdictMs);
      continue;
    }
    pollfd entry = link.poll_entry();
    ::poll(&entry, 1, static_cast<int>(std::min(deadline_.remaining_ms(), kStepMs)));
  }
}

base::Result<std::optional<base::SocketAddress>> Asking::read(const Record& record) const {
  const FrameKind kind = header_of(record).kind;
  if (kind == FrameKind::kFailure) {
    const FailureNote note = read_failure(record);
    return base::fail(note.error.status, "bootstrap: rank %u of %u: %s", place_.rank,
                      place_.shape.count_ranks, note.text.c_str());
  }
  base::SocketAddress parent;
  if (kind != FrameKind::kParent || payload_of(record).size() != sizeof(parent)) {
    return fail(base::Status::kRemote, "it sends what is not due");
  }
  std::memcpy(&parent, payload_of(record).data(), sizeof(parent));
  return std::optional(parent);
}

}  // namespace

base::Result<base::SocketAddress> ask_for_parent(const Meeting& meeting, const TreeLinks::Place& place,
                                                 const base::SocketAddress& own, base::Deadline deadline,
                                                 Patience patience) {
  Asking asking(meeting, place, own, deadline);
  std::string problem;
  while (true) {
    auto answer = asking.ask(problem);
    if (!answer) return answer.error();
    if (*answer) return **answer;
    if (patience == Patience::kNone && !asking.was_sent_away())
      return asking.fail(base::Status::kRemote, problem);
    if (deadline.has_passed()) return asking.fail(base::Status::kTimeout, problem);
    ::poll(nullptr, 0, static_cast<int>(std::min(deadline.remaining_ms(), kRetryMs)));
  }
}

}  // namespace verbena::bootstrap
