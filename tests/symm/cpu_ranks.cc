// The examples' kernels on a machine without GPUs: a process a rank, libverbena.so with windows in host
// memory, each rank's GPU emulated. usage: symm_cpu_ranks RANKS lsa|rdma|mixed mixed: pairs of ranks pose as
// hosts; inside of a pair loads and stores, between pairs RDMA.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/emulator/world.h"
#include "verbena/verbena.hpp"

#define __global__
#define __grid_constant__
#include "examples/halo_exchange.cu"
#include "examples/moe_dispatch.cu"
#include "examples/ring_reduce_scatter.cu"
#undef __global__
#undef __grid_constant__

namespace verbena::symm_test {
namespace {

using emulator::World;

constexpr uint32_t kPatienceS = 30;
constexpr uint64_t kSeeds[] = {0, 1, 2};

void launch_with(uint64_t seed, uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
  World::Limits limits;
  limits.outside_patience_s = kPatienceS;
  World world(seed, limits);
  world.add_grid(0, blocks, threads, kernel);
  const std::string failure = world.run();
  if (!failure.empty()) throw std::runtime_error(failure);
}

// The kernel of this rank's, once for each seed: one launch after the other.
void launch(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
  for (const uint64_t seed : kSeeds) launch_with(seed, blocks, threads, kernel);
}

bool reduce_scatter(SymmetricContext& context) {
  constexpr uint64_t kCount = 5000;
  constexpr uint32_t kBlocks = 2, kThreads = 64;
  const auto world = context.world();
  const auto input = context.allocate(context.size() * kCount * sizeof(float));
  const auto slots = context.allocate(2 * kCount * sizeof(float));
  const auto number = [](uint64_t rank, uint64_t i) { return static_cast<float>((rank + 1) * (i % 1009)); };
  for (uint64_t i = 0; i < context.size() * kCount; ++i)
    input.address<float>()[i] = number(context.rank(), i);
  std::vector<float> sum(kCount);
  uint32_t failed = 0;
  launch(kBlocks, kThreads, [&] {
    ring::reduce_scatter(world.context(), sum.data(), input.address<float>(), slots.address<float>(), kCount,
                         &failed);
  });
  bool is_right = failed == 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    float expected = 0;
    for (uint32_t rank = 0; rank < context.size(); ++rank)
      expected += number(rank, context.rank() * kCount + i);
    is_right = is_right && sum[i] == expected;
  }
  return is_right;
}

bool dispatch(SymmetricContext& context) {
  constexpr uint32_t kTokens = 100, kRow = 64;
  const auto world = context.world();
  const uint32_t size = context.size();
  const auto tokens = context.allocate(kTokens * kRow * sizeof(float)), counts = context.allocate(size * 8);
  const auto arrived = context.allocate(uint64_t{size} * kTokens * kRow * sizeof(float));
  std::fill_n(counts.address<uint64_t>(), size, 0);
  const auto choose = [&](uint32_t rank, uint32_t token) { return (token * token + rank) % 7 % size; };
  std::vector<uint32_t> experts(kTokens);
  std::vector<float> packed(size_t{size} * kTokens * kRow);
  for (uint32_t i = 0; i < kTokens; ++i) experts[i] = choose(context.rank(), i);
  for (uint32_t i = 0; i < kTokens * kRow; ++i)
    tokens.address<float>()[i] = static_cast<float>(context.rank() * kTokens + i / kRow);
  context.barrier();  // the words are 0 at all ranks
  uint32_t failed = 0, packed_rows = 0, number = 0;
  for (const uint64_t seed : kSeeds) {
    ++number;
    launch_with(seed, size, 64, [&] {
      moe::dispatch(world.context(), packed.data(), &packed_rows, arrived.address<float>(),
                    counts.address<uint64_t>(), tokens.address<float>(), experts.data(), kTokens, kTokens,
                    kRow, number, &failed);
    });
  }
  bool is_right = failed == 0;
  uint32_t rows = 0;
  for (uint32_t i = 0; i < size * kTokens; ++i) {
    if (choose(i / kTokens, i % kTokens) != context.rank()) continue;
    for (uint32_t j = 0; j < kRow; ++j)
      is_right = is_right && packed[rows * kRow + j] == static_cast<float>(i);
    ++rows;
  }
  return is_right && packed_rows == rows;
}

bool diffuse(SymmetricContext& context) {
  constexpr uint64_t kHeight = 5, kWidth = 12, kPitch = kWidth + 2, kPlate = kPitch * (kHeight + 2);
  constexpr uint32_t kSteps = 20, kColumns = 2;
  const uint32_t rank = context.rank(), rows = context.size() / kColumns;
  const auto row = context.split(context.world(), static_cast<int>(rank / kColumns), static_cast<int>(rank));
  const auto column =
      context.split(context.world(), static_cast<int>(rank % kColumns), static_cast<int>(rank));
  const auto window = context.allocate(2 * kPlate * sizeof(float));
  constexpr uint64_t kWholePitch = kColumns * kWidth + 2;
  std::vector<float> whole(kWholePitch * (rows * kHeight + 2)), next;
  for (uint64_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i * i % 97);
  const auto find = [&](uint64_t i) {
    return (rank / kColumns * kHeight + i / kPitch) * kWholePitch + rank % kColumns * kWidth + i % kPitch;
  };
  for (uint64_t i = 0; i < 2 * kPlate; ++i) window.address<float>()[i] = whole[find(i % kPlate)];
  uint32_t failed = 0;
  // Each launch goes on where the one before ended: an even number of steps.
  launch(1, 64, [&] {
    halo::diffuse(row.context(), column.context(), window.address<float>(), kHeight, kWidth, kSteps, &failed);
  });
  for (uint32_t step = 0; step < std::size(kSeeds) * kSteps; ++step, whole.swap(next)) {
    next = whole;
    for (uint64_t i = kWholePitch; i < whole.size() - kWholePitch; ++i) {
      if (i % kWholePitch != 0 && i % kWholePitch != kWholePitch - 1)
        next[i] =
            (whole[i - 1] + whole[i + 1] + whole[i - kWholePitch] + whole[i + kWholePitch] + 4 * whole[i]) /
            8;
    }
  }
  bool is_right = failed == 0;
  for (uint64_t i = kPitch; i < kPlate - kPitch; ++i)
    is_right = is_right &&
               (i % kPitch == 0 || i % kPitch == kPitch - 1 || window.address<float>()[i] == whole[find(i)]);
  return is_right;
}

// Each block writes its round to every rank, and reads theirs after the block's barrier; blocks share queues.
void tell_rounds(const SymmContext& context, uint64_t* told, uint64_t* own, uint32_t rounds,
                 uint32_t* failed) {
  using namespace device;
  const BlockGroup block;
  const uint32_t number = block_index();
  const auto require = [&](SymmStatus status) {
    if (status != SymmStatus::kDone) *failed = 1;
  };
  told += number * 64;
  own += number;
  for (uint64_t round = *own + 1, last = *own + rounds; round <= last; ++round) {
    block.sync();
    if (block.elect()) *own = round;
    block.sync();
    if (block.elect()) {
      for (int32_t peer = 0; peer < context.team_size; ++peer)
        require(symm_put_async(context, told + context.team_rank, own, 8, peer));
    }
    require(symm_barrier(context, number, block));
    for (int32_t peer = 0; peer < context.team_size; ++peer) {
      if (load_relaxed<Scope::kSystem>(told + peer) != round) *failed = 1;
    }
    require(symm_barrier(context, number, block));
  }
}

bool meet(SymmetricContext& context) {
  constexpr uint32_t kBlocks = 16;
  const auto world = context.world();
  const auto told = context.allocate(kBlocks * 64 * 8), own = context.allocate(kBlocks * 8);
  uint32_t failed = 0;
  launch(kBlocks, 32, [&] {
    tell_rounds(world.context(), told.address<uint64_t>(), own.address<uint64_t>(), 20, &failed);
  });
  return failed == 0;
}

// All ranks add to a word of each, and fetch and add to another one: no add is lost, no former value comes
// twice.
bool add(SymmetricContext& context) {
  using namespace device;
  constexpr uint64_t kAdds = 10;
  const auto world = context.world();
  const auto words = context.allocate(2 * sizeof(uint64_t));
  auto* const word = words.address<uint64_t>();
  std::fill_n(word, 2, 0);
  context.barrier();
  const uint64_t size = context.size(), total = size * kAdds * std::size(kSeeds);
  std::vector<uint64_t> before;
  uint32_t failed = 0;
  launch(1, 1, [&] {
    for (uint64_t i = 0; i < kAdds; ++i) {
      for (int32_t peer = 0; peer < static_cast<int32_t>(size); ++peer)
        if (symm_add(world.context(), word, 1, peer) != SymmStatus::kDone) failed = 1;
      uint64_t found = 0;
      if (symm_fetch_add(world.context(), word + 1, 1, 0, &found) != SymmStatus::kDone) failed = 1;
      before.push_back(found);
    }
  });
  launch_with(0, 1, 1, [&] {
    if (symm_wait_until(world.context(), word, SymmCompare::kEqual, static_cast<int64_t>(total)) !=
        SymmStatus::kDone)
      failed = 1;
  });
  std::sort(before.begin(), before.end());
  const bool are_different = std::adjacent_find(before.begin(), before.end()) == before.end();
  context.barrier();
  return failed == 0 && are_different && before.back() < total && word[0] == total &&
         (context.rank() != 0 || word[1] == total);
}

// Rank 0 waits in a barrier that the others do not come to: all are told, and one call makes the team good.
bool give_up(SymmetricContext& context) {
  using namespace device;
  const auto world = context.world();
  bool is_right = true;
  if (context.rank() == 0) {
    SymmContext hasty = world.context();
    hasty.timeout_ns = 50'000'000;
    uint32_t reached = 0;
    launch(1, 32, [&] {
      if (symm_barrier(hasty, 9) != SymmStatus::kTimedOut) reached = 1;
    });
    is_right = reached == 0;
    context.quiet();  // so that those out of reach are told
  }
  context.barrier();
  try {
    context.check_error();
    is_right = false;
  } catch (const Failure& failure) {
    const std::string text = failure.what();
    is_right = is_right && failure.result() == VERBENA_TIMEOUT &&
               text.find("rank 0 timed out waiting for rank ") != std::string::npos &&
               text.find("in barrier 9") != std::string::npos;
  }
  context.reset(world);
  context.check_error();
  uint32_t failed = 0;
  launch(1, 32, [&] {
    if (symm_barrier(world.context(), 9) != SymmStatus::kDone) failed = 1;
  });
  return is_right && failed == 0;
}

int run_rank(const verbena_unique_id& id, uint32_t rank, uint32_t count_ranks) {
  try {
    SymmetricContext context(id, rank, count_ranks);
    bool is_right = true;
    for (const auto& [name, example] :
         {std::pair("barriers", &meet), std::pair("reduce-scatter", &reduce_scatter),
          std::pair("halo exchange", &diffuse), std::pair("dispatch", &dispatch), std::pair("adds", &add),
          std::pair("late rank", &give_up), std::pair("barriers again", &meet)}) {
      const bool is_one_right = example(context);
      std::printf("%-16s rank %u of %u, %d in reach: %s\n", name, rank, count_ranks,
                  context.world().context().lsa_size, is_one_right ? "ok" : "WRONG");
      is_right = is_right && is_one_right;
    }
    context.check_error();
    return is_right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %u: %s\n", rank, error.what());
    return 2;
  }
}

void choose_path(const std::string& path, uint32_t rank) {
  if (path == "mixed") {
    setenv("VERBENA_HOSTID", std::to_string(rank / 2).c_str(), 1);
  } else {
    setenv("VERBENA_SYMM_PATH", path.c_str(), 1);
  }
}

}  // namespace

int run(uint32_t count_ranks, const std::string& path) {
  // The rendezvous process has threads, so it is a separate child, which reports the id; so ranks are forked
  // from none.
  int ends[2];
  if (pipe(ends) != 0) return 2;
  const pid_t meeting = fork();
  if (meeting == 0) {
    verbena_unique_id id{};
    if (verbena_get_unique_id(&id) != VERBENA_SUCCESS || write(ends[1], &id, sizeof(id)) != sizeof(id))
      _exit(2);
    close(ends[1]);
    pause();
  }
  verbena_unique_id id{};
  if (read(ends[0], &id, sizeof(id)) != sizeof(id)) return 2;
  std::vector<pid_t> ranks;
  for (uint32_t rank = 0; rank < count_ranks; ++rank) {
    ranks.push_back(fork());
    if (ranks.back() != 0) continue;
    choose_path(path, rank);
    const int code = run_rank(id, rank, count_ranks);
    std::fflush(stdout);
    _exit(code);
  }
  int worst = 0;
  for (const pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  kill(meeting, SIGKILL);
  waitpid(meeting, nullptr, 0);
  return worst;
}

}  // namespace verbena::symm_test

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: %s RANKS lsa|rdma|mixed\n", argv[0]), 2;
  return verbena::symm_test::run(static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)), argv[2]);
}
