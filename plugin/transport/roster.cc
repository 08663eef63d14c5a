#include "transport/roster.h"

#include <algorithm>
#include <utility>

namespace verbena::transport {

bool Roster::is_empty() {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void Roster::add(RosterMember* member) {
  const std::lock_guard lock(mutex_);
  entries_[next_key_++] = {member, 0, {}};
}

void Roster::remove(RosterMember* member) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.member == member; });
}

void Roster::answer(const RosterMember* member, Telling telling) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& e) { return e.second.member == member; });
  if (entry == entries_.end()) return;
  entry->second.telling = std::move(telling);
  entry->second.round = round_;
}

uint64_t Roster::begin_round() {
  const std::lock_guard lock(mutex_);
  return ++round_;
}

// The mutex is given away between members: theirs may be waiting to answer, or to leave.
size_t Roster::ask(uint64_t round) {
  size_t silent = 0;
  for (uint64_t key = 0;;) {
    const std::lock_guard lock(mutex_);
    const auto next = entries_.upper_bound(key);
    if (next == entries_.end()) return silent;
    key = next->first;
    Entry& entry = next->second;
    if (entry.round >= round) continue;
    Telling telling;
    if (entry.member->tell(telling)) {
      entry.telling = std::move(telling);
      entry.round = round;
    } else {
      ++silent;
    }
  }
}

std::vector<Telling> Roster::take_tellings(uint64_t round) {
  std::vector<Telling> tellings;
  for (uint64_t key = 0;;) {
    const std::lock_guard lock(mutex_);
    const auto next = entries_.upper_bound(key);
    if (next == entries_.end()) return tellings;
    key = next->first;
    Entry& entry = next->second;
    if (entry.round < round) entry.telling = entry.member->tell_from_outside();
    tellings.push_back(std::exchange(entry.telling, {}));
  }
}

}  // namespace verbena::transport
