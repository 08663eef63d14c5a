// Dispatch of a mixture of experts: each token goes to the rank of its expert, which does not know beforehand how many
// come. A block serves one peer: it puts the rows, then the count of them into a word at the peer; whoever has waited
// for the count sees the rows. The rows are then packed, in the order of their ranks, as an expert takes them.
#ifdef __CUDACC__
#include "example.h"
#endif
#include "verbena/device/symm.cuh"

namespace moe {

using namespace verbena;
using namespace verbena::device;

// Launch one block per rank, of whole warps. Symmetric are `tokens` (`count` rows of `row` floats), `arrived` (`room`
// rows for each rank, as many as any rank has tokens) and `counts` (a word for each rank, 0 before the first launch).
// `experts` has the rank of each token's expert; `packed` gets the rows that came and `packed_rows` how many. `launch`
// counts from 1: it is the upper half of a count, so that nobody has to clear it.
__global__ void dispatch(const __grid_constant__ SymmContext context, float* packed, uint32_t* packed_rows,
                         float* arrived, uint64_t* counts, const float* tokens, const uint32_t* experts,
                         uint32_t count, uint32_t room, uint32_t row, uint32_t launch, uint32_t* failed) {
  const BlockGroup block;
  const WarpGroup warp;
  const auto rank = static_cast<uint32_t>(symm_team_rank(context));
  const auto size = static_cast<uint32_t>(symm_team_size(context));
  // Each rank starts with a different peer.
  const uint32_t to = (rank + block_index()) % size, from = (rank + size - block_index()) % size;
  const auto require = [&](SymmStatus status) {
    if (status != SymmStatus::kDone) *failed = 1;
    return status == SymmStatus::kDone;
  };
  // A rank that has arrived here has packed the rows of the previous launch.
  if (!require(symm_barrier(context, block_index(), block))) return;
  uint32_t rows = 0;
  for (uint32_t token = 0; token < count; ++token) {
    if (experts[token] != to) continue;
    // The warps take the rows in turn.
    if (rows % (block.size() / kWarpLanes) == block.rank() / kWarpLanes)
      require(symm_put_async(context, arrived + (uint64_t{rank} * room + rows) * row, tokens + uint64_t{token} * row,
                             row * sizeof(float), static_cast<int32_t>(to), warp));
    ++rows;
  }
  const int64_t none = int64_t{launch} << 32;
  require(symm_put_value(context, counts + rank, static_cast<uint64_t>(none) + rows, static_cast<int32_t>(to), block));
  // Where this block's rows begin is known when all counts are.
  if (!require(symm_wait_until_all(context, counts, size, SymmCompare::kGreaterEqual, none, block))) return;
  const auto count_from = [&](uint32_t peer) {
    return static_cast<uint32_t>(load_relaxed<Scope::kSystem>(counts + peer));
  };
  uint64_t begin = 0;
  for (uint32_t peer = 0; peer < from; ++peer) begin += count_from(peer);
  const float* const source = arrived + uint64_t{from} * room * row;
  const uint64_t length = uint64_t{count_from(from)} * row;
  for (uint64_t i = block.rank(); i < length; i += block.size()) packed[begin * row + i] = source[i];
  if (from + 1 == size && block.elect()) *packed_rows = static_cast<uint32_t>(begin + count_from(from));
}

}  // namespace moe

#ifdef __CUDACC__
int main() {
  return example::run("moe_dispatch", [](verbena::SymmetricContext& context) {
    constexpr uint32_t kTokens = 500, kRow = 1024, kLaunches = 5;
    const auto world = context.world();
    const uint32_t size = context.size();
    const auto tokens = context.allocate(kTokens * kRow * sizeof(float)), counts = context.allocate(size * 8);
    const auto arrived = context.allocate(uint64_t{size} * kTokens * kRow * sizeof(float));
    example::check(cudaMemset(counts.address(), 0, size * 8));
    const auto choose = [&](uint32_t rank, uint32_t token) { return (token * token + rank) % 7 % size; };
    uint32_t *experts = nullptr, *words = nullptr;
    float* packed = nullptr;
    example::check(cudaMallocManaged(&experts, kTokens * sizeof(uint32_t)));
    example::check(cudaMallocManaged(&words, 2 * sizeof(uint32_t)));  // rows packed, and whether a wait failed
    example::check(cudaMallocManaged(&packed, uint64_t{size} * kTokens * kRow * sizeof(float)));
    std::vector<float> sent(kTokens * kRow);  // a row holds its rank and its token
    for (uint32_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<float>(context.rank() * kTokens + i / kRow);
    for (uint32_t i = 0; i < kTokens; ++i) experts[i] = choose(context.rank(), i);
    example::check(cudaMemcpy(tokens.address(), sent.data(), sent.size() * sizeof(float), cudaMemcpyDefault));
    context.barrier();  // the words are 0 at all ranks
    for (uint32_t launch = 1; launch <= kLaunches; ++launch)
      moe::dispatch<<<size, 256>>>(world.context(), packed, words, arrived.address<float>(), counts.address<uint64_t>(),
                                   tokens.address<float>(), experts, kTokens, kTokens, kRow, launch, words + 1);
    example::check(cudaDeviceSynchronize());
    context.check_error();
    uint64_t rows = 0;
    bool is_right = words[1] == 0;
    for (uint32_t i = 0; i < size * kTokens; ++i) {
      if (choose(i / kTokens, i % kTokens) != context.rank()) continue;
      for (uint32_t j = 0; j < kRow; ++j) is_right = is_right && packed[rows * kRow + j] == static_cast<float>(i);
      ++rows;
    }
    return is_right && words[0] == rows;
  });
}
#endif
