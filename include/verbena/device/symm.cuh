// Symmetric memory in kernels: everything.
#ifndef VERBENA_DEVICE_SYMM_CUH
#define VERBENA_DEVICE_SYMM_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_put.cuh"
#include "verbena/device/symm_reduce.cuh"
#include "verbena/device/symm_signal.cuh"
#include "verbena/device/symm_team.cuh"
#include "verbena/device/symm_word.cuh"

#endif
