// One-sided RDMA operations between the ranks of a group. The operations put and get bytes, and write, add to
// and read 64-bit words. The operations access registered memory of the peer, without the peer's CPU.
//
// Setup: call open() on every rank. For each peer, call local_address(peer), exchange the addresses with the
// peer, and call connect(). For each region of memory, call add_region(), exchange its region_address(), and
// call add_remote_region(). Then post operations, and call ring() and poll().
//
// Order: a lane is an ordered channel to one peer. Gets and operations on words take effect at the peer after
// all operations that were posted earlier on the same lane. Therefore a rank that sees the new value of a
// word also sees the bytes of all earlier puts on that lane. The following are not ordered:
// - operations on different lanes
// - a put and earlier operations: with several rails or adaptive routing, the put may arrive first
// - the result of an add or a get, and later operations: to order them, use fence()
// - the bytes of a get: until the get is complete, they may appear in local memory in any order
//
// Rails: an endpoint uses up to `rails` ports, namely the ports nearest to its GPU. A long put is split over
// all rails; every other operation uses a single rail. If a rail fails, its operations continue on the other
// rails, or on the same rail once it recovers. Each write to a word and each add takes effect exactly once;
// if the endpoint cannot guarantee this, it marks the peer as failed. Once the effect of an operation on a
// word is visible, the puts that were posted earlier are not repeated. If an add takes effect but its result
// is lost, the completion of the add reports the loss (is_answer_lost). Failover needs a TCP connection
// between the two ends, and both ends must call poll(). With VERBENA_FAILOVER=0, the peer fails at the first
// error.
//
// Atomicity: all adds to the memory of one rank are atomic with respect to each other. This is true for adds
// from all ranks and lanes, because a single device of the target rank executes the adds one at a time. These
// adds are not atomic with respect to loads and stores, to atomic operations of a CPU or GPU, or to
// write_word(). If a device of the group has no RDMA atomics, the target rank executes the adds in its poll()
// (add_by_agents()); in host memory, poll() uses atomic operations of the CPU.
//
// Threads: ring(), poll(), fence(), give_up() and all operations must be called by one thread, the driver.
// All other functions may be called from any thread, even while the driver runs. But the driver must not use
// the same peer or region at that time.
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
  uint64_t nonce = 0;              // identifies the group; connect() refuses an address with a different
                                   // nonce
  int gpu = -1;                    // CUDA ordinal of the GPU whose nearest ports are used; -1 selects the
                                   // first healthy ports
  std::string device_filter = {};  // device names, in the format of VERBENA_HCA; if empty, VERBENA_HCA
                                   // applies
  uint32_t rails = 4;              // max number of ports, 1 to 8; the same on all ranks
  uint32_t lanes = 1;              // lanes per peer, 1 to 16, with a queue pair on each rail; same on all
                                   // ranks
  uint32_t send_depth = 256;       // max operations in flight per lane and per queue pair, 16 to 32768
  uint32_t max_regions = 65536;    // region ids are 0 to max_regions - 1
  uint64_t max_message_bytes = 0;  // longer transfers are split; 0 means the device's limit
  bool pushes_all_gets = false;    // for tests: handles every get and add as if its memory were GPU memory
  bool is_observed = false;        // true if the files of VERBENA_STATS and VERBENA_TRACE and the state dumps
                                   // should include the endpoint
};

// The result of posting an operation.
enum class Posting : uint8_t {
  kTaken,    // posted; the count_done of a later completion includes this operation
  kFull,     // not posted because the lane has no free entry; call ring() and poll(), then retry
  kRefused,  // not posted because an argument is invalid; refusal() returns the reason
};

// Memory to register. The dma-buf is used only if Endpoint::wants_dmabuf() returns true.
struct EndpointMemory {
  void* address = nullptr;  // host memory, or a GPU's virtual address
  uint64_t bytes = 0;
  int dmabuf_fd = -1;          // owned by the caller, who may close it after the call
  uint64_t dmabuf_offset = 0;  // bytes from the start of the dma-buf to `address`
  // False if no thread polls this memory. The bytes of puts may then become visible in any order (PCIe
  // relaxed ordering).
  bool is_ordered = true;
};

// A transfer between a region of this rank and a region of the peer. Offsets are bytes from the start of the
// region.
struct Transfer {
  uint32_t peer = 0, lane = 0;
  uint32_t local_region = 0, remote_region = 0;
  uint64_t local_offset = 0, remote_offset = 0;
  uint64_t bytes = 0;  // may be 0
};

// A 64-bit word of the peer's memory, aligned to 8 bytes.
struct RemoteWord {
  uint32_t peer = 0, lane = 0;
  uint32_t region = 0;
  uint64_t offset = 0;
};

struct EndpointCompletion {
  uint32_t peer, lane;
  bool has_failed;      // the peer has failed, and its lanes get no more completions. Operations beyond the
                        // first count_done may or may not have taken effect. error(peer) returns the reason
  uint64_t count_done;  // number of operations on this lane, since connect(), that are complete at the peer
  uint64_t cookie;      // cookie of the completed operation; 0 if the completion only reports count_done
  uint64_t value;       // the value that read_word() has read, or the word's value before an update
  bool is_answer_lost = false;  // the update took effect, but a failed rail lost `value`
};

class Endpoint {
 public:
  // Opens an endpoint. Load the parameters (base::load_parameters()) first.
  // @return null if no port is usable or an option is out of range; *error and the log have the reason
  static std::unique_ptr<Endpoint> open(const EndpointOptions& options, std::string* error);
  // Closes the endpoint. Operations in flight may or may not take effect. A rank that carries out adds for
  // its peers (add_by_agents()) first answers the adds that have already arrived, for at most half a second.
  // In all other cases the destructor does not wait. The caller may free the memory of all regions
  // afterwards.
  virtual ~Endpoint() = default;

  // Returns the names of the rails, each as `<device>:<port>`, separated by `, `.
  virtual std::string describe_rail() const = 0;
  // Binds the calling thread to the CPUs nearest to the first port, within its CPU affinity mask. Returns
  // false, and changes nothing, if these CPUs are unknown or not in the mask.
  virtual bool bind_thread() const = 0;
  // Returns true if GPU memory must be registered as a dma-buf, or false if it can be registered by its
  // address.
  virtual bool wants_dmabuf() const = 0;
  // Returns true if this rank's devices have RDMA atomics. If the devices of any rank of the group have no
  // RDMA atomics, call add_by_agents() on all ranks, before local_address(). Each rank then carries out the
  // adds to its own words in poll(), so all ranks must call poll(). A rank whose own devices have no RDMA
  // atomics carries out these adds even without the call.
  virtual bool has_atomics() const { return true; }
  virtual void add_by_agents() {}
  // Return the sizes of local_address() and region_address() in bytes, the same on all ranks.
  virtual size_t address_bytes() const = 0;
  virtual size_t region_address_bytes() const = 0;

  // Creates this rank's end of the lanes to `peer`, which may be this rank itself.
  // @return the address that the peer passes to connect(); empty on failure, and *error has the reason
  virtual std::vector<std::byte> local_address(uint32_t peer, std::string* error) = 0;
  // Connects the lanes to `peer`. Call local_address(peer) first.
  // @param address  the result of local_address() on that peer for this rank
  // @return false if the address belongs to another pair of ranks, if no two ports can be connected, or if no
  //         port can access the peer's words; *error has the reason
  virtual bool connect(uint32_t peer, std::span<const std::byte> address, std::string* error) = 0;

  // Registers memory of the caller, who must keep it until remove_region(). Returns false on failure, with
  // the reason in *error.
  virtual bool add_region(uint32_t id, const EndpointMemory& memory, std::string* error) = 0;
  // Returns the data that peers pass to add_remote_region(); empty if the region does not exist.
  virtual std::vector<std::byte> region_address(uint32_t id) const = 0;
  // Makes a region of a peer available, so that operations can access it. Returns false on failure, with the
  // reason in *error.
  virtual bool add_remote_region(uint32_t peer, uint32_t id, std::span<const std::byte> address,
                                 std::string* error) = 0;
  // Remove a region of this rank, or the regions of all peers with this id. No operation on these regions may
  // be in flight, on any rank.
  virtual void remove_region(uint32_t id) = 0;
  virtual void remove_remote_regions(uint32_t id) = 0;

  // The operations. Each operation is checked against the bounds of both regions, and is sent when ring() is
  // called, or earlier. Once an operation is complete, its local memory may be reused, and a GPU or CPU may
  // read the bytes of a get.
  // @param cookie  any value other than 0 requests a completion for this operation, with this cookie; 0
  //                requests no separate completion, which is cheaper
  virtual Posting put(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting get(const Transfer& transfer, uint64_t cookie) = 0;
  virtual Posting write_word(const RemoteWord& word, uint64_t value, uint64_t cookie) = 0;
  virtual Posting add_word(const RemoteWord& word, uint64_t addend, uint64_t cookie) = 0;
  virtual Posting read_word(const RemoteWord& word, uint64_t cookie) = 0;
  // Sets the word to `desired` if it equals `expected`. The completion has the previous value. Order and
  // atomicity are the same as for add_word(). Returns kRefused if swaps_words() is false.
  virtual Posting compare_swap_word(const RemoteWord&, uint64_t /* expected */, uint64_t /* desired */,
                                    uint64_t /* cookie */) {
    return Posting::kRefused;
  }
  virtual bool swaps_words() const { return false; }
  // Makes the next operation on this lane take effect only after all earlier adds and gets on the lane.
  virtual void fence(uint32_t peer, uint32_t lane) = 0;
  // Passes all posted operations to the device, and requests a completion whose count_done includes them.
  virtual void ring() = 0;
  // Polls for completions. The completions of a lane are in the order of its operations. Returns the number
  // of entries written to `out`.
  virtual uint32_t poll(std::span<EndpointCompletion> out) = 0;

  // Marks the peer as failed with the given cause, for example after a timeout of the caller. The call has no
  // effect if the peer has already failed.
  virtual void give_up(uint32_t peer, const std::string& cause) = 0;
  // Returns why the peer failed, as `rank 3, rail mlx5_0:1, qp 17: <cause>`; empty if the peer has not
  // failed. Only the driver may call this function.
  virtual const std::string& error(uint32_t peer) const = 0;
  // Returns the reason why the last refused operation was refused.
  virtual const std::string& refusal() const = 0;
  // Returns the number of operations posted on this lane since connect(). This number equals count_done once
  // all posted operations are complete.
  virtual uint64_t count_taken(uint32_t peer, uint32_t lane) const = 0;
};

}  // namespace verbena
