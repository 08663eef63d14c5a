// What verbena_ops_choose() costs with a tuning file of so many measurements, each of which is the fastest
// for some sizes. usage: choose_loop MEASUREMENTS CALLS     prints the time of a call; callgrind counts
// bench_choose()
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "ops/rank_process.h"

namespace {

constexpr int kSizes = 22;  // 64 bytes to 128 MiB
uint64_t find_size(int index) {
  return uint64_t{64} << index;
}

// Measurement i is the best where its share of the range of sizes is, and worse with the distance from it.
void write_tuning_file(const std::string& path, int measurements) {
  std::ofstream file(path);
  file << R"({"format": "verbena-tuning", "version": 1, "ops": [)";
  for (int i = 0; i < measurements; ++i) {
    const char* const algorithm = i % 2 == 0 ? "bulk-one-shot" : "bulk-two-shot";
    file << (i == 0 ? "" : ", ") << R"({"operation": "all_reduce", "algorithm": ")" << algorithm
         << R"(", "gpu": "emulated GPU", "ranks": 2, "threads": )" << 32 * (1 + i % 16)
         << R"(, "chunk_bytes": )" << 1024 * (1 + i / 16) << R"(, "points": [)";
    const double best = (i + 0.5) * kSizes / measurements;
    for (int size = 0; size < kSizes; ++size) {
      const double us = (10 + std::ldexp(1, size) / 1000) * (1 + std::abs(size - best) / 10);
      file << (size == 0 ? "" : ", ") << "[" << find_size(size) << ", 2, " << us << "]";
    }
    file << "]}";
  }
  file << "]}";
}

}  // namespace

extern "C" __attribute__((noinline)) uint64_t bench_choose(const verbena_ops* ops, int calls) {
  uint64_t sum = 0;
  for (int i = 0; i < calls; ++i) {
    verbena_ops_choice choice{};
    if (verbena_ops_choose(ops, VERBENA_OPS_ALL_REDUCE, find_size(i % kSizes) * 5 / 4, &choice) !=
        VERBENA_SUCCESS)
      return 0;
    sum += choice.threads + choice.chunk_bytes;
  }
  return sum;
}

int main(int argc, char** argv) {
  const int measurements = argc > 1 ? std::atoi(argv[1]) : 0, calls = argc > 2 ? std::atoi(argv[2]) : 0;
  if (measurements < 1 || calls < 1) {
    std::fprintf(stderr, "usage: choose_loop MEASUREMENTS CALLS\n");
    return 2;
  }
  const std::string path = "choose_loop_" + std::to_string(getpid()) + ".json";
  write_tuning_file(path, measurements);
  const std::string failure = verbena::run({0, 0}, [&](verbena::Rank& rank, uint32_t number) -> std::string {
    verbena_ops_options options{};
    options.tuning_file = path.c_str();
    verbena::check(rank.create(verbena_team_world(rank.context().handle()), options));
    if (number != 0) return "";
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t sum = bench_choose(rank.ops(), calls);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    if (sum == 0) return verbena_last_error();
    std::printf("%d measurements: %.0f ns a call\n", measurements, took.count() / calls);
    std::fflush(stdout);
    return "";
  });
  std::remove(path.c_str());
  std::fputs(failure.c_str(), stderr);
  return failure.empty() ? 0 : 1;
}
