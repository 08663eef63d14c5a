// The layout of the memory that processes share. Every process owns one segment with its queue pairs, keys
// and rings. The peers of a process map the segment and change it directly. A peer may be killed at any
// instruction, so the segment contains no locks. Each field is one of three kinds: plain data that its reader
// validates; a word that one store or one compare-and-swap changes from one valid state into another; or a
// count that only one side writes.
//
// SharedQp::started and finished count a peer's requests on the owner's memory. If a peer is killed, the two
// counts stay different. The owner waits for a live peer, and sets the counts equal for a dead peer.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace verbena::softverbs {

inline constexpr uint32_t kLayoutVersion = 13;

// A relaxed atomic: plain data that may change while it is read. The reader validates the value afterwards.
template <typename T>
class Shared {
 public:
  T get() const { return value_.load(std::memory_order_relaxed); }
  void set(T value) { value_.store(value, std::memory_order_relaxed); }

 private:
  std::atomic<T> value_;
};

// A queue pair number consists of the process's slot and an index, so that the number alone leads to the
// segment.
inline constexpr uint32_t kQpIndexBits = 16;
inline constexpr uint32_t kQpCount = 1u << kQpIndexBits;
inline constexpr uint32_t kProcessSlots = 256;
inline constexpr uint32_t kFirstQpIndex = 16;  // 0 and 1 are reserved
inline constexpr uint32_t kQpsPerGroup = 64;
// A key consists of six bits of the entry's life, the index of the entry, and eight bits that the user of a
// memory window may choose.
inline constexpr uint32_t kKeyIndexBits = 18, kKeyTagBits = 8;
// The number of lives that the keys of an entry can distinguish.
inline constexpr uint32_t kKeyLives = 1u << (32 - kKeyIndexBits);
inline constexpr uint32_t kMrCount = 1u << kKeyIndexBits;
inline constexpr uint32_t kCqCount = 1u << 16;
inline constexpr uint32_t kSrqCount = 1u << 12;
inline constexpr uint32_t kContextCount = 64;
inline constexpr uint32_t kMaxSges = 32;
inline constexpr uint32_t kMaxReceiveSlots = 32768;

inline uint32_t make_qp_number(uint32_t slot, uint32_t index) {
  return slot << kQpIndexBits | index;
}
inline uint32_t get_qp_index(uint32_t number) {
  return number & (kQpCount - 1);
}
inline uint32_t get_qp_slot(uint32_t number) {
  return number >> kQpIndexBits;
}
inline uint32_t get_key_index(uint32_t key) {
  return key >> kKeyTagBits & (kMrCount - 1);
}
inline uint32_t make_key(uint32_t index, uint32_t life) {
  const uint32_t tag = life & ((1u << kKeyTagBits) - 1);
  return life >> kKeyTagBits << (kKeyIndexBits + kKeyTagBits) | index << kKeyTagBits | tag;
}

// A process in the directory: its pid and start time in one word, so that one compare-and-swap claims a slot.
struct DirectorySlot {
  std::atomic<uint64_t> owner;
  std::atomic<uint32_t> generation;  // counts the slot's owners
  std::atomic<uint32_t> segment;     // 1 + the owner's descriptor of its segment; 0: there is none yet
};

// The pipe of an event file descriptor, for peers that write events to it.
struct SharedPipe {
  Shared<int32_t> fd;
  Shared<uint64_t> inode;
};

struct SegmentHeader {
  uint64_t owner;
  uint32_t slot;
  uint32_t generation;
  uint64_t
      probe_address;  // a word in the owner's memory that contains `owner`; a peer that can read it can copy
  uint64_t base;      // the owner's address of the segment
  std::atomic<uint32_t> closed;
  std::atomic<uint32_t> atomic_holder;  // 0, or 1 + the claimer that holds the lock
  SharedPipe async_pipes[kContextCount];
  alignas(64) std::atomic<uint32_t> rails_down;  // a bit for each rail; peers read it at every request
  // A word for each group of queue pairs. The word is 0 while no peer works on any queue pair of the group,
  // so that the owner need not check each queue pair. A peer first marks its queue pair (SharedQp::started),
  // then sets the word if it is 0. The owner first clears the word, then reads the marks. So either the owner
  // sees the mark, or the peer sees that the word is 0. Under traffic the word stays set and is not written.
  alignas(64) std::atomic<uint32_t> busy_groups[kQpCount / kQpsPerGroup];
};

inline constexpr uint32_t kAnyQueuePair = UINT32_MAX;

struct alignas(64) SharedMr {
  std::atomic<uint32_t> key;  // 0: free. Stored last when registering, cleared first when deregistering.
  Shared<uint32_t> pd;
  Shared<uint32_t> access;
  Shared<uint32_t> gpu;        // 0: host memory, else 1 + index of its GPU export
  Shared<uint32_t> life;       // the part of the key that changes with each registration
  Shared<uint32_t> window_of;  // 0: a region; otherwise the key of the region that this window is part of
  Shared<uint32_t> window_qp;  // the queue pair whose peer may use this window, or kAnyQueuePair
  Shared<uint64_t> address;    // of a window: an iova of its region
  Shared<uint64_t> iova;
  Shared<uint64_t> length;
};

inline constexpr uint32_t kReceive = 1u << 31;  // bit of Completion::receive
inline constexpr uint32_t kReceiveCountMask = (1u << 30) - 1;
inline constexpr uint32_t kFlushedReceive = kReceive | 1u << 30;

// The maximum number of messages that one peer may be placing at a time.
inline constexpr uint32_t kOpenReceives = 128;

struct OpenReceive {
  Shared<uint64_t> wr_id;
  Shared<uint64_t> ticket;  // of its slot in the receive queue
};

// The part of a queue pair that its peer uses.
struct alignas(64) SharedQp {
  std::atomic<uint32_t> number;  // 0: free
  std::atomic<uint32_t> state;   // enum ibv_qp_state
  Shared<uint32_t> peer_number;
  Shared<uint32_t> type;
  Shared<uint32_t> pd;
  Shared<uint32_t> access;
  Shared<uint32_t> max_reads;  // max_dest_rd_atomic
  Shared<uint32_t> path_mtu;   // enum ibv_mtu
  Shared<uint32_t> min_rnr_timer;
  Shared<uint32_t> receive_cq;
  Shared<uint32_t> receive_queue;  // index into the receive queues
  Shared<uint32_t> context;        // the context that reports async events of the queue pair
  Shared<uint32_t> device;
  Shared<uint64_t> token;  // identifies the queue pair in events for the owner
  Shared<uint32_t> qkey;
  Shared<uint32_t> life;  // number of resets: completions of an earlier life are not reported

  // Only the connected peer writes these members. While `started` is ahead of `finished`, the peer may access
  // the owner's memory. The receives of the messages that the peer is placing are recorded, so that the owner
  // can flush them if the peer dies.
  alignas(64) std::atomic<uint32_t> started;
  std::atomic<uint32_t> finished;
  std::atomic<uint32_t> receives_opened;
  std::atomic<uint32_t> receives_closed;
  Shared<uint32_t> packets;                  // packets of the requests executed here, as on a network
  OpenReceive open_receives[kOpenReceives];  // of [closed, opened), by count

  // Written by the owner's pollers.
  alignas(64) std::atomic<uint64_t> send_retired;  // send queue entries whose completion was polled
  Shared<uint32_t> receive_polled;                 // Completion::receive of the last polled completion
};

struct Completion {
  uint64_t wr_id;
  uint64_t send_retired;  // in a send completion: the send queue is free up to here
  uint64_t stamp_ns;      // in the clock of the queue
  uint16_t status;
  uint16_t opcode;
  uint32_t flags;
  uint32_t byte_length;
  uint32_t immediate;
  uint32_t qp_number;
  uint32_t life;
  uint32_t receive;  // 0: a send completion; otherwise kReceive and its count, or kFlushedReceive
  uint32_t source_qp;
};

// A slot's word contains ticket, state and claimer; see completion_ring.h.
struct alignas(64) CompletionSlot {
  std::atomic<uint64_t> word;
  Completion completion;
};
static_assert(sizeof(CompletionSlot) == 64);

inline constexpr uint32_t kMaxCqEntries = 1u << 20;

struct alignas(64) SharedCq {
  Shared<uint32_t> capacity;  // entries, a power of two
  Shared<uint32_t> context;
  Shared<uint32_t> stamp;  // enum Stamp
  Shared<uint64_t> ring;   // offset in the segment
  Shared<uint64_t> token;  // identifies the queue in events for the owner
  SharedPipe channel;
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint32_t> armed;  // 0, or the kind of completions that cause an event: see Armed
  std::atomic<uint32_t> overrun;
  std::atomic<uint32_t> passed;  // 1 once tickets were skipped, see completion_ring.h
};

enum Stamp : uint32_t { kNoStamp = 0, kRawStamp = 1, kWallStamp = 2 };

enum Armed : uint32_t { kDisarmed = 0, kArmedSolicited = 1, kArmedAny = 2 };

struct SharedSge {
  uint64_t address;
  uint32_t length;
  uint32_t lkey;
};

// The slot of a receive. The SharedSge of the receive follow the slot, which has space for max_sge of them.
struct ReceiveSlot {
  std::atomic<uint64_t> word;
  uint64_t wr_id;
  uint32_t sge_count;
  uint32_t reserved;
};

struct alignas(64) SharedReceiveQueue {
  Shared<uint32_t> capacity;  // slots, a power of two
  Shared<uint32_t> max_sge;
  Shared<uint64_t> ring;  // offset in the segment
  Shared<uint32_t> pd;
  Shared<uint32_t> is_shared;
  Shared<uint32_t> context;
  Shared<uint64_t> token;  // identifies the queue in events for the owner
  alignas(64) std::atomic<uint64_t> tail;
  alignas(64) std::atomic<uint64_t> head;
  std::atomic<uint32_t> limit;  // SRQ limit; 0: disarmed
};

inline uint64_t get_receive_slot_bytes(uint32_t max_sge) {
  return sizeof(ReceiveSlot) + max_sge * sizeof(SharedSge);
}

// How peers can map an allocation of GPU memory. The value does not change while a registration refers to the
// allocation.
enum GpuExport : uint32_t { kNotExported = 0, kExportedAsFd = 1, kExportedAsIpc = 2 };

struct alignas(64) SharedGpu {
  std::atomic<uint32_t> life;  // even: free; a new value means a new allocation
  uint32_t kind;               // GpuExport
  int32_t fd;
  uint32_t device_index;  // index in the owner's copier; only for comparisons
  uint64_t base;
  uint64_t bytes;
  uint8_t device[16];  // its UUID
  uint8_t ipc_handle[64];
};

inline constexpr uint32_t kGpuCount = 1u << 14;

// A request to the owner of GPU memory: a copy between memory that the peer cannot map and the peer's staging
// block, or an atomic change of a word. `word` contains state and claimer; see gpu_service.h.
enum GpuRequestKind : uint32_t { kGpuRead, kGpuWrite, kGpuAdd, kGpuSwap };
// The owner makes a change only when its gate is open.
enum GpuRequestGate : uint32_t { kGateClosed, kGateOpen, kGateWithdrawn };

// The owner may execute a short write, of at most this many words, together with the change that follows it.
inline constexpr uint32_t kCarriedWords = 4;

struct alignas(64) GpuRequest {
  std::atomic<uint64_t> word;
  std::atomic<uint32_t> gate;
  uint32_t kind;
  uint32_t gpu;
  uint32_t reserved;
  uint64_t address;
  // Of a copy:
  uint64_t bytes;
  uint64_t stage;        // offset in the claimer's segment
  uint64_t stage_block;  // the staging block that contains `stage`
  uint64_t stage_block_bytes;
  // Of a change:
  uint64_t operand, swap;
  uint64_t before;  // written by the owner: the previous value of the word
  // The words of a short write (kCarriedWords). The words are stored before the change, once the gate is
  // open.
  uint64_t carried_address;
  uint32_t carried_gpu;
  uint32_t carried_words;
  uint64_t carried[kCarriedWords];
};

// The first entries are for copies, and all other entries are for changes. A copy that finds no free entry
// fails; a change waits for a free entry.
inline constexpr uint32_t kGpuCopies = 64, kGpuChanges = 64;
inline constexpr uint32_t kGpuRequests = kGpuCopies + kGpuChanges;

struct GpuServiceTable {
  alignas(64) std::atomic<uint32_t> doorbell;  // a futex: counts requests
  std::atomic<uint32_t> is_asleep;             // the owner must be woken
  GpuRequest requests[kGpuRequests];
};

// Offsets of a segment's tables. Segments are sparse: only used parts take memory.
inline constexpr uint64_t kSegmentBytes = uint64_t{1} << 30;
inline constexpr uint64_t kMrTable = 64 << 10;
inline constexpr uint64_t kQpTable = kMrTable + kMrCount * sizeof(SharedMr);
inline constexpr uint64_t kCqTable = kQpTable + kQpCount * sizeof(SharedQp);
inline constexpr uint64_t kReceiveQueueTable = kCqTable + kCqCount * sizeof(SharedCq);
inline constexpr uint64_t kReceiveQueueCount =
    kQpCount + kSrqCount;  // the receive queue of a queue pair has the same index
inline constexpr uint64_t kGpuTable = kReceiveQueueTable + kReceiveQueueCount * sizeof(SharedReceiveQueue);
inline constexpr uint64_t kGpuService = kGpuTable + kGpuCount * sizeof(SharedGpu);
inline constexpr uint64_t kArena = (kGpuService + sizeof(GpuServiceTable) + 0xffff) & ~uint64_t{0xffff};
static_assert(sizeof(SegmentHeader) <= kMrTable);

}  // namespace verbena::softverbs
