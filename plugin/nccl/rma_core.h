// NCCL's device API over the network, without a version: what every table of rma_tables.cc adapts to.
// Contexts of NCCL's own (init, finalize), devices, and groups of ranks that meet (rma_communicator.h).
// Failures are logged where they are found, as NCCL looks at few of them.
//
// Independent of the tables of messages: NCCL may choose another network for those, and its order of calls is
// another.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "bootstrap/rendezvous.h"
#include "nccl/abi.h"
#include "nccl/process.h"
#include "nccl/rma_abi.h"

namespace verbena::nccl {

using base::Outcome;

Outcome init_rma(void** context, uint64_t communicator_id, abi::DebugLogger logger);
Outcome finalize_rma(void* context);

// As many as the tables of messages have, in the same order; none if one of them cannot add to words.
Outcome count_rma_devices(int* count);
Outcome get_rma_device(int device, abi::ncclNetProperties_v12_t* properties);

// One rank's readiness to meet the others of its group on a device: its handle is where they meet if it is
// their first. No context is looked at: NCCL passes another's, or none.
struct RmaListener {
  std::shared_ptr<transport::NicRegistry> nics;
  const transport::Nic* nic = nullptr;
  std::unique_ptr<bootstrap::Rendezvous> rendezvous;
};
Outcome listen_rma(int device, void* handle, void** listen_comm);
Outcome close_rma_listener(void* listen_comm);

// Collective; with a deadline. `joins_all`: of a table that makes no contexts, so that every peer is reached
// at once.
Outcome connect_rma(void* const* handles, int count_ranks, int rank, void* listen_comm, bool joins_all,
                    void** coll_comm);

}  // namespace verbena::nccl
