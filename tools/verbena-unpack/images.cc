#include "verbena-unpack/images.h"

// The build gives the paths. Each image ends with a zero byte, which does not count.
#define EMBED(name, path)                                                                          \
  asm(".pushsection .rodata\n.balign 16\n.hidden " #name "_begin\n.global " #name "_begin\n" #name \
      "_begin:\n.incbin \"" path "\"\n.hidden " #name "_end\n.global " #name "_end\n" #name        \
      "_end:\n.byte 0\n.popsection\n");                                                            \
  extern "C" const char name##_begin[];                                                            \
  extern "C" const char name##_end[]

EMBED(verbena_unpack_kernels, VERBENA_KERNEL_IMAGE);
EMBED(verbena_unpack_nccl_kernel, VERBENA_NCCL_KERNEL_TEXT);
EMBED(verbena_unpack_run, VERBENA_UNPACK_RUN_TEXT);

namespace verbena::tools::unpack {

std::string_view kernel_image() {
  return {verbena_unpack_kernels_begin, verbena_unpack_kernels_end};
}
std::string_view nccl_kernel_text() {
  return {verbena_unpack_nccl_kernel_begin, verbena_unpack_nccl_kernel_end};
}
std::string_view unpack_run_text() {
  return {verbena_unpack_run_begin, verbena_unpack_run_end};
}

}  // namespace verbena::tools::unpack
