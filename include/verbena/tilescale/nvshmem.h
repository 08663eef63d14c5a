// NVSHMEM names over a Verbena team.
#ifndef VERBENA_TILESCALE_NVSHMEM_H
#define VERBENA_TILESCALE_NVSHMEM_H

#include "verbena/device/nvshmem_names.cuh"

#endif
