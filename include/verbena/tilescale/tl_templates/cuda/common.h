// Replaces TileLang's common.h: includes that file too if it is on the include path, and adds the functions
// that TileScale's kernels need.
#ifndef VERBENA_TILESCALE_COMMON_H
#define VERBENA_TILESCALE_COMMON_H

#if defined(__has_include_next)
#if __has_include_next(<tl_templates/cuda/common.h>)
#include_next <tl_templates/cuda/common.h>
#endif
#endif

#include "verbena/device/tilescale.cuh"

#endif
