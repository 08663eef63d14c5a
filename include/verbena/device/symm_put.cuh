// Puts data into peers' memory, gets data from peers' memory, and updates words of peers by atomics. All
// threads of a group (group.cuh) make the same call and copy the range together. Lengths are in bytes; source
// and destination must not overlap.
//
// Addresses: to access memory of the peer, pass the local address at the same offset. This address must lie
// in a window (symm_abi.h). If loads and stores reach the peer, the local side of the copy may be any memory
// of this GPU. Otherwise a NIC copies the data, so the local side must lie in a window, too. Any thread of
// the group may read any part of the source. If threads of the group have just written the source, sync the
// group before the put.
//
// Completion: a put may still be in flight when the call returns. The peer may read the data once it has
// waited for a signal or a barrier that follows the put. The source may be reused immediately if loads and
// stores reach the peer, and otherwise after symm_flush(). If loads and stores reach the peer, a put of 4 or
// 8 aligned bytes is one relaxed store at system scope. So the peer may poll such a word, and sees either the
// old or the new value. A peer that reads the bytes of a longer put without waiting may see only a part of
// them.
#ifndef VERBENA_DEVICE_SYMM_PUT_CUH
#define VERBENA_DEVICE_SYMM_PUT_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/symm_signal.cuh"

namespace verbena::device {

namespace detail {

VERBENA_DEVICE void copy_together(const ThreadGroup&, void* destination, const void* source,
                                  uint64_t length_bytes) {
  copy_thread(destination, source, length_bytes);
}
// This overload is for groups of whole warps.
template <typename Group>
VERBENA_DEVICE void copy_together(const Group& group, void* destination, const void* source,
                                  uint64_t length_bytes) {
  copy_group(group, destination, source, length_bytes);
}

// Returns true if `peer` is a member and the range lies in a window. If `*symmetric` is the address of
// registered memory, replaces it with the symmetric address of the same memory.
template <typename T>
VERBENA_DEVICE bool is_at_peer(const SymmContext& context, T** symmetric, uint64_t length_bytes,
                               int32_t peer) {
  return is_member(context, peer) && find_symmetric(context, symmetric, length_bytes);
}

template <typename Word>
VERBENA_DEVICE bool put_word(void* destination, const void* source, uint64_t length_bytes) {
  if (length_bytes != sizeof(Word) || reinterpret_cast<uint64_t>(destination) % sizeof(Word) != 0)
    return false;
  Word word = 0;
  if (reinterpret_cast<uint64_t>(source) % sizeof(Word) == 0) {
    word = load<Order::kWeak, Scope::kThreads>(static_cast<const Word*>(source));
  } else {
    const auto* const bytes = static_cast<const uint8_t*>(source);
    VERBENA_UNROLL_BY(1)
    for (uint32_t i = 0; i < sizeof(Word); ++i)
      word |= static_cast<Word>(load<Order::kWeak, Scope::kThreads>(bytes + i)) << (8 * i);
  }
  store_relaxed<Scope::kSystem>(static_cast<Word*>(destination), word);
  return true;
}

// Puts data into the memory of a member that loads and stores reach. The source must not change before the
// group's next sync().
template <typename Group>
VERBENA_DEVICE void put_by_stores(const Group& group, void* there, const void* source,
                                  uint64_t length_bytes) {
  const bool is_word =
      (length_bytes == 4 || length_bytes == 8) && reinterpret_cast<uint64_t>(there) % length_bytes == 0;
  if (!is_word) return copy_together(group, there, source, length_bytes);
  if (!group.elect()) return;
  static_cast<void>(put_word<uint64_t>(there, source, length_bytes) ||
                    put_word<uint32_t>(there, source, length_bytes));
}

// Gets data from a member that only the network reaches. One thread of the group calls `ask(network,
// destination)`. Returns kUnreachable if the network does not support gets.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE_FAR SymmStatus get_by_network(const Context& context, void* destination, uint64_t length_bytes,
                                             int32_t peer, const Group& group, const Ask& ask) {
  if constexpr (!SymmNetwork<Context>::kGets) {
    return SymmStatus::kUnreachable;
  } else {
    if (!NetworkTraits<Context>::gets(context) || !SymmNetwork<Context>::is_there(context))
      return SymmStatus::kUnreachable;
    if (!find_symmetric(context, &destination, length_bytes)) return SymmStatus::kInvalid;
    return post_once(context, peer, group, [=] {
      return length_bytes == 0 ? WaitResult::kReached : ask(SymmNetwork<Context>{}, destination);
    });
  }
}

// Puts data to a member that only the network reaches. One thread of the group calls `ask(network, source)`,
// unless the length is 0.
template <typename Context, typename Group, typename Ask>
VERBENA_DEVICE_FAR SymmStatus put_by_network(const Context& context, const void* source,
                                             uint64_t length_bytes, int32_t peer, const Group& group,
                                             const Ask& ask) {
  if (!SymmNetwork<Context>::is_there(context)) return SymmStatus::kUnreachable;
  if (!find_symmetric(context, &source, length_bytes)) return SymmStatus::kInvalid;
  if (length_bytes == 0) return SymmStatus::kDone;
  return post_once(context, peer, group, [=] { return ask(SymmNetwork<Context>{}, source); });
}

// Returns the number of bytes from the start of the first row to the end of the last row, or UINT64_MAX if
// the range is longer than any heap.
VERBENA_DEVICE uint64_t measure_rows(uint64_t rows, uint64_t row_bytes, uint64_t stride_bytes) {
  if (rows == 0 || row_bytes == 0) return 0;
  constexpr uint64_t kMaxCount = uint64_t{1} << 60;
  if (stride_bytes != 0 && rows - 1 > kMaxCount / stride_bytes) return UINT64_MAX;
  return row_bytes > kMaxCount ? UINT64_MAX : (rows - 1) * stride_bytes + row_bytes;
}

// Copies rows in units of T. The units of all rows are distributed over the threads round robin.
template <typename T, typename Group>
VERBENA_DEVICE void copy_units(const Group& group, char* destination, uint64_t destination_stride,
                               const char* source, uint64_t source_stride, uint64_t row_bytes,
                               uint64_t rows) {
  const uint64_t units = row_bytes / sizeof(T);
  for (uint64_t i = group.rank(); i < rows * units; i += group.size()) {
    const uint64_t row = i / units, at = i % units * sizeof(T);
    const T* const from = reinterpret_cast<const T*>(source + row * source_stride + at);
    store<Order::kWeak, Scope::kThreads>(reinterpret_cast<T*>(destination + row * destination_stride + at),
                                         load<Order::kWeak, Scope::kThreads>(from));
  }
}
template <typename Group>
VERBENA_DEVICE_FAR void copy_rows(const Group& group, void* destination, uint64_t destination_stride,
                                  const void* source, uint64_t source_stride, uint64_t row_bytes,
                                  uint64_t rows) {
  constexpr uint64_t kLongRowBytes = 4096;
  auto* const to = static_cast<char*>(destination);
  const auto* const from = static_cast<const char*>(source);
  if (row_bytes >= kLongRowBytes) {
    for (uint64_t row = 0; row < rows; ++row)
      copy_together(group, to + row * destination_stride, from + row * source_stride, row_bytes);
    return;
  }
  const uint64_t bits = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                        destination_stride | source_stride | row_bytes;
  if (bits % sizeof(Vector16) == 0)
    return copy_units<Vector16>(group, to, destination_stride, from, source_stride, row_bytes, rows);
  if (bits % sizeof(uint32_t) == 0)
    return copy_units<uint32_t>(group, to, destination_stride, from, source_stride, row_bytes, rows);
  copy_units<uint8_t>(group, to, destination_stride, from, source_stride, row_bytes, rows);
}

// Put rows to, and get rows from, a member that only the network reaches. One thread makes the call.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult put_rows_remote(const Context& context, int32_t peer, void* destination,
                                              const void* source, const SymmRows& rows, SymmQueue queue) {
  if constexpr (SymmNetwork<Context>::kRows) {
    return SymmNetwork<Context>::put_rows(context, peer, destination, source, rows, queue);
  } else {
    WaitResult result = WaitResult::kReached;
    for (uint64_t row = 0; row < rows.count && result == WaitResult::kReached; ++row)
      result = SymmNetwork<Context>::put(
          context, peer, static_cast<char*>(destination) + row * rows.stride_there,
          static_cast<const char*>(source) + row * rows.stride_here, rows.row_bytes, queue);
    return result;
  }
}
template <typename Context>
VERBENA_DEVICE_FAR WaitResult get_rows_remote(const Context& context, int32_t peer, void* destination,
                                              const void* source, const SymmRows& rows, SymmQueue queue) {
  if constexpr (SymmNetwork<Context>::kRows) {
    return SymmNetwork<Context>::get_rows(context, peer, destination, source, rows, queue);
  } else {
    SymmRequest asked;
    WaitResult result = WaitResult::kReached;
    for (uint64_t row = 0; row < rows.count && result == WaitResult::kReached; ++row)
      result = SymmNetwork<Context>::get_async(
          context, peer, static_cast<char*>(destination) + row * rows.stride_here,
          static_cast<const char*>(source) + row * rows.stride_there, rows.row_bytes, queue, &asked);
    return result == WaitResult::kReached ? SymmNetwork<Context>::await(context, asked) : result;
  }
}

// Returns whether all pieces can be put. All threads of the group make the call.
template <typename Group>
VERBENA_DEVICE bool are_pieces(const SymmContext& context, const SymmPiece* pieces, uint32_t count,
                               int32_t peer, const Group& group) {
  bool is_wrong = !is_member(context, peer);
  const bool is_far = !is_wrong && get_delta(context, peer) == kSymmOutOfReach;
  for (uint32_t i = static_cast<uint32_t>(group.rank()); i < count && !is_wrong;
       i += static_cast<uint32_t>(group.size())) {
    SymmPiece piece = pieces[i];
    is_wrong = !find_symmetric(context, &piece.destination, piece.length_bytes) ||
               (is_far && !find_symmetric(context, &piece.source, piece.length_bytes));
  }
  return !group.any(is_wrong);
}
template <typename Group>
VERBENA_DEVICE void record_pieces(const SymmContext& context, const Group& group, const SymmPiece* pieces,
                                  uint32_t count, int32_t peer) {
  if constexpr (kHasProbes) {
    for (uint32_t i = 0; i < count; ++i) record_put(context, group, peer, pieces[i].length_bytes);
  }
}
template <typename Group>
VERBENA_DEVICE void put_pieces_by_stores(const SymmContext& context, const Group& group,
                                         const SymmPiece* pieces, uint32_t count, int64_t delta_bytes) {
  for (uint32_t i = 0; i < count; ++i) {
    SymmPiece piece = pieces[i];
    if (piece.length_bytes == 0 || !find_symmetric(context, &piece.destination, piece.length_bytes)) continue;
    put_by_stores(group, shift(piece.destination, delta_bytes), piece.source, piece.length_bytes);
  }
  delay_put(context);
}
// Puts pieces to a member that only the network reaches. Then signals this member, unless `after` is null.
// One thread makes the call.
template <typename Context>
VERBENA_DEVICE_FAR WaitResult put_pieces_remote(const Context& context, int32_t peer, const SymmPiece* pieces,
                                                uint32_t count, const SymmPieceSignal* after,
                                                SymmQueue queue) {
  using Network = SymmNetwork<Context>;
  if constexpr (Network::kPieces) {
    return Network::put_pieces(context, peer, pieces, count, after, queue);
  } else {
    WaitResult result = WaitResult::kReached;
    for (uint32_t i = 0; i < count && result == WaitResult::kReached; ++i) {
      SymmPiece piece = pieces[i];
      if (piece.length_bytes == 0) continue;
      find_symmetric(context, &piece.destination, piece.length_bytes);
      find_symmetric(context, &piece.source, piece.length_bytes);
      result = Network::put(context, peer, piece.destination, piece.source, piece.length_bytes, queue);
    }
    if (result != WaitResult::kReached || after == nullptr) return result;
    return Network::signal(context, peer, after->signal, after->value, after->operation, queue);
  }
}

}  // namespace detail

// Puts data into the peer's memory, without waiting for the network.
// @param destination  address in a window of this rank; the peer's memory at the same offset is written
// @param source       memory of this GPU; must lie in a window if loads and stores do not reach the peer
// @param peer         a rank of the team
// @return kInvalid if `peer` or an address is invalid; kUnreachable if no network reaches the peer
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_async(const Context& context, void* destination, const void* source,
                                         uint64_t length_bytes, int32_t peer, const Group& group = {},
                                         SymmQueue queue = {}) {
  if (!detail::is_at_peer(context, &destination, length_bytes, peer)) return SymmStatus::kInvalid;
  detail::record_put(context, group, peer, length_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::put_by_network(context, source, length_bytes, peer, group,
                                  [=, &context](const auto& network, const void* from) {
                                    return network.put(context, peer, destination, from, length_bytes, queue);
                                  });
  }
  detail::put_by_stores(group, detail::shift(destination, delta_bytes), source, length_bytes);
  detail::delay_put(context);
  group.sync();
  return SymmStatus::kDone;
}

// Puts data, then signals the peer. Once the peer has waited for the signal, the peer sees the data.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_signal_async(const Context& context, void* destination, const void* source,
                                                uint64_t length_bytes, int32_t peer, uint32_t signal,
                                                uint64_t value,
                                                SymmSignalOperation operation = SymmSignalOperation::kAdd,
                                                const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  if (!detail::find_symmetric(context, &destination, length_bytes)) return SymmStatus::kInvalid;
  detail::record_put(context, group, peer, length_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes != kSymmOutOfReach || length_bytes == 0) {
    if (length_bytes != 0)
      detail::put_by_stores(group, detail::shift(destination, delta_bytes), source, length_bytes);
    detail::delay_put(context);
    return symm_signal(context, signal, peer, value, operation, group, queue);  // syncs the group first
  }
  detail::replace_increment(operation, value);
  detail::record_signal(context, group, signal, peer, value);
  return detail::put_by_network(context, source, length_bytes, peer, group,
                                [=, &context](const auto& network, const void* from) {
                                  if (detail::take_fault(context, SymmFault::kDropSignal))
                                    return network.put(context, peer, destination, from, length_bytes, queue);
                                  return network.put_signal(context, peer, destination, from, length_bytes,
                                                            signal, value, operation, queue);
                                });
}

// Puts pieces into the peer's memory, in any order. If a NIC copies the data, the NIC gets the requests for
// all pieces as one batch. Pieces must not overlap at the peer.
// @param pieces  `count` pieces in memory that all threads of the group can read; a piece of 0 bytes is
//                skipped. The same rules apply to the addresses as in symm_put_async()
// @return kInvalid if the peer or an address of any piece is invalid; in this case, nothing is put
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_pieces(const Context& context, const SymmPiece* pieces, uint32_t count,
                                          int32_t peer, const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::are_pieces(context, pieces, count, peer, group)) return SymmStatus::kInvalid;
  detail::record_pieces(context, group, pieces, count, peer);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::post_once(context, peer, group, [=, &context] {
      return detail::put_pieces_remote(context, peer, pieces, count, nullptr, queue);
    });
  }
  detail::put_pieces_by_stores(context, group, pieces, count, delta_bytes);
  group.sync();
  return SymmStatus::kDone;
}

// Puts pieces, then signals the peer. Once the peer has waited for the signal, the peer sees all pieces.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_pieces_signal(const Context& context, const SymmPiece* pieces,
                                                 uint32_t count, int32_t peer, uint32_t signal,
                                                 uint64_t value,
                                                 SymmSignalOperation operation = SymmSignalOperation::kAdd,
                                                 const Group& group = {}, SymmQueue queue = {}) {
  if (!detail::is_signal(context, signal, peer, operation)) return SymmStatus::kInvalid;
  if (!detail::are_pieces(context, pieces, count, peer, group)) return SymmStatus::kInvalid;
  detail::record_pieces(context, group, pieces, count, peer);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes != kSymmOutOfReach) {
    detail::put_pieces_by_stores(context, group, pieces, count, delta_bytes);
    return symm_signal(context, signal, peer, value, operation, group, queue);  // syncs the group first
  }
  detail::replace_increment(operation, value);
  detail::record_signal(context, group, signal, peer, value);
  return detail::post_once(context, peer, group, [=, &context] {
    const SymmPieceSignal after{signal, value, operation};
    const bool is_dropped = detail::take_fault(context, SymmFault::kDropSignal);
    return detail::put_pieces_remote(context, peer, pieces, count, is_dropped ? nullptr : &after, queue);
  });
}

// Gets data from a peer and waits for it. When the call returns, all threads of the group see the data.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_get(const Context& context, void* destination, const void* source,
                                   uint64_t length_bytes, int32_t peer, const Group& group = {},
                                   SymmQueue queue = {}) {
  if (!detail::is_at_peer(context, &source, length_bytes, peer)) return SymmStatus::kInvalid;
  detail::record_get(context, group, peer, length_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::get_by_network(context, destination, length_bytes, peer, group,
                                  [=, &context](const auto& network, void* to) {
                                    return network.get(context, peer, to, source, length_bytes, queue);
                                  });
  }
  detail::copy_together(group, destination, detail::shift(source, delta_bytes), length_bytes);
  group.sync();
  return SymmStatus::kDone;
}

// Starts a get. If loads and stores reach the peer, the data has arrived when the call returns. Otherwise the
// data arrives before symm_request_wait() or symm_quiet() returns.
// @param asked  a variable of each thread; receives the request, which is the same in all threads. Another
//               group may also wait for the request
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_get_async(const Context& context, void* destination, const void* source,
                                         uint64_t length_bytes, int32_t peer, SymmRequest* asked,
                                         const Group& group = {}, SymmQueue queue = {}) {
  *asked = {};
  if (!detail::is_at_peer(context, &source, length_bytes, peer)) return SymmStatus::kInvalid;
  detail::record_get(context, group, peer, length_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes != kSymmOutOfReach) {
    detail::copy_together(group, destination, detail::shift(source, delta_bytes), length_bytes);
    group.sync();
    return SymmStatus::kDone;
  }
  SymmRequest mine;
  SymmRequest* const place = &mine;
  const SymmStatus status = detail::get_by_network(
      context, destination, length_bytes, peer, group, [=, &context](const auto& network, void* to) {
        return network.get_async(context, peer, to, source, length_bytes, queue, place);
      });
  if (status != SymmStatus::kDone) return status;
  const bool is_elected = group.elect();
  asked->after = group.share(mine.after, is_elected);
  asked->queue = static_cast<uint32_t>(group.share(mine.queue, is_elected));
  return status;
}

// Waits for the data of a symm_get_async(). When the call returns, all threads of the group see the data.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_request_wait(const Context& context, const SymmRequest& asked,
                                                          const Group& group = {}) {
  const uint64_t begun_ns = detail::begin_wait(context);
  WaitResult mine = WaitResult::kReached;
  if constexpr (SymmNetwork<Context>::kGets) {
    if (asked.after != 0 && group.elect()) mine = SymmNetwork<Context>::await(context, asked);
  }
  return detail::conclude(context, group, mine, {SymmWait::kRequest, 0, kSymmNobody, begun_ns});
}
// Returns whether the data of a symm_get_async() has arrived. If it has, the calling thread sees the data.
// Some networks do not report the completion of a single operation. With these networks, the call always
// returns false for a get by a NIC; call symm_request_wait() instead.
template <typename Context>
VERBENA_DEVICE bool symm_request_test(const Context& context, const SymmRequest& asked) {
  if constexpr (SymmNetwork<Context>::kGets) {
    return asked.after == 0 || SymmNetwork<Context>::has_answered(context, asked);
  } else {
    return asked.after == 0;
  }
}

// Puts `rows` rows of `row_bytes` bytes each, such as a part of a matrix or a column of a halo. Strides are
// the distances from the start of one row to the start of the next, in bytes. If the network supports rows,
// all rows are sent as a single request. Rows at the destination must not overlap.
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_put_rows(const Context& context, void* destination,
                                        uint64_t destination_stride, const void* source,
                                        uint64_t source_stride, uint64_t row_bytes, uint64_t rows,
                                        int32_t peer, const Group& group = {}, SymmQueue queue = {}) {
  const uint64_t length_there = detail::measure_rows(rows, row_bytes, destination_stride);
  if (!detail::is_at_peer(context, &destination, length_there, peer)) return SymmStatus::kInvalid;
  detail::record_put(context, group, peer, rows * row_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::put_by_network(context, source, detail::measure_rows(rows, row_bytes, source_stride), peer,
                                  group, [=, &context](const auto&, const void* from) {
                                    return detail::put_rows_remote(
                                        context, peer, destination, from,
                                        {rows, row_bytes, source_stride, destination_stride}, queue);
                                  });
  }
  detail::copy_rows(group, detail::shift(destination, delta_bytes), destination_stride, source, source_stride,
                    row_bytes, rows);
  group.sync();
  return SymmStatus::kDone;
}

// Gets rows and waits for them. When the call returns, all threads of the group see the rows. The parameters
// are the same as in symm_put_rows().
template <typename Context, typename Group = ThreadGroup>
VERBENA_DEVICE SymmStatus symm_get_rows(const Context& context, void* destination,
                                        uint64_t destination_stride, const void* source,
                                        uint64_t source_stride, uint64_t row_bytes, uint64_t rows,
                                        int32_t peer, const Group& group = {}, SymmQueue queue = {}) {
  const uint64_t length_there = detail::measure_rows(rows, row_bytes, source_stride);
  if (!detail::is_at_peer(context, &source, length_there, peer)) return SymmStatus::kInvalid;
  detail::record_get(context, group, peer, rows * row_bytes);
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) {
    return detail::get_by_network(
        context, destination, detail::measure_rows(rows, row_bytes, destination_stride), peer, group,
        [=, &context](const auto&, void* to) {
          return detail::get_rows_remote(context, peer, to, source,
                                         {rows, row_bytes, destination_stride, source_stride}, queue);
        });
  }
  detail::copy_rows(group, destination, destination_stride, detail::shift(source, delta_bytes), source_stride,
                    row_bytes, rows);
  group.sync();
  return SymmStatus::kDone;
}

// Updates a 4-byte or 8-byte word of a peer by an atomic. Each calling thread makes a separate update.
// @param address  this rank's address of the word, in a window
// @param before   receives the previous value; may be null
// @return kUnreachable if loads and stores do not reach the peer (symm_team_lsa)
template <Operation operation, Order order = Order::kRelaxed, typename T>
VERBENA_DEVICE SymmStatus symm_lsa_update(const SymmContext& context, T* address, detail::Same<T> value,
                                          int32_t peer, T* before = nullptr) {
  if (!detail::is_at_peer(context, &address, sizeof(T), peer)) return SymmStatus::kInvalid;
  const int64_t delta_bytes = detail::get_delta(context, peer);
  if (delta_bytes == kSymmOutOfReach) return SymmStatus::kUnreachable;
  const T old = update<operation, order, Scope::kSystem>(detail::shift(address, delta_bytes), value);
  if (before != nullptr) *before = old;
  return SymmStatus::kDone;
}

// Orders this thread's earlier memory accesses before its later memory accesses, at the given scope. The call
// is not a barrier: it does not wait for other threads.
template <Scope scope>
VERBENA_DEVICE void symm_fence() {
  fence<Order::kAcquireRelease, scope>();
}

// Waits until all puts, gets and signals of this rank that happen before the call are complete at all peers.
// These operations include the operations of earlier kernels, and the operations that any thread of the block
// started before a block barrier. Not collective.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_quiet(const Context& context, const Group& group = {}) {
  const uint64_t begun_ns = detail::begin_wait(context);
  group.sync();
  fence<Order::kAcquireRelease, Scope::kSystem>();  // in each thread, so that every thread may publish the
                                                    // completion
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = SymmNetwork<Context>::complete(context);
  return detail::conclude(context, group, mine, {SymmWait::kCompletion, 0, kSymmNobody, begun_ns});
}

// Waits like symm_quiet(), but only for operations on one peer.
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_quiet(const Context& context, int32_t peer,
                                                   const Group& group = {}) {
  if (!detail::is_member(context, peer)) return SymmStatus::kInvalid;
  const uint64_t begun_ns = detail::begin_wait(context);
  group.sync();
  fence<Order::kAcquireRelease, Scope::kSystem>();
  if (context.has_remote == 0) return SymmStatus::kDone;
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = SymmNetwork<Context>::complete_at(context, peer);
  return detail::conclude(context, group, mine,
                          {SymmWait::kCompletion, 0, static_cast<uint32_t>(peer), begun_ns});
}

// Waits until the sources of earlier puts may be reused. The call covers the same puts as symm_quiet().
template <typename Context, typename Group = ThreadGroup>
[[nodiscard]] VERBENA_DEVICE SymmStatus symm_flush(const Context& context, const Group& group = {}) {
  const uint64_t begun_ns = detail::begin_wait(context);
  group.sync();
  WaitResult mine = WaitResult::kReached;
  if (group.elect()) mine = SymmNetwork<Context>::release_sources(context);
  return detail::conclude(context, group, mine, {SymmWait::kCompletion, 0, kSymmNobody, begun_ns});
}

}  // namespace verbena::device

#endif
