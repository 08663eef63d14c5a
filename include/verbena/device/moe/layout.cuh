// Computes where a mixture-of-experts exchange stores its data: in the workspace, which peers write, and in
// the handle, which a dispatch writes for its combine. The functions do only arithmetic on the shape of the
// exchange, so the host and the kernels get the same offsets.
//
// The source rank and the token of a row determine the row's slot, so a sender need not allocate slots, and
// needs neither atomics nor barriers. The source rank also sends a header, which has a bit for each of its
// tokens. From these bits the receiver learns which slots the call uses. A header entry contains the number
// of its call. Therefore all blocks of the receiver can read the same entries, and no block has to empty
// them.
//
// A call needs no barrier, for the following reason. Call k of a kind (dispatch or combine) uses copy k
// modulo kMoeCopies of the workspace. Three rules hold:
//   a. The kernels of an exchange run one after the other on each rank. When a kernel ends, all its stores
//   have arrived, both at the peers and in the rank's own memory.
//   b. In each call, each rank receives at least the header from every other rank. A rank sends its own
//   headers in the call's first kernel. A rank ends the call in the call's last kernel, once it has received
//   every packet that was sent to it and has emptied the packet's slot.
//   c. A rank begins to send call k of a kind after it has ended call k-1 of that kind.
// Suppose that rank p sends packets of call k to rank q. By rule c, p has ended call k-1, so by rule b, p has
// received q's header of call k-1. By rule c, q sent this header after q had ended call k-2. By rule b, q had
// then received every packet of call k-2, and by rule a, the slots of these packets were empty. So p's packet
// arrives in an empty slot. After call k-2, call k is the next call in which q polls this slot. So q receives
// the packet in call k.
//
// The receiver accepts a header entry or a note only if the entry or the note contains the number of the
// current call. By the same rules, q has ended call k-2, and so has read the entries of call k-2, before p
// overwrites them. Every call writes all entries of the header. The other entries (place.cuh) are needed only
// by dispatches that group rows by expert, and only for the tokens that the rank has. Still, each of these
// entries is written at least once in kMoeCopies * (max_tokens + 1) calls (renew_entries() in dispatch.cuh),
// so the old tag in an entry is overwritten long before a call has the same tag.
//
// A mask can exclude ranks from calls. The ranks in the mask are called the living ranks. All living ranks
// use the same mask in a call, so rules a to c hold among the living ranks. An excluded rank has counted
// fewer calls than the living ranks, so it can take part again only after a reset.
//
// No rank waits forever: sending does not wait for anything, so the packets of call k arrive once all ranks
// have begun call k. Dispatches and combines need not alternate, because each kind has separate copies.
// Combines have headers only because several combines may follow each other without a dispatch between them.
// Different phases and different ranks may use different grids. After a failure no kernel sends or receives,
// because the ranks may have counted different numbers of calls. A reset clears the slots, notes and call
// numbers of all ranks, after the kernels of all ranks have ended. tests/device/moe/turns_test.cc explores
// these rules.
//
// Exchanges between several hosts (hosts.cuh): the counterparts of a rank are the ranks with the same index
// on the other hosts. A rank sends a token's row only once to each other host that needs the row, namely to
// its counterpart on that host. The counterpart relays the row to the ranks of its host: it sends the header
// and the packets in place of the source rank. In a combine, the counterpart receives the rows from the ranks
// of its host, adds them and sends one row back. So each slot still has a single sender. Rules a to c hold
// within a host, because each rank sends its own header to every other rank of its host.
//
// Counterparts p and q exchange chunks of rows in copy k modulo kMoeCopies. Each chunk is followed by a word
// that contains the call's number k, which counts all calls since a reset. Only this word shows that a chunk
// has arrived, because a NIC may write a chunk again until it writes the word. Rank p begins call k after it
// has ended call k-1, and so after it has received q's first chunk of call k-1. Rank q sent that chunk after
// it had ended call k-2, so q has already read the chunks of call k-2, and p may overwrite them. The chunks
// that p sent in call k-2 have thus arrived, so p may also overwrite the memory from which its NIC sent them.
#ifndef VERBENA_DEVICE_MOE_LAYOUT_CUH
#define VERBENA_DEVICE_MOE_LAYOUT_CUH

#include "verbena/device/platform.cuh"
#include "verbena/symm_abi.h"

namespace verbena::device {

inline constexpr uint32_t kMoeMaxRanks = 32, kMoeMaxTokens = 16384, kMoeMaxTopK = 32, kMoeMaxExperts = 4096;
inline constexpr uint32_t kMoeMaxBlocks = kSymmMaxBlocks / 2;  // dispatch and combine have separate counters
inline constexpr uint32_t kMoeMaskBits = 32;                   // number of tokens in a word of a mask
// Total size of all ranks' masks in words. A block keeps these masks in shared memory. So the tokens of all
// ranks together are limited, too.
inline constexpr uint32_t kMoeMaxMaskWords = 65536 / kMoeMaskBits;
inline constexpr uint32_t kMoeCopies = 2;
// Max experts per rank if rows are grouped by expert, and max alignment of a group in rows. With these
// limits, the index of a row in the output has fewer than 32 bits.
inline constexpr uint32_t kMoeMaxGroups = 1024, kMoeMaxAlignment = 1U << 16;
inline constexpr uint32_t kMoePacketBytes = 16, kMoeNoteBytes = 8;  // see Packet (packet.cuh)
inline constexpr uint32_t kMoeEntryBytes = 8;                       // size of an entry of a header
inline constexpr uint32_t kMoeCountsOfEntry = 3;                    // number of experts in an entry of counts
inline constexpr uint32_t kMoeMaxHosts = 8;
inline constexpr uint32_t kMoeOffers = 3;       // of a dispatch: rows, scales and handle
inline constexpr uint32_t kMoeAlignment = 128;  // alignment of chunks, bytes

template <typename T>
VERBENA_HOST_DEVICE constexpr T moe_divide_up(T number, T by) {
  return (number + by - 1) / by;
}

enum class MoeKind : uint32_t { kDispatch = 0, kCombine = 1 };

// The shape of an exchange; the same on all ranks, except for `near`.
struct MoeShape {
  uint32_t ranks, experts, max_tokens, top_k;
  uint32_t max_blocks;       // max blocks of a kernel
  uint32_t row_packets;      // packets of the longest dispatched row, including its scales
  uint32_t combine_packets;  // packets of a combined row
  uint32_t rows_of_token;    // max rows that a combine receives for a token
  uint32_t living;           // a bit for each rank that takes part in calls; set_experts() sets all bits
  uint32_t near;             // a bit for each living rank that loads and stores reach
  uint32_t hosts;            // number of hosts, all with the same number of ranks
  uint32_t in_windows;       // 1 if rows are stored in and loaded from windows (windows.cuh), on one host
  uint32_t chunk_bits;       // a chunk between hosts has 2^chunk_bits tokens, at most 32

  // The number of experts of a rank, and 2^24 / local_experts rounded up. set_experts() computes both,
  // because divisions are slow in kernels.
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
  // A packet of a header contains two entries. With in_windows, offers follow.
  VERBENA_HOST_DEVICE constexpr uint32_t header_packets() const {
    return moe_divide_up((mask_words() + (in_windows != 0 ? kMoeOffers : 0)) * kMoeEntryBytes,
                         kMoePacketBytes);
  }
  // Returns the number of a rank's tokens whose rows have slots in the workspace.
  VERBENA_HOST_DEVICE constexpr uint64_t slots() const { return in_windows != 0 ? 0 : max_tokens; }
  // Dispatches that group rows by expert send additional entries (place.cuh). count_entries() returns how
  // many entries with numbers of rows a rank sends to each other rank. place_packets() returns the number of
  // packets for the entries of a token, which has one entry for each of its top_k ids.
  VERBENA_HOST_DEVICE constexpr uint32_t count_entries() const {
    return local_experts > kMoeMaxGroups || in_windows != 0 ? 0
                                                            : moe_divide_up(local_experts, kMoeCountsOfEntry);
  }
  VERBENA_HOST_DEVICE constexpr uint32_t count_packets() const { return (count_entries() + 1) / 2; }
  VERBENA_HOST_DEVICE constexpr uint32_t place_packets() const {
    return count_entries() == 0 ? 0 : (top_k + 1) / 2;
  }
  // Each of a token's top_k ids has a pair of an expert and a weight. A packet contains two pairs.
  VERBENA_HOST_DEVICE constexpr uint32_t pair_packets() const { return (top_k + 1) / 2; }
  VERBENA_HOST_DEVICE constexpr uint32_t dispatch_row_packets() const { return row_packets + pair_packets(); }
  // Counts the packets of the headers from all ranks. With in_windows, copies of the headers follow that the
  // rank itself sends.
  VERBENA_HOST_DEVICE constexpr uint64_t dispatch_headers() const {
    return uint64_t{1 + in_windows} * ranks * header_packets();
  }
  // The following functions count the packets of one copy of the workspace.
  VERBENA_HOST_DEVICE constexpr uint64_t dispatch_packets() const {
    return dispatch_headers() + ranks * slots() * dispatch_row_packets();
  }
  VERBENA_HOST_DEVICE constexpr uint64_t combine_copy_packets() const {
    return ranks + slots() * rows_of_token * combine_packets;
  }
  // Counts the packets for the entries of dispatches that group rows by expert. These packets are stored
  // after all other packets.
  VERBENA_HOST_DEVICE constexpr uint64_t entry_packets() const {
    return uint64_t{ranks} * (count_packets() + uint64_t{max_tokens} * place_packets());
  }
  VERBENA_HOST_DEVICE constexpr uint64_t packets() const {
    return kMoeCopies * (dispatch_packets() + combine_copy_packets() + entry_packets());
  }
  // Returns the size of the workspace in bytes. The workspace contains the packets, followed by their notes
  // (packet.cuh). With in_windows, the words follow with which blocks end their accesses to windows. If there
  // are several hosts, the workspace also contains the packets and notes of the rows that relays add,
  // followed by the chunks between hosts and their words.
  VERBENA_HOST_DEVICE constexpr uint64_t workspace_bytes() const {
    if (in_windows != 0) return find_end_word(0, MoeKind::kDispatch, 2 * kMoeCopies * ranks, 0);
    if (hosts == 1) return packets() * (kMoePacketBytes + kMoeNoteBytes);
    return find_copy(0, MoeKind::kDispatch) +
           kMoeCopies * (copy_bytes(MoeKind::kDispatch) + copy_bytes(MoeKind::kCombine));
  }

  // A chunk between hosts has a header of one packet, followed by the rows of the tokens that are sent. A
  // dispatched row is followed by its scales, experts and weights, as in dispatch_row_packets().
  VERBENA_HOST_DEVICE static constexpr uint64_t align(uint64_t bytes) {
    return moe_divide_up<uint64_t>(bytes, kMoeAlignment) * kMoeAlignment;
  }
  VERBENA_HOST_DEVICE constexpr uint32_t chunks() const { return ((max_tokens - 1) >> chunk_bits) + 1; }
  VERBENA_HOST_DEVICE constexpr uint64_t chunk_bytes(MoeKind kind) const {
    const uint64_t row = kind == MoeKind::kDispatch ? dispatch_row_packets() : combine_packets;
    return align((1 + (row << chunk_bits)) * kMoePacketBytes);
  }
  VERBENA_HOST_DEVICE constexpr uint64_t count_far_chunks() const { return uint64_t{hosts - 1} * chunks(); }
  // Returns the total size in bytes of the sent chunks, the received chunks, and the words of the received
  // chunks.
  VERBENA_HOST_DEVICE constexpr uint64_t copy_bytes(MoeKind kind) const {
    return count_far_chunks() * 2 * chunk_bytes(kind) + align(count_far_chunks() * sizeof(uint64_t));
  }
  // Counts the packets of the rows that a relay adds, in all copies.
  VERBENA_HOST_DEVICE constexpr uint64_t relay_packets() const {
    return kMoeCopies * uint64_t{hosts - 1} * max_tokens * rows_of_token * combine_packets;
  }
  // Returns the index of a row's first packet among the relay_packets(). `far` is the number of the host
  // among the hosts other than the rank's own.
  VERBENA_HOST_DEVICE constexpr uint64_t find_relay_row(uint64_t call, uint32_t far, uint32_t token,
                                                        uint32_t row) const {
    const uint64_t number = (call % kMoeCopies * (hosts - 1) + far) * max_tokens + token;
    return (number * rows_of_token + row) * combine_packets;
  }
  // The following functions return offsets in the workspace, in bytes.
  VERBENA_HOST_DEVICE constexpr uint64_t find_end_word(uint64_t call, MoeKind kind, uint32_t rank,
                                                       uint32_t block) const {
    const uint64_t copy = 2 * (call % kMoeCopies) + static_cast<uint32_t>(kind);
    return align(packets() * (kMoePacketBytes + kMoeNoteBytes)) +
           ((copy * ranks + rank) * kMoeMaxBlocks + block) * sizeof(uint64_t);
  }
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

  // The following functions return indices of packets in the workspace of the receiving rank.
  VERBENA_HOST_DEVICE constexpr uint64_t find_header(uint64_t call, uint32_t source) const {
    return call % kMoeCopies * dispatch_packets() + uint64_t{source} * header_packets();
  }
  // With in_windows: this rank's copy of the header that it sends to `rank`.
  VERBENA_HOST_DEVICE constexpr uint64_t find_sent_header(uint64_t call, uint32_t rank) const {
    return find_header(call, ranks + rank);
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

// The hosts of an exchange, from the point of view of one rank. The ranks of a host are in the order of the
// team.
struct MoeHosts {
  uint32_t ranks[kMoeMaxHosts];  // a bit for each rank of the host
  uint32_t mine, index;          // this rank's host, and this rank's index among the ranks of its host
};

// Offsets of a handle's tensors, in bytes, below 2^27. The indices have the following ranges: r is a rank; t
// is less than max_tokens; k is less than top_k; e is an expert of this rank; h is 0 for this rank itself,
// and 1 + i for its counterpart on the i-th other host.
struct MoeHandleLayout {
  uint32_t counts;         // int32[r]: number of rows received from rank r
  uint32_t expert_counts;  // int32[e]: number of rows of expert e; only for kExpert and kRagged
  uint32_t expert_begins;  // int32[e]: first output row of expert e; only for kExpert and kRagged
  uint32_t sources;        // int32[r][t]: token of a row on rank r; -1 after the last row
  uint32_t ids;            // int32[r][t][k]: local experts of a row; -1 for experts of other ranks
  uint32_t weights;        // float[r][t][k]: 0 where the id is -1
  uint32_t places;         // int32[r][t][k]: output row for the id, or -1; only for kExpert and kRagged
  uint32_t own_ids;        // int32[h][t][k]: ids of the rank's tokens; -1: no expert
  uint32_t own_weights;    // float[t][k]: weights of this rank's tokens
  uint32_t own_numbers;    // int32[h][t]: index of the token's row among the rows from h; -1: no row
  uint32_t stamp;          // uint32[3]: make_moe_stamp(), number of this rank's tokens, the grouping
  uint32_t sent_words;     // uint32[r][t / 32]: a bit for each token that is sent to rank r; with in_windows
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
    layout.sent_words = place(shape.in_windows * shape.ranks * shape.mask_words());
    layout.bytes = end;
    return layout;
  }
};

// Returns the stamp that a dispatch with this shape and these living ranks writes to its handle.
VERBENA_HOST_DEVICE constexpr uint32_t make_moe_stamp(const MoeShape& shape) {
  uint32_t stamp = 0x6d6f6531U;
  for (const uint32_t value :
       {shape.ranks, shape.top_k, shape.max_tokens, shape.experts, shape.hosts, shape.in_windows})
    stamp = (stamp ^ value) * 0x9e3779b1U;
  return stamp ^ shape.living;
}

// To divide the rows of a call among the warps of a grid, each row is split into 2^send_bits parts for
// sending and into 2^receive_bits parts for receiving. These numbers affect only the speed, and may differ
// between ranks and phases.
struct MoeParts {
  uint32_t send_bits, receive_bits;
};

// The phases of a call. If a dispatch groups rows by expert, it receives ids and weights in kMoeReceive, and
// rows and scales in kMoePlace.
inline constexpr uint32_t kMoeSend = 1, kMoeReceive = 2, kMoePlace = 4;

// How the rows of a dispatch's output are grouped. The values are the same as in verbena_moe_grouping
// (verbena/moe.h).
enum class MoeGrouping : uint32_t {
  kRank = 0,    // [ranks][max_tokens]: each received row once
  kExpert = 1,  // [local experts][ranks * max_tokens]: each received row once for each of its experts
  kRagged = 2,  // the groups of kExpert one after the other, each at a multiple of `alignment` rows
};

// How the scales of a cast to e4m3 (MoeRowCast) are rounded and stored.
enum class MoeScales : uint32_t {
  kFloats = 0,
  kPowers = 1,     // rounded up to powers of two
  kExponents = 2,  // powers of two as UE8M0 exponents, four per word
};

// Arguments of a dispatch.
struct MoeDispatch {
  const void* rows;       // [tokens][row_stride bytes], each row aligned to 16 bytes
  uint64_t row_stride;    // bytes
  uint32_t row_bytes;     // a multiple of 16
  uint32_t scale_bytes;   // size of a row's scales, which are copied unchanged; 0 if there are none
  const void* scales;     // [tokens][scale_stride bytes]
  uint64_t scale_stride;  // bytes
  const void* ids;        // int32 or int64 [tokens][id_stride], of which top_k are used per token
  uint64_t id_stride;     // elements
  const float* weights;   // [tokens][top_k]; if null, all weights are 1
  uint32_t tokens;        // number of this rank's tokens, at most max_tokens
  uint32_t has_long_ids;  // 1 if ids are int64
  void* output;           // [ranks][max_tokens][row_bytes]
  void* output_scales;    // [ranks][max_tokens][scale_bytes]
  char* handle;           // see MoeHandleLayout
  uint32_t phases;        // bits kMoeSend, kMoeReceive, kMoePlace
  MoeParts parts;
  MoeHandleLayout layout;
  // The next three members have an effect only in a cast to e4m3 (MoeRowCast). In a cast, row_bytes and
  // scale_bytes are the sizes of the data in the packets.
  MoeScales scale_format;
  uint32_t output_scale_bytes;  // size of a row's scales in the output
  uint32_t column_rows;         // if not 0, output_scales has columns of this many words of 4 bytes
  MoeGrouping grouping;
  uint32_t output_rows;  // total number of rows of the output
  uint32_t alignment;    // for kRagged: alignment of groups, in rows
  // row_sources and row_experts are written if `grouping` is kExpert or kRagged. Both have output_rows
  // elements; an element is -1 if its row has no token. A pointer is null if the caller does not need the
  // array.
  int32_t* row_sources;  // index [r][t] of the row in the handle's tensors
  int32_t* row_experts;  // the local expert
};

// How a combine adds rows. The values are the same as in verbena_moe_order (verbena/moe.h).
enum class MoeOrder : uint32_t {
  kRows = 0,     // a rank has one row per token, which is already a sum; weights are ignored
  kReduced = 1,  // a rank has one row per expert and token; it sends one sum per token
  kExact = 2,    // a rank has one row per expert and token; the token's rank adds these rows
};

// Arguments of a combine.
struct MoeCombine {
  const void*
      rows;  // kRows: [ranks][max_tokens][hidden]; else [ranks][max_tokens][top_k][hidden], or grouped
  uint32_t row_bytes;  // a multiple of 16
  uint32_t tokens;     // number of tokens in this rank's dispatch
  void* output;        // [tokens][hidden]
  const char* handle;  // handle of this rank's dispatch
  uint32_t phases;
  MoeParts parts;
  MoeHandleLayout layout;
  MoeGrouping grouping;  // grouping of the dispatch; `rows` are grouped like the dispatch's output
  const float* weights;  // for kExact: [tokens][top_k]; if null, the weights of the dispatch are used
};

}  // namespace verbena::device

#endif
