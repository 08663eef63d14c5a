// Sends the plugin's log lines to NCCL's logger.
#pragma once

#include "nccl/abi.h"

namespace verbena::nccl {

// Sets the logger of the whole process; null restores stderr. The newest communicator's logger is used, since
// NCCL has only one.
void attach_logger(abi::DebugLogger logger) noexcept;

}  // namespace verbena::nccl
