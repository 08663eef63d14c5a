// Functions with TileScale's names: loads and stores.
#ifndef VERBENA_TILESCALE_LDST_H
#define VERBENA_TILESCALE_LDST_H

#include "verbena/device/tilescale.cuh"

#endif
