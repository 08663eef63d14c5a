// Defines SymmAnyContext, a context whose backend is known only at run time. Python, Triton and C use it.
#ifndef VERBENA_DEVICE_SYMM_BACKENDS_CUH
#define VERBENA_DEVICE_SYMM_BACKENDS_CUH

#include "verbena/device/symm_put.cuh"

namespace verbena {

// Stands for a context of one of the types `Contexts`. The member `type` says which type the context has.
// Pass the context by reference only, because a copy would not include the members that the backend's type
// adds.
template <typename... Contexts>
struct SymmAnyContext : SymmContext {};

}  // namespace verbena

namespace verbena::device {

// Dispatches calls to the backend of the context. Code shared by all backends does not read the context's
// type, so operations on peers reachable by loads and stores have no extra cost. If no backend handles the
// context's type, only peers reachable by loads and stores can be used.
template <typename... Contexts>
struct SymmNetwork<SymmAnyContext<Contexts...>> {
  using Context = SymmAnyContext<Contexts...>;

  static constexpr bool kGets = (SymmNetwork<Contexts>::kGets || ...);
  static constexpr bool kUpdates = (SymmNetwork<Contexts>::kUpdates || ...);
  static constexpr bool kRows = true;
  static constexpr bool kPieces = true;

  VERBENA_DEVICE static constexpr bool serves(int32_t type) {
    return (SymmNetwork<Contexts>::serves(type) || ...);
  }
  VERBENA_DEVICE static bool is_there(const Context& context) {
    return choose(context, false, [](auto network, const auto& on) { return network.is_there(on); });
  }
  VERBENA_DEVICE static bool gets(const Context& context) {
    return choose(context, false, [](auto network, const auto&) { return network.kGets; });
  }
  VERBENA_DEVICE static bool updates(const Context& context) {
    return choose(context, false, [](auto network, const auto&) { return network.kUpdates; });
  }
  VERBENA_DEVICE static bool arrives_after_puts(const Context& context) {
    return choose(context, true, [](auto network, const auto&) { return network.kArrivesAfterPuts; });
  }

  VERBENA_DEVICE static WaitResult put(const Context& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue queue) {
    return choose(context, kNone, [&](auto network, const auto& on) {
      return network.put(on, peer, destination, source, length_bytes, queue);
    });
  }
  VERBENA_DEVICE static WaitResult put_signal(const Context& context, int32_t peer, void* destination,
                                              const void* source, uint64_t length_bytes, uint32_t number,
                                              uint64_t value, SymmSignalOperation operation,
                                              SymmQueue queue) {
    return choose(context, kNone, [&](auto network, const auto& on) {
      return network.put_signal(on, peer, destination, source, length_bytes, number, value, operation, queue);
    });
  }
  VERBENA_DEVICE static WaitResult signal(const Context& context, int32_t peer, uint32_t number,
                                          uint64_t value, SymmSignalOperation operation, SymmQueue queue) {
    return choose(context, kNone, [&](auto network, const auto& on) {
      return network.signal(on, peer, number, value, operation, queue);
    });
  }
  VERBENA_DEVICE static WaitResult follow_all(const Context& context, int32_t peer, SymmQueue queue) {
    return choose(context, kNone,
                  [&](auto network, const auto& on) { return network.follow_all(on, peer, queue); });
  }
  VERBENA_DEVICE static WaitResult put_rows(const Context& context, int32_t peer, void* destination,
                                            const void* source, const SymmRows& rows, SymmQueue queue) {
    return choose(context, kNone, [&](auto, const auto& on) {
      return detail::put_rows_remote(on, peer, destination, source, rows, queue);
    });
  }
  VERBENA_DEVICE static WaitResult put_pieces(const Context& context, int32_t peer, const SymmPiece* pieces,
                                              uint32_t count, const SymmPieceSignal* after, SymmQueue queue) {
    return choose(context, kNone, [&](auto, const auto& on) {
      return detail::put_pieces_remote(on, peer, pieces, count, after, queue);
    });
  }
  VERBENA_DEVICE static WaitResult get_rows(const Context& context, int32_t peer, void* destination,
                                            const void* source, const SymmRows& rows, SymmQueue queue) {
    return choose_of<kOfGets>(context, [&](auto, const auto& on) {
      return detail::get_rows_remote(on, peer, destination, source, rows, queue);
    });
  }
  VERBENA_DEVICE static WaitResult get(const Context& context, int32_t peer, void* destination,
                                       const void* source, uint64_t length_bytes, SymmQueue queue) {
    return choose_of<kOfGets>(context, [&](auto network, const auto& on) {
      return network.get(on, peer, destination, source, length_bytes, queue);
    });
  }
  VERBENA_DEVICE static WaitResult get_async(const Context& context, int32_t peer, void* destination,
                                             const void* source, uint64_t length_bytes, SymmQueue queue,
                                             SymmRequest* asked) {
    return choose_of<kOfGets>(context, [&](auto network, const auto& on) {
      return network.get_async(on, peer, destination, source, length_bytes, queue, asked);
    });
  }
  VERBENA_DEVICE static WaitResult await(const Context& context, const SymmRequest& asked) {
    return choose_of<kOfGets>(context,
                              [&](auto network, const auto& on) { return network.await(on, asked); });
  }
  VERBENA_DEVICE static bool has_answered(const Context& context, const SymmRequest& asked) {
    const WaitResult result = choose_of<kOfGets>(context, [&](auto network, const auto& on) {
      return network.has_answered(on, asked) ? WaitResult::kReached : WaitResult::kTimedOut;
    });
    return result == WaitResult::kReached;
  }

  VERBENA_DEVICE static WaitResult write_word(const Context& context, int32_t peer, uint64_t* word,
                                              uint64_t value, SymmQueue queue) {
    return choose_of<kOfUpdates>(context, [&](auto network, const auto& on) {
      return network.write_word(on, peer, word, value, queue);
    });
  }
  VERBENA_DEVICE static WaitResult add_word(const Context& context, int32_t peer, uint64_t* word,
                                            uint64_t value, SymmQueue queue) {
    return choose_of<kOfUpdates>(context, [&](auto network, const auto& on) {
      return network.add_word(on, peer, word, value, queue);
    });
  }
  VERBENA_DEVICE static WaitResult fetch_add(const Context& context, int32_t peer, uint64_t* word,
                                             uint64_t value, SymmQueue queue, uint64_t* before) {
    return choose_of<kOfUpdates>(context, [&](auto network, const auto& on) {
      return network.fetch_add(on, peer, word, value, queue, before);
    });
  }
  VERBENA_DEVICE static bool swaps(const Context& context) {
    const WaitResult result = choose_of<kOfUpdates>(context, [](auto network, const auto& on) {
      return network.swaps(on) ? WaitResult::kReached : WaitResult::kTimedOut;
    });
    return result == WaitResult::kReached;
  }
  VERBENA_DEVICE static WaitResult compare_swap(const Context& context, int32_t peer, uint64_t* word,
                                                uint64_t expected, uint64_t desired, SymmQueue queue,
                                                uint64_t* before) {
    return choose_of<kOfUpdates>(context, [&](auto network, const auto& on) {
      return network.compare_swap(on, peer, word, expected, desired, queue, before);
    });
  }

  VERBENA_DEVICE static WaitResult complete(const Context& context) {
    return choose(context, kNone, [](auto network, const auto& on) { return network.complete(on); });
  }
  VERBENA_DEVICE static WaitResult complete_at(const Context& context, int32_t peer) {
    return choose(context, kNone,
                  [&](auto network, const auto& on) { return network.complete_at(on, peer); });
  }
  VERBENA_DEVICE static WaitResult release_sources(const Context& context) {
    return choose(context, kNone, [](auto network, const auto& on) { return network.release_sources(on); });
  }

  VERBENA_DEVICE static uint64_t read_signal(const Context& context, uint32_t number, int64_t delta_bytes) {
    return choose(context, uint64_t{0},
                  [&](auto network, const auto& on) { return network.read_signal(on, number, delta_bytes); });
  }
  VERBENA_DEVICE static void reset_signal(const Context& context, uint32_t number) {
    choose(context, 0, [&](auto network, const auto& on) {
      network.reset_signal(on, number);
      return 0;
    });
  }

  VERBENA_DEVICE static WaitResult arrive(const Context& context, int32_t peer, uint32_t barrier,
                                          uint64_t round) {
    return choose(context, kNone,
                  [&](auto network, const auto& on) { return network.arrive(on, peer, barrier, round); });
  }
  VERBENA_DEVICE static bool has_arrived(const Context& context, int32_t peer, uint32_t barrier,
                                         uint64_t round) {
    return choose(context, false, [&](auto network, const auto& on) {
      return network.has_arrived(on, peer, barrier, round);
    });
  }
  VERBENA_DEVICE static void notify(const Context& context, int32_t peer, uint64_t* word, uint64_t value) {
    choose(context, 0, [&](auto network, const auto& on) {
      network.notify(on, peer, word, value);
      return 0;
    });
  }

 private:
  // The result of choose() if no backend handles the context's type. Calls on such a context do nothing.
  static constexpr WaitResult kNone = WaitResult::kReached;

  // Returns `call(network, context)`, with the context cast to the type of its backend. Compiles to a switch.
  template <typename Result, typename Call>
  VERBENA_DEVICE static Result choose(const Context& context, Result otherwise, const Call& call) {
    const int32_t type = context.type;
    Result result = otherwise;
    static_cast<void>(
        ((SymmNetwork<Contexts>::serves(type) && (call_one<Contexts>(context, call, &result), true)) || ...));
    return result;
  }
  // Like choose(), for functions that only some networks have. Calls nothing if the network lacks the
  // function.
  enum Kind : uint8_t { kOfGets, kOfUpdates };
  template <Kind kind, typename Call>
  VERBENA_DEVICE static WaitResult choose_of(const Context& context, const Call& call) {
    return choose(context, kNone, [&](auto network, const auto& on) {
      if constexpr (kind == kOfGets ? network.kGets : network.kUpdates) {
        return call(network, on);
      } else {
        return kNone;
      }
    });
  }
  template <typename One, typename Result, typename Call>
  VERBENA_DEVICE static void call_one(const Context& context, const Call& call, Result* result) {
    *result = call(SymmNetwork<One>{}, static_cast<const One&>(static_cast<const SymmContext&>(context)));
  }
};

namespace detail {

template <typename... Contexts>
struct NetworkTraits<SymmAnyContext<Contexts...>> : SymmNetwork<SymmAnyContext<Contexts...>> {};

// Selects the context type for the given backends. For a single backend, this is the backend's own context
// type; for several backends, it is SymmAnyContext.
template <typename... Contexts>
struct ChosenContext {
  using Type = SymmAnyContext<Contexts...>;
};
template <typename One>
struct ChosenContext<One> {
  using Type = One;
};

}  // namespace detail

}  // namespace verbena::device

#endif
