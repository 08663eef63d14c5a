// Waits for a word that another thread, another GPU, the host or a NIC writes. A wait is an acquire at its
// scope, so after kReached, everything that the writer did before its release is visible. A wait ends early
// if its deadline has passed, or if the abort word or the late word is set (WaitLimits). The wait checks
// these conditions every kSpinsPerCheck polls.
#ifndef VERBENA_DEVICE_WAIT_CUH
#define VERBENA_DEVICE_WAIT_CUH

#include "verbena/device/machine.cuh"
#include "verbena/device/memory_order.cuh"

namespace verbena::device {

enum class WaitResult : uint8_t { kReached, kTimedOut, kAborted };

// The values are the same as in TileScale.
enum class Relation : uint8_t { kEqual, kNotEqual, kGreaterEqual, kLessEqual, kGreater, kLess };

// The conditions that end a wait early.
struct WaitLimits {
  uint64_t deadline_ns;                 // in the time of clock_ns()
  const uint32_t* abort_word;           // a value other than 0 ends the wait; may be null
  const uint64_t* late_word = nullptr;  // a value other than 0 ends the wait, because another wait has timed
                                        // out; may be null

  VERBENA_DEVICE static WaitLimits within(uint64_t timeout_ns, const uint32_t* abort_word = nullptr) {
    const uint64_t now_ns = clock_ns();
    const uint64_t deadline_ns = now_ns + timeout_ns;
    return {deadline_ns < now_ns ? ~uint64_t{0} : deadline_ns, abort_word};
  }

  // Returns kReached while the wait may continue.
  VERBENA_DEVICE WaitResult check() const {
    if (abort_word != nullptr && load_relaxed<Scope::kSystem>(abort_word) != 0) return WaitResult::kAborted;
    if (late_word != nullptr && load_relaxed<Scope::kSystem>(late_word) != 0) return WaitResult::kTimedOut;
    return clock_ns() >= deadline_ns ? WaitResult::kTimedOut : WaitResult::kReached;
  }
};

// Policies for the pause between two polls of a wait. SpinWithoutPause is best for waits of a few
// microseconds. PauseLongerAndLonger leaves more of the SM's time to other warps.
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

// Waits until `condition()` returns true. Each poll calls `condition()`. One thread makes the call.
template <typename BackOff = SpinWithoutPause, uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck,
          typename Condition>
[[nodiscard]] VERBENA_DEVICE WaitResult wait_for(const WaitLimits& limits, const Condition& condition) {
  static_assert(kSpinsPerCheck > 0, "verbena: kSpinsPerCheck must be at least 1");
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

// Waits until the word at `address` satisfies the relation to `value`. One thread makes the call.
// @tparam T  an integer of 1 to 8 bytes; if T is signed, the comparison is signed
// @param seen  receives the value that ended the wait; may be null
template <Relation relation, Scope scope, typename BackOff = SpinWithoutPause,
          uint32_t kSpinsPerCheck = kDefaultSpinsPerCheck, typename T>
[[nodiscard]] VERBENA_DEVICE WaitResult wait_until(const T* address, detail::Same<T> value,
                                                   const WaitLimits& limits, T* seen = nullptr) {
  static_assert(sizeof(T) <= 8, "verbena: a wait needs a word of at most 8 bytes");
  return wait_for<BackOff, kSpinsPerCheck>(limits, [&] {
    const T word = load_acquire<scope>(address);
    if (!holds<relation>(word, value)) return false;
    if (seen != nullptr) *seen = word;
    return true;
  });
}

// Returns the combined result of all threads of a group: kReached if all threads have this result; otherwise
// kAborted if some thread has this result; otherwise kTimedOut. All threads of the group call this function.
// Afterwards, all memory accesses that an acquire load has made visible to one thread of the group are
// visible to every thread of the group.
template <typename Group>
[[nodiscard]] VERBENA_DEVICE WaitResult agree(const Group& group, WaitResult mine) {
  if (!group.any(mine != WaitResult::kReached)) return WaitResult::kReached;
  return group.any(mine == WaitResult::kAborted) ? WaitResult::kAborted : WaitResult::kTimedOut;
}

// Makes all threads of a group wait. Only one thread of the group polls the word.
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
