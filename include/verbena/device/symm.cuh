// Includes all headers of symmetric memory for kernels.
#ifndef VERBENA_DEVICE_SYMM_CUH
#define VERBENA_DEVICE_SYMM_CUH

#include "verbena/device/symm_barrier.cuh"
#include "verbena/device/symm_collect.cuh"
#include "verbena/device/symm_put.cuh"
#include "verbena/device/symm_reduce.cuh"
#include "verbena/device/symm_signal.cuh"
#include "verbena/device/symm_team.cuh"
#include "verbena/device/symm_word.cuh"

#endif
