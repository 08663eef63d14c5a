// The work that the owner of GPU memory does for its peers. The owner copies between memory that peers cannot
// map and the peers' staging blocks, which are in the peers' segments. The owner also executes all atomic
// changes of words, even of words that peers can map, so that the changes are atomic among each other without
// a lock between processes.
#pragma once

#include <cstdint>

#include "softverbs/engine/process.h"

namespace verbena::softverbs {

// For the owner: prepares to serve requests for memory of a device. Returns false if the copier or the
// operating system fails.
bool start_gpu_service(uint32_t device);

// A request to a peer, which owns the GPU memory. submit() returns false while all request slots are in use.
struct StagedCopy {
  uint64_t address = 0;  // in the owner's GPU memory
  uint64_t bytes = 0;
  uint32_t gpu = 0;
  bool is_write = false;  // into the GPU's memory
  uint64_t stage = 0;     // offset in this process's segment
  uint64_t stage_block = 0;
  uint64_t stage_block_bytes = 0;
};
bool submit(PeerProcess& owner, const StagedCopy& copy, uint32_t& request);

struct WordChange {
  uint64_t address = 0;  // aligned
  uint32_t gpu = 0;
  bool is_swap = false;  // false: adds the operand
  uint64_t operand = 0;  // of a swap: the value to compare with
  uint64_t swap = 0;

  uint64_t apply_to(uint64_t before) const {
    if (is_swap) return before == operand ? swap : before;
    return before + operand;
  }
};
// Requests an atomic change. The owner prepares it at once, and executes it once the gate is open. A change
// that is withdrawn before the gate is open is not executed, and fails.
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
// Polls a request. Once it is no longer busy, the request is freed and must not be polled again. `before`
// receives the previous value of the changed word.
ServiceState look_at_request(PeerProcess& owner, uint32_t request, uint64_t* before = nullptr);

}  // namespace verbena::softverbs
