// Who is ordered after whom, for ThreadSanitizer: every strong access is relaxed to it, and the edges that
// PTX gives by order and scope are told apart from the access. An edge exists exactly when the release's
// scope and the acquire's scope each cover both threads; the sanitizer then reports what a too narrow scope
// leaves open. Without the sanitizer all of this is empty.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "verbena/device/platform.cuh"

namespace verbena::emulator {

// Where a thread is, as scopes see it.
struct Place {
  uint32_t fiber, block, cluster;  // each unique in the world
  uint32_t gpu;
};

// A moment of one thread; its address is the sanitizer's synchronization object. Counted by hand: the
// standard library's shared pointers count with atomics, which may be the instrumented ones.
class ClockKey {
 public:
  ClockKey() = default;
  ClockKey(const ClockKey& other) : moment_(other.moment_) {
    if (moment_ != nullptr) ++moment_->owners;
  }
  ClockKey& operator=(ClockKey other) {
    Moment* mine = moment_;
    moment_ = other.moment_;
    other.moment_ = mine;
    return *this;
  }
  ~ClockKey() {
    if (moment_ != nullptr && --moment_->owners == 0) delete moment_;
  }
  // Of the running thread, now.
  static ClockKey now();
  void acquire() const;
  bool is_set() const { return moment_ != nullptr; }

 private:
  struct Moment {
    uint64_t owners;
  };
  Moment* moment_ = nullptr;
};

// The guarantee of a release write or fence: a thread within `scope` of `releaser` that observes the write is
// ordered after `key`.
struct Release {
  ClockKey key;
  Place releaser;
  device::Scope scope;
};

inline constexpr int kScopes = 5;

// What a thread's fences have done and what they may still do.
struct FenceState {
  std::array<ClockKey, kScopes> released;  // the last fence of at least that scope
  std::vector<Release> observed;           // by relaxed loads: a later fence acquires them
  std::vector<const void*> observed_from_host;
};

// The memory locations that strong operations have written.
class SynchronizationModel {
 public:
  // Each returns false if the access and the location's last write do not cover each other with their scopes,
  // which is a race unless something else orders them: the caller then also makes a plain access, which the
  // sanitizer judges. `bits` is the value read.
  bool observe_load(const Place& place, FenceState& fences, const void* address, uint64_t bits,
                    device::Order order, device::Scope scope);
  // Before a store of `bits`. An update continues the sequence of releases that it read from.
  bool publish_store(const Place& place, FenceState& fences, const void* address, uint64_t bits,
                     device::Order order, device::Scope scope, bool is_update);
  void fence(const Place& place, FenceState& fences, device::Order order, device::Scope scope);
  // A weak store: orders nothing, ends what stood there.
  void forget(const void* address);

 private:
  struct Location {
    uint64_t bits;  // a value other than this was written by host code, with C++'s own atomics
    Place writer;
    device::Scope scope;
    std::vector<Release> releases;
  };
  std::unordered_map<const void*, Location> locations_;
};

bool covers(device::Scope scope, const Place& one, const Place& other);

}  // namespace verbena::emulator
