// NVSHMEM's names for the functions of a Verbena team. See nvshmem_names.cuh.
#ifndef VERBENA_TILESCALE_NVSHMEM_H
#define VERBENA_TILESCALE_NVSHMEM_H

#include "verbena/device/nvshmem_names.cuh"

#endif
