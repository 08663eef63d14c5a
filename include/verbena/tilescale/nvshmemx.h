// NVSHMEM's names over a team of Verbena's.
#ifndef VERBENA_TILESCALE_NVSHMEMX_H
#define VERBENA_TILESCALE_NVSHMEMX_H

#include "verbena/device/nvshmem_names.cuh"

#endif
