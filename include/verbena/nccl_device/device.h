// The limits per block from NCCL's device.h that kernels with UNPACK need.
#ifndef VERBENA_NCCL_DEVICE_H
#define VERBENA_NCCL_DEVICE_H

#define WARP_SIZE 32
#define NCCL_MAX_GROUPS 16
#define NCCL_MAX_DIRECT_ARITY 7
#define NCCL_MAX_NVLS_ARITY 32
#define NCCL_MAX_ARITY NCCL_MAX_NVLS_ARITY
#ifndef DIVUP
#define DIVUP(x, y) (((x) + (y)-1) / (y))
#endif

#endif
