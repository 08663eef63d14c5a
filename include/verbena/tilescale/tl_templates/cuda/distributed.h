// TileScale's table of ranks and copies between them.
#ifndef VERBENA_TILESCALE_DISTRIBUTED_H
#define VERBENA_TILESCALE_DISTRIBUTED_H

#include "verbena/device/tilescale_ranks.cuh"

#endif
