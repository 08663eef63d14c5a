// All-to-all: part p of rank r's input becomes part r of rank p's output. One block per peer, each with its own signal at
// the receiver; a rank's output is complete when it has the signals of all ranks.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace exchange {

using namespace verbena;
using namespace verbena::device;

// Launch one block per rank, of whole warps; at most 128 ranks. `input` and `output` are symmetric, with `bytes_each` for
// each rank. Sets `failed` if a wait for a rank fails.
__global__ void all_to_all(const __grid_constant__ SymmContext context, char* output, const char* input,
                           uint64_t bytes_each, uint32_t* failed) {
  const BlockGroup block;
  const auto rank = static_cast<uint32_t>(symm_team_rank(context));
  const auto size = static_cast<uint32_t>(symm_team_size(context));
  // Each rank starts with a different peer.
  const uint32_t to = (rank + block_index()) % size, from = (rank + size - block_index()) % size;
  const auto require = [&](SymmStatus status) {
    if (status != SymmStatus::kDone) *failed = 1;
  };
  // A rank that has arrived here has read the output of the previous launch.
  require(symm_barrier(context, block_index(), block));
  require(symm_put_signal_async(context, output + rank * bytes_each, input + to * bytes_each, bytes_each,
                                static_cast<int32_t>(to), rank, 1, SymmSignalOperation::kAdd, block));
  require(symm_signal_wait_until<int64_t>(context, from, SymmCompare::kEqual, 1, nullptr, block));
  symm_signal_reset(context, from, block);
}

}  // namespace exchange

#ifdef __CUDACC__
int main() {
  return example::run("all_to_all", [](verbena::SymmetricContext& context) {
    constexpr int kThreads = 512;
    constexpr uint64_t kBytesEach = (1 << 20) + 3;  // any length
    const auto world = context.world();
    const uint64_t length_bytes = context.size() * kBytesEach;
    const auto input = context.allocate(length_bytes), output = context.allocate(length_bytes);
    const auto byte = [](uint64_t from, uint64_t to, uint64_t i) {
      return static_cast<char>(from * 37 + to * 101 + i * 7);
    };
    std::vector<char> sent(length_bytes), got(length_bytes);
    for (uint64_t i = 0; i < length_bytes; ++i) sent[i] = byte(context.rank(), i / kBytesEach, i % kBytesEach);
    example::check(cudaMemcpy(input.address(), sent.data(), length_bytes, cudaMemcpyDefault));
    uint32_t* failed = nullptr;
    example::check(cudaMallocManaged(&failed, sizeof(uint32_t)));
    for (int launch = 0; launch < 5; ++launch)
      exchange::all_to_all<<<context.size(), kThreads>>>(world.context(), output.address<char>(),
                                                         input.address<char>(), kBytesEach, failed);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    example::check(cudaMemcpy(got.data(), output.address(), length_bytes, cudaMemcpyDefault));
    bool is_right = *failed == 0;
    for (uint64_t i = 0; i < length_bytes; ++i)
      is_right = is_right && got[i] == byte(i / kBytesEach, context.rank(), i % kBytesEach);
    return is_right;
  });
}
#endif
