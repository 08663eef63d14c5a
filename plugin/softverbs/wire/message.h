// Messages between hosts, at both ends: a message that is sent in chunks, and a message that arrives in
// chunks on several streams.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "softverbs/engine/operation.h"
#include "softverbs/wire/frame.h"

namespace verbena::softverbs::wire {

class Loop;

// Registered memory of a queue pair's process: the destination of a message, or the source of a READ's
// response. The memory is named by keys, not by addresses; each access checks the keys again.
struct Target {
  std::vector<SharedSge> pieces;
  uint32_t pd = 0;
  uint32_t access = 0;
  uint32_t qp_number = 0;  // the queue pair at which a remote request arrived, or 0
  uint32_t qp_index = 0;
  uint32_t life = 0;  // of the queue pair
};

// Finds the addresses of the part [offset, offset + bytes) of a target. Returns false if a key or the queue
// pair has changed.
bool resolve(const Target& target, uint64_t offset, uint64_t bytes, Memory& memory);

// Returns whether the keys of a request's gathered memory are still valid.
bool holds(const Memory& memory);

// A message that is arriving in chunks, possibly on several streams at the same time.
struct Transfer {
  virtual ~Transfer() = default;
  Target target;
  uint32_t bytes = 0;
  uint32_t received = 0;           // guarded by the owner's mutex
  std::atomic<uint32_t> error{0};  // a Reason, if its memory is gone: the rest is dropped
  // The last bytes, which are stored after all other bytes, because receivers poll them.
  static constexpr uint32_t kTailBytes = 8;
  uint8_t tail[kTailBytes] = {};
  uint32_t tail_bytes() const { return bytes < kTailBytes ? bytes : kTailBytes; }
};

// Stores the tail of a complete transfer. Sets `error` if the memory is gone.
void store_tail(Transfer& transfer, Loop& loop);

inline constexpr uint32_t kAnyStream = UINT32_MAX;

// A message that is divided into frames.
struct OutMessage {
  Header header{};                 // of its frames, except length and offset
  Memory local;                    // the payload, as addresses
  std::unique_ptr<Target> source;  // of a READ's response, which has it instead of `local`
  std::vector<uint8_t> copy;       // the memory of `local` if it does not belong to the application
  uint32_t qp_index = 0;
  uint32_t primary = 0;  // the stream that must carry the message, or kAnyStream
  uint32_t chunk_bytes = kMaxFrameBytes;
  uint32_t payload_bytes = 0;
  uint32_t cut = 0;  // bytes already passed to frames
};

}  // namespace verbena::softverbs::wire
