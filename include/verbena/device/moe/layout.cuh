// Offsets of the data of a mixture-of-experts exchange: in the workspace, which peers write, and in the
// handle that a dispatch leaves for its combine. Plain arithmetic on the exchange's shape, the same on the
// host and in kernels.
//
// The slot of a row follows from its source rank and its token, so a sender needs no allocation: there is
// no atomic and no barrier. The header, a bit for each token of the source rank, tells the receiver which
// slots are used in this call. A header entry carries the number of its call, so all blocks of the receiver
// read the same entries, and no block empties them.
//
// Why a call needs no barrier. Call k of a kind, dispatch or combine, uses copy k modulo kMoeCopies of the
// workspace. Three things hold:
//   a. The kernels of an exchange run one after the other on each rank, and the stores of a kernel have
//      landed, at the peers and in its own memory, when the kernel ends.
//   b. In each call each rank receives at least the header from every other rank. It sends its own headers
//      in the call's first kernel, and ends the call, in its last kernel, when it has received every packet
//      that was sent to it and has emptied the packet's slot.
//   c. A rank begins to send call k of a kind after it has ended call k-1 of that kind.
// Let rank p send call k to rank q. By c, p has ended call k-1; by b, p has received q's header of call
// k-1. By c, q sent this header after it had ended call k-2, so by b after q had received every packet of
// call k-2, and by a after the slots were empty. So p's packet finds its slot empty, and q, which polls a
// slot of copy k only in call k, receives no packet of another call. A header entry and a note count only
// with their call's number. Also by these rules q has ended call k-2, and so read the entries of its copy,
// before p overwrites them. Entries of the header are written in each call. Entries that only grouped
// dispatches send, and for tokens that this rank has, are written at least once in kMoeCopies * (max_tokens
// + 1) calls (dispatch.cuh): long before the tag of an old one comes again. A mask leaves ranks out of calls.
// All living ranks, those of the mask, have the same mask in a call, so a to c hold among them: every
// living rank hears from every living rank. A rank that was left out of a call has counted fewer calls than
// the others, and so takes part again after a reset only. No rank waits for ever: sending waits for
// nothing, so once all ranks have begun call k, its packets land. Dispatches and combines need not
// alternate: each kind has its own copies. Combines have headers only because they may follow each other
// without a dispatch between them. Grids may differ, from phase to phase and from rank to rank. After a
// failure no kernel sends or receives, since the numbers of calls may differ. A reset clears slots, notes
// and numbers of all ranks after the kernels of all ranks have ended. tests/device/moe/turns_test.cc
// explores this rule.
//
// Several hosts (hosts.cuh). The counterparts of a rank have the same index on the other hosts. A rank sends
// a token's row once to each other host, to its counterpart there, which relays the row to the ranks of its
// host: it sends the header and the packets in place of the source rank. In a combine the relay receives the
// rows of its host's ranks, adds them and sends one row back. So each slot has one sender as before, and a to
// c hold within a host, where a rank hears from every other rank by its own header. Between counterparts p
// and q chunks of rows lie in copy k modulo kMoeCopies, each followed by a word with the call's number k,
// which counts all calls since a reset: the word alone says that a chunk has come, since a NIC may write a
// chunk again until it writes the word. p begins call k after it has ended call k-1, so after it has received
// q's first chunk of call k-1, which q sent after it had ended call k-2: so q has read the chunks of call
// k-2, p may overwrite them and, as they have arrived, also the memory that p's NIC read.
#ifndef VERBENA_DEVICE_MOE_LAYOUT_CUH
#define VERBENA_DEVICE_MOE_LAYOUT_CUH

#include "verbena/device/platform.cuh"
#include "verbena/symm_abi.h"

namespace verbena::device {

inline constexpr uint32_t kMoeMaxRanks = 32, kMoeMaxTokens = 4096, kMoeMaxTopK = 32, kMoeMaxExperts = 4096;
inline constexpr uint32_t kMoeMaxBlocks = kSymmMaxBlocks / 2;  // dispatch and combine count separately
inline constexpr uint32_t kMoeMaskBits = 32;                   // tokens in a word of a mask
// Of the masks of all ranks together, which a block keeps in shared memory.
inline constexpr uint32_t kMoeMaxMaskWords = 16 * kMoeMaxTokens / kMoeMaskBits;
inline constexpr uint32_t kMoeCopies = 2;
// Experts of a rank whose rows can be grouped by expert; and the multiple of rows at which a group can begin:
// with both, the places of all groups have fewer than 32 bits.
inline constexpr uint32_t kMoeMaxGroups = 1024, kMoeMaxAlignment = 1U << 16;
inline constexpr uint32_t kMoePacketBytes = 16, kMoeNoteBytes = 8;  // as Packet (packet.cuh)
inline constexpr uint32_t kMoeEntryBytes = 8;                       // of a header
inline constexpr uint32_t kMoeCountsOfEntry = 3;                    // experts whose rows an entry counts
inline constexpr uint32_t kMoeMaxHosts = 8;
inline constexpr uint32_t kMoeAlignment = 128;  // of chunks, bytes

template <typename T>
VERBENA_HOST_DEVICE constexpr T moe_divide_up(T number, T by) {
  return (number + by - 1) / by;
}

enum class MoeKind : uint32_t { kDispatch = 0, kCombine = 1 };

// The shape of an exchange; the same on all ranks, except for `near`.
struct MoeShape {
  uint32_t ranks, experts, max_tokens, top_k;
  uint32_t max_blocks;       // of a kernel
  uint32_t row_packets;      // of the longest dispatched row with its scales
  uint32_t combine_packets;  // of a combined row
  uint32_t rows_of_token;    // maximum rows that come back for a token
  uint32_t living;           // a bit for each rank that takes part in calls; set_experts() sets all
  uint32_t near;             // those of them that loads and stores reach
  uint32_t hosts;            // with the same number of ranks each
  uint32_t chunk_bits;       // 2^chunk_bits tokens, at most 32, are a chunk between hosts

  // Derived by set_experts(), since divisions are slow in kernels: of a rank; and 2^24 / local_experts,
  // rounded up.
  uint32_t local_experts, rank_factor;

  VERBENA_HOST_DEVICE constexpr void set_experts(uint32_t of_ranks, uint32_t of_experts) {
    ranks = of_ranks;
    experts = of_experts;
    living = near = ~0U >> (kMoeMaxRanks - ranks);
    hosts = 1;
    local_experts = experts / ranks;
    rank_factor = moe_divide_up(1U << 24, local_experts);
  }
  VERBENA_HOST_DEVICE constexpr bool is_living(uint32_t rank) const {
    return (uint64_t{living} >> rank & 1) != 0;
  }
  VERBENA_HOST_DEVICE constexpr bool is_near(uint32_t rank) const {
    return (uint64_t{near} >> rank & 1) != 0;
  }
  VERBENA_HOST_DEVICE constexpr uint32_t mask_words() const {
    return moe_divide_up(max_tokens, kMoeMaskBits);
  }
  // Two entries in a packet.
  VERBENA_HOST_DEVICE constexpr uint32_t header_packets() const {
    return moe_divide_up(mask_words() * kMoeEntryBytes, kMoePacketBytes);
  }
  // Entries that only dispatches have that group rows by expert (place.cuh): from a rank to another, and for
  // each of top_k of a token.
  VERBENA_HOST_DEVICE constexpr uint32_t count_entries() const {
    return local_experts > kMoeMaxGroups ? 0 : moe_divide_up(local_experts, kMoeCountsOfEntry);
  }
  VERBENA_HOST_DEVICE constexpr uint32_t count_packets() const { return (count_entries() + 1) / 2; }
  VERBENA_HOST_DEVICE constexpr uint32_t place_packets() const {
    return count_entries() == 0 ? 0 : (top_k + 1) / 2;
  }
  // An expert and a weight for each of top_k, two pairs in a packet.
  VERBENA_HOST_DEVICE constexpr uint32_t pair_packets() const { return (top_k + 1) / 2; }
  VERBENA_HOST_DEVICE constexpr uint32_t dispatch_row_packets() const { return row_packets + pair_packets(); }
  VERBENA_HOST_DEVICE constexpr uint64_t dispatch_headers() const {
    return uint64_t{ranks} * header_packets();
  }
  // Count the packets of a copy.
  VERBENA_HOST_DEVICE constexpr uint64_t dispatch_packets() const {
    return dispatch_headers() + uint64_t{ranks} * max_tokens * dispatch_row_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t combine_copy_packets() const {
    return ranks + uint64_t{max_tokens} * rows_of_token * combine_packets;
  }
  // Of the entries of groups, which come after all else.
  VERBENA_HOST_DEVICE constexpr uint64_t entry_packets() const {
    return uint64_t{ranks} * (count_packets() + uint64_t{max_tokens} * place_packets());
  }
  VERBENA_HOST_DEVICE constexpr uint64_t packets() const {
    return kMoeCopies * (dispatch_packets() + combine_copy_packets() + entry_packets());
  }
  // Returns the bytes of the workspace: packets, followed by their notes (packet.cuh); of several hosts also
  // packets and notes of the rows that relays add, then the chunks between hosts and their words.
  VERBENA_HOST_DEVICE constexpr uint64_t workspace_bytes() const {
    if (hosts == 1) return packets() * (kMoePacketBytes + kMoeNoteBytes);
    return find_copy(0, MoeKind::kDispatch) +
           kMoeCopies * (copy_bytes(MoeKind::kDispatch) + copy_bytes(MoeKind::kCombine));
  }

  // Between hosts. A chunk is a header of a packet, then the rows of its tokens that are sent, one after the
  // other. A dispatched row is followed by its scales, experts and weights as in dispatch_row_packets().
  VERBENA_HOST_DEVICE static constexpr uint64_t align(uint64_t bytes) {
    return moe_divide_up<uint64_t>(bytes, kMoeAlignment) * kMoeAlignment;
  }
  VERBENA_HOST_DEVICE constexpr uint32_t chunks() const { return ((max_tokens - 1) >> chunk_bits) + 1; }
  VERBENA_HOST_DEVICE constexpr uint64_t chunk_bytes(MoeKind kind) const {
    const uint64_t row = kind == MoeKind::kDispatch ? dispatch_row_packets() : combine_packets;
    return align((1 + (row << chunk_bits)) * kMoePacketBytes);
  }
  VERBENA_HOST_DEVICE constexpr uint64_t count_far_chunks() const { return uint64_t{hosts - 1} * chunks(); }
  // Of the chunks that are sent and those that come, and their words.
  VERBENA_HOST_DEVICE constexpr uint64_t copy_bytes(MoeKind kind) const {
    return count_far_chunks() * 2 * chunk_bytes(kind) + align(count_far_chunks() * sizeof(uint64_t));
  }
  // Counts the packets of the rows that a relay adds, of all copies.
  VERBENA_HOST_DEVICE constexpr uint64_t relay_packets() const {
    return kMoeCopies * uint64_t{hosts - 1} * max_tokens * rows_of_token * combine_packets;
  }
  // Returns the index of a packet among them; `far` counts the hosts other than the rank's own.
  VERBENA_HOST_DEVICE constexpr uint64_t find_relay_row(uint64_t call, uint32_t far, uint32_t token,
                                                        uint32_t row) const {
    const uint64_t number = (call % kMoeCopies * (hosts - 1) + far) * max_tokens + token;
    return (number * rows_of_token + row) * combine_packets;
  }
  // Return offsets in the workspace.
  VERBENA_HOST_DEVICE constexpr uint64_t find_relay_packets() const {
    return align(packets() * (kMoePacketBytes + kMoeNoteBytes));
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_copy(uint64_t call, MoeKind kind) const {
    return find_relay_packets() + align(relay_packets() * (kMoePacketBytes + kMoeNoteBytes)) +
           (kind == MoeKind::kDispatch ? 0 : kMoeCopies * copy_bytes(MoeKind::kDispatch)) +
           call % kMoeCopies * copy_bytes(kind);
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_chunk(uint64_t call, MoeKind kind, bool is_sent, uint32_t far,
                                                    uint32_t chunk) const {
    return find_copy(call, kind) +
           ((is_sent ? 0 : count_far_chunks()) + uint64_t{far} * chunks() + chunk) * chunk_bytes(kind);
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_word(uint64_t call, MoeKind kind, uint32_t far,
                                                   uint32_t chunk) const {
    return find_chunk(call, kind, false, hosts - 1, 0) +
           (uint64_t{far} * chunks() + chunk) * sizeof(uint64_t);
  }

  // Return indices of packets in the workspace of the rank that receives them.
  VERBENA_HOST_DEVICE constexpr uint64_t find_header(uint64_t call, uint32_t source) const {
    return call % kMoeCopies * dispatch_packets() + uint64_t{source} * header_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_counts(uint64_t call, uint32_t source) const {
    return kMoeCopies * (dispatch_packets() + combine_copy_packets()) + call % kMoeCopies * entry_packets() +
           uint64_t{source} * count_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_places(uint64_t call, uint32_t source, uint32_t token) const {
    return find_counts(call, ranks) + (uint64_t{source} * max_tokens + token) * place_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_row(uint64_t call, uint32_t source, uint32_t token) const {
    return call % kMoeCopies * dispatch_packets() + dispatch_headers() +
           (uint64_t{source} * max_tokens + token) * dispatch_row_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_combine_header(uint64_t call, uint32_t source) const {
    return kMoeCopies * dispatch_packets() + call % kMoeCopies * combine_copy_packets() + source;
  }
  VERBENA_HOST_DEVICE constexpr uint64_t find_combine_row(uint64_t call, uint32_t token, uint32_t row) const {
    return find_combine_header(call, 0) + ranks + (uint64_t{token} * rows_of_token + row) * combine_packets;
  }
};

// The hosts of an exchange, as one of its ranks sees them. The ranks of a host are in the order of the team.
struct MoeHosts {
  uint32_t ranks[kMoeMaxHosts];  // a bit for each rank of the host
  uint32_t mine, index;          // this rank's host, and its number among the ranks of that host
};

// Offsets of a handle's tensors, in bytes, below 2^27. [r] counts ranks, [t] tokens below max_tokens, [k]
// below top_k, [e] the experts of this rank, [h] 0 for this rank itself and 1 + far for its counterparts on
// other hosts.
struct MoeHandleLayout {
  uint32_t counts;         // int32[r]: rows that came from rank r
  uint32_t expert_counts;  // int32[e]: rows of a local expert; of MoeGrouping::kExpert and kRagged
  uint32_t expert_begins;  // int32[e]: its first row in the output; of the same
  uint32_t sources;        // int32[r][t]: the token of rank r that a row is, -1 after the count
  uint32_t ids;            // int32[r][t][k]: local experts of a row, -1: of another rank, or after the count
  uint32_t weights;        // float[r][t][k]: 0 where the id is -1
  uint32_t places;         // int32[r][t][k]: the id's row in the output, -1 where the id is -1; of the same
  uint32_t own_ids;        // int32[h][t][k]: of the rank's tokens, -1: no expert
  uint32_t own_weights;    // float[t][k]
  uint32_t own_numbers;    // int32[h][t]: which of the rows from rank h to this rank the token is, -1: none
  uint32_t stamp;          // uint32[3]: make_moe_stamp(), the tokens of this rank, the grouping
  uint32_t bytes;

  VERBENA_HOST_DEVICE static constexpr MoeHandleLayout of(const MoeShape& shape) {
    constexpr uint32_t kAlignment = 128;
    MoeHandleLayout layout{};
    const uint32_t rows = shape.ranks * shape.max_tokens;
    uint32_t end = 0;
    const auto place = [&](uint32_t words) {
      const uint32_t begin = end;
      end += moe_divide_up(words * 4, kAlignment) * kAlignment;
      return begin;
    };
    layout.counts = place(shape.ranks);
    layout.expert_counts = place(shape.local_experts);
    layout.expert_begins = place(shape.local_experts);
    layout.sources = place(rows);
    layout.ids = place(rows * shape.top_k);
    layout.weights = place(rows * shape.top_k);
    layout.places = place(rows * shape.top_k);
    layout.own_ids = place(shape.hosts * shape.max_tokens * shape.top_k);
    layout.own_weights = place(shape.max_tokens * shape.top_k);
    layout.own_numbers = place(shape.hosts * shape.max_tokens);
    layout.stamp = place(3);
    layout.bytes = end;
    return layout;
  }
};

// Marks the handles that a dispatch of an exchange of this shape has written, among the same living ranks.
VERBENA_HOST_DEVICE constexpr uint32_t make_moe_stamp(const MoeShape& shape) {
  uint32_t stamp = 0x6d6f6531U;
  for (const uint32_t value : {shape.ranks, shape.top_k, shape.max_tokens, shape.experts, shape.hosts})
    stamp = (stamp ^ value) * 0x9e3779b1U;
  return stamp ^ shape.living;
}

// How the rows of a call are divided among the warps of a grid: each into 2^bits parts. A matter of speed
// only; ranks and phases may differ.
struct MoeParts {
  uint32_t send_bits, receive_bits;
};

// Phases of a call. In a dispatch whose rows are grouped by expert, kMoeReceive receives ids and weights, and
// kMoePlace rows and scales.
inline constexpr uint32_t kMoeSend = 1, kMoeReceive = 2, kMoePlace = 4;

// How the rows of a dispatch's output are grouped. Same values as verbena_moe_grouping (verbena/moe.h).
enum class MoeGrouping : uint32_t {
  kRank = 0,    // [ranks][max_tokens]: a row for each row that came
  kExpert = 1,  // [local experts][ranks * max_tokens]: a row for each expert of each row that came
  kRagged = 2,  // the same rows one after the other; those of an expert begin at a multiple of `alignment`
};

// How the scales of a cast are rounded and stored.
enum class MoeScales : uint32_t {
  kFloats = 0,
  kPowers = 1,     // rounded up to powers of two
  kExponents = 2,  // the same as UE8M0, four in a word
};

// Arguments of a dispatch.
struct MoeDispatch {
  const void* rows;       // [tokens][row_stride bytes], each begins at a multiple of 16 bytes
  uint64_t row_stride;    // bytes
  uint32_t row_bytes;     // a multiple of 16
  uint32_t scale_bytes;   // of a row's scales, which are moved unchanged; 0: none
  const void* scales;     // [tokens][scale_stride bytes]
  uint64_t scale_stride;  // bytes
  const void* ids;        // [tokens][id_stride] of top_k experts each, int32 or int64
  uint64_t id_stride;     // elements
  const float* weights;   // [tokens][top_k]; NULL: ones
  uint32_t tokens;        // of this rank, at most max_tokens
  uint32_t has_long_ids;  // 1: int64
  void* output;           // [ranks][max_tokens][row_bytes]
  void* output_scales;    // [ranks][max_tokens][scale_bytes]
  char* handle;           // MoeHandleLayout
  uint32_t phases;        // kMoeSend, kMoeReceive, kMoePlace
  MoeParts parts;
  MoeHandleLayout layout;
  // For a cast; row_bytes and scale_bytes count what the packets carry.
  MoeScales scale_format;
  uint32_t output_scale_bytes;  // of a row's scales in the output
  uint32_t column_rows;         // 0: output_scales has rows; else columns, of this number of rows of 4 bytes
  MoeGrouping grouping;
  uint32_t output_rows;  // of all groups
  uint32_t alignment;    // kRagged
  // For kExpert and kRagged: [output_rows] each, -1 in rows without a token; NULL if the caller needs none.
  int32_t* row_sources;  // the row of the handle's tensors, counted through [r][t]
  int32_t* row_experts;  // the local expert
};

// Same values as verbena_moe_order (verbena/moe.h).
enum class MoeOrder : uint32_t {
  kRows = 0,     // a row of a token is the rank's sum already: weights are ignored
  kReduced = 1,  // a row of each expert, added at its rank
  kExact = 2,    // a row of each expert, added at the token's rank
};

// Arguments of a combine.
struct MoeCombine {
  const void*
      rows;  // kRows: [ranks][max_tokens][hidden]; else [ranks][max_tokens][top_k][hidden], or grouped
  uint32_t row_bytes;  // a multiple of 16
  uint32_t tokens;     // of this rank's dispatch
  void* output;        // [tokens][hidden]
  const char* handle;  // of this rank's dispatch
  uint32_t phases;
  MoeParts parts;
  MoeHandleLayout layout;
  MoeGrouping grouping;  // of the dispatch; `rows` are grouped like its output
  const float* weights;  // kExact: [tokens][top_k], in place of the dispatch's; NULL: the dispatch's
};

}  // namespace verbena::device

#endif
