// The choice of the kernel, the grid and the parts of rows of a mixture-of-experts call, from its size. All
// thresholds are in moe_choice.cc.
#pragma once

#include <cstdint>

#include "device/ops/call.h"
#include "device/ops/moe_call.h"

namespace verbena::ops {

// The properties of a call on which the choice depends.
struct MoeCallSize {
  device::MoeKind kind;
  uint32_t tokens;     // number of this rank's tokens
  uint32_t row_bytes;  // bytes of a dispatched or combined row
  uint32_t blocks;     // number of blocks
  bool is_grouped;     // true if rows are grouped by expert
  bool is_whole;       // true if one kernel has all phases
};
struct MoeChoice {
  MoeFamily family;
  Grid grid;
  device::MoeParts parts;
};
MoeChoice choose_moe(const device::MoeShape& shape, const MoeCallSize& call);

// Returns MoeShape::chunk_bits.
uint32_t choose_chunk_bits(uint32_t max_tokens);

}  // namespace verbena::ops
