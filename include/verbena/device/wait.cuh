// Waits for a word that somebody else writes: another thread, another GPU, the host or a NIC. A wait is an
// acquire at its scope: what the writer did before its release is there when it returns kReached. None is
// without an end: a deadline and an abort word stop it, both looked at every kSpinsPerCheck polls.
#ifndef VERBENA_DEVICE_WAIT_CUH
#define VERBENA_DEVICE_WAIT_CUH

#include "verbena/device/machine.cuh"
#include "verbena/device/memory_order.cuh"

namespace verbena::device {

enum class WaitResult : uint8_t { kReached, kTimedOut, kAborted };

// Numbered as TileScale does.
enum class Relation : uint8_t { kEqual, kNotEqual, kGreaterEqual, kLessEqual, kGreater, kLess };

// What ends a wait that does not reach its value.
struct WaitLimits {
  uint64_t deadline_ns;                 // of clock_ns()
  const uint32_t* abort_word;           // anything but 0 ends the wait; null where there is none
  const uint64_t* late_word = nullptr;  // anything but 0: somebody's time is over, and so is ours; or null

  VERBENA_DEVICE static WaitLimits within(uint64_t timeout_ns, const uint32_t* abort_word = nullptr) {
    const uint64_t now_ns = clock_ns();
    const uint64_t deadline_ns = now_ns + timeout_ns;
    return {deadline_ns < now_ns ? ~uint64_t{0} : deadline_ns, abort_word};
  }

  // kReached: the wait may go on.
  VERBENA_DEVICE WaitResult check() const {
    if (abort_word != nullptr && load_relaxed<Scope::kSystem>(abort_word) != 0) return WaitResult::kAborted;
    if (late_word != nullptr && load_relaxed<Scope::kSystem>(late_word) != 0) return WaitResult::kTimedOut;
    return clock_ns() >= deadline_ns ? WaitResult::kTimedOut : WaitResult::kReached;
  }
};

// What a wait does between two polls. The first is for waits of microseconds, the second leaves the SM to
// others.
struct SpinWithoutPause {
  VERBENA_DEVICE void pause() {}
};
template <uint32_t kFirst_ns = 32, uint32_t kLongest_ns = 1024>
struct PauseLongerAndLonger {
  uint32_t next_ns = kFirst_ns;

  VERBENA_DEVICE void pause() {
    device::pause(next_ns);
    next_ns = next_ns < kLongest_ns / 2 ? 2 * next_ns : kLongest_ns;
  }
};

inline constexpr uint32_t kDefaultSpinsPerCheck = 1000;

template <Relation relation, typename T>
VERBENA_HOST_DEVICE constexpr bool holds(T left, detail::Same<T> right) {
  if constexpr (relation == Relation::kEqual) {
    return left == right;
  } else if constexpr (relation == Relation::kNotEqual) {
    return left != right;
  } else if constexpr (relation == Relation::kGreaterEqual) {
    return left >= right;
  } else if constexpr (relation == Relation::kLessEqual) {
    return left <= right;
  } else if constexpr (relation == Relation::kGreater) {
    return left > right;
  } else {
    return left < right;
  }
}

// One thread waits until `condition()`, which looks each time.
template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
          typename Condition>
[[nodiscard]] VERBENA_DEVICE WaitResult wait_for(const WaitLimits& limits, const Condition& condition) {
  static_assert(kSpinsPerCheck > 0, "verbena: the limits are looked at every one or more polls");
  BackOff back_off{};
  for (uint32_t spins = 0; !condition();) {
    if (++spins == kSpinsPerCheck) {
      spins = 0;
      const WaitResult end = limits.check();
      if (end != WaitResult::kReached) return end;
    }
    back_off.pause();
  }
  return WaitResult::kReached;
}

// One thread waits until `*address relation value`. T is an integer of 1 to 8 bytes and compares by its sign.
// `seen`, if not null, is given the word that ended the wait.
template <Relation relation, Scope scope, typename BackOff = SpinWithoutPause,
          uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck, typename T>
[[nodiscard]] VERBENA_DEVICE WaitResult wait_until(const T* address, detail::Same<T> value,
                                                   const WaitLimits& limits, T* seen = nullptr) {
  static_assert(sizeof(T) <= 8, "verbena: a wait is for a word of at most 8 bytes");
  return wait_for<BackOff, kSpinsPerCheck>(limits, [&] {
    const T word = load_acquire<scope>(address);
    if (!holds<relation>(word, value)) return false;
    if (seen != nullptr) *seen = word;
    return true;
  });
}

// What all threads of a group make of their own results: kReached only if all reached, kAborted before
// kTimedOut. All come; what each acquired is there for every other one.
template <typename Group>
[[nodiscard]] VERBENA_DEVICE WaitResult agree(const Group& group, WaitResult mine) {
  if (!group.any(mine != WaitResult::kReached)) return WaitResult::kReached;
  return group.any(mine == WaitResult::kAborted) ? WaitResult::kAborted : WaitResult::kTimedOut;
}

// All threads of a group wait, one of them polls.
template <Relation relation, Scope scope, typename BackOff = SpinWithoutPause,
          uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck, typename Group, typename T>
[[nodiscard]] VERBENA_DEVICE WaitResult wait_together(const Group& group, const T* address,
                                                      detail::Same<T> value, const WaitLimits& limits) {
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = wait_until<relation, scope, BackOff, kSpinsPerCheck>(address, value, limits);
  return agree(group, mine);
}

}  // namespace verbena::device

#endif
