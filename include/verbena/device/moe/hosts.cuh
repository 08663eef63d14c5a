// Sends and receives the data of a mixture-of-experts exchange between hosts. A rank exchanges chunks of rows
// with its counterparts, the ranks that have the same index on the other hosts. layout.cuh explains why a
// chunk needs no acknowledgement. dispatch.cuh and combine.cuh use this file.
#ifndef VERBENA_DEVICE_MOE_HOSTS_CUH
#define VERBENA_DEVICE_MOE_HOSTS_CUH

#include "verbena/device/moe/area.cuh"

namespace verbena::device {

// Replaces MoeFarHosts in an exchange within one host.
struct MoeOneHost {
  static constexpr bool kSpansHosts = false;
};

// The first packet of a chunk.
struct MoeChunkHeader {
  uint32_t bits;    // bit t is set if the chunk has a row for its token t; rows are in the order of tokens
  uint32_t tokens;  // in a dispatch, number of the source rank's tokens in this call

  VERBENA_DEVICE bool has(uint32_t token) const { return (bits >> token & 1) != 0; }
  // Returns the index of a token's row in the chunk. `token` is the token's index in the chunk.
  VERBENA_DEVICE uint32_t find_row(uint32_t token) const {
    return static_cast<uint32_t>(__builtin_popcount(bits & ((1U << token) - 1)));
  }
};

class MoeFarHosts {
 public:
  using Data = Packet::Data;
  static constexpr bool kSpansHosts = true;

  VERBENA_DEVICE MoeFarHosts(const SymmWorkspace<>& workspace, const MoeShape& shape, const MoeHosts& hosts,
                             MoeKind kind)
      : base_(workspace.blocks.slots), shape_(shape), hosts_(hosts), kind_(kind) {}

  VERBENA_DEVICE uint32_t count() const { return shape_.hosts; }
  VERBENA_DEVICE uint32_t mine() const { return hosts_.mine; }
  VERBENA_DEVICE uint32_t index() const { return hosts_.index; }
  // Returns a mask with a bit for each rank of a host.
  VERBENA_DEVICE uint32_t find_ranks(uint32_t host) const { return hosts_.ranks[host]; }
  VERBENA_DEVICE uint32_t find_member(uint32_t host, uint32_t index) const {
    uint32_t ranks = hosts_.ranks[host];
    for (uint32_t i = 0; i < index; ++i) ranks &= ranks - 1;
    return find_lowest_moe_bit(ranks);
  }
  VERBENA_DEVICE uint32_t find_counterpart(uint32_t host) const { return find_member(host, hosts_.index); }
  VERBENA_DEVICE uint32_t find_host(uint32_t rank) const {
    uint32_t host = 0;
    while ((hosts_.ranks[host] >> rank & 1) == 0) ++host;
    return host;
  }
  // Returns the index of a rank among the ranks of its host.
  VERBENA_DEVICE uint32_t find_index(uint32_t rank) const {
    return static_cast<uint32_t>(__builtin_popcount(hosts_.ranks[find_host(rank)] & ((1U << rank) - 1)));
  }
  // Returns the rank of this host that sends the rows of a source rank to the ranks of this host.
  VERBENA_DEVICE uint32_t find_relay(uint32_t source) const {
    return shape_.is_near(source) ? source : find_member(hosts_.mine, find_index(source));
  }
  // Returns true if `host` is another host, and this rank's counterpart on `host` takes part in calls.
  VERBENA_DEVICE bool is_far(uint32_t host) const {
    return host != hosts_.mine && shape_.is_living(find_counterpart(host));  // FAULT(left_out_hosts_get_rows)
  }
  // Returns the index of a host in handles and in combined rows: 0 for this rank's own host, and 1 +
  // count_far() for another host.
  VERBENA_DEVICE uint32_t find_place(uint32_t host) const {
    return host == hosts_.mine ? 0 : 1 + count_far(hosts_.mine, host);
  }

  // Returns the slot in which this rank receives a row that it adds for its counterpart on another host.
  // @param place  find_place() of the host, not 0
  VERBENA_DEVICE MoePlace find_relay_row(uint64_t epoch, uint32_t place, uint32_t token,
                                         uint32_t slot) const {
    char* const data = base_ + shape_.find_relay_packets();
    const uint64_t packet = shape_.find_relay_row(epoch, place - 1, token, slot);
    return {data + packet * Packet::kBytes,
            data + shape_.relay_packets() * Packet::kBytes + packet * Packet::kNoteBytes};
  }

  // find_sent() returns the address at which a chunk is written before a NIC sends it to a host.
  // find_received() returns the address at which a chunk from a host arrives.
  VERBENA_DEVICE char* find_sent(uint64_t epoch, uint32_t host, uint32_t chunk) const {
    return base_ + shape_.find_chunk(epoch, kind_, true, count_far(hosts_.mine, host), chunk);
  }
  VERBENA_DEVICE const char* find_received(uint64_t epoch, uint32_t host, uint32_t chunk) const {
    return base_ + shape_.find_chunk(epoch, kind_, false, count_far(hosts_.mine, host), chunk);
  }
  static constexpr uint32_t kHeaderBytes = kMoePacketBytes;

  // Sends a chunk with rows_bytes bytes of rows to the counterpart on a host. One thread makes the call,
  // after a barrier of the block.
  VERBENA_DEVICE void send(MoeArea& area, uint32_t host, uint32_t chunk, uint64_t rows_bytes) const {
    const uint32_t far = count_far(host, hosts_.mine);  // index of this host on the counterpart
    const uint64_t epoch = area.epoch();
    area.put(find_sent(epoch, host, chunk), base_ + shape_.find_chunk(epoch, kind_, false, far, chunk),
             kHeaderBytes + rows_bytes,
             reinterpret_cast<uint64_t*>(base_ + shape_.find_word(epoch, kind_, far, chunk)),
             find_counterpart(host));
  }
  // Waits for a chunk from a host. Each thread that reads the chunk must call it.
  VERBENA_DEVICE bool receive(MoeArea& area, uint32_t host, uint32_t chunk, MoeChunkHeader& header) const {
    const uint64_t epoch = area.epoch();
    const uint32_t far = count_far(hosts_.mine, host);
    const auto* const word =
        reinterpret_cast<const uint64_t*>(base_ + shape_.find_word(epoch, kind_, far, chunk));
    // In a combine, the counterpart itself waits for the ranks of its host.
    const bool waits_longer = kind_ == MoeKind::kCombine;  // FAULT(sums_of_hosts_are_awaited_no_longer)
    if (!area.receive_word(word, find_counterpart(host), waits_longer)) return false;
    const auto data = load_moe<Data>(find_received(epoch, host, chunk), 0);
    header = {data.x, data.y};
    return true;
  }

 private:
  // Returns the index of a host among all hosts except `owner`.
  VERBENA_DEVICE static uint32_t count_far(uint32_t owner, uint32_t host) {
    return host < owner ? host : host - 1;
  }

  char* const base_;
  const MoeShape& shape_;
  const MoeHosts& hosts_;
  const MoeKind kind_;
};

// The expert ids of a counterpart's tokens. Tokens without a row have the id -1. A token's chunk must have
// arrived before the token's ids are loaded.
class MoeFarIds {
 public:
  // @param id_bytes  offset of the ids in a row of row_bytes bytes
  VERBENA_DEVICE MoeFarIds(const MoeFarHosts& far, const MoeShape& shape, uint64_t epoch, uint32_t host,
                           uint32_t row_bytes, uint32_t id_bytes)
      : far_(far), shape_(shape), epoch_(epoch), host_(host), row_bytes_(row_bytes), id_bytes_(id_bytes) {}

  VERBENA_DEVICE int32_t load(uint32_t token, uint32_t k) const {
    const char* const chunk = far_.find_received(epoch_, host_, token >> shape_.chunk_bits);
    const auto data = load_moe<Packet::Data>(chunk, 0);
    const MoeChunkHeader header{data.x, data.y};
    const uint32_t number = token & ((1U << shape_.chunk_bits) - 1);
    return header.has(number) ? load_of_row(find_row(chunk, header.find_row(number)), k) : -1;
  }
  VERBENA_DEVICE const char* find_row(const char* chunk, uint32_t number) const {
    return chunk + MoeFarHosts::kHeaderBytes + uint64_t{number} * row_bytes_;
  }
  // A row contains pairs, each with an id and a weight.
  VERBENA_DEVICE int32_t load_of_row(const char* row, uint32_t k) const {
    return load_moe<int32_t>(row + id_bytes_, 2 * uint64_t{k});
  }

 private:
  const MoeFarHosts& far_;
  const MoeShape& shape_;
  const uint64_t epoch_;
  const uint32_t host_, row_bytes_, id_bytes_;
};

}  // namespace verbena::device

#endif
