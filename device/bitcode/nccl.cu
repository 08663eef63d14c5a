// libverbena_symm_nccl.bc, for NCCL and NCCLX: nothing of it looks at the type.
#include "device/bitcode/nccl_for_clang.h"

#include "device/bitcode/marks.h"
#include "verbena/device/backends/nccl.cuh"

#define VERBENA_SYMM_CONTEXTS verbena::NcclSymmContext
#include "verbena/device/symm_c.cuh"
