// Compiles the functions of symm_c.cuh to bitcode. CMake compiles this file once for each backend and once
// for all backends together. It includes the backends' headers first, and VERBENA_SYMM_CONTEXTS lists their
// contexts.

// The functions are inlined into kernels that call them. Kernels that do not call them stay free of them,
// because the functions lack the attribute `used`.
#define VERBENA_SYMM_FUNCTION __attribute__((device)) __attribute__((always_inline))
#include "verbena/device/symm_c.cuh"
