// The functions of symm_c.cuh as bitcode. CMake compiles this file for each backend and once for all of them:
// it includes the headers of the backends before this file, and VERBENA_SYMM_CONTEXTS lists their contexts.
#include "device/bitcode/marks.h"
#include "verbena/device/symm_c.cuh"
