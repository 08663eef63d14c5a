// The device library, as somebody else's kernels include it.
#include <verbena/device/symm_c.cuh>
#include <verbena/device/unpack.cuh>
