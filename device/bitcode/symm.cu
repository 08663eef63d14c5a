// The functions of symm_c.cuh as bitcode. CMake compiles this file for each backend and once for all of them:
// it includes the headers of the backends before this file, and VERBENA_SYMM_CONTEXTS lists their contexts.

// The functions are inlined into the kernel that calls them, and are left out of kernels that do not (no
// `used`, which would keep all of them).
#define VERBENA_SYMM_FUNCTION __attribute__((device)) __attribute__((always_inline))
#include "verbena/device/symm_c.cuh"
