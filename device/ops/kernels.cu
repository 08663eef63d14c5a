// The kernels of libverbena_ops.so. Specialised kernels run one call of a team of known size (sums of floats,
// exchanges). General kernels run all other calls, and groups of calls. Separate kernels serve teams across
// hosts.
#include "device/ops/run_calls.cuh"

// The kernel is compiled for one block per multiprocessor, because more registers per thread help more than a
// second block.
#define VERBENA_OPS_KERNEL(name, LaunchOf, ...)                                   \
  extern "C" __global__ void __launch_bounds__(verbena::ops::kMaxThreads, 1)      \
      verbena_ops_##name(const __grid_constant__ verbena::ops::LaunchOf launch) { \
    using namespace verbena::ops;                                                 \
    __VA_ARGS__(launch);                                                          \
  }
#define VERBENA_OPS_QUICK(ranks, type, T)                                                          \
  VERBENA_OPS_KERNEL(one_shot_of_##ranks##_##type, CallLaunch, (run_vectors<OneShot<>, ranks, T>)) \
  VERBENA_OPS_KERNEL(two_shot_of_##ranks##_##type, CallLaunch, (run_vectors<TwoShot<>, ranks, T>))
#define VERBENA_OPS_QUICK_OF(ranks)        \
  VERBENA_OPS_QUICK(ranks, float32, float) \
  VERBENA_OPS_QUICK(ranks, float16, Half)  \
  VERBENA_OPS_QUICK(ranks, bfloat16, Bfloat16)
#define VERBENA_OPS_KNOWN(name, content, Way) \
  VERBENA_OPS_KERNEL(name, CallLaunch, (run_call<Way, Content::content, ReduceFloats>))

VERBENA_OPS_QUICK_OF(2)
VERBENA_OPS_QUICK_OF(4)
VERBENA_OPS_QUICK_OF(8)
VERBENA_OPS_KNOWN(packets_exchange_of_2, kExchanges, ByPackets<2>)
VERBENA_OPS_KNOWN(packets_exchange_of_4, kExchanges, ByPackets<4>)
VERBENA_OPS_KERNEL(packets, GroupLaunch, (run_calls<ByPackets<0>>))
VERBENA_OPS_KNOWN(chunks_all_reduce_of_2, kAllReduces, ByChunks<2>)
VERBENA_OPS_KNOWN(chunks_all_reduce_of_4, kAllReduces, ByChunks<4>)
VERBENA_OPS_KNOWN(chunks_exchange_of_2, kExchanges, ByChunks<2>)
VERBENA_OPS_KNOWN(chunks_exchange_of_4, kExchanges, ByChunks<4>)
VERBENA_OPS_KERNEL(chunks, GroupLaunch, (run_calls<ByChunks<0>>))
VERBENA_OPS_KNOWN(across_hosts_all_reduce, kAllReduces, AcrossHostsByChunks)
VERBENA_OPS_KNOWN(across_hosts_exchange, kExchanges, AcrossHostsByChunks)
VERBENA_OPS_KERNEL(across_hosts, GroupLaunch, (run_calls<AcrossHostsByChunks>))
VERBENA_OPS_KERNEL(across_hosts_lossless, GroupLaunch, (run_calls<AcrossHostsLossless>))

VERBENA_OPS_KERNEL(note, CompareLaunch, run_note)
VERBENA_OPS_KERNEL(compare, CompareLaunch, run_compare)

// Waits for a given time.
extern "C" __global__ void verbena_ops_pause(uint64_t length_ns) {
  const uint64_t end_ns = verbena::device::clock_ns() + length_ns;
  while (verbena::device::clock_ns() < end_ns) verbena::device::pause(100);
}
