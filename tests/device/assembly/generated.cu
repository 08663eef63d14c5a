// Kernels as TileScale generates them: its includes and calls, nothing of Verbena's.
#include <nvshmem.h>
#include <nvshmemx.h>
#include <tl_templates/cuda/common.h>
#include <tl_templates/cuda/distributed.h>
#include <tl_templates/cuda/intrin.h>
#include <tl_templates/cuda/ldst.h>
#include <tl_templates/cuda/sync.h>

extern "C" __global__ void __launch_bounds__(128, 1)
    exchange(float* __restrict__ A, float* __restrict__ B, uint64_t* __restrict__ signals) {
  const int mype = nvshmem_my_pe();
  const int npes = nvshmem_n_pes();
  nvshmemx_putmem_nbi_block((&(B[(((int)blockIdx.x) * 128)])), (&(A[(((int)blockIdx.x) * 128)])), 512,
                            ((mype + 1) % npes));
  nvshmem_fence();
  if (((int)threadIdx.x) == 0) {
    nvshmemx_signal_op((&(signals[((int)blockIdx.x)])), 1, NVSHMEM_SIGNAL_ADD, ((mype + 1) % npes));
    nvshmem_signal_wait_until((&(signals[((int)blockIdx.x)])), NVSHMEM_CMP_GE, 1);
  }
  __syncthreads();
  nvshmemx_putmem_signal_nbi_block(B, A, 512, signals, 9, NVSHMEM_SIGNAL_SET, mype);
  nvshmemx_getmem_nbi_block(A, B, 512, mype);
  nvshmem_quiet();
  nvshmemx_barrier_all_block();
  nvshmemx_sync_all_block();
  if (((int)threadIdx.x) == 0) {
    nvshmem_int_p((int*)signals, 3, mype);
    nvshmem_barrier_all();
    nvshmem_sync_all();
  }
  nvshmemx_broadcastmem_block(NVSHMEM_TEAM_WORLD, B, A, 512, 0);
  nvshmemx_fcollectmem_warp(NVSHMEM_TEAM_WORLD, B, A, 512);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    copy(float* __restrict__ A, float* __restrict__ B, int* __restrict__ flag,
         uint32_t* __restrict__ barrier) {
  const int rank = (int)tl::get_rank();
  const int num_ranks = (int)tl::get_num_ranks();
  const int peer = (rank + 1) % num_ranks;
  tl::cp_warp<512, 4, true>(
      (tl::get_remote_base_ptr(peer) + (tl::get_uintptr_t(&(B[0])) - tl::get_remote_base_ptr(rank))),
      (&(A[0])));
  tl::cp_block<1024>((&(B[0])), (&(A[0])));
  tl::memory_fence_sys();
  tl::barrier_blocks(4096, rank, num_ranks);
  tl::sync_blocks(4096, rank, num_ranks);
  tl::sync_grid(barrier);
  tl::init_barrier_gpu<64>(barrier);
  tl::arrive_barrier_gpu(barrier);
  tl::wait_barrier_gpu(barrier);
  tl::sync_barrier_gpu(barrier);
  float value;
  tl::ld<Semantic::ACQUIRE, Scope::SYS, false, false>((&(A[threadIdx.x])), value);
  tl::st<Semantic::RELEASE, Scope::SYS, false>(
      (tl::get_remote_base_ptr(peer) + (tl::get_uintptr_t(&(B[0])) - tl::get_remote_base_ptr(rank))), value);
  if (tl::tl_shuffle_elect<128>()) {
    tl::wait_eq((&(flag[0])), 1);
    tl::wait_ne((&(flag[0])), 2);
    tl::wait_ge(
        (tl::get_remote_base_ptr(peer) + (tl::get_uintptr_t(&(flag[0])) - tl::get_remote_base_ptr(rank))), 1);
    tl::wait_le((&(flag[0])), 1);
    tl::wait_gt((&(flag[0])), 0);
    tl::wait_lt((&(flag[0])), 2);
  }
  const uint32_t* counter = barrier;
  atomicAdd(barrier, tl::atomic_add_release_gpu_u32(counter, 1) + tl::ptx_atom_add_acq_rel_sys(counter, 2));
  flag[1] = tl::get_lane_idx() + tl::get_warp_idx() + tl::get_warp_group_idx() + tl::ld_acquire(flag) +
            tl::ld_volatile_global(flag) + tl::atomic_load_acquire_sys_s32(flag);
}

// Of sm_90a alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
extern "C" __global__ void __launch_bounds__(256, 1) multiply() {
  if (tl::get_warp_group_idx() == 0) {
    tl::warpgroup_reg_dealloc<24>();
  } else {
    tl::warpgroup_reg_alloc<240>();
    tl::warpgroup_arrive();
    tl::warpgroup_commit_batch();
    tl::warpgroup_wait<0>();
  }
}
#endif
