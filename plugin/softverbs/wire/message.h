#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "softverbs/operation.h"
#include "softverbs/wire/frame.h"

namespace verbena::softverbs::wire {

class Loop;

// Registered memory of a queue pair's process that a message goes into or, of a READ's response, comes from.
// Named by keys, not addresses: each look at it checks them again.
struct Target {
  std::vector<SharedSge> pieces;
  uint32_t pd = 0;
  uint32_t access = 0;
  uint32_t qp_number = 0;  // at which a remote request arrived, else 0
  uint32_t qp_index = 0;
  uint32_t life = 0;  // of the queue pair
};

// The part [offset, offset + bytes) of a target as addresses. False when a key or the queue pair is no longer
// what it was.
bool resolve(const Target& target, uint64_t offset, uint64_t bytes, Memory& memory);

// Whether the keys under which a request's memory was gathered are still in use.
bool holds(const Memory& memory);

// A message that is arriving, in chunks, perhaps on several streams at a time.
struct Transfer {
  virtual ~Transfer() = default;
  Target target;
  uint32_t bytes = 0;
  uint32_t received = 0;           // guarded by the owner's mutex
  std::atomic<uint32_t> error{0};  // a Reason: its memory is gone; the rest is dropped
  // The last bytes are stored after all others are there: pollers look at them.
  static constexpr uint32_t kTailBytes = 8;
  uint8_t tail[kTailBytes] = {};
  uint32_t tail_bytes() const { return bytes < kTailBytes ? bytes : kTailBytes; }
};

// Stores the tail of a complete transfer. Sets `error` when that is no longer possible.
void store_tail(Transfer& transfer, Loop& loop);

inline constexpr uint32_t kAnyStream = UINT32_MAX;

// A message that is to be cut into frames.
struct OutMessage {
  Header header{};                 // of its frames, less length and offset
  Memory local;                    // payload, as addresses
  std::unique_ptr<Target> source;  // a READ's response: the payload instead
  std::vector<uint8_t> copy;       // what `local` refers to when that is not the application's memory
  uint32_t qp_index = 0;
  uint32_t home = 0;  // the stream that takes it, or kAnyStream
  uint32_t chunk_bytes = kMaxFrameBytes;
  uint32_t payload_bytes = 0;
  uint32_t cut = 0;  // bytes already given to frames
};

}  // namespace verbena::softverbs::wire
