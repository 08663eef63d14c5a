// One-sided operations between the ranks of a group over RDMA: put, get, a word written, added to or read, in
// memory that the other side has registered. Nobody at the other end takes part.
//
// Life: open() on every rank; local_address(peer) for each peer, exchanged by the caller, connect(). Memory:
// add_region() and its region_address(), exchanged, add_remote_region(). Then operations, ring(), poll().
//
// Order: words and gets that are posted to one (peer, lane) take effect there behind everything posted before
// them: whoever sees a word that was written or added sees the bytes of every put before it, and an add takes
// effect behind the adds before it. Four things are not ordered by posting alone: other lanes; a put behind
// anything (over one rail it is in order, over several it may overtake); what follows an add or a get here,
// that is its answer (fence()); and a get's bytes here, before its completion.
//
// Rails: an endpoint uses the ports nearest to its GPU, up to `rails` of them. Long puts are cut over all of
// them, the rest takes one. When a rail fails, what was under way on it goes on over the others or over the
// same one once it is back: a word is written, or added to, exactly once, or the peer fails; no put is
// repeated once a word behind it was seen. Of an add that has happened the answer may be lost, which its
// completion says. Both ends have to poll() for that, and connect to each other by TCP once something fails.
// VERBENA_FAILOVER=0: the peer fails at the first failure.
//
// Adds to the memory of one rank are atomic among each other, whoever of the group posts them on whatever
// lane: one of its devices carries them out at a time. They are not atomic with anything else that changes
// the word: loads and stores of its owner, atomics of a CPU or a GPU, write_word().
//
// Threads: ring(), poll(), fence(), give_up() and all operations belong to one thread, the driver. The rest
// may be called from any thread, also while the driver runs, as long as the driver does not yet use, or no
// longer uses, the peer or region concerned. Exchanging addresses orders the one before the other.
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
  uint64_t nonce = 0;              // of the group: addresses of another one are refused
  int gpu = -1;                    // the ordinal whose nearest port is used; -1: the first healthy port
  std::string device_filter = {};  // as VERBENA_HCA, which counts if this is empty
  uint32_t rails = 4;              // ports at most, 1 to 8; the same on all ranks
  uint32_t lanes = 1;              // to each peer, with a queue pair a rail, 1 to 16; the same on all ranks
  uint32_t send_depth = 256;       // operations of a lane, and requests on each queue pair, 16 to 32768
  uint32_t max_regions = 65536;    // region ids are 0 to max_regions - 1
  uint64_t max_message_bytes = 0;  // longer transfers travel in parts; 0: the device's limit
  bool pushes_all_gets = false;    // as gets into GPU memory on a NIC are: for tests without either
  bool is_observed = false;        // by the files of VERBENA_STATS and VERBENA_TRACE, and the state dump
};

// What became of a call that posts.
enum class Posting : uint8_t {
  kTaken,    // will be seen in a completion, if only in its count_done
  kFull,     // no room on this lane now: ring() and poll() first
  kRefused,  // never possible: refusal() says why
};

// Registered memory. A dma-buf is used where the device wants one (Endpoint::wants_dmabuf).
struct EndpointMemory {
  void* address = nullptr;  // host memory, or a GPU's virtual address
  uint64_t bytes = 0;
  int dmabuf_fd = -1;          // stays the caller's; may be closed after the call
  uint64_t dmabuf_offset = 0;  // of `address` from the start of the dma-buf, bytes
  bool is_ordered =
      true;  // false: nobody polls it, so that puts may be seen in any order (PCIe's relaxed one)
};

// `bytes` between a region of ours and one of the peer's. Offsets count from the start of the regions.
struct Transfer {
  uint32_t peer = 0, lane = 0;
  uint32_t local_region = 0, remote_region = 0;
  uint64_t local_offset = 0, remote_offset = 0;
  uint64_t bytes = 0;  // 0 is legal: an operation that moves nothing
};

// Eight bytes of the peer's memory, at a multiple of eight.
struct RemoteWord {
  uint32_t peer = 0, lane = 0;
  uint32_t region = 0;
  uint64_t offset = 0;
};

struct EndpointCompletion {
  uint32_t peer, lane;
  bool has_failed;      // the last one of this (peer, lane): what is not in count_done may or may not have
                        // happened, error(peer) says why; all lanes of the peer end so
  uint64_t count_done;  // operations on this (peer, lane), since it was connected, that are remotely complete
  uint64_t cookie;      // of the operation that this is the completion of, 0 for one without
  uint64_t value;       // what read_word() read, or what the word was before an update
  bool is_answer_lost = false;  // of an update that has happened: `value` went with a rail that failed
};

class Endpoint {
 public:
  // Null, with the cause in *error (and in the log), if there is no usable port or a number is out of range.
  // The parameters have been loaded.
  static std::unique_ptr<Endpoint> open(const EndpointOptions& options, std::string* error);
  // Nothing is waited for: what is under way may or may not happen. The memory of all regions may be freed
  // afterwards.
  virtual ~Endpoint() = default;

  // `<device>:<port>`, or several of them, joined by `, `.
  virtual std::string describe_rail() const = 0;
  // Binds the calling thread to the CPUs nearest to the first port, of those that it may use now. False: they
  // are not known, or none of them may be used; nothing has changed.
  virtual bool bind_thread() const = 0;
  // Whether GPU memory is to be given as a dma-buf; otherwise by address.
  virtual bool wants_dmabuf() const = 0;
  // The length of what local_address() and region_address() give: the same on all ranks.
  virtual size_t address_bytes() const = 0;
  virtual size_t region_address_bytes() const = 0;

  // What `peer` needs to connect() to us; makes our end of the lanes. The own rank is a peer like any other.
  // Empty, with the cause in *error, if that fails.
  virtual std::vector<std::byte> local_address(uint32_t peer, std::string* error) = 0;
  // After local_address(peer). False, with the cause, if the bytes are not what that peer's
  // local_address(rank) gave, or no two ports can be joined, or none that reaches the peer's words.
  virtual bool connect(uint32_t peer, std::span<const std::byte> address, std::string* error) = 0;

  virtual bool add_region(uint32_t id, const EndpointMemory& memory, std::string* error) = 0;
  // What peers need to reach it; empty if there is no such region.
  virtual std::vector<std::byte> region_address(uint32_t id) const = 0;
  virtual bool add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> address,
                                 std::string* error) = 0;
  // Nothing of it is under way, from either side.
  virtual void remove_region(uint32_t id) = 0;
  virtual void remove_remote_regions(uint32_t id) = 0;

  // Operations. Each is checked against both regions. Nothing may leave before ring(). A cookie other than 0
  // is told in a completion of its own; 0 saves that. Local memory may be used again, and what a get brought
  // be read, by a GPU too, once the operation is complete.
  virtual Posting put(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting get(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) = 0;
  virtual Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) = 0;
  virtual Posting read_word(const RemoteWord& word, uint64_t cookie) = 0;
  // The word becomes `desired` where it is `expected`; the completion says what it was before. As add_word()
  // in order and atomicity; refused where swaps_words() says no.
  virtual Posting compare_swap_word(const RemoteWord&, uint64_t /* expected */, uint64_t /* desired */,
                                    uint64_t /* cookie */) {
    return Posting::kRefused;
  }
  virtual bool swaps_words() const { return false; }
  // The next operation on this lane takes effect after the adds and gets before it.
  virtual void fence(uint32_t peer, uint32_t lane) = 0;
  // Hands everything to the device. All of it will be told of: a chain ends in a request with a completion.
  virtual void ring() = 0;
  // How many of `out` were filled. In order for each (peer, lane).
  virtual uint32_t poll(std::span<EndpointCompletion> out) = 0;

  // For a caller that has waited long enough: the peer fails for this reason. Nothing for one that has
  // failed.
  virtual void give_up(uint32_t peer, const std::string& cause) = 0;
  // Empty while the peer works; the driver's. `rank 3, rail mlx5_0:1, qp 17: <cause>`
  virtual const std::string& error(uint32_t peer) const = 0;
  // Of the last posting that was refused.
  virtual const std::string& refusal() const = 0;
  // Operations taken on this lane so far: what count_done comes to once all is complete.
  virtual uint64_t count_taken(uint32_t peer, uint32_t lane) const = 0;
};

}  // namespace verbena
