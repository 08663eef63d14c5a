// Decides whether the plugin offers UNPACK to NCCL. There is one answer for the whole process, because NCCL
// asks only a plugin's first device.
#pragma once

namespace verbena::nccl {

// VERBENA_UNPACK decides; with "auto", UNPACK is offered only if the tuning file says that it was measured to
// be faster. Offering UNPACK costs time even for messages that are not staged: NCCL's kernel reads a slot's
// count from host memory for every slice (3 to 5 % of an H200's bandwidth, docs/unpack.md).
bool offers_unpack();

}  // namespace verbena::nccl
