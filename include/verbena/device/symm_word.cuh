// Functions that write, update and wait for 64-bit words in windows. Applications use such words as signals
// or counters. Any rank may write, add to or compare-and-swap a word of any rank, and wait for its own words.
// A word is aligned to 8 bytes. To access a word of a peer, pass the local address at the same offset. All
// threads of a group (group.cuh) make the same call, and the group executes it once.
//
// Visibility: a rank that reads the new value of a word sees everything that the updating group did before
// the update. This includes the group's loads and stores, and all puts and signals to the same peer that were
// posted by the group's block or through the given queue. An update that returns the previous value also
// acquires everything that earlier updates have released.
//
// Atomicity: updates of a word by the members of a team are atomic with respect to each other.
// symm_put_value() is not atomic with respect to updates: while one rank writes a word, no other rank may
// update the word. GPU atomics and NIC atomics are not atomic with respect to each other. Therefore, if a
// team has members that only the network reaches, NICs execute all updates, even updates of this rank's own
// words. Such an update is complete after symm_quiet(context, peer). NCCL's networks cannot update words, so
// calls that need a NIC return kUnreachable.
#ifndef VERBENA_DEVICE_SYMM_WORD_CUH
#define VERBENA_DEVICE_SYMM_WORD_CUH

#include "verbena/device/symm_signal.cuh"

namespace verbena::device {

namespace detail {

// Returns true if `peer` is a member and the `count` words are aligned and lie in a window. If the words are
// in registered memory, replaces their address with the symmetric address.
template <typename Word>
VERBENA_DEVICE bool find_words(const SymmContext& context, Word** word, int32_t peer, uint64_t count = 1) {
  return is_member(context, peer) && reinterpret_cast<uint64_t>(*word) % sizeof(uint64_t) == 0 &&
         find_symmetric(context, word, count * sizeof(uint64_t));
}

// Updates a word of any member through the network. One thread of the group calls `ask(network)`.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE SymmStatus update_by_network(const Context& context, int32_t peer, const Group& group,
                                            const Ask& ask) {
  if constexpr (!SymmNetwork<Context>::kUpdates) {
    return SymmStatus::kUnreachable;
  } else {
    if (!NetworkTraits<Context>::updates(context)) return SymmStatus::kUnreachable;
    return post_once(context, peer, group, [=] { return ask(SymmNetwork<Context>{}); });
  }
}

// Passes the previous value from the elected thread to all threads.
template <typename Group>
VERBENA_DEVICE void share_before(const Group& group, bool is_elected, uint64_t found, uint64_t* before) {
  found = group.share(found, is_elected);
  if (before != nullptr) *before = found;
}

// Waits until `find()` returns a value other than kNoWord in one of the threads. In all threads, `*found`
// receives this value.
inline constexpr uint64_t kNoWord = ~uint64_t{0};
template <typename Group, typename Find>
VERBENA_DEVICE WaitResult find_together(const WaitLimits& limits, const Group& group, const Find& find,
                                        uint64_t* found) {
  for (uint32_t spins = 1;; ++spins) {
    const uint64_t mine = find();
    if (group.any(mine != kNoWord)) {
      *found = group.share(mine, mine != kNoWord);
      return WaitResult::kReached;
    }
    if (spins % kDefaultSpinsPerCheck != 0) continue;
    const WaitResult end = agree(group, limits.check());
    if (end != WaitResult::kReached) return end;
  }
}

// Waits until `read(i)` satisfies the comparison with `wanted` for all i below `count`.
template <typename Context, typename Group, typename Read>
VERBENA_DEVICE SymmStatus await_all(const Context& context, uint32_t count, SymmCompare compare,
                                    int64_t wanted, Awaited awaited, const Group& group, const Read& read) {
  awaited.begun_ns = begin_wait(context);
  const WaitLimits limits = limit_wait(context);
  WaitResult mine = WaitResult::kReached;
  for (uint32_t i = group.rank(); i < count && mine == WaitResult::kReached; i += group.size())
    mine = wait_for(limits, [&] { return holds(static_cast<int64_t>(read(i)), compare, wanted); });
  return conclude(context, group, mine, awaited);
}
// Waits until `read(i)` satisfies the comparison with `wanted` for one i below `count`. `*which` receives
// this i. Ignores each i for which skipped[i] is not 0; returns kInvalid if every i is ignored.
template <typename Context, typename Group, typename Read>
VERBENA_DEVICE SymmStatus await_any(const Context& context, uint32_t count, SymmCompare compare,
                                    int64_t wanted, const uint32_t* skipped, uint32_t* which, Awaited awaited,
                                    const Group& group, const Read& read) {
  awaited.begun_ns = begin_wait(context);
  uint64_t found = kNoWord;
  const auto is_there = [&](uint32_t i) { return skipped == nullptr || skipped[i] == 0; };
  bool has_one = false;
  for (uint32_t i = group.rank(); i < count; i += group.size()) has_one |= is_there(i);
  if (!group.any(has_one)) return SymmStatus::kInvalid;
  const WaitResult result = find_together(
      limit_wait(context), group,
      [&] {
        for (uint32_t i = group.rank(); i < count; i += group.size())
          if (is_there(i) && holds(static_cast<int64_t>(read(i)), compare, wanted)) return uint64_t{i};
        return kNoWord;
      },
      &found);
  *which = static_cast<uint32_t>(found);
  return conclude(context, group, result, awaited);
}

}  // namespace detail

// Writes the peer's word, by a store or through a NIC. No other rank may write or update the word at the same
// time.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_value(const Context& context, uint64_t* word, uint64_t value, int32_t peer,
                                         const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::find_words(context, &word, peer)) return SymmStatus::kInvalid;
  detail::record_update(context, group, peer, value);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::update_by_network(context, peer, group, [=, &context](const auto& network) {
      return network.write_word(context, peer, word, value, queue);
    });
  }
  group.sync();
  if (group.elect()) store_release<Scope::kSystem>(detail::shift(word, delta_bytes), value);
  return SymmStatus::kDone;
}

// Adds to the peer's word, modulo 2^64.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_add(const Context& context, uint64_t* word, uint64_t value, int32_t peer,
                                   const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::find_words(context, &word, peer)) return SymmStatus::kInvalid;
  detail::record_update(context, group, peer, value);
  if (context.has_remote != 0) {
    return detail::update_by_network(context, peer, group, [=, &context](const auto& network) {
      return network.add_word(context, peer, word, value, queue);
    });
  }
  group.sync();
  if (group.elect())
    reduce_add<Order::kRelease, Scope::kSystem>(detail::shift(word, detail::get_delta(context, peer)), value);
  return SymmStatus::kDone;
}

// Adds to the peer's word, and returns the word's previous value. If a NIC executes the update, the call
// waits for the reply of the NIC.
// @param before  receives the previous value, the same in all threads; may be null
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_fetch_add(const Context& context, uint64_t* word, uint64_t value,
                                                       int32_t peer, uint64_t* before,
                                                       const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::find_words(context, &word, peer)) return SymmStatus::kInvalid;
  detail::record_update(context, group, peer, value);
  uint64_t found = 0;
  const bool is_elected = group.elect();
  if (context.has_remote != 0) {
    uint64_t* const place = &found;
    const SymmStatus status =
        detail::update_by_network(context, peer, group, [=, &context](const auto& network) {
          return network.fetch_add(context, peer, word, value, queue, place);
        });
    if (status != SymmStatus::kDone) return status;
  } else {
    group.sync();
    if (is_elected)
      found = fetch_add<Order::kAcquireRelease, Scope::kSystem>(
          detail::shift(word, detail::get_delta(context, peer)), value);
  }
  detail::share_before(group, is_elected, found, before);
  return SymmStatus::kDone;
}

// Sets the peer's word to `desired` if it equals `expected`. If a NIC executes the update, the call waits for
// its reply.
// @param before  receives the previous value, which equals `expected` if the word was set; may be null
// @return kUnreachable if the NIC does not support compare-and-swap
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_compare_swap(const Context& context, uint64_t* word,
                                                          uint64_t expected, uint64_t desired, int32_t peer,
                                                          uint64_t* before, const Group& group = {},
                                                          SymmQueue queue = {}) {
  if (!detail::find_words(context, &word, peer)) return SymmStatus::kInvalid;
  detail::record_update(context, group, peer, desired);
  uint64_t found = 0;
  const bool is_elected = group.elect();
  if (context.has_remote != 0) {
    if constexpr (SymmNetwork<Context>::kUpdates) {
      if (!SymmNetwork<Context>::swaps(context)) return SymmStatus::kUnreachable;
    }
    uint64_t* const place = &found;
    const SymmStatus status =
        detail::update_by_network(context, peer, group, [=, &context](const auto& network) {
          return network.compare_swap(context, peer, word, expected, desired, queue, place);
        });
    if (status != SymmStatus::kDone) return status;
  } else {
    group.sync();
    if (is_elected)
      found = compare_exchange<Order::kAcquireRelease, Scope::kSystem>(
          detail::shift(word, detail::get_delta(context, peer)), expected, desired);
  }
  detail::share_before(group, is_elected, found, before);
  return SymmStatus::kDone;
}

// Waits until a word of this rank satisfies the comparison with `wanted`. T, `seen` and the memory order are
// the same as in symm_signal_wait_until().
template <typename T = int64_t, typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until(const Context& context, const uint64_t* word,
                                                        SymmCompare compare, T wanted, T* seen = nullptr,
                                                        const Group& group = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "verbena: T must have 32 or 64 bits");
  if (!detail::find_words(context, &word, context.team_rank)) return SymmStatus::kInvalid;
  const uint64_t begun_ns = detail::begin_wait(context);
  const WaitLimits limits = detail::limit_wait(context);
  WaitResult mine = WaitResult::kReached;
  T value{};
  const bool is_elected = group.elect();
  if (is_elected) {
    mine = wait_for(limits, [&] {
      value = static_cast<T>(load_acquire<Scope::kSystem>(word));
      return detail::holds(value, compare, wanted);
    });
  }
  const SymmStatus status =
      detail::conclude(context, group, mine, {SymmWait::kWord, 0, kSymmNobody, begun_ns});
  if (seen != nullptr) *seen = static_cast<T>(group.share(static_cast<uint64_t>(value), is_elected));
  return status;
}

// Waits until each of `count` contiguous words satisfies the comparison with `wanted`.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until_all(const Context& context, const uint64_t* words,
                                                            uint32_t count, SymmCompare compare,
                                                            int64_t wanted, const Group& group = {}) {
  if (!detail::find_words(context, &words, context.team_rank, count)) return SymmStatus::kInvalid;
  return detail::await_all(context, count, compare, wanted, {SymmWait::kWord}, group,
                           [&](uint32_t i) { return load_acquire<Scope::kSystem>(words + i); });
}

// Waits until one of `count` contiguous words satisfies the comparison with `wanted`.
// @param skipped  [count], readable by all threads. Word i is ignored if skipped[i] is not 0. If the pointer
//                 is null, no word is ignored
// @param which    receives the index of a word that satisfies the comparison, the same in all threads
// @return kInvalid if all words are ignored
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until_any(const Context& context, const uint64_t* words,
                                                            uint32_t count, SymmCompare compare,
                                                            int64_t wanted, const uint32_t* skipped,
                                                            uint32_t* which, const Group& group = {}) {
  if (!detail::find_words(context, &words, context.team_rank, count)) return SymmStatus::kInvalid;
  return detail::await_any(context, count, compare, wanted, skipped, which, {SymmWait::kWord}, group,
                           [&](uint32_t i) { return load_acquire<Scope::kSystem>(words + i); });
}

// Wait like symm_wait_until_all() and symm_wait_until_any(), but for the `count` signals of this rank that
// start at signal `first`.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_signal_wait_until_all(const Context& context, uint32_t first,
                                                                   uint32_t count, SymmCompare compare,
                                                                   int64_t wanted, const Group& group = {}) {
  if (first >= kSymmSignals || count > kSymmSignals - first) return SymmStatus::kInvalid;
  return detail::await_all(context, count, compare, wanted, {SymmWait::kSignal, first}, group,
                           [&](uint32_t i) { return detail::read_signal(context, first + i); });
}
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_signal_wait_until_any(const Context& context, uint32_t first,
                                                                   uint32_t count, SymmCompare compare,
                                                                   int64_t wanted, const uint32_t* skipped,
                                                                   uint32_t* which, const Group& group = {}) {
  if (first >= kSymmSignals || count > kSymmSignals - first) return SymmStatus::kInvalid;
  return detail::await_any(context, count, compare, wanted, skipped, which, {SymmWait::kSignal, first}, group,
                           [&](uint32_t i) { return detail::read_signal(context, first + i); });
}

}  // namespace verbena::device

#endif
