// libverbena_symm.bc: our own backend.
#include "device/bitcode/marks.h"
#include "verbena/device/symm_c.cuh"
