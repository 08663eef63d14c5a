#include "bootstrap/tree_carrier.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

TreeLinks::TreeLinks(const Place& place) : place_(place) {
  const TreeShape& shape = place_.shape;
  const uint32_t rank = place_.rank;
  if (rank != 0) neighbours_.push_back({shape.parent_of(rank), std::nullopt, {}});
  const uint32_t first = shape.first_child_of(rank);
  for (uint32_t i = 0; i < shape.count_children(rank); ++i) {
    neighbours_.push_back({first + i, std::nullopt, {}});
  }
}

base::Outcome TreeLinks::listen() {
  if (place_.shape.count_children(place_.rank) == 0) return {};
  auto listener =
      place_.is_loopback_only ? base::Listener::open_at(base::make_loopback()) : base::Listener::open();
  if (!listener) return listener.error();
  auto proof = Proof::create(place_.secret);
  if (!proof) return proof.error();
  callers_ = Callers(
      std::move(*listener), std::move(*proof),
      "bootstrap: rank " + std::to_string(place_.rank) + " of " + std::to_string(place_.shape.count_ranks));
  return {};
}

base::Outcome TreeLinks::connect_parent(const base::SocketAddress& address) {
  Hello hello;
  hello.purpose = Purpose::kTree;
  hello.rank = place_.rank;
  hello.count_ranks = place_.shape.count_ranks;
  hello.nonce = place_.nonce;
  auto link = FrameLink::connect(address, hello, place_.secret);
  if (!link) {
    return base::fail_errno(base::Status::kRemote, link.error().errno_value,
                            "bootstrap: rank %u of %u: cannot reach rank %u at %s", place_.rank,
                            place_.shape.count_ranks, neighbours_[0].rank, base::describe(address).c_str());
  }
  neighbours_[0].attach(std::move(*link));
  return {};
}

void TreeLinks::Neighbour::attach(FrameLink made) {
  link.emplace(std::move(made));
  for (const Record& record : waiting) link->send(record);
  waiting.clear();
}

void TreeLinks::advance() {
  accept_children();
  for (Neighbour& neighbour : neighbours_) {
    if (neighbour.link) neighbour.link->advance();
  }
}

void TreeLinks::accept_children() {
  if (!callers_.is_open()) return;
  callers_.advance([this](const Hello& hello) { return judge(hello); });
  while (auto link = callers_.take()) {
    const Neighbour* found = find_child(link->hello().rank);
    if (found == nullptr || found->link) continue;  // its place was taken meanwhile
    neighbours_[static_cast<size_t>(found - neighbours_.data())].attach(std::move(*link));
  }
  const auto has_come = [](const Neighbour& neighbour) { return neighbour.link.has_value(); };
  if (std::all_of(neighbours_.begin(), neighbours_.end(), has_come)) callers_.close();
}

Callers::Verdict TreeLinks::judge(const Hello& hello) const {
  if (!is_same_nonce(hello.nonce, place_.nonce)) return {Refusal::kOtherJob};
  const uint32_t count_ranks = place_.shape.count_ranks;
  if (hello.purpose != Purpose::kTree) return {Refusal::kUnexpected};
  if (hello.count_ranks != count_ranks) return {Refusal::kOtherCount, count_ranks};
  const Neighbour* child = find_child(hello.rank);
  if (child == nullptr) return {Refusal::kUnexpected};
  return {child->link ? Refusal::kRankTaken : Refusal::kNone};
}

const TreeLinks::Neighbour* TreeLinks::find_child(uint32_t rank) const {
  for (size_t i = has_parent() ? 1 : 0; i < neighbours_.size(); ++i) {
    if (neighbours_[i].rank == rank) return &neighbours_[i];
  }
  return nullptr;
}

void TreeLinks::wait(int64_t max_ms) {
  std::vector<pollfd> polled;
  callers_.add_poll_entries(polled);
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.link) polled.push_back(neighbour.link->poll_entry());
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(callers_.limit_wait_ms(max_ms)));
}

std::optional<TreeLinks::Arrival> TreeLinks::take() {
  for (size_t i = 0; i < neighbours_.size(); ++i) {
    if (!neighbours_[i].link) continue;
    if (Record record = neighbours_[i].link->take()) return Arrival{i, std::move(record)};
  }
  return std::nullopt;
}

void TreeLinks::send(size_t neighbour, const Record& record) {
  Neighbour& target = neighbours_[neighbour];
  if (target.link) {
    target.link->send(record);
  } else {
    target.waiting.push_back(record);
  }
}

void TreeLinks::send_to_children(const Record& record) {
  for (size_t i = has_parent() ? 1 : 0; i < neighbours_.size(); ++i) send(i, record);
}

void TreeLinks::spread(const Record& record, std::optional<size_t> from) {
  for (size_t i = 0; i < neighbours_.size(); ++i) {
    if (i != from) send(i, record);
  }
}

bool TreeLinks::is_flushed() const {
  return std::all_of(neighbours_.begin(), neighbours_.end(), [](const Neighbour& neighbour) {
    return neighbour.link ? neighbour.link->is_flushed() : neighbour.waiting.empty();
  });
}

size_t TreeLinks::neighbour_of(uint32_t rank) const {
  size_t i = 0;
  while (i < neighbours_.size() && neighbours_[i].rank != rank) ++i;
  return i;
}

bool TreeLinks::is_lost(size_t neighbour) const {
  const auto& link = neighbours_[neighbour].link;
  return link && link->is_closed() && !link->has_arrivals();
}

namespace {

constexpr int64_t kStepMs = 100;
// How long each level of the tree has to name the missing ranks.
constexpr int64_t kVerdictMs = 1000;
constexpr int64_t kPartingMs = 200;  // to send the last frames

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kJoin:
      return "joining";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kExchange:
      return "exchange";
    case Operation::kAgree:
      return "agreement";
  }
  return "unknown call";
}

base::Bytes as_bytes_of(std::span<const std::byte> bytes) {
  return as_bytes(bytes.data(), bytes.size());
}
std::span<uint8_t> as_writable(std::span<std::byte> bytes) {
  return {reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()};
}

}  // namespace

TreeCarrier::TreeCarrier(const TreeLinks::Place& place, TreeLinks links, int64_t timeout_ms)
    : shape_(place.shape),
      rank_(place.rank),
      timeout_ms_(timeout_ms),
      links_(std::move(links)),
      has_left_(links_.count()) {}

TreeCarrier::~TreeCarrier() {
  if (state_.has_failed()) return;
  links_.spread(make_record({.kind = FrameKind::kGoodbye, .rank = rank_}), std::nullopt);
  links_.advance();
}

base::Outcome TreeCarrier::all_gather(Operation what, std::span<const std::byte> mine,
                                      std::span<std::byte> all) {
  return run(what, as_bytes_of(mine), as_writable(all));
}

base::Outcome TreeCarrier::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) {
  return run(Operation::kExchange, as_bytes_of(mine), as_writable(theirs));
}

base::Outcome TreeCarrier::run(Operation operation, base::Bytes mine, std::span<uint8_t> result) {
  if (state_.has_failed()) return state_;
  ++sequence_;
  if (mine.size() * uint64_t{shape_.count_ranks} > kMaxFrameBytes) {
    return fail_all({{base::Status::kInvalidArgument, 0},
                     describe_call(operation, sequence_) + ": " + std::to_string(mine.size()) +
                         " bytes from each rank exceed the maximum"},
                    std::nullopt);
  }
  Call call(shape_, rank_, operation, mine, result, base::Deadline::after_ms(timeout_ms_));
  begin(call);
  while (true) {
    if (auto moved = progress(call); !moved) return moved;
    if (is_done(call)) return {};
    if (auto checked = check_for_lost(call); !checked) return checked;
    if (auto timely = handle_time(call); !timely) return timely;
    if (base::is_interrupted()) {
      return fail_all({{base::Status::kSystem, EINTR},
                       describe_call(operation, sequence_) + ": rank " + std::to_string(rank_) +
                           " was interrupted by a signal"},
                      std::nullopt);
    }
    links_.wait(std::min(call.deadline.remaining_ms(), kStepMs));
  }
}

void TreeCarrier::begin(Call& call) {
  if (!is_root()) {
    const FrameHeader header{.kind = FrameKind::kContribution,
                             .operation = call.operation(),
                             .rank = rank_,
                             .sequence = sequence_};
    links_.send_up(make_record(header, {call.mine()}));
  } else if (call.has_heard_all()) {
    send_results(call);
  }
}

base::Outcome TreeCarrier::progress(Call& call) {
  for (const TreeLinks::Arrival& arrival : std::exchange(early_, {})) {
    if (auto handled = handle(call, arrival); !handled) return handled;
  }
  // Repeats until nothing changes, because a frame that was read but not handled would not end the following
  // wait.
  for (bool is_moved = true; is_moved;) {
    links_.advance();
    is_moved = false;
    while (auto arrival = links_.take()) {
      if (auto handled = handle(call, *arrival); !handled) return handled;
      is_moved = true;
    }
  }
  return {};
}

base::Outcome TreeCarrier::handle(Call& call, const TreeLinks::Arrival& arrival) {
  const FrameHeader header = header_of(arrival.record);
  // A neighbour that already has its result may have begun the next call. A failure that arrives after this
  // rank's result belongs to the next call too.
  const bool is_next = header.sequence == sequence_ + 1 && call.has_heard_all() &&
                       (header.kind == FrameKind::kContribution || header.kind == FrameKind::kOverdue);
  if (is_next || (header.kind == FrameKind::kFailure && call.results_due() == 0)) {
    early_.push_back(arrival);
    return {};
  }
  switch (header.kind) {
    case FrameKind::kContribution:
      return handle_contribution(call, arrival);
    case FrameKind::kResult:
      return handle_result(call, arrival);
    case FrameKind::kFailure:
      return handle_failure(arrival);
    case FrameKind::kGoodbye:
      has_left_[arrival.neighbour] = true;
      return {};
    case FrameKind::kOverdue:
      if (header.sequence != sequence_) return {};  // its result has arrived in the meantime
      if (is_root() && !call.has_heard_all()) return give_verdict(call);
      if (!is_root() && !call.is_overdue) ask_who_is_missing(call);
      return {};
    case FrameKind::kReady:
    case FrameKind::kRegistration:
    case FrameKind::kParent:
    case FrameKind::kLaneRecord:
    case FrameKind::kPairPart:
      break;
  }
  return fail_all({{base::Status::kRemote, 0},
                   "rank " + std::to_string(links_.rank_of(arrival.neighbour)) + " sent an unexpected frame"},
                  arrival.neighbour);
}

base::Outcome TreeCarrier::handle_contribution(Call& call, const TreeLinks::Arrival& arrival) {
  const FrameHeader header = header_of(arrival.record);
  const uint32_t child = links_.rank_of(arrival.neighbour);
  const bool is_plausible = !links_.is_parent(arrival.neighbour) && header.rank < shape_.count_ranks &&
                            shape_.is_within(header.rank, child) && !call.has_heard(header.rank);
  if (!is_plausible || header.operation != call.operation() || header.sequence != sequence_ ||
      header.length_bytes != call.length_bytes()) {
    return fail_all(
        {{base::Status::kInvalidUsage, 0},
         "the ranks make different calls: rank " + std::to_string(header.rank) + " is in " +
             describe_call(header.operation, header.sequence) + " with " +
             std::to_string(header.length_bytes) + " bytes, rank " + std::to_string(rank_) + " in " +
             describe_call(call.operation(), sequence_) + " with " + std::to_string(call.length_bytes())},
        std::nullopt);
  }
  call.hear(header.rank, payload_of(arrival.record));
  if (!is_root()) {
    links_.send_up(arrival.record);
  } else if (call.has_heard_all()) {
    send_results(call);
  }
  return {};
}

// Called in rank 0 once all have contributed.
void TreeCarrier::send_results(Call& call) {
  FrameHeader header{
      .kind = FrameKind::kResult, .operation = call.operation(), .rank = kEveryone, .sequence = sequence_};
  if (!call.is_apart()) {
    call.set_result(call.gathered());
    links_.send_to_children(make_record(header, {call.gathered()}));
  } else {
    call.set_result(call.collect_for(0));
    for (header.rank = 1; header.rank < shape_.count_ranks; ++header.rank) {
      links_.send(links_.neighbour_of(shape_.child_towards(0, header.rank)),
                  make_record(header, {call.collect_for(header.rank)}));
    }
  }
  call.end_results();
}

base::Outcome TreeCarrier::handle_result(Call& call, const TreeLinks::Arrival& arrival) {
  const FrameHeader header = header_of(arrival.record);
  const bool is_for_all = header.rank == kEveryone;
  const bool is_for_us = is_for_all || header.rank == rank_;
  const bool is_plausible =
      links_.is_parent(arrival.neighbour) && header.sequence == sequence_ &&
      header.operation == call.operation() && header.length_bytes == call.result_bytes() &&
      call.results_due() > 0 && is_for_all == !call.is_apart() &&
      (is_for_us || (header.rank < shape_.count_ranks && shape_.is_within(header.rank, rank_)));
  if (!is_plausible) {
    return fail_all(
        {{base::Status::kRemote, 0},
         "rank " + std::to_string(links_.rank_of(arrival.neighbour)) + " sent an unexpected result"},
        arrival.neighbour);
  }
  call.pass_result();
  if (is_for_us) call.set_result(payload_of(arrival.record));
  if (is_for_all) {
    links_.send_to_children(arrival.record);
  } else if (!is_for_us) {
    links_.send(links_.neighbour_of(shape_.child_towards(rank_, header.rank)), arrival.record);
  }
  return {};
}

base::Outcome TreeCarrier::handle_failure(const TreeLinks::Arrival& arrival) {
  return fail_all(read_failure(arrival.record), arrival.neighbour);
}

// Returns whether this call still needs something from the neighbour.
bool TreeCarrier::awaits(const Call& call, size_t neighbour) const {
  if (links_.is_parent(neighbour)) return call.results_due() > 0;
  return !call.has_heard_all_within(links_.rank_of(neighbour));
}

// If a rank leaves after it has contributed, the next call fails, not this one.
base::Outcome TreeCarrier::check_for_lost(const Call& call) {
  for (size_t i = 0; i < links_.count(); ++i) {
    if (!links_.is_lost(i) || !awaits(call, i)) continue;
    return fail_all(
        {{base::Status::kRemote, 0}, describe_call(call.operation(), sequence_) + ": " + describe_lost(i)},
        i);
  }
  return {};
}

base::Outcome TreeCarrier::handle_time(Call& call) {
  if (!call.deadline.has_passed()) return {};
  if (is_root() || call.is_overdue) return give_verdict(call);
  ask_who_is_missing(call);
  return {};
}

// Asks rank 0, which knows most. Each level on the way gets additional time to detect that the next level
// does not answer.
void TreeCarrier::ask_who_is_missing(Call& call) {
  links_.send_up(make_record({.kind = FrameKind::kOverdue, .rank = rank_, .sequence = sequence_}));
  call.is_overdue = true;
  call.deadline = base::Deadline::after_ms(kVerdictMs * shape_.depth_of(rank_));
}

base::Error TreeCarrier::give_verdict(const Call& call) {
  std::string text = describe_call(call.operation(), sequence_) + ": waited for ";
  std::vector<uint32_t> missing = call.list_missing();
  if (!missing.empty()) {
    text += show_ranks(missing);
  } else if (is_root()) {
    text += "the network to accept the result";
  } else {
    text += show_ranks(std::vector<uint32_t>{shape_.parent_of(rank_)}) + " to pass on the result";
  }
  return fail_all(
      {{base::Status::kTimeout, 0}, text + " (" + base::show_duration(timeout_ms_ * base::kNsPerMs) + ")"},
      std::nullopt);
}

base::Outcome TreeCarrier::check_ranks() {
  if (state_.has_failed()) return state_;
  links_.advance();
  while (auto arrival = links_.take()) {
    if (header_of(arrival->record).kind == FrameKind::kGoodbye) has_left_[arrival->neighbour] = true;
    early_.push_back(std::move(*arrival));
  }
  for (const TreeLinks::Arrival& arrival : early_) {
    if (header_of(arrival.record).kind == FrameKind::kFailure) return handle_failure(arrival);
  }
  for (size_t i = 0; i < links_.count(); ++i) {
    if (links_.is_lost(i)) return fail_all({{base::Status::kRemote, 0}, describe_lost(i)}, i);
  }
  return {};
}

std::string TreeCarrier::describe_call(Operation operation, uint32_t sequence) const {
  if (operation == Operation::kJoin) return name_of(operation);
  return name_of(operation) + (" " + std::to_string(sequence));
}

std::string TreeCarrier::describe_lost(size_t neighbour) const {
  const std::string who = "rank " + std::to_string(links_.rank_of(neighbour));
  if (has_left_[neighbour]) return who + " has closed its connection";
  return who + " disconnected (" + links_.problem_of(neighbour) + ")";
}

base::Error TreeCarrier::fail_all(const FailureNote& note, std::optional<size_t> from) {
  links_.spread(make_failure(note), from);
  const auto parting = base::Deadline::after_ms(kPartingMs);
  links_.advance();
  while (!links_.is_flushed() && !parting.has_passed()) {
    links_.wait(1);
    links_.advance();
  }
  state_ = note.error;
  return base::fail(note.error.status, "bootstrap: rank %u of %u: %s", rank_, shape_.count_ranks,
                    note.text.c_str());
}

}  // namespace verbena::bootstrap
