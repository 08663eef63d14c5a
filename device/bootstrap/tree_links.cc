#include "device/bootstrap/tree_links.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"

namespace verbena::bootstrap {
namespace {

constexpr int kRetryMs = 100;

}  // namespace

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
  auto listener = base::Listener::open();
  if (!listener) return listener.error();
  listener_ = std::move(*listener);
  return {};
}

base::Outcome TreeLinks::connect_parent(const base::SocketAddress& address) {
  Hello hello;
  hello.purpose = Purpose::kTree;
  hello.rank = place_.rank;
  hello.count_ranks = place_.shape.count_ranks;
  hello.nonce = place_.nonce;
  auto link = Link::connect(address, hello, place_.secret);
  if (!link) {
    return base::fail_errno(base::Status::kRemote, link.error().errno_value,
                            "bootstrap: rank %u of %u: cannot reach rank %u at %s", place_.rank,
                            place_.shape.count_ranks, neighbours_[0].rank, base::describe(address).c_str());
  }
  neighbours_[0].attach(std::move(*link));
  return {};
}

void TreeLinks::Neighbour::attach(Link made) {
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
  while (listener_.fd() >= 0) {
    auto socket = listener_.accept();
    if (!socket) {  // out of descriptors: logged, and tried again
      send_stranger_away();
      ::poll(nullptr, 0, kRetryMs);
    }
    if (!socket || !*socket) break;
    const auto strangers = std::count_if(callers_.begin(), callers_.end(),
                                         [](const Caller& caller) { return caller.link.is_stranger(); });
    if (static_cast<size_t>(strangers) >= find_most_strangers()) send_stranger_away();
    const auto proof = Proof::create(place_.secret);
    if (!proof) break;
    callers_.push_back(
        {Link::accept(std::move(**socket), *proof), base::Deadline::after_ms(kIntroductionMs)});
  }
  for (Caller& caller : callers_) serve(caller);
  std::erase_if(callers_,
                [](const Caller& caller) { return caller.link.is_closed() || caller.deadline.has_passed(); });
  const auto has_come = [](const Neighbour& neighbour) { return neighbour.link.has_value(); };
  if (listener_.fd() < 0 || !std::all_of(neighbours_.begin(), neighbours_.end(), has_come)) return;
  callers_.clear();
  listener_ = base::Listener();  // nobody else is expected
}

// The longest silent one, if it has still nothing to say.
void TreeLinks::send_stranger_away() {
  const auto longest = std::find_if(callers_.begin(), callers_.end(),
                                    [](const Caller& caller) { return caller.link.is_stranger(); });
  if (longest == callers_.end()) return;
  serve(*longest);
  if (longest->link.is_stranger()) longest->link.close("too many callers say nothing");
  if (longest->link.is_closed()) callers_.erase(longest);
}

void TreeLinks::serve(Caller& caller) {
  caller.link.advance();
  if (const Hello* hello = caller.link.asking()) {
    caller.link.answer(judge(*hello), place_.shape.count_ranks);
    caller.link.advance();
    if (caller.link.refusal() != Refusal::kNone) {
      base::log_warn("bootstrap: rank %u of %u: caller from %s refused: %s", place_.rank,
                     place_.shape.count_ranks, base::describe(caller.link.peer()).c_str(),
                     describe_caller(caller.link.refusal()));
    }
  }
  if (!caller.link.is_standing()) return;
  // Only now is it proven that it is who it says: nobody takes a child's place by repeating its hello.
  const Neighbour* found = find_child(caller.link.hello().rank);
  if (found == nullptr || found->link) return caller.link.close("its place is taken");
  Neighbour* child = &neighbours_[static_cast<size_t>(found - neighbours_.data())];
  child->attach(std::move(caller.link));
  caller.link.close("moved");
}

Refusal TreeLinks::judge(const Hello& hello) const {
  if (!is_same_nonce(hello.nonce, place_.nonce)) return Refusal::kOtherJob;
  if (hello.purpose != Purpose::kTree) return Refusal::kUnexpected;
  if (hello.count_ranks != place_.shape.count_ranks) return Refusal::kOtherCount;
  const Neighbour* child = find_child(hello.rank);
  if (child == nullptr) return Refusal::kUnexpected;
  return child->link ? Refusal::kRankTaken : Refusal::kNone;
}

const TreeLinks::Neighbour* TreeLinks::find_child(uint32_t rank) const {
  for (size_t i = has_parent() ? 1 : 0; i < neighbours_.size(); ++i) {
    if (neighbours_[i].rank == rank) return &neighbours_[i];
  }
  return nullptr;
}

void TreeLinks::wait(int64_t most_ms) {
  std::vector<pollfd> polled;
  polled.reserve(neighbours_.size() + callers_.size() + 1);
  if (listener_.fd() >= 0) polled.push_back({listener_.fd(), POLLIN, 0});
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.link) polled.push_back(neighbour.link->poll_entry());
  }
  for (const Caller& caller : callers_) polled.push_back(caller.link.poll_entry());
  ::poll(polled.data(), polled.size(), static_cast<int>(most_ms));
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

}  // namespace verbena::bootstrap
