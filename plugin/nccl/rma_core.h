// NCCL's device API over the network, independent of NCCL's version. Every table of rma_tables.cc calls these
// functions: NCCL's contexts (init), devices, and groups of connected ranks (rma_communicator.h).
// The code that detects a failure logs it, because NCCL ignores most of them.
//
// Independent of the net tables: NCCL may choose another network for messages, and calls these functions in
// another order.
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

// The devices are those of the net tables, in the same order.
Outcome get_rma_device(int device, abi::ncclNetProperties_v12_t* properties);

// Opens a listener for the group of ranks on a device. The handle of the group's first rank is its rendezvous
// address. Ignores the context, because NCCL may pass another one or none.
struct RmaListener {
  std::shared_ptr<transport::NicRegistry> nics;
  const transport::Nic* nic = nullptr;
  std::unique_ptr<bootstrap::Rendezvous> rendezvous;
};
Outcome listen_rma(int device, void* handle, void** listen_comm);
Outcome close_rma_listener(void* listen_comm);

// Connects the group. Collective, with a deadline. `joins_all` is set for tables without contexts, for which
// all peers must be connected at once.
Outcome connect_rma(void* const* handles, int count_ranks, int rank, void* listen_comm, bool joins_all,
                    void** coll_comm);

}  // namespace verbena::nccl
