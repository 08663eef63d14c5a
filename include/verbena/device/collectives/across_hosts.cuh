// All-reduce, reduce-scatter, all-gather and broadcast for teams on several hosts, with the same number of
// ranks on each host. Ranks of the same host reach each other by loads and stores. Ranks of different hosts
// reach each other through NICs.
//
//   AcrossHosts<> calls(team_workspace, host_workspace, places, block_index(), blocks);
//   status = calls.all_reduce(input, output, length_bytes, ReduceAny{...});
//   status = calls.finish();
//
// The counterparts of a rank are the ranks with the same index on the other hosts.
//
// The blocks of a cluster can share one part of a call. They then pass the index and the number of clusters
// in place of `block_index()` and `blocks`, and a ClusterGroup to each function. NICs carry a few long chunks
// faster than many short chunks, but a few blocks copy and add more slowly than many blocks.
//
// An all-reduce runs bulk.cuh's all-reduce within each host, with one additional step. The rank that sums a
// share of a chunk over the ranks of its host sends this host sum to its counterparts, and adds the host sums
// that it receives from the counterparts. So the NIC of a rank sends only one share of the tensor to each
// other host. Each host adds its addends in rank order. Then the host sums are added in the order of hosts,
// and the result is rounded once. So all hosts get the same bits.
//
// Host sums are sent unrounded, in the narrowest type that represents them exactly. Minima and maxima, and
// the sums of a host with only one rank, have the type of the tensor; all other sums take 4 bytes per
// element. all_reduce_quantised() encodes the host sums. Each rank decodes the bytes of all hosts, including
// its own host, so an element is quantised once per host. Nothing is quantised within a host.
//
// all_reduce_lossless(), and the other functions with Wire::kLossless, use codec_lossless.cuh to encode the
// data that NICs carry. These functions encode bfloat16 elements, and sums of bfloat16 or half elements with
// 4 bytes per element. All other elements are sent unencoded. Every result has the same bits as without the
// codec. The length of each put depends on the data. The receiver does not need to know this length in
// advance, because the data contains the headers of the tiles, and a flag follows the data.
//
// The host sums of a chunk are stored in slots of the team's workspace. NICs read this rank's sums from the
// rank's own slot, and write the sums, followed by a flag, to the counterparts' slots. Slots and chunk
// numbers are the same as in bulk.cuh. Every rank takes part in every chunk, even if its share is empty. A
// rank sends chunk s before it receives chunk s-1, so a NIC carries one chunk while the rank adds another
// chunk. When a rank sends chunk s, it has received chunk s-2 from all counterparts. The counterparts sent
// chunk s-2 after they had received and added chunk s-4. So no rank still uses the slot of chunk s-4, which
// chunk s overwrites.
//
// A flag is needed to show that a chunk has arrived. After a failure, a NIC may write a chunk again, even
// after the receiver has added the chunk. Therefore the data alone does not show whether the next chunk has
// arrived. Only the number in the flag distinguishes the next chunk from an earlier chunk.
//
// In a reduce-scatter, a rank handles the hosts one after the other. For each host, the rank sums the addends
// that the ranks of its own host have for its counterpart on that host. A NIC sends these sums to the
// counterpart. Sums for other hosts are staged in the upper half of this rank's slot for the counterpart, as
// in an exchange (bulk.cuh).
//
// In an all-gather, a rank sends its message over NICs only to its counterparts. When the messages of the
// counterparts have arrived in the output, the ranks of each host exchange these messages within the host. A
// broadcast is an all-gather of a single message.
//
// Timeouts: a rank may wait for a rank that itself waits for a late rank. The ranks on the host of the late
// rank should be the first to report a timeout, so that the error names the late rank. Therefore the host's
// workspace has a shorter timeout than the team's workspace.
#ifndef VERBENA_DEVICE_COLLECTIVES_ACROSS_HOSTS_CUH
#define VERBENA_DEVICE_COLLECTIVES_ACROSS_HOSTS_CUH

#include "verbena/device/collectives/bulk.cuh"
#include "verbena/device/collectives/codec.cuh"

namespace verbena::device {

// The ranks of each host.
struct HostPlaces {
  uint32_t hosts;
  const uint8_t* members;  // [hosts][ranks per host]: team ranks
};

// @tparam Reduce  ReduceAny, or ReduceFloats for all_reduce_quantised()
template <typename Reduce = ReduceAny>
class AcrossHosts {
 public:
  // The other parameters are the same as in Bulk's constructor.
  // @param team, host  workspaces of the team and of the ranks on this host, each with at least `blocks`
  //                    blocks
  VERBENA_DEVICE AcrossHosts(const SymmWorkspace<>& team, const SymmWorkspace<>& host,
                             const HostPlaces& places, uint32_t block, uint32_t blocks,
                             uint32_t chunk_bytes = 0)
      : team_(team),
        context_(team.context),
        blocks_(team.blocks),
        host_(host.context),
        places_(places),
        block_(block),
        count_blocks_(blocks),
        chunk_bytes_(chunk_bytes),
        calls_(host, block, blocks, chunk_bytes) {
    if (block >= blocks || blocks > blocks_.count || blocks_.slot_bytes <= kSymmSlotUnit)
      status_ = SymmStatus::kInvalid;
  }

  // Writes the reduction of all ranks' `input` to `output`, which may be `input` itself.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce(const char* input, char* output, uint64_t length_bytes,
                                                     const Reduce& reduce, const Group& group = {}) {
    if (status_ != SymmStatus::kDone) return status_;
    if (!load_number(group)) return status_;
    const HostSums codec{{reduce}, *this};
    const SymmStatus status = calls_.all_reduce(input, output, length_bytes, codec, group);
    if (status_ == SymmStatus::kDone) take_status(status, group);
    return status_;
  }
  // Does the same as all_reduce(). If the host sums can be encoded, sends fewer bytes between hosts.
  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_lossless(const char* input, char* output,
                                                              uint64_t length_bytes, const Reduce& reduce,
                                                              const Group& group = {}) {
    const uint32_t element_bytes = find_coded_bytes(reduce);
    if (element_bytes == 0) return all_reduce(input, output, length_bytes, reduce, group);
    if (status_ != SymmStatus::kDone) return status_;
    if (!load_number(group)) return status_;
    const SymmStatus status =
        element_bytes == 2
            ? calls_.all_reduce(input, output, length_bytes, LosslessHostSums<2>{{reduce}, *this}, group)
            : calls_.all_reduce(input, output, length_bytes, LosslessHostSums<4>{{reduce}, *this}, group);
    if (status_ == SymmStatus::kDone) take_status(status, group);
    return status_;
  }
  // Writes the quantised sum of all ranks' `input` to `output`. Elements are bfloat16 or half.
  template <typename Codec, typename Rounding = RoundToNearest, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus all_reduce_quantised(const char* input, char* output,
                                                               uint64_t length_bytes, const Reduce& reduce,
                                                               const Rounding& rounding = {},
                                                               const Group& group = {}) {
    if (status_ != SymmStatus::kDone) return status_;
    if (!load_number(group)) return status_;
    const CodedHostSums<Codec, Rounding> codec{{reduce}, *this, rounding};
    const SymmStatus status = calls_.all_reduce(input, output, length_bytes, codec, group);
    if (status_ == SymmStatus::kDone) take_status(status, group);
    return status_;
  }

  // Sends each member's message to all ranks.
  // @param plan  the plan of Bulk::exchange()
  // @param root  if 0 or more, only the message of rank `root` is sent
  template <Wire kWire = Wire::kPlain, typename Plan, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus gather(const Plan& plan, uint64_t max_bytes, int32_t root = -1,
                                                 const Group& group = {}) {
    if (status_ != SymmStatus::kDone) return status_;
    // Saves the chunk number, because the object `far` continues the numbers of earlier calls.
    if (number_ != 0) {
      store_number(group);
      group.sync();
    }
    const auto ranks = static_cast<uint32_t>(host_.team_size);
    const BulkMembers counterparts{places_.members + host_.team_rank, places_.hosts, ranks};
    Bulk<SymmContext, true> far(team_, block_, count_blocks_, chunk_bytes_, {}, counterparts);
    (void)far.template exchange<kWire, Payload::kShared>(plan, max_bytes, group);
    status_ = far.finish(group);
    if (status_ == SymmStatus::kTimedOut) end_host(group);
    group.sync();  // all threads must see the number that finish() has stored
    const uint32_t hosts = host_.team_size == 1 ? 0 : places_.hosts;
    for (uint32_t host = 0; host < hosts && status_ == SymmStatus::kDone; ++host) {
      if (root >= 0 && !is_in_host(root, host)) continue;
      // Every rank of this host has received the message of its counterpart on `host`. Now these ranks
      // exchange the messages.
      const auto spread = [&](int32_t neighbour) {
        const auto mine = plan(find_member(host, host_.team_rank)),
                   theirs = plan(find_member(host, neighbour));
        return ExchangeEntry{mine.destination, theirs.destination, mine.receive, theirs.receive};
      };
      take_status(calls_.exchange(spread, max_bytes, group), group);
    }
    return status_;
  }

  // Does the same as Bulk::exchange_reduce(), but across hosts. Each rank must know the lengths of all
  // messages.
  template <Wire kWire = Wire::kPlain, typename Plan, typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus reduce_scatter(const Plan& plan, uint64_t max_bytes,
                                                         const Reduce& reduce, const Group& group = {}) {
    if constexpr (kWire == Wire::kLossless) {
      const uint32_t element_bytes = find_coded_bytes(reduce);
      if (element_bytes == 2) return reduce_rounds<2>(plan, max_bytes, reduce, group);
      if (element_bytes == 4) return reduce_rounds<4>(plan, max_bytes, reduce, group);
    }
    return reduce_rounds<0>(plan, max_bytes, reduce, group);
  }

  template <typename Group = BlockGroup>
  [[nodiscard]] VERBENA_DEVICE SymmStatus finish(const Group& group = {}) {
    if (status_ == SymmStatus::kDone) status_ = calls_.finish(group);
    if (status_ == SymmStatus::kDone && number_ != 0) store_number(group);
    return status_;
  }

 private:
  using Sums = typename Reduce::template Sums<Vector16>;
  struct Words {
    uint32_t of[kVectorBytes / sizeof(uint32_t)];
  };
  static constexpr uint32_t kWords = kVectorBytes / sizeof(uint32_t);  // words per vector
  static constexpr uint32_t kMaxVectors = sizeof(Sums) / kVectorBytes;
  static constexpr uint32_t kHostsAtOnce = 4;  // number of hosts whose data a thread loads at the same time

  // The codec that Bulk uses within the host for all_reduce().
  struct HostSums : PlainCodec<Reduce> {
    AcrossHosts& calls;

    VERBENA_DEVICE HostSums(const PlainCodec<Reduce>& plain, AcrossHosts& all)
        : PlainCodec<Reduce>(plain), calls(all) {}
    static constexpr uint32_t kLag = 1;
    VERBENA_DEVICE uint32_t fit_bytes(uint32_t data_bytes) const {
      const uint64_t there =
          (calls.blocks_.slot_bytes - kSymmSlotUnit) / kVectorBytes / calls.count_vectors(this->reduce);
      const uint32_t here = PlainCodec<Reduce>::fit_bytes(data_bytes);
      return there * kVectorBytes < here ? static_cast<uint32_t>(there) * kVectorBytes : here;
    }
    template <typename Group>
    VERBENA_DEVICE SymmStatus begin_reduce(const BulkChunk& addends, const Group& group) const {
      return calls.send_sums(addends, this->reduce, group);
    }
    template <int kRanks, typename Group>
    VERBENA_DEVICE SymmStatus reduce_addends(const BulkChunk& addends, const BulkChunk& sums,
                                             const Group& group) const {
      return calls.receive_sums(addends, sums, this->reduce, group);
    }
  };
  // The codec that Bulk uses for all_reduce_quantised(). Chunks consist of whole tiles.
  template <typename Codec, typename Rounding>
  struct CodedHostSums : PlainCodec<Reduce> {
    AcrossHosts& calls;
    Rounding rounding;

    VERBENA_DEVICE CodedHostSums(const PlainCodec<Reduce>& plain, AcrossHosts& all, const Rounding& chosen)
        : PlainCodec<Reduce>(plain), calls(all), rounding(chosen) {}
    static constexpr uint32_t kLag = 1;
    VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kTileBytes; }
    VERBENA_DEVICE uint32_t fit_bytes(uint32_t data_bytes) const {
      const uint64_t there = (calls.blocks_.slot_bytes - kSymmSlotUnit) / CodedTiles<Codec>::kBytes;
      const uint32_t here = data_bytes / kTileBytes;
      return (there < here ? static_cast<uint32_t>(there) : here) * kTileBytes;
    }
    template <typename Group>
    VERBENA_DEVICE SymmStatus begin_reduce(const BulkChunk& addends, const Group& group) const {
      return calls.template send_quantised<Codec>(addends, this->reduce, rounding, group);
    }
    template <int kRanks, typename Group>
    VERBENA_DEVICE SymmStatus reduce_addends(const BulkChunk& addends, const BulkChunk& sums,
                                             const Group& group) const {
      return calls.template receive_quantised<Codec>(addends, sums, this->reduce, group);
    }
  };

  // The codec that Bulk uses for all_reduce_lossless(). Chunks consist of whole tiles. Host sums are sent as
  // elements of kBytes bytes, which are bfloat16 or float.
  template <uint32_t kBytes>
  struct LosslessHostSums : PlainCodec<Reduce> {
    AcrossHosts& calls;

    VERBENA_DEVICE LosslessHostSums(const PlainCodec<Reduce>& plain, AcrossHosts& all)
        : PlainCodec<Reduce>(plain), calls(all) {}
    static constexpr uint32_t kLag = 1;
    VERBENA_HOST_DEVICE static constexpr uint32_t unit_bytes() { return kTileBytes; }
    VERBENA_DEVICE uint32_t fit_bytes(uint32_t data_bytes) const {
      const uint32_t there =
          LosslessTiles<kBytes>::fit_chunk(calls.blocks_.slot_bytes - kSymmSlotUnit) / kTileElements;
      const uint32_t here = data_bytes / unit_bytes();
      return (there < here ? there : here) * unit_bytes();
    }
    template <typename Group>
    VERBENA_DEVICE SymmStatus begin_reduce(const BulkChunk& addends, const Group& group) const {
      return calls.template send_lossless<kBytes>(addends, this->reduce, group);
    }
    template <int kRanks, typename Group>
    VERBENA_DEVICE SymmStatus reduce_addends(const BulkChunk& addends, const BulkChunk& sums,
                                             const Group& group) const {
      return calls.template receive_lossless<kBytes>(addends, sums, this->reduce, group);
    }
  };

  template <typename Group>
  VERBENA_DEVICE bool load_number(const Group& group) {
    if (number_ == 0) {
      number_ = due_ = load_relaxed<Scope::kGpu>(blocks_.epochs + block_) + 1;
      status_ = detail::begin_in_step(context_, group);
      if (status_ == SymmStatus::kTimedOut) end_host(group);
    }
    return status_ == SymmStatus::kDone;
  }
  template <typename Group>
  VERBENA_DEVICE void store_number(const Group& group) {
    if (group.elect()) store_relaxed<Scope::kGpu>(blocks_.epochs + block_, number_ - 1);
    number_ = 0;
  }

  VERBENA_DEVICE int32_t find_member(uint32_t host, int32_t number) const {
    return places_.members[host * static_cast<uint32_t>(host_.team_size) + static_cast<uint32_t>(number)];
  }
  VERBENA_DEVICE bool is_in_host(int32_t member, uint32_t host) const {
    for (int32_t number = 0; number < host_.team_size; ++number)
      if (find_member(host, number) == member) return true;
    return false;
  }

  // Returns how many vectors the host sums for one vector of elements occupy. If the result is 1, host sums
  // have the type of the tensor.
  VERBENA_DEVICE uint32_t count_vectors(const Reduce& reduce) const {
    // FAULT(elements_travel_as_sums)
    const bool is_an_element = host_.team_size == 1 || reduce.reduction >= Reduction::kMin;
    return is_an_element ? 1 : reduce.template count_words<Vector16>() / kWords;
  }
  // Returns the size, in bytes, of the elements in which the lossless codec encodes host sums. Returns 0 if
  // the codec cannot encode host sums.
  VERBENA_DEVICE uint32_t find_coded_bytes(const Reduce& reduce) const {
    if (reduce.type != DataType::kBfloat16 && reduce.type != DataType::kFloat16) return 0;
    if (count_vectors(reduce) != 1) return 4;
    return reduce.type == DataType::kBfloat16 ? 2 : 0;
  }
  VERBENA_DEVICE char* find_slot(uint64_t number, int32_t source) const {
    const auto size = static_cast<uint64_t>(context_.team_size);
    const uint64_t copy = block_ * uint64_t{kSymmTurns} + number % kSymmTurns;
    return blocks_.slots + (copy * size + static_cast<uint64_t>(source)) * blocks_.slot_bytes;
  }
  VERBENA_DEVICE uint64_t* find_flag(uint64_t number, int32_t source) const {
    return reinterpret_cast<uint64_t*>(find_slot(number, source) + blocks_.slot_bytes - kSymmSlotUnit);
  }

  VERBENA_DEVICE uint64_t half_bytes() const {
    return (blocks_.slot_bytes - kSymmSlotUnit) / 2 / kSymmSlotUnit * kSymmSlotUnit;
  }
  VERBENA_DEVICE uint64_t quarter_bytes() const { return half_bytes() / 2 / kVectorBytes * kVectorBytes; }
  // Returns the address at which reduce_rounds<kBytes>() stores the unencoded sums for a host. The sums for
  // this rank's own host are never encoded.
  template <uint32_t kBytes>
  VERBENA_DEVICE char* find_plain_sums(uint64_t number, uint32_t host) const {
    const bool is_own = find_member(host, host_.team_rank) == context_.team_rank;
    return find_sums(number, host) + (kBytes == 0 || is_own ? 0 : quarter_bytes());
  }
  // Returns the address of the host sums for this rank's counterpart on `host`.
  VERBENA_DEVICE char* find_sums(uint64_t number, uint32_t host) const {
    const int32_t peer = find_member(host, host_.team_rank);
    return find_slot(number, peer) + (peer == context_.team_rank ? 0 : half_bytes());
  }

  // A round of a reduce-scatter. The round handles `most` bytes of each message, starting at offset `at`.
  struct ReduceRound {
    uint64_t number, at, most;

    VERBENA_DEVICE Part cut(const Part& part) const {
      return Part{part.begin + at, detail::cut_round(part, at, most)};
    }
  };
  // @tparam kBytes  size of the elements to encode; 0 if sums are sent unencoded
  template <uint32_t kBytes, typename Plan, typename Group>
  VERBENA_DEVICE SymmStatus reduce_rounds(const Plan& plan, uint64_t max_bytes, const Reduce& reduce,
                                          const Group& group) {
    if (status_ != SymmStatus::kDone) return status_;
    if (!load_number(group)) return status_;
    uint64_t most = half_bytes() / (kVectorBytes * count_vectors(reduce)) * kVectorBytes;
    if constexpr (kBytes != 0) most = LosslessTiles<kBytes>::fit_chunk(quarter_bytes()) * sizeof(Bfloat16);
    if (most == 0) status_ = SymmStatus::kInvalid;
    if (status_ != SymmStatus::kDone) return status_;
    most = detail::even_rounds(max_bytes, most, kBytes == 0 ? kVectorBytes : kTileBytes);
    const uint64_t rounds = (max_bytes + most - 1) / most;
    const auto at = [&](uint64_t round) {
      const uint64_t left = max_bytes - round * most;
      return ReduceRound{number_ + round, round * most, left < most ? left : most};
    };
    for (uint64_t step = 0; step < rounds + 1 && rounds != 0; ++step) {
      if (step < rounds && !send_round<kBytes>(plan, at(step), reduce, group)) return status_;
      if (step != 0 && !receive_round<kBytes>(plan, at(step - 1), reduce, group)) return status_;
    }
    number_ += rounds;
    due_ = number_;
    return status_;
  }
  // Reduces a part of the messages within the host, and sends the sums to the counterparts. Sums that are to
  // be encoded are first stored in the same half of the slot, after the memory for the encoded sums.
  template <uint32_t kBytes, typename Plan, typename Group>
  VERBENA_DEVICE bool send_round(const Plan& plan, const ReduceRound& round, const Reduce& reduce,
                                 const Group& group) {
    const uint32_t vectors = count_vectors(reduce);
    const auto own = plan(context_.team_rank);
    // FAULT(reduce_in_place_reads_beside)
    const bool is_in_place = own.source.find(0) == own.destination.find(0);
    const auto cut = [&](const Part& part) { return round.cut(part); };
    for (uint32_t host = 0; host < places_.hosts; ++host) {
      const auto sent = plan(find_member(host, host_.team_rank));
      const Part mine = cut(sent.send);
      char* const to = find_plain_sums<kBytes>(round.number, host);
      if (host_.team_size == 1) {
        detail::copy_rows(group, Rows::contiguous(to), sent.source.from(mine.begin), mine.length_bytes,
                          is_in_place);
        continue;
      }
      const auto addends = [&](int32_t neighbour) {
        const auto entry = plan(find_member(host, neighbour));
        return ExchangeEntry{entry.source, is_in_place ? entry.source : own.destination, cut(entry.send),
                             mine};
      };
      take_status(calls_.exchange_sums(
                      addends, round.most, reduce,
                      [&](uint64_t offset, Sums& sums) {
                        for_vectors(sums, vectors, reduce, [&](uint32_t i, const Vector16& vector) {
                          detail::store_data(to + offset * vectors + i * kVectorBytes, vector);
                        });
                      },
                      group),
                  group);
      if (status_ != SymmStatus::kDone) return false;
    }
    const auto measure = [&](uint32_t host) {
      return measure_sums(cut(plan(find_member(host, host_.team_rank)).send).length_bytes, vectors);
    };
    if constexpr (kBytes != 0) encode_round<kBytes>(round.number, measure, group);
    return send_chunk(
        round.number,
        [&](uint32_t host) {
          char* const here = find_sums(round.number, host);
          uint64_t length = measure(host);
          if constexpr (kBytes != 0) {
            if (length != 0)
              length = LosslessTiles<kBytes>(here, static_cast<uint32_t>(length / kBytes)).length_bytes();
          }
          return Sending{here, length};
        },
        group);
  }
  // Encodes the sums for all other hosts. Each warp encodes one tile at a time.
  template <uint32_t kBytes, typename Measure, typename Group>
  VERBENA_DEVICE void encode_round(uint64_t number, const Measure& measure, const Group& group) const {
    const auto for_others = [&](const auto& visit) {
      for (uint32_t host = 0; host < places_.hosts; ++host) {
        if (find_member(host, host_.team_rank) == context_.team_rank) continue;
        const auto length = static_cast<uint32_t>(measure(host));
        visit(LosslessTiles<kBytes>(find_sums(number, host), length / kBytes),
              static_cast<const char*>(find_plain_sums<kBytes>(number, host)), length);
      }
    };
    for_others([&](const auto& message, const char*, uint32_t) { message.begin(group); });
    group.sync();
    for_others([&](const auto& message, const char* from, uint32_t length) {
      for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles();
           tile += group.size() / kWarpLanes) {
        TileWords words;
        load_tile_words<kBytes>(from, tile, length, words);
        message.store(tile, words);
      }
    });
  }
  // Receives the host sums of the counterparts, and adds the sums of all hosts.
  template <uint32_t kBytes, typename Plan, typename Group>
  VERBENA_DEVICE bool receive_round(const Plan& plan, const ReduceRound& round, const Reduce& reduce,
                                    const Group& group) {
    if (!await_chunk(round.number, group)) return false;
    const uint32_t vectors = count_vectors(reduce);
    const auto own = plan(context_.team_rank);
    const Part part = round.cut(own.receive);
    const Rows to = own.destination.from(part.begin);
    const bool is_flat = to.is_contiguous();
    const auto length = static_cast<uint32_t>(part.length_bytes);
    const auto store = [&](uint32_t offset, const Vector16& result) {
      if (is_flat) {
        detail::store_vector(to.find(0), offset, length, result);
      } else {
        detail::store_vector(to, offset, length, result);
      }
    };
    if constexpr (kBytes != 0) {
      add_tiles<kBytes>(round.number, length, true, reduce, store, group);
    } else {
      add_chunk(round.number, length, vectors, reduce, store, group);
    }
    group.sync();
    return true;
  }

  // Reduces a chunk within the host, and sends the sums to the counterparts.
  template <typename Group>
  VERBENA_DEVICE SymmStatus send_sums(const BulkChunk& addends, const Reduce& reduce, const Group& group) {
    const uint64_t number = number_++;
    const uint32_t length = addends.length(host_.team_rank), vectors = count_vectors(reduce);
    const char* const input = addends.input + addends.begin(host_.team_rank);
    char* const own = find_slot(number, context_.team_rank);
    if (host_.team_size == 1) {
      detail::move_vectors(
          group, 1, (length + kVectorBytes - 1) / kVectorBytes,
          [&](uint32_t, uint32_t offset) { return detail::load_vector(input, offset, length); },
          [&](uint32_t, uint32_t offset, const Vector16& vector) {
            detail::store_data(own + offset, vector);
          });
    } else {
      for (uint32_t offset = group.rank() * kVectorBytes; offset < length;
           offset += group.size() * kVectorBytes) {
        Sums sums = add_host(addends, input, offset, length, reduce);
        for_vectors(sums, vectors, reduce, [&](uint32_t i, const Vector16& vector) {
          detail::store_data(own + uint64_t{offset} * vectors + i * kVectorBytes, vector);
        });
      }
    }
    (void)send_chunk(
        number,
        [&](uint32_t) {
          return Sending{own, measure_sums(length, vectors)};
        },
        group);
    return status_;
  }
  // Receives the counterparts' host sums of a chunk, adds the sums of all hosts, and sends the result to the
  // ranks of this host.
  template <typename Group>
  VERBENA_DEVICE SymmStatus receive_sums(const BulkChunk& addends, const BulkChunk& sums,
                                         const Reduce& reduce, const Group& group) {
    const uint64_t number = due_++;
    if (!await_chunk(number, group)) return status_;
    const uint32_t length = addends.length(host_.team_rank), vectors = count_vectors(reduce);
    char* const output = addends.output + addends.begin(host_.team_rank);
    add_chunk(
        number, length, vectors, reduce,
        [&](uint32_t offset, const Vector16& result) { send_result(sums, output, offset, length, result); },
        group);
    return SymmStatus::kDone;
  }

  // Stores a vector of the result in the output, and sends the vector to the other ranks of this host.
  VERBENA_DEVICE static void send_result(const BulkChunk& sums, char* output, uint32_t offset,
                                         uint32_t length, const Vector16& result) {
    for (uint32_t turn = 0; turn < sums.count_peers(); ++turn)
      detail::store_data(sums.slot_at(sums.find_peer(turn)) + offset, result);
    detail::store_vector(output, offset, length, result);
  }

  // The following two functions replace send_sums() and receive_sums() if host sums are quantised. Each warp
  // encodes one tile at a time.
  template <typename Codec, typename Rounding, typename Group>
  VERBENA_DEVICE SymmStatus send_quantised(const BulkChunk& addends, const Reduce& reduce,
                                           const Rounding& rounding, const Group& group) {
    static_assert(kRowBytes == kTileBytes / kTileRows);
    const uint64_t number = number_++;
    const uint32_t length = addends.length(host_.team_rank);
    const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes;
    const uint32_t first = group.rank() / kWarpLanes, warps = group.size() / kWarpLanes;
    const uint32_t lane_offset = lane() * kVectorBytes;
    const char* const input = addends.input + addends.begin(host_.team_rank);
    char* const own = find_slot(number, context_.team_rank);
    // For stochastic rounding, each rank, block, chunk and tile has a different random sequence.
    const uint64_t sender = (number << 8 | static_cast<uint64_t>(context_.team_rank)) << 16 | block_;
    for (uint32_t tile = first; tile < tiles; tile += warps) {
      TileElements numbers{};
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        const uint32_t offset = tile * kTileBytes + row * kRowBytes + lane_offset;
        if (offset >= length) continue;
        const Sums host = add_host(addends, input, offset, length, reduce);
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i) numbers.of[row][i] = detail::from_bits(host.words[i]);
      }
      const uint32_t left = (length - tile * kTileBytes) / static_cast<uint32_t>(sizeof(Bfloat16));
      if (left < kTileElements) detail::fill_tile(numbers, left);
      CodedTiles<Codec>(own, tiles)
          .store(tile, Codec::encode(numbers, rounding.in_tile(sender << 16 | tile)));
    }
    const auto find = [&](uint32_t) { return Sending{own, uint64_t{tiles} * CodedTiles<Codec>::kBytes}; };
    (void)send_chunk(number, find, group);
    return status_;
  }
  template <typename Codec, typename Group>
  VERBENA_DEVICE SymmStatus receive_quantised(const BulkChunk& addends, const BulkChunk& sums,
                                              const Reduce& reduce, const Group& group) {
    const uint64_t number = due_++;
    if (!await_chunk(number, group)) return status_;
    const uint32_t length = addends.length(host_.team_rank);
    const uint32_t tiles = (length + kTileBytes - 1) / kTileBytes;
    const uint32_t first = group.rank() / kWarpLanes, warps = group.size() / kWarpLanes;
    const uint32_t lane_offset = lane() * kVectorBytes;
    char* const output = addends.output + addends.begin(host_.team_rank);
    for (uint32_t tile = first; tile < tiles; tile += warps) {
      TileElements numbers;
      VERBENA_UNROLL_BY(1)
      for (uint32_t host = 0; host < places_.hosts; ++host) {
        const char* const from = find_slot(number, find_member(host, host_.team_rank));
        const auto coded = CodedTiles<Codec, const char>(from, tiles).load(tile);
        VERBENA_UNROLL
        for (uint32_t row = 0; row < kTileRows; ++row) {
          float unit[kUnitElements];
          Codec::decode_row(coded, row, unit);
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kUnitElements; ++i)
            numbers.of[row][i] = host == 0 ? unit[i] : detail::add(numbers.of[row][i], unit[i]);
        }
      }
      VERBENA_UNROLL
      for (uint32_t row = 0; row < kTileRows; ++row) {
        const uint32_t offset = tile * kTileBytes + row * kRowBytes + lane_offset;
        if (offset >= length) break;
        const auto result = __builtin_bit_cast(Vector16, narrow_unit(reduce.type, numbers.of[row]));
        send_result(sums, output, offset, length, result);
      }
    }
    return SymmStatus::kDone;
  }

  // The following two functions replace send_sums() and receive_sums() if the lossless codec encodes host
  // sums. Each warp encodes one tile at a time.
  template <uint32_t kBytes, typename Group>
  VERBENA_DEVICE SymmStatus send_lossless(const BulkChunk& addends, const Reduce& reduce,
                                          const Group& group) {
    const uint64_t number = number_++;
    const uint32_t length = addends.length(host_.team_rank);
    const char* const input = addends.input + addends.begin(host_.team_rank);
    char* const own = find_slot(number, context_.team_rank);
    const LosslessTiles<kBytes> message(own, count_elements(length));
    message.begin(group);
    group.sync();
    for (uint32_t tile = group.rank() / kWarpLanes; tile < message.tiles();
         tile += group.size() / kWarpLanes) {
      TileWords words{};
      detail::for_units<sizeof(Bfloat16)>(tile, length, [&](uint32_t row, uint32_t offset) {
        if constexpr (kBytes == 2) {
          Vector16 one[] = {detail::load_vector(input, offset, length)};
          if (host_.team_size != 1) {
            Sums sums = add_host(addends, input, offset, length, reduce);
            one[0] = reduce.template finish<Vector16>(sums, 1);
          }
          detail::widen_vectors<kBytes>(one, words.of[row]);
        } else {
          const Sums sums = add_host(addends, input, offset, length, reduce);
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kUnitElements; ++i) words.of[row][i] = sums.words[i];
        }
      });
      message.store(tile, words);
    }
    (void)send_chunk(
        number,
        [&](uint32_t) {
          return Sending{own, length == 0 ? 0 : message.length_bytes()};
        },
        group);
    return status_;
  }
  template <uint32_t kBytes, typename Group>
  VERBENA_DEVICE SymmStatus receive_lossless(const BulkChunk& addends, const BulkChunk& sums,
                                             const Reduce& reduce, const Group& group) {
    const uint64_t number = due_++;
    if (!await_chunk(number, group)) return status_;
    const uint32_t length = addends.length(host_.team_rank);
    char* const output = addends.output + addends.begin(host_.team_rank);
    add_tiles<kBytes>(
        number, length, false, reduce,
        [&](uint32_t offset, const Vector16& result) { send_result(sums, output, offset, length, result); },
        group);
    return SymmStatus::kDone;
  }
  // Adds all hosts' encoded sums in chunk `number`, and calls `store(offset, result)` for each vector.
  // @param is_own_plain  true if this host's sums are not encoded
  template <uint32_t kBytes, typename Store, typename Group>
  VERBENA_DEVICE void add_tiles(uint64_t number, uint32_t length, bool is_own_plain, const Reduce& reduce,
                                const Store& store, const Group& group) const {
    const uint32_t elements = count_elements(length);
    const uint32_t tiles = LosslessTiles<kBytes>::count_tiles(elements);
    for (uint32_t tile = group.rank() / kWarpLanes; tile < tiles; tile += group.size() / kWarpLanes) {
      TileWords sums;
      VERBENA_UNROLL_BY(1)
      for (uint32_t host = 0; host < places_.hosts; ++host) {
        const int32_t peer = find_member(host, host_.team_rank);
        const char* const from = find_slot(number, peer);
        TileWords words;
        if (is_own_plain && peer == context_.team_rank) {
          load_tile_words<kBytes>(from, tile, elements * kBytes, words);
        } else {
          LosslessTiles<kBytes, const char>(from, elements).load(tile, words);
        }
        VERBENA_UNROLL
        for (uint32_t row = 0; row < kTileRows; ++row) {
          VERBENA_UNROLL
          for (uint32_t i = 0; i < kUnitElements; ++i)
            sums.of[row][i] =
                host == 0 ? words.of[row][i] : reduce.merge_words(sums.of[row][i], words.of[row][i]);
        }
      }
      detail::for_units<sizeof(Bfloat16)>(tile, length, [&](uint32_t row, uint32_t offset) {
        Sums all;
        VERBENA_UNROLL
        for (uint32_t i = 0; i < kUnitElements; ++i) all.words[i] = sums.of[row][i];
        store(offset, reduce.template finish<Vector16>(all, context_.team_size));
      });
    }
  }
  // Returns the number of elements in a chunk's message, if the chunk has `length_bytes` bytes of a 2-byte
  // type.
  VERBENA_DEVICE static uint32_t count_elements(uint32_t length_bytes) {
    return (length_bytes + kVectorBytes - 1) / kVectorBytes * kUnitElements;
  }

  VERBENA_DEVICE Sums add_host(const BulkChunk& addends, const char* own, uint32_t offset, uint32_t length,
                               const Reduce& reduce) const {
    constexpr int32_t kAtOnce = 4;
    Sums sums;
    VERBENA_UNROLL_BY(1)
    for (int32_t from = 0; from < host_.team_size; from += kAtOnce) {
      Vector16 some[kAtOnce];
      VERBENA_UNROLL
      for (int32_t i = 0; i < kAtOnce; ++i) {
        if (from + i >= host_.team_size) continue;
        some[i] = from + i == host_.team_rank ? detail::load_vector(own, offset, length)
                                              : detail::load_data(addends.slot_of(from + i) + offset);
      }
      const int32_t left = host_.team_size - from;
      reduce.add(sums, some, from, left < kAtOnce ? left : kAtOnce);
    }
    return sums;
  }
  // Adds all hosts' sums in chunk `number`, and calls `store(offset, result)` for each vector.
  template <typename Store, typename Group>
  VERBENA_DEVICE void add_chunk(uint64_t number, uint32_t length, uint32_t vectors, const Reduce& reduce,
                                const Store& store, const Group& group) const {
    const uint32_t step = group.size() * kVectorBytes;
    uint32_t offset = group.rank() * kVectorBytes;
    if (places_.hosts == 2 && vectors == 1) {
      // Several loads are in flight at a time.
      constexpr uint32_t kAtOnce = 4;
      const char* const from[] = {find_slot(number, find_member(0, host_.team_rank)),
                                  find_slot(number, find_member(1, host_.team_rank))};
      for (; offset < length; offset += kAtOnce * step) {
        Vector16 some[kAtOnce][2];
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          if (offset + k * step >= length) break;
          VERBENA_UNROLL
          for (uint32_t host = 0; host < 2; ++host)
            some[k][host] = detail::load_data(from[host] + offset + k * step);
        }
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) {
          if (offset + k * step >= length) break;
          Sums all;
          reduce.add(all, some[k], 0, 2);
          store(offset + k * step, reduce.template finish<Vector16>(all, context_.team_size));
        }
      }
      return;
    }
    for (; offset < length; offset += step) {
      Sums all = add_hosts(number, offset, vectors, reduce);
      store(offset, reduce.template finish<Vector16>(all, context_.team_size));
    }
  }
  // Adds the sums of all hosts for the vector at `offset` of chunk `number`.
  VERBENA_DEVICE Sums add_hosts(uint64_t number, uint32_t offset, uint32_t vectors,
                                const Reduce& reduce) const {
    Sums sums;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kMaxVectors; ++i) {
      if (i >= vectors) break;
      const uint64_t place = uint64_t{offset} * vectors + i * kVectorBytes;
      VERBENA_UNROLL_BY(1)
      for (uint32_t first = 0; first < places_.hosts; first += kHostsAtOnce) {
        const uint32_t left = places_.hosts - first, count = left < kHostsAtOnce ? left : kHostsAtOnce;
        Vector16 some[kHostsAtOnce];
        VERBENA_UNROLL
        for (uint32_t k = 0; k < kHostsAtOnce; ++k) {
          if (k < count)
            some[k] = detail::load_data(find_slot(number, find_member(first + k, host_.team_rank)) + place);
        }
        if (vectors == 1) {
          reduce.add(sums, some, static_cast<int32_t>(first), static_cast<int32_t>(count));
          continue;
        }
        VERBENA_UNROLL
        for (uint32_t host = 0; host < kHostsAtOnce; ++host) {
          if (host >= count) break;
          const auto words = __builtin_bit_cast(Words, some[host]);
          VERBENA_UNROLL
          for (uint32_t k = 0; k < kWords; ++k) {
            uint32_t& sum = sums.words[i * kWords + k];
            sum = first + host == 0 ? words.of[k] : reduce.merge_words(sum, words.of[k]);
          }
        }
      }
    }
    return sums;
  }
  // Calls `take(i, vector)` for each vector of a host's sums.
  template <typename Take>
  VERBENA_DEVICE static void for_vectors(Sums& sums, uint32_t vectors, const Reduce& reduce,
                                         const Take& take) {
    if (vectors == 1) return take(0, reduce.template finish<Vector16>(sums, 1));
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kMaxVectors; ++i) {
      if (i >= vectors) break;
      Words words;
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kWords; ++k) words.of[k] = sums.words[i * kWords + k];
      take(i, __builtin_bit_cast(Vector16, words));
    }
  }

  struct Sending {
    const char* here;
    uint64_t length_bytes;
  };
  VERBENA_DEVICE static uint64_t measure_sums(uint64_t length_bytes, uint32_t vectors) {
    return (length_bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes * vectors;
  }
  // Sends each counterpart the bytes that `find(host)` returns, followed by a flag. Uses one thread per host.
  template <typename Find, typename Group>
  VERBENA_DEVICE bool send_chunk(uint64_t number, const Find& find, const Group& group) {
    group.sync();
    char* const there = find_slot(number, context_.team_rank);
    detail::Awaited awaited{SymmWait::kRequest, block_};
    WaitResult mine = WaitResult::kReached;
    for (uint32_t host = group.rank(); host < places_.hosts; host += group.size()) {
      const int32_t peer = find_member(host, host_.team_rank);
      if (peer == context_.team_rank || mine != WaitResult::kReached) continue;
      awaited.peer = static_cast<uint32_t>(peer);
      const Sending sending = find(host);
      mine = detail::put_remote(context_, detail::find_queue_of(context_, block_), peer, there, sending.here,
                                sending.length_bytes, find_flag(number, context_.team_rank), number);
    }
    return conclude(mine, awaited, group) == SymmStatus::kDone;
  }
  // Waits until chunk `number` has arrived from all counterparts.
  template <typename Group>
  VERBENA_DEVICE bool await_chunk(uint64_t number, const Group& group) {
    detail::Awaited awaited{SymmWait::kPacket, block_};
    WaitResult mine = WaitResult::kReached;
    Patience patience(context_);
    for (uint32_t host = group.rank(); host < places_.hosts; host += group.size()) {
      const int32_t peer = find_member(host, host_.team_rank);
      if (peer == context_.team_rank || mine != WaitResult::kReached) continue;
      awaited.peer = static_cast<uint32_t>(peer);
      const uint64_t* const flag = find_flag(number, peer);
      for (uint32_t spins = 1; load_acquire<Scope::kSystem>(flag) < number; ++spins) {
        if (spins % kDefaultSpinsPerCheck != 0) continue;
        mine = patience.check();
        if (mine != WaitResult::kReached) break;
      }
    }
    return conclude(mine, awaited, group) == SymmStatus::kDone;
  }
  // Sets and returns the status of a wait for other hosts.
  template <typename Group>
  VERBENA_DEVICE SymmStatus conclude(WaitResult mine, const detail::Awaited& awaited, const Group& group) {
    status_ = detail::conclude(context_, group, mine, awaited);
    if (status_ == SymmStatus::kTimedOut) end_host(group);
    return status_;
  }

  // Ends the waits of the ranks on this host after a wait for another host has timed out. The team's failure
  // word names the late rank.
  template <typename Group>
  VERBENA_DEVICE void end_host(const Group& group) const {
    if (group.elect()) detail::fail_team(host_, {SymmWait::kPacket, block_, kSymmNobody});
  }
  // Processes the status of a call within the host. If a wait has timed out, reports the late rank to the
  // other hosts.
  template <typename Group>
  VERBENA_DEVICE void take_status(SymmStatus status, const Group& group) {
    status_ = status;
    if (status != SymmStatus::kTimedOut || !group.elect() || host_.failure == nullptr) return;
    const uint64_t word = load_relaxed<Scope::kSystem>(host_.failure);
    const auto late = static_cast<uint32_t>(word >> kSymmFailurePeer) & kSymmNobody;
    if (late < static_cast<uint32_t>(host_.team_size))
      detail::fail_team(context_, {SymmWait::kPacket, block_, find_neighbour(late)});
  }
  VERBENA_DEVICE uint32_t find_neighbour(uint32_t number) const {
    for (uint32_t host = 0; host < places_.hosts; ++host)
      if (find_member(host, host_.team_rank) == context_.team_rank)
        return static_cast<uint32_t>(find_member(host, static_cast<int32_t>(number)));
    return kSymmNobody;
  }

  const SymmWorkspace<>& team_;
  const SymmContext& context_;
  const SymmBlocks& blocks_;
  const SymmContext& host_;
  const HostPlaces places_;
  const uint32_t block_, count_blocks_, chunk_bytes_;
  Bulk<> calls_;
  // number_ is the number of the next chunk to send, and due_ is the number of the next chunk to receive.
  // number_ is 0 until it has been loaded from memory.
  uint64_t number_ = 0, due_ = 0;
  SymmStatus status_ = SymmStatus::kDone;
};

}  // namespace verbena::device

#endif
