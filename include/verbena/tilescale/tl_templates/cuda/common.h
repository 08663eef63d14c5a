// Before TileLang's file of this name, which is taken too where it is on the include path: what TileScale's
// kernels need of Verbena.
#ifndef VERBENA_TILESCALE_COMMON_H
#define VERBENA_TILESCALE_COMMON_H

#if defined(__has_include_next)
#if __has_include_next(<tl_templates/cuda/common.h>)
#include_next <tl_templates/cuda/common.h>
#endif
#endif

#include "verbena/device/tilescale.cuh"

#endif
