// Functions with TileScale's names: positions of threads in a block, warpgroups, registers.
#ifndef VERBENA_TILESCALE_INTRIN_H
#define VERBENA_TILESCALE_INTRIN_H

#include "verbena/device/tilescale.cuh"

#endif
