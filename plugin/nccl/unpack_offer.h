// Whether NCCL is offered receives that the GPU unpacks: one answer for the whole process, since NCCL asks a
// plugin's first device only.
#pragma once

namespace verbena::nccl {

// As VERBENA_UNPACK says; by itself where the tuning file says that UNPACK was measured to win. An offer has
// a price even for messages that are not staged: NCCL's kernel reads a slot's count from host memory for
// every slice (3 to 5 % of an H200's bandwidth, docs/unpack.md), so that nothing is offered unasked.
bool offers_unpack();

}  // namespace verbena::nccl
