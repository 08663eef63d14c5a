// The records of calls that VERBENA_OPS_CHECK compares, made and described.
#pragma once

#include <string>

#include "device/ops/call.h"
#include "device/ops/kernel_set.h"

namespace verbena::ops {

CallRecord make_record(const Call& call, Algorithm algorithm, const Grid& grid, uint32_t chunk_bytes);
CallRecord make_record(const Call& call, const Norm& norm, const Grid& grid);
bool are_alike(const CallRecord& a, const CallRecord& b);
// For people: what is called, of what, and how.
std::string describe(const CallRecord& record);

}  // namespace verbena::ops
