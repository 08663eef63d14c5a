// libverbena_symm_nvshmem.bc: NVSHMEM, whose own bitcode has the functions that are missing here.
#include "device/bitcode/marks.h"
#include "verbena/device/backends/nvshmem.cuh"

#define VERBENA_SYMM_CONTEXTS verbena::NvshmemSymmContext
#include "verbena/device/symm_c.cuh"
