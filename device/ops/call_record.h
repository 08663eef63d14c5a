// Creates and describes the records of calls that VERBENA_OPS_CHECK compares.
#pragma once

#include <string>

#include "device/ops/call.h"
#include "device/ops/kernel_set.h"

namespace verbena::ops {

CallRecord make_record(const Call& call, Algorithm algorithm, const Grid& grid, uint32_t chunk_bytes);
CallRecord make_record(const Call& call, const Norm& norm, const Grid& grid);
bool are_alike(const CallRecord& a, const CallRecord& b);
// Describes a call for an error message: operation, size, algorithm and grid.
std::string describe(const CallRecord& record);

}  // namespace verbena::ops
