// Sends our log lines to NCCL's logger.
#pragma once

#include "nccl/abi.h"

namespace verbena::nccl {

// From now on, for the whole process; null goes back to stderr. The newest communicator's logger wins: NCCL
// has one.
void attach_logger(abi::DebugLogger logger) noexcept;

}  // namespace verbena::nccl
