#include "device/ops/kernel_image.h"

// The build defines the folder, the version and the architecture. Each image is followed by a zero byte.
#define VERBENA_EMBED(name)                                                                                \
  asm(".pushsection .rodata\n.balign 16\nverbena_ops_" name ":\n.incbin \"" VERBENA_KERNEL_IMAGES "/" name \
      ".fatbin\"\n.byte 0\n.popsection\n")
VERBENA_EMBED("kernels");
VERBENA_EMBED("fused_kernels");
VERBENA_EMBED("moe_kernels");
extern "C" __attribute__((visibility("hidden"))) const char verbena_ops_kernels[],
    verbena_ops_fused_kernels[], verbena_ops_moe_kernels[];

namespace verbena::ops {

const char* kernel_cuda_version() {
  return VERBENA_KERNEL_CUDA;
}
uint32_t kernel_architecture() {
  return VERBENA_KERNEL_ARCHITECTURE;
}
const char* kernel_image() {
  return verbena_ops_kernels;
}
const char* fused_kernel_image() {
  return verbena_ops_fused_kernels;
}
const char* moe_kernel_image() {
  return verbena_ops_moe_kernels;
}

}  // namespace verbena::ops
