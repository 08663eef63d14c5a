// Includes the device library like another project's kernels.
#include <verbena/device/symm_c.cuh>
#include <verbena/device/unpack.cuh>
