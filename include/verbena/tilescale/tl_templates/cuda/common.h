// Takes the place of TileLang's common.h. If TileLang's file is on the include path, this header includes
// that file. The header also adds the functions that TileScale's kernels need.
#ifndef VERBENA_TILESCALE_COMMON_H
#define VERBENA_TILESCALE_COMMON_H

#if defined(__has_include_next)
#if __has_include_next(<tl_templates/cuda/common.h>)
#include_next <tl_templates/cuda/common.h>
#endif
#endif

#include "verbena/device/tilescale.cuh"

#endif
