// Functions with TileScale's names: fences, barriers and waits.
#ifndef VERBENA_TILESCALE_SYNC_H
#define VERBENA_TILESCALE_SYNC_H

#include "verbena/device/tilescale_ranks.cuh"

#endif
