// What a backend is: a context that derives from SymmContext, and a SymmNetwork of it, the way to members
// that loads and stores do not reach. Everything else, whom they do reach, groups, waits with their limits,
// comparisons, is written once, over these functions. docs/add-a-backend.md goes through one.
//
// Which backend a call is for is the type of its context: a kernel with the context's type as its template
// argument holds nothing of the others.
#ifndef VERBENA_DEVICE_SYMM_NETWORK_CUH
#define VERBENA_DEVICE_SYMM_NETWORK_CUH

#include "verbena/device/symm_team.cuh"

namespace verbena::device {

// A specialization has these, all static, each called by one thread. `peer` is a member out of reach,
// addresses are this rank's, and lie in the heap with the whole length. What returns a WaitResult waits at
// most as the context limits it, unless its README says otherwise.
//
//   bool serves(type)        whether contexts with this SymmContext::type are of this backend
//   bool kGets               whether there are get(), get_async() and await()
//   bool kUpdates            whether there are write_word(), add_word(), fetch_add() and compare_swap()
//   bool kRows               whether there are put_rows() and get_rows(); if not, rows go one by one
//   bool kArrivesBehindAll   an arrival (below) is behind all that this rank has put, at whatever peer;
//                            if not, behind what it has put to that peer
//   bool is_there(context)   no: members out of reach are kUnreachable
//   WaitResult put(context, peer, destination, source, length_bytes, queue)
//   WaitResult put_signal(context, peer, destination, source, length_bytes, signal, value, operation, queue)
//   WaitResult signal(context, peer, signal, value, operation, queue)
//                            who sees the signal sees what this thread knows of, and what its block, or the
//                            queue, has put to that peer before; kSet or kAdd. The source is in use until
//                            release_sources(). A SymmQueue may be left alone
//   WaitResult follow_all(context, peer, queue)
//                            what this thread asks for next of the peer comes behind all that this rank has
//                            put there, as far as this thread knows of it
//   WaitResult get(context, peer, destination, source, length_bytes, queue)
//                            the data is here when it returns
//   WaitResult get_async(context, peer, destination, source, length_bytes, queue, SymmRequest* asked)
//   WaitResult await(context, asked)   the data of a get_async() is here when it returns
//   bool has_answered(context, asked)  whether it is, without a wait; no, if that is not known
//   WaitResult put_rows(context, peer, destination, source, rows, queue)
//   WaitResult get_rows(context, peer, destination, source, rows, queue)
//                            as put() and get(), of SymmRows
//   WaitResult write_word(context, peer, word, value, queue)
//   WaitResult add_word(context, peer, word, value, queue)
//   WaitResult fetch_add(context, peer, word, value, queue, uint64_t* before)
//   WaitResult compare_swap(context, peer, word, expected, desired, queue, uint64_t* before)
//                            ordered as signal(); `peer` is any member for the last three, which are atomic
//                            among each other for all ranks of the team. With *before they acquire
//   bool swaps(context)      whether there is compare_swap() for this context
//   WaitResult complete(context)          what this rank has asked for before is complete at every peer
//   WaitResult complete_at(context, peer)   the same of what it has asked of that peer
//   WaitResult release_sources(context)   the sources of it may be reused
//   uint64_t read_signal(context, signal, delta_bytes)
//                            what this network has added to the signal of the member in reach at
//                            `delta_bytes`, besides the word in SymmContext::signals; acquires
//   void reset_signal(context, signal)
//                            before this rank sets its signal: read_signal() of it may become 0 (or stay)
//   WaitResult arrive(context, peer, barrier, round)
//                            tells the peer; rounds of a barrier count from 1
//   bool has_arrived(context, peer, barrier, round)   whether the peer has told so; acquires
//   void tell(context, peer, word, value)
//                            the word of the heap becomes the value at the peer some time, or not: without a
//                            wait
template <typename Context>
struct SymmNetwork;

// Rows of equal length that are as far from each other on either side; strides are from the begin of one to
// that of the next, 0 or more.
struct SymmRows {
  uint64_t count, row_bytes;
  uint64_t stride_here, stride_there;  // bytes, in this rank's memory and in the peer's
};

// Arrivals counted by the peer, for networks that add to words and write none: two words a barrier, for odd
// and for even rounds. Nobody is two rounds ahead of anybody, so that a word never holds arrivals of a round
// that this rank does not wait for, and enough of them are those of all.
struct SymmArrivalCount {
  static constexpr uint32_t kWords = 2 * kSymmBarriers;

  VERBENA_DEVICE static uint32_t find_word(uint32_t barrier, uint64_t round) {
    return 2 * barrier + static_cast<uint32_t>(round & 1);
  }
  // What the word holds when all members out of reach have come to the round.
  VERBENA_DEVICE static uint64_t count_all(const SymmContext& context, uint64_t round) {
    return (round + 1) / 2 * static_cast<uint32_t>(context.team_size - context.lsa_size);
  }
};

namespace detail {

// What a backend says of all of its contexts at once. SymmAnyContext's differ, and are asked.
template <typename Context>
struct NetworkTraits {
  VERBENA_DEVICE static constexpr bool gets(const Context&) { return SymmNetwork<Context>::kGets; }
  VERBENA_DEVICE static constexpr bool updates(const Context&) { return SymmNetwork<Context>::kUpdates; }
  VERBENA_DEVICE static constexpr bool arrives_after_puts(const Context&) {
    return SymmNetwork<Context>::kArrivesBehindAll;
  }
};

// A barrier's words, one a member. `row` is its number, or for whole teams that and kSymmBarriers.
VERBENA_DEVICE uint64_t* find_arrivals(const SymmContext& context, uint32_t row) {
  return context.arrivals + uint64_t{row} * static_cast<uint32_t>(context.team_size);
}
// A member's word of a whole team's barrier.
VERBENA_DEVICE uint64_t* find_arrival(const SymmContext& context, uint32_t barrier, int32_t member) {
  return find_arrivals(context, kSymmBarriers + barrier) + member;
}

}  // namespace detail

}  // namespace verbena::device

#endif
