#include "synchronization.h"

#include <algorithm>

#include "sanitizer.h"

namespace verbena::emulator {

using device::Order;
using device::Scope;

namespace {

constexpr Place kHostCode = {~0u, ~0u, ~0u, ~0u};
constexpr Place kBeforeAll = {~1u, ~1u, ~1u, ~1u};

bool acquires(Order order) {
  return order == Order::kAcquire || order == Order::kAcquireRelease || order == Order::kSequential;
}

bool releases(Order order) {
  return order == Order::kRelease || order == Order::kAcquireRelease || order == Order::kSequential;
}

bool cover_each_other(Scope scope, const Place& place, Scope other_scope, const Place& other) {
  return place.fiber == other.fiber || other.fiber == kBeforeAll.fiber ||
         (covers(scope, place, other) && covers(other_scope, place, other));
}

void add_release(std::vector<Release>& list, Release release) {
  for (Release& known : list) {
    // The same thread's later moment includes its earlier ones.
    if (known.releaser.fiber == release.releaser.fiber && known.scope == release.scope) {
      known = std::move(release);
      return;
    }
  }
  list.push_back(std::move(release));
}

}  // namespace

ClockKey ClockKey::now() {
  ClockKey key;
  key.moment_ = new Moment{1};
  release_clock(key.moment_);
  return key;
}

void ClockKey::acquire() const {
  acquire_clock(moment_);
}

bool covers(Scope scope, const Place& one, const Place& other) {
  switch (scope) {
    case Scope::kThreads:
      return one.fiber == other.fiber;
    case Scope::kBlock:
      return one.block == other.block;
    case Scope::kCluster:
      return one.cluster == other.cluster;
    case Scope::kGpu:
      return one.gpu == other.gpu;
    case Scope::kSystem:
      return true;
  }
  return false;
}

void SynchronizationModel::forget(const void* address) {
  if (locations_.empty()) return;
  const IgnoreScope ignore;
  locations_.erase(address);
}

bool SynchronizationModel::observe_load(const Place& place, FenceState& fences, const void* address,
                                        uint64_t bits, Order order, Scope scope) {
  if (!kThreadSanitizer) return true;
  const IgnoreScope ignore;
  const auto found = locations_.find(address);
  // The first value seen counts as written before the grids began, by no thread. Host code may write it
  // again, so only a write by the device shows that host code did not.
  if (found == locations_.end()) locations_.emplace(address, Location{bits, kBeforeAll, Scope::kSystem, {}});
  const bool is_first_value = found == locations_.end() ||
                              (found->second.writer.fiber == kBeforeAll.fiber && found->second.bits == bits);
  if (is_first_value || found->second.bits != bits) {
    if (!covers(scope, place, kHostCode)) return is_first_value;
    if (acquires(order)) {
      acquire_clock(address);
    } else if (std::count(fences.observed_from_host.begin(), fences.observed_from_host.end(), address) == 0) {
      fences.observed_from_host.push_back(address);
    }
    return true;
  }
  const Location& location = found->second;
  for (const Release& release : location.releases) {
    if (!cover_each_other(scope, place, release.scope, release.releaser)) continue;
    if (acquires(order)) {
      release.key.acquire();
    } else {
      add_release(fences.observed, {release.key, release.releaser, std::min(scope, release.scope)});
    }
  }
  return cover_each_other(scope, place, location.scope, location.writer);
}

bool SynchronizationModel::publish_store(const Place& place, FenceState& fences, const void* address,
                                         uint64_t bits, Order order, Scope scope, bool is_update) {
  if (!kThreadSanitizer) return true;
  const IgnoreScope ignore;
  const auto [found, is_new] = locations_.try_emplace(address, Location{bits, place, scope, {}});
  Location& location = found->second;
  const bool covered = is_new || cover_each_other(scope, place, location.scope, location.writer);
  if (!is_update) location.releases.clear();
  location.bits = bits;
  location.writer = place;
  location.scope = scope;
  if (releases(order)) {
    add_release(location.releases, {ClockKey::now(), place, scope});
    if (scope == Scope::kSystem) release_clock(address);  // for host code that acquires with C++'s atomics
    return covered;
  }
  // A fence before makes this store release what was before the fence, within the narrower of both scopes.
  for (int level = static_cast<int>(scope); level > 0; --level) {
    const ClockKey& key = fences.released[static_cast<size_t>(level)];
    if (!key.is_set()) continue;
    add_release(location.releases, {key, place, static_cast<Scope>(level)});
    if (level == static_cast<int>(Scope::kSystem)) release_clock(address);
  }
  return covered;
}

void SynchronizationModel::fence(const Place& place, FenceState& fences, Order order, Scope scope) {
  if (!kThreadSanitizer) return;
  const IgnoreScope ignore;
  if (order != Order::kRelease) {
    for (const Release& release : fences.observed) {
      if (cover_each_other(scope, place, release.scope, release.releaser)) release.key.acquire();
    }
    for (const void* address : fences.observed_from_host) {
      if (scope == Scope::kSystem) acquire_clock(address);
    }
  }
  if (order != Order::kAcquire) {
    const ClockKey key = ClockKey::now();
    for (int level = 0; level <= static_cast<int>(scope); ++level) {
      fences.released[static_cast<size_t>(level)] = key;
    }
  }
}

}  // namespace verbena::emulator
