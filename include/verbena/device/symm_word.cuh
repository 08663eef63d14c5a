// Signals of your own: 64-bit words in windows. Any rank writes, adds to or exchanges them on any rank, and
// waits for its own. A word is aligned to 8 bytes and named by this rank's address of it. All threads of a
// group (group.cuh) call, and the group acts once.
//
// A rank that sees the new value of a word sees what the group did before: all loads and stores, and all puts
// and signals of the block, or of the named queue, to the same peer. An update that returns the value before
// also acquires what earlier updates released.
//
// Updates of one word by members of one team are atomic among each other. In a team with members beyond loads
// and stores NICs execute all of them, also those of ranks in reach and of this rank itself, since the
// atomics of GPUs and NICs do not see each other; such an update is complete after symm_quiet(context, peer).
// NCCL's networks do not update words: kUnreachable where one would have to. Writing is not atomic with
// updates: while one rank writes, no rank may update.
#ifndef VERBENA_DEVICE_SYMM_WORD_CUH
#define VERBENA_DEVICE_SYMM_WORD_CUH

#include "verbena/device/symm_signal.cuh"

namespace verbena::device {

namespace detail {

// Sets `*word` to the symmetric address; returns false if it has none.
template <typename Word>
VERBENA_DEVICE bool find_words(const SymmContext& context, Word** word, int32_t peer, uint64_t count = 1) {
  return is_member(context, peer) && reinterpret_cast<uint64_t>(*word) % sizeof(uint64_t) == 0 &&
         find_symmetric(context, word, count * sizeof(uint64_t));
}

// Called by one thread of the group: updates through the network, for any peer.
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

// The thread that has updated shares the value before with the others.
template <typename Group>
VERBENA_DEVICE void share_before(const Group& group, bool is_elected, uint64_t found, uint64_t* before) {
  found = group.share(found, is_elected);
  if (before != nullptr) *before = found;
}

// Waits until `find()` of a thread returns a number below kNone; returns the same number to all threads.
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

// Returns whether `read(i)` of all `count` words compares with the value.
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
// Returns whether one of them does, of those that `skipped` does not name.
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

// Writes the peer's word, by a plain store or a NIC. No other rank may write or update it at the same time.
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

// The same; each thread whose `before` is not null receives the value before. Waits for the network's answer.
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

// Sets the peer's word to `desired` if it is `expected`; `before` receives the value before, which says
// whether it was. kUnreachable if the NIC has no such operation.
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

// Waits until a word of this rank compares with `wanted`, as symm_signal_wait_until() for a signal.
template <typename T = int64_t, typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until(const Context& context, const uint64_t* word,
                                                        SymmCompare compare, T wanted, T* seen = nullptr,
                                                        const Group& group = {}) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "verbena: a word is compared as 32 or 64 bits");
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

// Waits until each of `count` contiguous words compares with `wanted`.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until_all(const Context& context, const uint64_t* words,
                                                            uint32_t count, SymmCompare compare,
                                                            int64_t wanted, const Group& group = {}) {
  if (!detail::find_words(context, &words, context.team_rank, count)) return SymmStatus::kInvalid;
  return detail::await_all(context, count, compare, wanted, {SymmWait::kWord}, group,
                           [&](uint32_t i) { return load_acquire<Scope::kSystem>(words + i); });
}

// Waits until one of them does; `*which` receives the index of one that does, the same in all threads.
// `skipped`, if not null, has a number for each word, in memory that the group may read: a word whose number
// is not 0 is ignored.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_wait_until_any(const Context& context, const uint64_t* words,
                                                            uint32_t count, SymmCompare compare,
                                                            int64_t wanted, const uint32_t* skipped,
                                                            uint32_t* which, const Group& group = {}) {
  if (!detail::find_words(context, &words, context.team_rank, count)) return SymmStatus::kInvalid;
  return detail::await_any(context, count, compare, wanted, skipped, which, {SymmWait::kWord}, group,
                           [&](uint32_t i) { return load_acquire<Scope::kSystem>(words + i); });
}

// The same for `count` signals from `first` on.
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
