// The interface between the application's process and its copier. Commands (memory to map, lanes to serve)
// are messages on a socket; each command has one answer. Copies are passed through lanes, which are rings in
// the application's segment; the copier maps this segment. Both sides must come from the same build; the
// first message checks this.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "abi/cuda.h"

namespace verbena::softverbs::copier {

inline constexpr uint32_t kProtocolVersion = 1;

// An area is memory that the copier has mapped. A copy names an area and an offset in the area. Area 0 is the
// application's segment.
inline constexpr uint32_t kOwnSegment = 0;
inline constexpr uint32_t kAreaCount = 1u << 16;
inline constexpr uint32_t kDeviceCount = 32;

// --- Lanes

inline constexpr uint32_t kLaneSlots = 256;
inline constexpr uint64_t kStageBytes = 1 << 20;
inline constexpr uint32_t kMaxWords = 7;

enum SlotKind : uint32_t { kCopyBytes, kStoreWords };
enum SlotStatus : uint32_t { kCopied, kRefused };

struct SlotWord {
  uint64_t offset;
  uint64_t value;
  uint32_t area;
  uint32_t reserved;
};

// One copy, or aligned words that are stored in order.
struct alignas(64) LaneSlot {
  uint32_t kind;
  uint32_t group;  // copies of a group are executed in any order; groups are executed in order
  uint32_t to_area, from_area;
  uint64_t to, from;  // offsets
  uint64_t bytes;
  uint32_t word_count;
  std::atomic<uint32_t> status;  // written by the copier before the slot is done
  SlotWord words[kMaxWords];
};

// A lane. Slots [done, tail) wait or are being executed. The application reuses a slot once the slot is done.
struct alignas(4096) SharedLane {
  alignas(64) std::atomic<uint64_t> tail;       // written by the application
  alignas(64) std::atomic<uint64_t> done;       // written by the GPU itself, or by the copier
  alignas(64) std::atomic<uint32_t> is_broken;  // written by the copier: the GPU or CUDA has failed
  LaneSlot slots[kLaneSlots];
  alignas(4096) uint8_t stage[kStageBytes];  // for bytes from and to memory that the copier cannot map
};

inline constexpr size_t kReportBytes = 4096;

// The state of one GPU of the copier, which the application also sees. A thread of the copier serves the
// GPU's lanes.
struct alignas(64) SharedEngine {
  std::atomic<uint32_t> doorbell;   // a futex: counts the slots that the application has passed
  std::atomic<uint32_t> is_asleep;  // the thread must be woken
  // The time (CLOCK_MONOTONIC) at which the thread entered its current driver call, or 0 if it is in no call.
  alignas(64) std::atomic<uint64_t> call_since_ns;
  std::atomic<uint32_t> call;           // enum Call: the current driver call
  std::atomic<uint64_t> copy_since_ns;  // start of the oldest outstanding copy; 0: there is none
  char report[kReportBytes];            // the results of the self-test, as text
};

enum Call : uint32_t { kNoCall, kCallCopy, kCallBatch, kCallRows, kCallStore, kCallFence, kCallQuery };
inline constexpr const char* kCallNames[] = {"",
                                             "cuMemcpyAsync",
                                             "cuMemcpyBatchAsync",
                                             "cuMemcpy2DAsync",
                                             "cuStreamBatchMemOp",
                                             "cuEventRecord",
                                             "cuEventQuery"};

// --- Commands

enum class Request : uint32_t {
  kOpenDevice,  // uuid, offset of its SharedEngine -> index
  kOpenLane,    // device, offset of the SharedLane
  kMapSegment,  // descriptor, bytes: host memory of another process -> area
  kPin,         // area, offset, bytes: makes copies from and to host memory asynchronous
  kMapIpc,      // device, uuid of the memory's GPU, handle, bytes -> area
  kReserve,     // device, uuid, bytes -> area, for parts
  kMapPart,     // area, offset, bytes, descriptor of an allocation
  kRelease,     // area: answered when no copy uses it and it is unmapped
};

struct Command {
  Request request;
  uint32_t device;
  uint32_t area;
  uint32_t reserved;
  uint64_t offset;
  uint64_t bytes;
  cuda::CUuuid uuid;
  cuda::CUipcMemHandle handle;
};

struct Reply {
  int32_t error;   // 0, or an errno
  uint32_t value;  // a device or an area
  char text[240];  // of an error: the rejected request, and why
};

// The first message, sent by the copier.
struct Hello {
  uint32_t version;
  int32_t pid;
  uint64_t lane_bytes;
  int32_t error;  // 0, or an errno, after which the copier exits
  char text[240];
};

// Descriptors with which the copier is started.
inline constexpr int kSocket = 3, kParent = 4, kSegment = 5, kFirstOther = 6;

}  // namespace verbena::softverbs::copier
