// The examples' kernels on a machine without GPUs: a process a rank, libverbena.so with windows in host
// memory, each rank's GPU emulated. usage: symm_cpu_ranks RANKS lsa|rdma|mixed mixed: pairs of ranks pose as
// hosts; inside of a pair loads and stores, between pairs RDMA.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/emulator/world.h"
#include "verbena/verbena.hpp"

#define __global__
#define __grid_constant__
#include "examples/all_to_all.cu"
#include "examples/halo_exchange.cu"
#include "examples/ring_all_gather.cu"
#undef __global__
#undef __grid_constant__

namespace verbena::symm_test {
namespace {

using emulator::World;

constexpr uint32_t kPatienceS = 30;
constexpr uint64_t kSeeds[] = {0, 1, 2};

// The kernel of this rank's, once for each seed: one launch after the other.
void launch(uint32_t blocks, uint32_t threads, const std::function<void()>& kernel) {
  for (const uint64_t seed : kSeeds) {
    World::Limits limits;
    limits.outside_patience_s = kPatienceS;
    World world(seed, limits);
    world.add_grid(0, blocks, threads, kernel);
    const std::string failure = world.run();
    if (!failure.empty()) throw std::runtime_error(failure);
  }
}

bool gather(SymmetricContext& context) {
  constexpr uint64_t kCount = 5000;
  constexpr uint32_t kBlocks = 2, kThreads = 64;
  const auto world = context.world();
  const auto window = context.allocate(context.size() * kCount * sizeof(float));
  float* const gathered = window.address<float>();
  std::fill_n(gathered + context.rank() * kCount, kCount, static_cast<float>(context.rank() + 1));
  std::vector<float> sums(kBlocks * kThreads);
  uint32_t failed = 0;
  launch(kBlocks, kThreads,
         [&] { ring::all_gather(world.context(), gathered, kCount, sums.data(), &failed); });
  double sum = 0, expected = 0;
  for (const float one : sums) sum += one;
  for (uint32_t rank = 0; rank < context.size(); ++rank)
    expected += std::size(kSeeds) * (rank + 1.0) * kCount;
  bool is_right = failed == 0 && sum == expected;
  for (uint64_t i = 0; i < context.size() * kCount; ++i)
    is_right = is_right && gathered[i] == static_cast<float>(i / kCount + 1);
  return is_right;
}

bool diffuse(SymmetricContext& context) {
  constexpr uint64_t kCount = 100;
  constexpr uint32_t kSteps = 20;
  const auto world = context.world();
  const auto window = context.allocate(2 * (kCount + 2) * sizeof(float));
  const uint64_t all = context.size() * kCount, begin = context.rank() * kCount;
  std::vector<float> rod(all + 2, 0), next(all + 2, 0);
  rod[0] = next[0] = 1000;
  std::copy_n(rod.data() + begin, kCount + 2, window.address<float>());
  uint32_t failed = 0;
  // Each launch goes on where the one before ended: an even number of steps.
  launch(1, 32, [&] { halo::diffuse(world.context(), window.address<float>(), kCount, kSteps, &failed); });
  for (uint32_t step = 0; step < std::size(kSeeds) * kSteps; ++step) {
    for (uint64_t i = 1; i <= all; ++i) next[i] = (rod[i - 1] + 2 * rod[i] + rod[i + 1]) / 4;
    rod.swap(next);
  }
  bool is_right = failed == 0;
  for (uint64_t i = 1; i <= kCount; ++i) is_right = is_right && window.address<float>()[i] == rod[begin + i];
  return is_right;
}

bool swap_parts(SymmetricContext& context) {
  constexpr uint64_t kBytesEach = 10'001;
  const auto world = context.world();
  const uint64_t length_bytes = context.size() * kBytesEach;
  const auto input = context.allocate(length_bytes), output = context.allocate(length_bytes);
  const auto byte = [](uint64_t from, uint64_t to, uint64_t i) {
    return static_cast<char>(from * 37 + to * 101 + i * 7);
  };
  for (uint64_t i = 0; i < length_bytes; ++i)
    input.address<char>()[i] = byte(context.rank(), i / kBytesEach, i % kBytesEach);
  uint32_t failed = 0;
  launch(context.size(), 32, [&] {
    exchange::all_to_all(world.context(), output.address<char>(), input.address<char>(), kBytesEach, &failed);
  });
  bool is_right = failed == 0;
  for (uint64_t i = 0; i < length_bytes; ++i)
    is_right = is_right && output.address<char>()[i] == byte(i / kBytesEach, context.rank(), i % kBytesEach);
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
               text.find("rank 0 has waited in vain for rank ") != std::string::npos &&
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
         {std::pair("barriers", &meet), std::pair("ring all-gather", &gather),
          std::pair("halo exchange", &diffuse), std::pair("all-to-all", &swap_parts),
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
