// What the owner of GPU memory does for its peers. It copies between memory that they cannot map and
// their staging blocks, which both processes see in the peer's segment. And it makes all atomic changes
// of words, whoever may map them: so they are atomic among each other, and no process waits for
// another's turn.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// Owner: prepares to serve requests for memory of a device. False when the copier or the kernel refuses.
bool start_gpu_service(uint32_t device);

// Peer: one request. False while all are in use.
struct StagedCopy {
  uint64_t address = 0;  // in the owner's GPU memory
  uint64_t bytes = 0;
  uint32_t gpu = 0;
  bool is_write = false;  // into the GPU's memory
  uint64_t stage = 0;     // offset in our segment
  uint64_t stage_block = 0;
  uint64_t stage_block_bytes = 0;
};
bool submit(PeerProcess& owner, const StagedCopy& copy, uint32_t& request);

struct WordChange {
  uint64_t address = 0;  // aligned
  uint32_t gpu = 0;
  bool is_swap = false;  // else it adds the operand
  uint64_t operand = 0;  // of a swap: what it compares with
  uint64_t swap = 0;

  uint64_t apply_to(uint64_t before) const {
    if (is_swap) return before == operand ? swap : before;
    return before + operand;
  }
};
// The owner prepares at once, and changes the word once the gate is open. What was withdrawn before it was
// open does not happen, and fails.
bool submit(PeerProcess& owner, const WordChange& change, uint32_t& request);
// Words of the same device that are stored before the change.
struct CarriedWords {
  uint64_t address = 0;  // aligned
  uint32_t gpu = 0;
  uint32_t count = 0;  // at most kCarriedWords
  const uint64_t* words = nullptr;
};
void open_gate(PeerProcess& owner, uint32_t request, const CarriedWords& carried = {});
void withdraw(PeerProcess& owner, uint32_t request);

enum class ServiceState { kBusy, kDone, kFailed };
// When it is no longer busy the request is free again, and must not be asked for any more. `before`: of a
// change, what the word was.
ServiceState look_at_request(PeerProcess& owner, uint32_t request, uint64_t* before = nullptr);

}  // namespace verbena::softverbs
