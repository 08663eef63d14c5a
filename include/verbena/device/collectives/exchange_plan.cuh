// Plans of exchanges between all ranks of a team. A plan has a message for each pair of ranks. A message may
// have any length and needs no alignment. All-gather, reduce-scatter, broadcast, all-to-all and their
// variants with a different length for each rank are expressed as plans. one_shot.cuh and bulk.cuh execute
// the plans. Each message is split over the blocks of a kernel.
#ifndef VERBENA_DEVICE_COLLECTIVES_EXCHANGE_PLAN_CUH
#define VERBENA_DEVICE_COLLECTIVES_EXCHANGE_PLAN_CUH

#include "verbena/device/copy.cuh"
#include "verbena/device/low_latency.cuh"

namespace verbena::device {

inline constexpr int32_t kMaxExchangeRanks = 16;

// A tensor of `length_bytes` bytes is split into parts, for example one part for each block. Parts start at
// multiples of unit_bytes. If unit_bytes is a multiple of kVectorBytes, each part has the same alignment as
// the tensor. All parts have the same length, but the last parts may be shorter or empty.
struct Part {
  uint64_t begin, length_bytes;
};
VERBENA_DEVICE uint64_t find_part_bytes(uint64_t length_bytes, uint32_t parts,
                                        uint64_t unit_bytes = kVectorBytes) {
  const uint64_t units = (length_bytes + unit_bytes - 1) / unit_bytes;
  return (units + parts - 1) / parts * unit_bytes;
}
VERBENA_DEVICE Part find_part(uint64_t length_bytes, uint32_t index, uint32_t parts,
                              uint64_t unit_bytes = kVectorBytes) {
  const uint64_t part = find_part_bytes(length_bytes, parts, unit_bytes), begin = part * index;
  if (begin >= length_bytes) return {length_bytes, 0};
  return {begin, length_bytes - begin < part ? length_bytes - begin : part};
}

// The messages between this rank and one member, which may be this rank itself. `send` is this block's part
// of the message to the member, and `receive` is this block's part of the message from the member.
struct ExchangeEntry {
  Rows source, destination;
  Part send, receive;
};

// A plan's max_bytes is the length of the longest part of a message, over all messages and blocks. max_bytes
// must be the same on all ranks. If a rank may not know the lengths of the messages between other ranks, all
// ranks must pass kUnknownLength. The ranks then publish the lengths of their messages.
inline constexpr uint64_t kUnknownLength = ~uint64_t{0};

struct ExchangePlan {
  ExchangeEntry entries[kMaxExchangeRanks];
  uint64_t max_bytes;

  VERBENA_DEVICE const ExchangeEntry& operator()(int32_t member) const { return entries[member]; }
};

namespace detail {

// Splits `length` into the smallest number of rounds of at most `most`. The rounds have about the same
// length. Returns the length of a round, which is a multiple of `unit` unless such a multiple would exceed
// `most`.
VERBENA_DEVICE uint64_t even_rounds(uint64_t length, uint64_t most, uint64_t unit) {
  if (length <= most) return most;
  const uint64_t rounds = (length + most - 1) / most;
  const uint64_t even = ((length + rounds - 1) / rounds + unit - 1) / unit * unit;
  return even < most ? even : most;  // FAULT(rounds_outgrow_a_slot)
}
// Returns the number of bytes of a part in the round that starts at `at`.
VERBENA_DEVICE uint64_t cut_round(const Part& part, uint64_t at, uint64_t most) {
  if (at >= part.length_bytes) return 0;
  return part.length_bytes - at < most ? part.length_bytes - at : most;
}

// Copies rows with all threads of a group. Does nothing if source and destination are the same.
// @param is_exact  true if the call must not read bytes before and after the source, because another block
//                  may be writing these bytes
template <typename Group>
VERBENA_DEVICE void copy_rows(const Group& group, const Rows& to, const Rows& from, uint64_t length_bytes,
                              bool is_exact = false) {
  if (length_bytes == 0) return;
  const bool are_flat = to.is_contiguous() && from.is_contiguous();
  const bool are_alike = are_flat || (to.row_bytes == from.row_bytes && to.stride_bytes == from.stride_bytes);
  if (are_alike && to.find(0) == from.find(0)) return;
  is_exact = is_exact && offset_in_vector(from.find(0)) != offset_in_vector(to.find(0));
  if (are_flat && !is_exact) return copy_group(group, to.find(0), from.find(0), length_bytes);
  constexpr uint64_t kBytes = sizeof(uint64_t);
  for (uint64_t i = group.rank() * kBytes; i < length_bytes; i += group.size() * kBytes) {
    const auto left = static_cast<uint32_t>(length_bytes - i < kBytes ? length_bytes - i : kBytes);
    store_part(to.from(i), 0, left, load_part<uint64_t>(from.from(i), 0, left));
  }
}

}  // namespace detail

}  // namespace verbena::device

#endif
