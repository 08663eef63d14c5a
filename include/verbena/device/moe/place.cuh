// Computes where each row of a dispatch is stored if rows are grouped by expert. Rows are ordered by expert,
// then by source rank, then by token. The place of a row is its index in the output. The place is the sum of
// three numbers: the first place of the group of its expert, the number of rows for this expert from lower
// source ranks, and the index of the row among the rows for this expert from its own source rank.
//
// A source rank knows the expert ids of all its tokens, so the source rank computes the third number. The
// source rank sends the third number in one entry for each expert of each token. For each expert, the source
// rank also sends the number of its rows for this expert. From these numbers, each block of the receiver
// computes the places of the rows that the block stores. So a block does not wait for other blocks, and it
// can store a row as soon as the row arrives, in the same kernel.
//
// If the same expert appears twice in the ids of a token, the expert has only one row for the token. Every
// run gives the same bits, because atomic additions are used only for counters.
#ifndef VERBENA_DEVICE_MOE_PLACE_CUH
#define VERBENA_DEVICE_MOE_PLACE_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/moe/row_source.cuh"

namespace verbena::device {

// The counters of a block, in shared memory.
struct MoeGroups {
  static constexpr uint32_t kPairs = 512;  // pairs in a tile
  static_assert(kPairs >= kMoeMaxTopK);

  // During sending, counts[expert] is the number of rows for the expert from tokens before the current tile.
  // After receiving, counts[] has the indices [rank][local expert], and contains the number of rows that
  // lower ranks send to the expert.
  uint32_t counts[kMoeMaxExperts];
  uint32_t totals[kMoeMaxGroups], begins[kMoeMaxGroups];  // number of rows and first place, for each local
                                                          // expert
  uint32_t end;                                           // the place after the last group
  // A pair is a token and one of its top_k ids. The arrays describe the pairs of a tile of tokens. experts[]
  // has the expert of each pair, or -1 if the pair names no expert or if an earlier pair of the token names
  // the same expert. firsts[] has the index of the first pair of the token that names the same expert.
  int32_t experts[kPairs];
  uint32_t firsts[kPairs];
};

// An entry for an expert of a token. An entry is either empty, or contains the local expert and the number of
// the row. If several entries of a token name the same expert, only the first of these entries has kIsFirst,
// so that only one lane stores the row.
struct MoePlaceEntry {
  static constexpr uint32_t kNumberBits = 15, kIsThere = 1U << 31, kIsFirst = 1U << 30;
  static_assert(kMoeMaxTokens <= 1U << kNumberBits && kMoeMaxGroups <= 1U << (30 - kNumberBits));

  VERBENA_DEVICE static uint32_t pack(uint32_t expert, uint32_t number, bool is_first) {
    return kIsThere | (is_first ? kIsFirst : 0) | expert << kNumberBits | number;
  }
  VERBENA_DEVICE static uint32_t expert(uint32_t bits) {
    return (bits & ~(kIsThere | kIsFirst)) >> kNumberBits;
  }
  VERBENA_DEVICE static uint32_t number(uint32_t bits) { return bits & ((1U << kNumberBits) - 1); }
};

// Sends the numbers of rows, and computes the places of received rows. The class has no reference to the
// MoeArea. With such a reference, the compiler would need the address of the object that contains the MoeArea
// and this class, and would keep this object in memory instead of registers.
class MoePlacement {
 public:
  VERBENA_DEVICE MoePlacement(const MoeShape& shape, const MoeDispatch& call)
      : shape_(shape),
        call_(call),
        experts_(shape),
        groups_(find_moe_shared<MoeGroups>()),
        width_bits_(shape.top_k == 1 ? 0
                                     : kWarpLanes - static_cast<uint32_t>(__builtin_clz(shape.top_k - 1))) {}

  // For each expert on this host, sends the number of rows that the source rank has for the expert to the
  // expert's rank. All threads of one block must call it.
  // @param ids     ids of the source rank's tokens: MoeIds or MoeFarIds
  template <typename Ids>
  VERBENA_DEVICE void send_counts(const MoeArea& area, const Ids& ids, uint32_t source,
                                  uint32_t tokens) const {
    clear_counts();
    count(ids, 0, tokens);
    const bool is_quiet = area.has_trouble();
    char* const mine = area.find(shape_.find_counts(area.epoch(), source)).data;
    for (uint32_t rank = 0; rank < shape_.ranks && !is_quiet; ++rank) {
      if (!shape_.is_near(rank)) continue;
      for (uint32_t i = thread_index(); i < shape_.count_entries(); i += threads_per_block()) {
        uint32_t counts[kMoeCountsOfEntry];
        VERBENA_UNROLL
        for (uint32_t c = 0; c < kMoeCountsOfEntry; ++c) {
          const uint32_t expert = i * kMoeCountsOfEntry + c;
          counts[c] =
              expert < shape_.local_experts ? groups_.counts[rank * shape_.local_experts + expert] : 0;
        }
        area.send_entry(mine + i * kMoeEntryBytes, {counts[0] | counts[1] << 16, counts[2]}, rank);
      }
    }
    sync_block();
  }
  // For each row of a source rank and each expert of the row, sends the index of the row among the source
  // rank's rows for this expert. All threads of all blocks must call it. The last two blocks return at once,
  // because they send headers and counts. The blocks handle the tokens in reverse order, because the first
  // blocks also send the first rows.
  template <typename Ids>
  VERBENA_DEVICE void send_places(const MoeArea& area, const Ids& ids, uint32_t source,
                                  uint32_t tokens) const {
    const uint32_t others = blocks_per_grid() > 2 ? 2 : 0, blocks = blocks_per_grid() - others;
    if (block_index() >= blocks) return;
    const uint32_t share = tokens <= blocks ? 1 : moe_divide_up(tokens, blocks);
    const uint32_t begin = (blocks - 1 - block_index()) * share;
    if (begin >= tokens) return;
    const uint32_t end = choose_smaller(begin + share, tokens), tile = MoeGroups::kPairs / shape_.top_k;
    const bool is_quiet = area.has_trouble();
    clear_counts();
    if (begin != 0) count(ids, 0, begin);
    for (uint32_t first = begin; first < end; first += tile) {
      const uint32_t next = choose_smaller(first + tile, end);
      read_tile(ids, first, next);
      const uint32_t k = thread_index() & ((1U << width_bits_) - 1);
      for (uint32_t token = first + (thread_index() >> width_bits_); token < next && k < shape_.top_k;
           token += threads_per_block() >> width_bits_)
        send_pair(area, source, token, k, (token - first) * shape_.top_k + k, is_quiet);
      if (next >= end) break;
      sync_block();
      for (uint32_t pair = thread_index(); pair < tile * shape_.top_k; pair += threads_per_block())
        if (groups_.experts[pair] >= 0) add(groups_.counts + groups_.experts[pair]);
      sync_block();
    }
  }
  // For each expert of this rank, receives from every source rank the number of rows that the source rank has
  // for the expert. All threads of a block must call it.
  VERBENA_DEVICE void receive_counts(MoeArea& area) const {
    const uint32_t entries = shape_.count_entries(), chunks = moe_divide_up(entries, uint32_t{kWarpLanes});
    const uint32_t warps = threads_per_block() / kWarpLanes;
    // The work is divided among the warps beginning with the last warp, because the first warps also receive
    // headers.
    for (uint32_t item = warps - 1 - thread_index() / kWarpLanes; item < chunks * shape_.ranks;
         item += warps) {
      uint32_t rank = 0, chunk = item;
      for (; chunk >= chunks; chunk -= chunks) ++rank;
      const uint32_t i = chunk * kWarpLanes + lane();
      const char* const theirs = area.find(shape_.find_counts(area.epoch(), rank)).data;
      MoeEntry entry{};
      if (i >= entries) continue;
      if (shape_.is_living(rank) && !area.receive_entry(theirs + i * kMoeEntryBytes, rank, entry)) continue;
      const uint32_t counts[kMoeCountsOfEntry] = {entry.bits & 0xffff, entry.bits >> 16, entry.tokens};
      VERBENA_UNROLL
      for (uint32_t c = 0; c < kMoeCountsOfEntry; ++c) {
        const uint32_t expert = i * kMoeCountsOfEntry + c;
        if (expert < shape_.local_experts) groups_.counts[rank * shape_.local_experts + expert] = counts[c];
      }
    }
  }
  // Decides where the groups begin. All threads of a block must call it.
  // @return false if the output has too few rows
  VERBENA_DEVICE bool choose_begins() const {
    const bool is_ragged = call_.grouping == MoeGrouping::kRagged;
    const uint32_t rows = shape_.ranks * shape_.max_tokens;
    for (uint32_t expert = thread_index(); expert < shape_.local_experts; expert += threads_per_block()) {
      uint32_t total = 0;
      for (uint32_t rank = 0; rank < shape_.ranks; ++rank) {
        uint32_t& count = groups_.counts[rank * shape_.local_experts + expert];
        const uint32_t own = count;
        count = total;  // FAULT(places_start_with_this_rank)
        total += own;
      }
      groups_.totals[expert] = total;
      groups_.begins[expert] =
          is_ragged ? moe_divide_up(total, call_.alignment) * call_.alignment : expert * rows;
    }
    if (thread_index() == 0) groups_.end = shape_.local_experts * rows;
    sync_block();
    if (is_ragged) add_up_lengths();
    return groups_.end <= call_.output_rows;
  }
  // Writes the sizes and first places of the groups to the handle, and marks the output rows that have no
  // token. Each block handles one expert at a time.
  VERBENA_DEVICE void write_groups(const MoeMasks& masks) const {
    const MoeHandleLayout& layout = call_.layout;
    for (uint32_t expert = block_index(); expert < shape_.local_experts; expert += blocks_per_grid()) {
      const uint32_t begin = groups_.begins[expert], total = groups_.totals[expert];
      if (thread_index() == 0) {
        store_moe<uint32_t>(call_.handle + layout.expert_counts, expert, total);
        store_moe<uint32_t>(call_.handle + layout.expert_begins, expert, begin);
      }
      const uint32_t end = expert + 1 < shape_.local_experts ? groups_.begins[expert + 1] : groups_.end;
      for (uint32_t row = begin + total + thread_index(); row < end && has_marks();
           row += threads_per_block())
        mark_row(row, -1, -1);
    }
    for (uint32_t row = groups_.end + block_index() * threads_per_block() + thread_index();
         row < call_.output_rows && has_marks(); row += blocks_per_grid() * threads_per_block())
      mark_row(row, -1, -1);
    // Writes -1 as the places of the rows after the last received row.
    const uint32_t top_k = shape_.top_k;
    for (uint32_t source = 0; source < shape_.ranks; ++source) {
      const uint32_t count = masks.counts[source], first = source * shape_.max_tokens + count;
      for (uint32_t i = block_index() * threads_per_block() + thread_index();
           i < (shape_.max_tokens - count) * top_k; i += blocks_per_grid() * threads_per_block())
        store_moe<int32_t>(call_.handle + layout.places, uint64_t{first} * top_k + i, -1);
    }
  }

  // The places of a received row. Lane k has the place for the k-th id. All lanes of a warp must call the
  // functions. The constructor loads the entries. If an entry has not arrived yet, the functions wait for the
  // entry.
  class OfRow {
   public:
    VERBENA_DEVICE OfRow(const MoePlacement& placement, MoeArea& area, uint32_t source, uint32_t token)
        : placement_(placement), area_(area), source_(source) {
      const MoeShape& shape = placement.shape_;
      entry_ = area.find(shape.find_places(area.epoch(), source, token)).data + lane() * kMoeEntryBytes;
      if (lane() < shape.top_k) seen_ = MoeArea::poll_entry(entry_);
    }
    // Calls store(place) for the row's place in each group. Makes no calls if the entries do not arrive.
    template <typename Store>
    VERBENA_DEVICE void for_each(const Store& store) {
      find();
      for (uint32_t left = which_; left != 0; left &= left - 1)
        store(shuffle(kFullWarp, static_cast<uint32_t>(place_), static_cast<int>(find_lowest_moe_bit(left))));
    }
    // Writes the places to the handle.
    // @param row  index of the row in the handle's tensors
    VERBENA_DEVICE void write(uint32_t row) {
      find();
      const MoeShape& shape = placement_.shape_;
      const MoeDispatch& call = placement_.call_;
      if (lane() >= shape.top_k) return;
      store_moe<int32_t>(call.handle + call.layout.places, uint64_t{row} * shape.top_k + lane(), place_);
      if ((which_ >> lane() & 1) != 0)
        placement_.mark_row(static_cast<uint32_t>(place_), static_cast<int32_t>(row), expert_);
    }

   private:
    VERBENA_DEVICE void find() {
      if (is_known_) return;
      is_known_ = true;
      MoeEntry entry{};
      if (lane() < placement_.shape_.top_k && !area_.receive_entry(entry_, source_, entry, seen_))
        entry.bits = 0;
      which_ = ballot(kFullWarp, (entry.bits & MoePlaceEntry::kIsFirst) != 0);
      if ((entry.bits & MoePlaceEntry::kIsThere) == 0) return;
      const MoeGroups& groups = placement_.groups_;
      const uint32_t expert = MoePlaceEntry::expert(entry.bits);
      expert_ = static_cast<int32_t>(expert);
      place_ = static_cast<int32_t>(groups.begins[expert] +
                                    groups.counts[source_ * placement_.shape_.local_experts + expert] +
                                    MoePlaceEntry::number(entry.bits));
    }

    const MoePlacement& placement_;
    MoeArea& area_;
    const uint32_t source_;
    const char* entry_;
    uint64_t seen_ = 0;
    bool is_known_ = false;
    uint32_t which_ = 0;  // bits of the lanes at whose places the row is stored
    int32_t place_ = -1, expert_ = -1;
  };

 private:
  static constexpr uint32_t kAtOnce = 4;  // ids that a thread loads at a time

  VERBENA_DEVICE static uint32_t choose_smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }
  VERBENA_DEVICE static void add(uint32_t* count) { reduce_add<Order::kRelaxed, Scope::kBlock>(count, 1U); }
  VERBENA_DEVICE void clear_counts() const {
    for (uint32_t expert = thread_index(); expert < shape_.experts; expert += threads_per_block())
      store_relaxed<Scope::kBlock>(groups_.counts + expert, 0);
    sync_block();
  }
  // Calls use(token, k, expert, first) for each id of the tokens `begin` to `end` - 1, with one lane per id.
  // `expert` is -1 if the id names no expert. `first` is the smallest k for which the token has this expert.
  template <typename Ids, typename Use>
  VERBENA_DEVICE void for_each_id(const Ids& ids, uint32_t begin, uint32_t end, const Use& use) const {
    const uint32_t width = 1U << width_bits_, tokens = kWarpLanes >> width_bits_;
    const uint32_t k = lane() & (width - 1), step = threads_per_block() >> width_bits_;
    for (uint32_t base = begin + thread_index() / kWarpLanes * tokens; base < end; base += kAtOnce * step) {
      int32_t experts[kAtOnce];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const uint32_t token = base + i * step + (lane() >> width_bits_);
        experts[i] = token < end && k < shape_.top_k ? ids.load(token, k) : -1;
      }
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (base + i * step >= end) break;
        uint32_t first = k;
        for (uint32_t earlier = width; earlier-- > 0;) {
          const auto from = static_cast<int>((lane() & ~(width - 1)) + earlier);
          const auto other =
              static_cast<int32_t>(shuffle(kFullWarp, static_cast<uint32_t>(experts[i]), from));
          if (earlier < k && other == experts[i]) first = earlier;
        }
        const uint32_t token = base + i * step + (lane() >> width_bits_);
        if (token < end && k < shape_.top_k) use(token, k, experts[i], first);
      }
    }
  }
  // For each expert, counts the rows of the tokens `begin` to `end` - 1.
  template <typename Ids>
  VERBENA_DEVICE void count(const Ids& ids, uint32_t begin, uint32_t end) const {
    for_each_id(ids, begin, end, [&](uint32_t, uint32_t k, int32_t expert, uint32_t first) {
      if (expert >= 0 && first == k) add(groups_.counts + expert);  // FAULT(repeated_experts_count_twice)
    });
    sync_block();
  }
  template <typename Ids>
  VERBENA_DEVICE void read_tile(const Ids& ids, uint32_t begin, uint32_t end) const {
    for_each_id(ids, begin, end, [&](uint32_t token, uint32_t k, int32_t expert, uint32_t first) {
      const uint32_t pair = (token - begin) * shape_.top_k + k;
      groups_.experts[pair] = first == k ? expert : -1;
      groups_.firsts[pair] = pair - k + first;
    });
    sync_block();
  }
  // Sends a pair's entry to the rank of the pair's expert, and an empty entry to all other ranks of this
  // host.
  VERBENA_DEVICE void send_pair(const MoeArea& area, uint32_t source, uint32_t token, uint32_t k,
                                uint32_t pair, bool is_quiet) const {
    const uint32_t first = groups_.firsts[pair];  // the first pair of the token that names the expert
    const int32_t expert = groups_.experts[first];
    const uint32_t of_rank = experts_.find_rank(expert);
    uint32_t bits = 0;
    if (expert >= 0) {
      uint32_t number = groups_.counts[expert];
      for (uint32_t earlier = 0; earlier < first; ++earlier)
        number += groups_.experts[earlier] == expert ? 1 : 0;
      bits = MoePlaceEntry::pack(static_cast<uint32_t>(expert) - of_rank * shape_.local_experts, number,
                                 first == pair);
    }
    char* const mine = area.find(shape_.find_places(area.epoch(), source, token)).data + k * kMoeEntryBytes;
    for (uint32_t rank = 0; rank < shape_.ranks && !is_quiet; ++rank)
      if (shape_.is_near(rank)) area.send_entry(mine, {rank == of_rank ? bits : 0, 0}, rank);
  }
  // Computes the first place of each group from the lengths of the groups. Only the first warp does this, and
  // each lane handles adjacent experts.
  VERBENA_DEVICE void add_up_lengths() const {
    if (thread_index() < kWarpLanes) {
      const uint32_t share = moe_divide_up(shape_.local_experts, uint32_t{kWarpLanes});
      const uint32_t from = choose_smaller(lane() * share, shape_.local_experts);
      const uint32_t to = choose_smaller(from + share, shape_.local_experts);
      uint32_t own = 0;
      for (uint32_t expert = from; expert < to; ++expert) own += groups_.begins[expert];
      const uint32_t sum = add_up_moe_lanes(own);
      uint32_t begin = sum - own;
      for (uint32_t expert = from; expert < to; ++expert) {
        const uint32_t length = groups_.begins[expert];
        groups_.begins[expert] = begin;
        begin += length;
      }
      if (lane() == kWarpLanes - 1) groups_.end = sum;
    }
    sync_block();
  }
  VERBENA_DEVICE bool has_marks() const {
    return call_.row_sources != nullptr || call_.row_experts != nullptr;
  }
  VERBENA_DEVICE void mark_row(uint32_t row, int32_t source, int32_t expert) const {
    if (call_.row_sources != nullptr) store_moe<int32_t>(call_.row_sources, row, source);
    if (call_.row_experts != nullptr) store_moe<int32_t>(call_.row_experts, row, expert);
  }

  const MoeShape& shape_;
  const MoeDispatch& call_;
  const MoeExperts experts_;
  MoeGroups& groups_;
  const uint32_t width_bits_;  // 2^width_bits_ lanes handle the ids of a token
};

// Replaces MoePlacement in a dispatch that does not group rows, and needs no shared memory.
struct MoeNoPlacement {
  VERBENA_DEVICE MoeNoPlacement(const MoeShape&, const MoeDispatch&) {}
};
template <bool kIsGrouped>
struct MoePlacementOf {
  using Type = MoePlacement;
};
template <>
struct MoePlacementOf<false> {
  using Type = MoeNoPlacement;
};

}  // namespace verbena::device

#endif
