// Functions with TileScale's names: the table of ranks, and copies between ranks.
#ifndef VERBENA_TILESCALE_DISTRIBUTED_H
#define VERBENA_TILESCALE_DISTRIBUTED_H

#include "verbena/device/tilescale_ranks.cuh"

#endif
