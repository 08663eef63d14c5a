// libverbena_symm_any.bc: all backends there are; each call looks at the context's type.
#if VERBENA_BITCODE_WITH_NCCL
#include "device/bitcode/nccl_for_clang.h"
#endif

#include "device/bitcode/marks.h"
#include "verbena/device/backends/nvshmem.cuh"
#if VERBENA_BITCODE_WITH_NCCL
#include "verbena/device/backends/nccl.cuh"
#define VERBENA_NCCL_CONTEXTS , verbena::NcclSymmContext
#else
#define VERBENA_NCCL_CONTEXTS
#endif

#define VERBENA_SYMM_CONTEXTS verbena::SymmContext, verbena::NvshmemSymmContext VERBENA_NCCL_CONTEXTS
#include "verbena/device/symm_c.cuh"
