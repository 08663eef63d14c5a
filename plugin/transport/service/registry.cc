#include "transport/service/registry.h"

#include <utility>

namespace verbena::transport {

bool Registry::is_empty() {
  const std::lock_guard lock(mutex_);
  return entries_.empty();
}

void Registry::add(RegistryMember* member) {
  const std::lock_guard lock(mutex_);
  member->key_ = next_key_++;
  entries_.emplace(member->key_, Entry{member, 0, {}});
}

void Registry::remove(RegistryMember* member) {
  const std::lock_guard lock(mutex_);
  entries_.erase(std::exchange(member->key_, 0));
}

void Registry::answer(const RegistryMember* member, StateDump dump) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(member->key_);
  if (entry == entries_.end()) return;
  entry->second.dump = std::move(dump);
  entry->second.round = round_;
}

uint64_t Registry::begin_round() {
  const std::lock_guard lock(mutex_);
  return ++round_;
}

// Releases the mutex between members, because the thread of a member may be waiting for it to answer or to
// leave.
size_t Registry::ask(uint64_t round) {
  size_t silent = 0;
  for (uint64_t key = 0;;) {
    const std::lock_guard lock(mutex_);
    const auto next = entries_.upper_bound(key);
    if (next == entries_.end()) return silent;
    key = next->first;
    Entry& entry = next->second;
    if (entry.round >= round) continue;
    StateDump dump;
    if (entry.member->dump_state(dump)) {
      entry.dump = std::move(dump);
      entry.round = round;
    } else {
      ++silent;
    }
  }
}

std::vector<StateDump> Registry::take_dumps(uint64_t round) {
  std::vector<StateDump> dumps;
  for (uint64_t key = 0;;) {
    const std::lock_guard lock(mutex_);
    const auto next = entries_.upper_bound(key);
    if (next == entries_.end()) return dumps;
    key = next->first;
    Entry& entry = next->second;
    if (entry.round < round) entry.dump = entry.member->dump_from_outside();
    dumps.push_back(std::exchange(entry.dump, {}));
  }
}

}  // namespace verbena::transport
