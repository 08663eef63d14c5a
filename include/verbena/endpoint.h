// One-sided RDMA operations between the ranks of a group: put and get bytes, and write, add to or read 64-bit
// words, in memory that the peer has registered. The peer's CPU takes no part.
//
// Life: open() on every rank; local_address(peer) for each peer, exchanged by the caller; connect(). Memory:
// add_region() and its region_address(), exchanged; add_remote_region(). Then operations, ring(), poll().
//
// Order: on one (peer, lane), gets and operations on words take effect at the peer after everything posted
// earlier on that lane. A rank that sees a word sees the bytes of all earlier puts; an add takes effect after
// earlier adds. Posting alone does not order:
// - operations on different lanes
// - a put after earlier operations: with several rails, or where the network routes adaptively, it may
//   overtake them
// - operations after an add or a get, relative to its result: use fence()
// - the bytes of a get in local memory, before its completion
//
// Rails: an endpoint uses the ports nearest to its GPU, up to `rails` of them. Long puts are split over all
// of them; other operations use one. When a rail fails, its operations continue over the others, or over the
// same rail once it recovers: a word is written or added to exactly once, or the peer is marked as failed; a
// put is not repeated once a word that was posted after it has been seen. An add may take effect and lose its
// result; its completion then says so. Failover needs both ends to poll(), and a TCP connection between them.
// VERBENA_FAILOVER=0: the peer fails at the first failure.
//
// Atomicity: adds to the memory of one rank are atomic with respect to each other, for all ranks and lanes:
// one device of that rank executes them one at a time. They are not atomic with respect to other accesses to
// the word: loads and stores by its owner, atomic operations of a CPU or a GPU, write_word().
//
// Threads: one thread, the driver, calls ring(), poll(), fence(), give_up() and all operations. The other
// functions may be called from any thread, also while the driver runs, if the driver does not use the peer or
// region concerned at that time. Exchanging addresses orders the one before the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace verbena {

struct EndpointOptions {
  uint32_t rank = 0;
  uint32_t count_ranks = 1;
  uint64_t nonce = 0;              // of the group: addresses of other groups are refused
  int gpu = -1;                    // CUDA ordinal, whose nearest ports are used; -1: the first healthy ports
  std::string device_filter = {};  // as VERBENA_HCA, which applies if this is empty
  uint32_t rails = 4;              // max ports, 1 to 8; the same on all ranks
  uint32_t lanes = 1;              // to each peer, with a queue pair a rail, 1 to 16; the same on all ranks
  uint32_t send_depth = 256;       // operations of a lane, and requests on each queue pair, 16 to 32768
  uint32_t max_regions = 65536;    // region ids are 0 to max_regions - 1
  uint64_t max_message_bytes = 0;  // longer transfers are split; 0: the device's limit
  bool pushes_all_gets = false;    // treats all gets like gets into GPU memory; for tests
  bool is_observed = false;        // in the files of VERBENA_STATS and VERBENA_TRACE, and in state dumps
};

// The result of posting an operation.
enum class Posting : uint8_t {
  kTaken,    // a completion will cover it, if only by its count_done
  kFull,     // the lane has no free entry: ring() and poll() first
  kRefused,  // invalid: refusal() has the reason
};

// Memory to register. The dma-buf is used where the device wants one (Endpoint::wants_dmabuf).
struct EndpointMemory {
  void* address = nullptr;  // host memory, or a GPU's virtual address
  uint64_t bytes = 0;
  int dmabuf_fd = -1;          // owned by the caller, who may close it after the call
  uint64_t dmabuf_offset = 0;  // of `address` from the start of the dma-buf, bytes
  // false: no thread polls the memory, so puts may become visible in any order (PCIe relaxed ordering).
  bool is_ordered = true;
};

// A transfer between a region of this rank and one of the peer. Offsets are bytes from the regions' starts.
struct Transfer {
  uint32_t peer = 0, lane = 0;
  uint32_t local_region = 0, remote_region = 0;
  uint64_t local_offset = 0, remote_offset = 0;
  uint64_t bytes = 0;  // 0 is legal: an operation that moves nothing
};

// A 64-bit word of the peer's memory, aligned to 8 bytes.
struct RemoteWord {
  uint32_t peer = 0, lane = 0;
  uint32_t region = 0;
  uint64_t offset = 0;
};

struct EndpointCompletion {
  uint32_t peer, lane;
  bool has_failed;      // the last completion of this (peer, lane), and of all lanes of the peer; operations
                        // beyond count_done may or may not have happened, and error(peer) has the reason
  uint64_t count_done;  // operations on this (peer, lane), since connect(), that are complete at the peer
  uint64_t cookie;      // of the operation that completed; 0 for operations without one
  uint64_t value;       // that read_word() read, or of the word before an update
  bool is_answer_lost = false;  // the update has happened, but `value` was lost with a rail that failed
};

class Endpoint {
 public:
  // Opens an endpoint. Parameters must have been loaded. Returns null, with the reason in *error and in the
  // log, if there is no usable port or an option is out of range.
  static std::unique_ptr<Endpoint> open(const EndpointOptions& options, std::string* error);
  // Does not wait: operations in flight may or may not happen. Afterwards the memory of all regions may be
  // freed.
  virtual ~Endpoint() = default;

  // Returns `<device>:<port>`, for several rails joined by `, `.
  virtual std::string describe_rail() const = 0;
  // Binds the calling thread to the CPUs nearest to the first port, among those that it may use. Returns
  // false, and changes nothing, if these are unknown or not allowed.
  virtual bool bind_thread() const = 0;
  // Returns whether GPU memory must be given as a dma-buf; otherwise by address.
  virtual bool wants_dmabuf() const = 0;
  // Return the bytes of local_address() and region_address(), the same on all ranks.
  virtual size_t address_bytes() const = 0;
  virtual size_t region_address_bytes() const = 0;

  // Creates this rank's end of the lanes to `peer`, which may be this rank itself. Returns the address that
  // the peer needs to connect(); empty, with the reason in *error, if that fails.
  virtual std::vector<std::byte> local_address(uint32_t peer, std::string* error) = 0;
  // Connects to the peer's local_address(rank). Call after local_address(peer). Returns false, with the
  // reason in *error, if the address is not of that peer and rank, no two ports can be connected, or none
  // reaches the peer's words.
  virtual bool connect(uint32_t peer, std::span<const std::byte> address, std::string* error) = 0;

  // Registers memory, which the caller owns and keeps until remove_region(). Returns false, with the reason
  // in *error, if that fails.
  virtual bool add_region(uint32_t id, const EndpointMemory& memory, std::string* error) = 0;
  // Returns what peers need to reach a region; empty if there is no such region.
  virtual std::vector<std::byte> region_address(uint32_t id) const = 0;
  virtual bool add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> address,
                                 std::string* error) = 0;
  // Remove regions. No operation on them may be in flight, from either side.
  virtual void remove_region(uint32_t id) = 0;
  virtual void remove_remote_regions(uint32_t id) = 0;

  // Operations. Each is checked against both regions, and may stay on this side until ring(). With a cookie
  // other than 0 the operation gets its own completion; 0 saves that. When the operation is complete, local
  // memory may be reused, and the bytes of a get may be read, by a GPU too.
  virtual Posting put(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting get(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) = 0;
  virtual Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) = 0;
  virtual Posting read_word(const RemoteWord& word, uint64_t cookie) = 0;
  // Sets the word to `desired` if it is `expected`; the completion carries the previous value.
  // Ordered and atomic as add_word(). Refused if swaps_words() is false.
  virtual Posting compare_swap_word(const RemoteWord&, uint64_t /* expected */, uint64_t /* desired */,
                                    uint64_t /* cookie */) {
    return Posting::kRefused;
  }
  virtual bool swaps_words() const { return false; }
  // Makes the next operation on this lane take effect after the adds and gets before it.
  virtual void fence(uint32_t peer, uint32_t lane) = 0;
  // Passes all posted operations to the device, and makes sure that a completion covers them.
  virtual void ring() = 0;
  // Returns how many entries of `out` were filled. In order for each (peer, lane).
  virtual uint32_t poll(std::span<EndpointCompletion> out) = 0;

  // Fails the peer for the given reason, for a caller whose timeout has passed. No effect on a failed peer.
  virtual void give_up(uint32_t peer, const std::string& cause) = 0;
  // Returns why the peer failed, as `rank 3, rail mlx5_0:1, qp 17: <cause>`; empty while it works. For the
  // driver alone.
  virtual const std::string& error(uint32_t peer) const = 0;
  // Returns why the last refused operation was refused.
  virtual const std::string& refusal() const = 0;
  // Returns the operations taken on this lane so far: count_done once all are complete.
  virtual uint64_t count_taken(uint32_t peer, uint32_t lane) const = 0;
};

}  // namespace verbena
