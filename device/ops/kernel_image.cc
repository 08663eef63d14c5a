#include "device/ops/kernel_image.h"

// The build defines the path. The image is followed by a zero byte, which is not part of it.
asm(".pushsection .rodata\n.balign 16\nverbena_ops_kernels:\n.incbin \"" VERBENA_KERNEL_IMAGE
    "\"\n.byte 0\n.popsection\n");
extern "C" __attribute__((visibility("hidden"))) const char verbena_ops_kernels[];

namespace verbena::ops {

const char* kernel_image() {
  return verbena_ops_kernels;
}

}  // namespace verbena::ops
