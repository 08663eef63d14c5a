// The least that a backend is, for docs/add-a-backend.md: members "out of reach" are reached by loads and
// stores after all, only the rest of the library does not know. It compiles for whatever the device library
// does, and runs on emulated GPUs.
#ifndef VERBENA_TESTS_STUB_BACKEND_CUH
#define VERBENA_TESTS_STUB_BACKEND_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/symm.cuh"

namespace verbena {

inline constexpr int32_t kSymmStub = kSymmFirstOther;

struct StubSymmContext : SymmContext {
  const int64_t* far_deltas;  // [team_size], from an address of ours to the peer's
  uint64_t* arrival_counts;   // [SymmArrivalCount::kWords], in the heap
};

}  // namespace verbena

namespace verbena::device {

template <>
struct SymmNetwork<StubSymmContext> {
  static constexpr bool kGets = true;
  static constexpr bool kUpdates = true;
  static constexpr bool kRows = false;
  static constexpr bool kPieces = false;
  static constexpr bool kArrivesAfterPuts = false;

  VERBENA_DEVICE static constexpr bool serves(int32_t type) { return type == kSymmStub; }
  VERBENA_DEVICE static bool is_there(const StubSymmContext& context) {
    return context.far_deltas != nullptr;
  }

  VERBENA_DEVICE static WaitResult put(const StubSymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue = {}) {
    copy_thread(find(context, peer, destination), source, length_bytes);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult put_signal(const StubSymmContext& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t number,
                                              uint64_t value, SymmSignalOperation operation, SymmQueue = {}) {
    put(context, peer, destination, source, length_bytes);
    return signal(context, peer, number, value, operation);
  }
  // In the word that is the networks'; the other one is those' in reach.
  VERBENA_DEVICE static WaitResult signal(const StubSymmContext& context, int32_t peer, uint32_t number,
                                          uint64_t value, SymmSignalOperation operation, SymmQueue = {}) {
    uint64_t* const word = find(context, peer, context.remote_signals + number);
    if (operation == SymmSignalOperation::kAdd) {
      reduce_add<Order::kRelease, Scope::kSystem>(word, value);
    } else {
      const uint64_t other = load_relaxed<Scope::kSystem>(find(context, peer, context.signals + number));
      store_release<Scope::kSystem>(word, value - other);
    }
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult get(const StubSymmContext& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue = {}) {
    copy_thread(destination, find(context, peer, source), length_bytes);
    return WaitResult::kReached;
  }

  // Done when it is asked for: there is nothing to wait for.
  VERBENA_DEVICE static WaitResult get_async(const StubSymmContext& context, int32_t peer, void* destination,
                                             const void* source, uint64_t length_bytes, SymmQueue,
                                             SymmRequest*) {
    return get(context, peer, destination, source, length_bytes);
  }
  VERBENA_DEVICE static WaitResult await(const StubSymmContext&, const SymmRequest&) {
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool has_answered(const StubSymmContext&, const SymmRequest&) { return true; }

  VERBENA_DEVICE static WaitResult write_word(const StubSymmContext& context, int32_t peer, uint64_t* word,
                                              uint64_t value, SymmQueue) {
    store_release<Scope::kSystem>(find(context, peer, word), value);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult add_word(const StubSymmContext& context, int32_t peer, uint64_t* word,
                                            uint64_t value, SymmQueue) {
    reduce_add<Order::kRelease, Scope::kSystem>(find(context, peer, word), value);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult fetch_add(const StubSymmContext& context, int32_t peer, uint64_t* word,
                                             uint64_t value, SymmQueue, uint64_t* before) {
    *before = device::fetch_add<Order::kAcquireRelease, Scope::kSystem>(find(context, peer, word), value);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool swaps(const StubSymmContext&) { return true; }
  VERBENA_DEVICE static WaitResult compare_swap(const StubSymmContext& context, int32_t peer, uint64_t* word,
                                                uint64_t expected, uint64_t desired, SymmQueue,
                                                uint64_t* before) {
    *before = compare_exchange<Order::kAcquireRelease, Scope::kSystem>(find(context, peer, word), expected,
                                                                       desired);
    return WaitResult::kReached;
  }

  VERBENA_DEVICE static WaitResult follow_all(const StubSymmContext&, int32_t, SymmQueue) {
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult complete(const StubSymmContext&) { return WaitResult::kReached; }
  VERBENA_DEVICE static WaitResult complete_at(const StubSymmContext&, int32_t) {
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult release_sources(const StubSymmContext&) { return WaitResult::kReached; }

  VERBENA_DEVICE static uint64_t read_signal(const StubSymmContext& context, uint32_t number,
                                             int64_t delta_bytes) {
    return load_acquire<Scope::kSystem>(detail::shift(context.remote_signals + number, delta_bytes));
  }
  VERBENA_DEVICE static void reset_signal(const StubSymmContext&, uint32_t) {}

  VERBENA_DEVICE static WaitResult arrive(const StubSymmContext& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    uint64_t* const word = context.arrival_counts + SymmArrivalCount::find_word(barrier, round);
    reduce_add<Order::kRelease, Scope::kSystem>(find(context, peer, word), 1);
    return WaitResult::kReached;
  }
  VERBENA_DEVICE static bool has_arrived(const StubSymmContext& context, int32_t, uint32_t barrier,
                                         uint64_t round) {
    const uint64_t* const word = context.arrival_counts + SymmArrivalCount::find_word(barrier, round);
    return load_acquire<Scope::kSystem>(word) >= SymmArrivalCount::count_all(context, round);
  }
  VERBENA_DEVICE static void notify(const StubSymmContext& context, int32_t peer, uint64_t* word,
                                    uint64_t value) {
    store_relaxed<Scope::kSystem>(find(context, peer, word), value);
  }

 private:
  template <typename T>
  VERBENA_DEVICE static T* find(const StubSymmContext& context, int32_t peer, T* address) {
    return detail::shift(address, context.far_deltas[peer]);
  }
};

}  // namespace verbena::device

#endif
