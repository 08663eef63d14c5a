// The interface of a network backend: a context that derives from SymmContext, and a specialisation of
// SymmNetwork for it, which reaches the members that loads and stores do not reach. Everything else (members
// in reach, groups, limits of waits, comparisons) is common code on top of these functions.
// docs/add-a-backend.md shows how to write a backend.
//
// The type of the context selects the backend of a call: a kernel whose template argument is that type
// contains no code of other backends.
#ifndef VERBENA_DEVICE_SYMM_NETWORK_CUH
#define VERBENA_DEVICE_SYMM_NETWORK_CUH

#include "verbena/device/symm_team.cuh"

namespace verbena::device {

// A specialisation has the following static functions and constants; each function is called by one thread.
// `peer` is a member that loads and stores do not reach ("out of reach"). Every address, of the peer's memory
// too, is given as this rank's address in the heap, and the whole range that is accessed lies in the heap. A
// function that returns a WaitResult waits at most the context's time limits, unless the comment at the top
// of the backend's header says otherwise.
//
//   bool serves(type)        returns whether contexts with this SymmContext::type belong to this backend
//   bool kGets               there are get(), get_async() and await()
//   bool kUpdates            there are write_word(), add_word(), fetch_add() and compare_swap()
//   bool kRows               there are put_rows() and get_rows(); otherwise rows are moved one by one
//   bool kArrivesAfterPuts   true: arrive() is ordered after all earlier puts of this rank, to any peer;
//                            false: after those to the same peer only
//   bool is_there(context)   returns whether there is a network; if not, operations on members out of reach
//                            return kUnreachable
//   WaitResult put(context, peer, destination, source, length_bytes, queue)
//   WaitResult put_signal(context, peer, destination, source, length_bytes, signal, value, operation, queue)
//   WaitResult signal(context, peer, signal, value, operation, queue)
//                            start an operation. A rank that sees the signal also sees all writes that this
//                            thread had observed, and all earlier puts to that rank by this thread's block
//                            or through the same queue. `operation` is kSet or kAdd. The source is in use
//                            until release_sources(). A backend may ignore the SymmQueue
//   WaitResult follow_all(context, peer, queue)
//                            orders this thread's next operation to the peer after every put of this rank to
//                            the peer which this thread has observed
//   WaitResult get(context, peer, destination, source, length_bytes, queue)
//                            the data has arrived when it returns
//   WaitResult get_async(context, peer, destination, source, length_bytes, queue, SymmRequest* request)
//   WaitResult await(context, request)   the data of the get_async() has arrived when it returns
//   bool has_answered(context, request)  returns, without waiting, whether the data has arrived; false if
//                            unknown
//   WaitResult put_rows(context, peer, destination, source, rows, queue)
//   WaitResult get_rows(context, peer, destination, source, rows, queue)
//                            as put() and get(), for SymmRows
//   WaitResult write_word(context, peer, word, value, queue)
//   WaitResult add_word(context, peer, word, value, queue)
//   WaitResult fetch_add(context, peer, word, value, queue, uint64_t* before)
//   WaitResult compare_swap(context, peer, word, expected, desired, queue, uint64_t* before)
//                            ordered as signal(). In add_word(), fetch_add() and compare_swap() `peer` may be
//                            any member, in reach or not; these three are atomic with respect to each other
//                            for all ranks of the team. fetch_add() and compare_swap() acquire
//   bool swaps(context)      returns whether compare_swap() works with this context
//   WaitResult complete(context)          waits until all earlier operations are complete at every peer
//   WaitResult complete_at(context, peer)   the same for operations to that peer
//   WaitResult release_sources(context)   waits until the sources of earlier operations may be reused
//   uint64_t read_signal(context, signal, delta_bytes)
//                            returns what this network has added to a signal outside of its word in
//                            SymmContext::signals; `delta_bytes` selects the member in reach whose signal
//                            is read; acquires
//   void reset_signal(context, signal)
//                            called before this rank sets its own signal; from then on read_signal() may
//                            return 0, or the same as before
//   WaitResult arrive(context, peer, barrier, round)
//                            notifies the peer; the rounds of a barrier are counted from 1
//   bool has_arrived(context, peer, barrier, round)   returns whether the peer has notified; acquires
//   void notify(context, peer, word, value)
//                            writes `value` to the word in the peer's heap if that needs no wait; best effort
template <typename Context>
struct SymmNetwork;

// Rows of equal length, with a stride from the start of one row to the start of the next on either side, 0 or
// more.
struct SymmRows {
  uint64_t count, row_bytes;
  uint64_t stride_here, stride_there;  // bytes, in this rank's memory and in the peer's
};

// Arrivals counted by the peer, for networks that can add to words but not write them: two words a barrier,
// for odd and for even rounds. No rank is two rounds ahead of another, so a word never holds arrivals of a
// later round than the one that this rank waits for. The round is complete when the word has counted an
// arrival from every member out of reach.
struct SymmArrivalCount {
  static constexpr uint32_t kWords = 2 * kSymmBarriers;

  VERBENA_DEVICE static uint32_t find_word(uint32_t barrier, uint64_t round) {
    return 2 * barrier + static_cast<uint32_t>(round & 1);
  }
  // Returns the value of the word when all members out of reach have arrived in the round.
  VERBENA_DEVICE static uint64_t count_all(const SymmContext& context, uint64_t round) {
    return (round + 1) / 2 * static_cast<uint32_t>(context.team_size - context.lsa_size);
  }
};

namespace detail {

// Properties that are the same for all contexts of a backend. Those of SymmAnyContext depend on its type and
// are read from it.
template <typename Context>
struct NetworkTraits {
  VERBENA_DEVICE static constexpr bool gets(const Context&) { return SymmNetwork<Context>::kGets; }
  VERBENA_DEVICE static constexpr bool updates(const Context&) { return SymmNetwork<Context>::kUpdates; }
  VERBENA_DEVICE static constexpr bool arrives_after_puts(const Context&) {
    return SymmNetwork<Context>::kArrivesAfterPuts;
  }
};

// Returns the words of a barrier, one for each member. `row` is its number; for whole teams, the number plus
// kSymmBarriers.
VERBENA_DEVICE uint64_t* find_arrivals(const SymmContext& context, uint32_t row) {
  return context.arrivals + uint64_t{row} * static_cast<uint32_t>(context.team_size);
}
// Returns a member's word of a whole team's barrier.
VERBENA_DEVICE uint64_t* find_arrival(const SymmContext& context, uint32_t barrier, int32_t member) {
  return find_arrivals(context, kSymmBarriers + barrier) + member;
}

}  // namespace detail

}  // namespace verbena::device

#endif
