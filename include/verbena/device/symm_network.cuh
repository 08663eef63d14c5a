// The interface of a network backend, which reaches the members that loads and stores do not reach. A backend
// consists of a context type that derives from SymmContext, and a specialisation of SymmNetwork for this
// type. Everything else (members that loads and stores reach, groups, timeouts, comparisons) is common code,
// which calls the functions of the backend. docs/add-a-backend.md shows how to write a backend.
//
// The context type selects the backend at compile time, so a kernel contains no code of other backends.
#ifndef VERBENA_DEVICE_SYMM_NETWORK_CUH
#define VERBENA_DEVICE_SYMM_NETWORK_CUH

#include "verbena/device/symm_team.cuh"

namespace verbena::device {

// A specialisation has the following static functions and constants. Each function is called by one thread.
// `peer` is a member that loads and stores do not reach ("out of reach"). To access memory of the peer,
// callers pass the local address at the same offset. All ranges are in the heap. A function that returns a
// WaitResult ends within the context's timeout, unless the comment at the top of the backend's header says
// otherwise.
//
//   bool serves(type)        returns whether contexts with this SymmContext::type belong to this backend
//   bool kGets               the backend has get(), get_async() and await()
//   bool kUpdates            the backend has write_word(), add_word(), fetch_add() and compare_swap()
//   bool kRows               the backend has put_rows() and get_rows(); if false, rows are moved one by one
//   bool kPieces             the backend has put_pieces(); if false, pieces are put one by one
//   bool kArrivesAfterPuts   true: arrive() is ordered after all earlier puts of this rank, to any peer;
//                            false: arrive() is ordered after earlier puts to the same peer only
//   bool is_there(context)   returns whether a network is available; if not, operations on members out of
//                            reach return kUnreachable
//   WaitResult put(context, peer, destination, source, length_bytes, queue)
//   WaitResult put_signal(context, peer, destination, source, length_bytes, signal, value, operation, queue)
//   WaitResult signal(context, peer, signal, value, operation, queue)
//                            start an operation. A rank that sees the signal also sees all writes that this
//                            thread had observed before. That rank also sees earlier puts to itself, if the
//                            thread's block has posted them or if they went through the same queue.
//                            `operation` is kSet or kAdd. The source must not change until release_sources().
//                            A backend may ignore the SymmQueue
//   WaitResult follow_all(context, peer, queue)
//                            this thread's next operation on the peer takes effect only after this rank's
//                            earlier puts to the peer, as far as this thread has observed these puts
//   WaitResult get(context, peer, destination, source, length_bytes, queue)
//                            waits until the data has arrived
//   WaitResult get_async(context, peer, destination, source, length_bytes, queue, SymmRequest* request)
//                            starts a get
//   WaitResult await(context, request)   waits until the data of the get_async() has arrived
//   bool has_answered(context, request)  returns whether the data has arrived, without waiting; returns false
//                            if this is unknown
//   WaitResult put_rows(context, peer, destination, source, rows, queue)
//   WaitResult get_rows(context, peer, destination, source, rows, queue)
//                            put and get rows (SymmRows); otherwise the same as put() and get()
//   WaitResult put_pieces(context, peer, pieces, count, after, queue)
//                            puts SymmPieces, then signals the peer if `after` (SymmPieceSignal) is not null.
//                            Skips pieces of 0 bytes. Addresses may be registered addresses (find_symmetric)
//   WaitResult write_word(context, peer, word, value, queue)
//   WaitResult add_word(context, peer, word, value, queue)
//   WaitResult fetch_add(context, peer, word, value, queue, uint64_t* before)
//   WaitResult compare_swap(context, peer, word, expected, desired, queue, uint64_t* before)
//                            write or update a 64-bit word of the peer, in the same order as signal().
//                            add_word(), fetch_add() and compare_swap() accept any member as `peer`. These
//                            updates, by all ranks of the team, are atomic with respect to each other.
//                            fetch_add() and compare_swap() have acquire semantics
//   bool swaps(context)      returns whether compare_swap() works with this context
//   WaitResult complete(context)          waits until all earlier operations are complete at every peer
//   WaitResult complete_at(context, peer)   waits until all earlier operations on one peer are complete
//   WaitResult release_sources(context)   waits until the sources of earlier operations may be reused
//   uint64_t read_signal(context, signal, delta_bytes)
//                            returns the part of a signal's value that NICs have written, which is not in
//                            SymmContext::signals; acquires. `delta_bytes` selects the member whose signal is
//                            read: this rank, or a member that loads and stores reach
//   void reset_signal(context, signal)
//                            is called before this rank sets one of its own signals. Afterwards,
//                            read_signal() may return 0 or the previous value
//   WaitResult arrive(context, peer, barrier, round)
//                            notifies the peer that this rank has arrived. The first round of a barrier is 1
//   bool has_arrived(context, peer, barrier, round)   returns whether the peer has called arrive(); acquires
//   void notify(context, peer, word, value)
//                            writes `value` to the word in the peer's heap; best effort, never waits
template <typename Context>
struct SymmNetwork;

// Rows of equal length. A stride is the distance from the start of a row to the start of the next row.
struct SymmRows {
  uint64_t count, row_bytes;
  uint64_t stride_here, stride_there;  // bytes, in this rank's memory and in the peer's memory
};

// The signal that follows pieces.
struct SymmPieceSignal {
  uint32_t signal;
  uint64_t value;
  SymmSignalOperation operation;
};

// Barrier arrivals for networks that can add to a peer's word but cannot set the word. Each arrival adds 1. A
// barrier has two words, one for odd rounds and one for even rounds. No rank gets two rounds ahead of
// another, so the word of a round never contains arrivals of later rounds. A round is complete when every
// member out of reach has added to the round's word.
struct SymmArrivalCount {
  static constexpr uint32_t kWords = 2 * kSymmBarriers;

  VERBENA_DEVICE static uint32_t find_word(uint32_t barrier, uint64_t round) {
    return 2 * barrier + static_cast<uint32_t>(round & 1);
  }
  // Returns the value of the word once all members out of reach have arrived in the round.
  VERBENA_DEVICE static uint64_t count_all(const SymmContext& context, uint64_t round) {
    return (round + 1) / 2 * static_cast<uint32_t>(context.team_size - context.lsa_size);
  }
};

namespace detail {

// Properties of a backend. For SymmAnyContext, they depend on SymmContext::type at run time.
template <typename Context>
struct NetworkTraits {
  VERBENA_DEVICE static constexpr bool gets(const Context&) { return SymmNetwork<Context>::kGets; }
  VERBENA_DEVICE static constexpr bool updates(const Context&) { return SymmNetwork<Context>::kUpdates; }
  VERBENA_DEVICE static constexpr bool arrives_after_puts(const Context&) {
    return SymmNetwork<Context>::kArrivesAfterPuts;
  }
};

// Returns the address of a barrier's words, one for each member. `row` is the number of an LSA barrier, or
// kSymmBarriers plus the number of a barrier of the whole team.
VERBENA_DEVICE uint64_t* find_arrivals(const SymmContext& context, uint32_t row) {
  return context.arrivals + uint64_t{row} * static_cast<uint32_t>(context.team_size);
}
// Returns the address of a member's word in a barrier of the whole team.
VERBENA_DEVICE uint64_t* find_arrival(const SymmContext& context, uint32_t barrier, int32_t member) {
  return find_arrivals(context, kSymmBarriers + barrier) + member;
}

}  // namespace detail

}  // namespace verbena::device

#endif
