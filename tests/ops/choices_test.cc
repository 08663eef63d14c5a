// Calls for which ranks choose by what is their own: whether vectors fit, whether a tensor lies in a window,
// which calls make a group. All of them get the right sums, whatever each of them has.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/scoped_environment.h"
#include "ops/rank_process.h"

namespace verbena {
namespace {

// A tensor of this rank alone, which no window covers.
float* allocate_privately(size_t count) {
  uint64_t address = 0;
  find_in_driver<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&address, count * sizeof(float));
  return reinterpret_cast<float*>(address);
}

void fill(float* tensor, size_t count, uint32_t number) {
  for (size_t i = 0; i < count; ++i) tensor[i] = static_cast<float>(i % 1000 + number);
}
// "" or the first element that is not the sum of so many ranks' fill().
std::string compare(const float* tensor, size_t count, uint32_t ranks) {
  for (size_t i = 0; i < count; ++i) {
    const auto want = static_cast<float>(ranks * (i % 1000) + ranks * (ranks - 1) / 2);
    if (tensor[i] != want)
      return "element " + std::to_string(i) + " of " + std::to_string(count) + " is " +
             std::to_string(tensor[i]) + ", not " + std::to_string(want);
  }
  return "";
}
std::string all_reduce(Rank& rank, const float* input, float* output, size_t count,
                       const verbena_ops_choice* choice) {
  const verbena_result result = verbena_ops_all_reduce(rank.ops(), input, output, count, VERBENA_OPS_FLOAT32,
                                                       VERBENA_OPS_SUM, choice, nullptr);
  return result == VERBENA_SUCCESS ? "" : verbena_last_error();
}
std::string end(Rank& rank) {
  rank.synchronize();
  char text[512] = "";
  return verbena_ops_get_error(rank.ops(), text, sizeof(text)) == VERBENA_SUCCESS ? "" : text;
}

// Whole vectors, of which ranks cannot have equally many.
TEST(OpsChoices, TwoShotsOfAnyNumberOfVectors) {
  for (const uint32_t ranks : {2U, 4U}) {
    expect_run(std::vector<int>(ranks, 0), [=](Rank& rank, uint32_t number) -> std::string {
      rank.create_for_all();
      const verbena_ops_choice two_shot{VERBENA_OPS_TWO_SHOT, 0, 0, 0};
      for (const size_t vectors : {1, 2, 3, 5, 33, 249}) {
        const size_t count = vectors * 16 / sizeof(float);
        fill(rank.tensor(0), count, number);
        std::string said = all_reduce(rank, rank.tensor(0), rank.tensor(1), count, &two_shot);
        if (said.empty()) said = end(rank);
        if (said.empty()) said = compare(rank.tensor(1), count, ranks);
        if (!said.empty()) return std::to_string(vectors) + " vectors: " + said;
      }
      return "";
    });
  }
}

// With this tuning file; empty, or the error.
std::string create(Rank& rank, const std::string& file) {
  verbena_ops_options options{};
  options.tuning_file = file.c_str();
  check(rank.create(verbena_team_world(rank.context().handle()), options));
  return "";
}

// Without the promise of has_windows: rank 0's tensors lie in windows, rank 1's do not, and the direct way
// was measured to be the fastest.
TEST(OpsChoices, WindowsOfOneRankAlone) {
  const std::string file = testing::TempDir() + "ops_choices_" + std::to_string(getpid()) + ".json";
  std::ofstream(file)
      << R"({"format": "verbena-tuning", "version": 1, "ops": [)"
      << R"({"operation": "all_reduce", "algorithm": "direct", "gpu": "emulated GPU", "ranks": 2, )"
      << R"("threads": 64, "chunk_bytes": 0, "points": [[64, 2, 1], [1048576, 2, 2]]}, )"
      << R"({"operation": "all_reduce", "algorithm": "one-shot", "gpu": "emulated GPU", "ranks": 2, )"
      << R"("threads": 64, "chunk_bytes": 0, "points": [[64, 2, 10], [1048576, 2, 20]]}]})";
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "5000"}});
  expect_run({0, 0}, [&](Rank& rank, uint32_t number) -> std::string {
    std::string said = create(rank, file);
    if (!said.empty()) return said;
    float* const input = number == 0 ? rank.tensor(0) : allocate_privately(kCount);
    float* const output = number == 0 ? rank.tensor(1) : allocate_privately(kCount);
    fill(input, kCount, number);
    said = all_reduce(rank, input, output, kCount, nullptr);
    if (said.empty()) said = end(rank);
    return said.empty() ? compare(output, kCount, 2) : said;
  });
  std::remove(file.c_str());
}

// Measurements of rank 0's GPU count where rank 1 has one too.
TEST(OpsChoices, MeasurementsOfOneRanksGpu) {
  const std::string file = testing::TempDir() + "ops_choices_gpu_" + std::to_string(getpid()) + ".json";
  std::ofstream(file)
      << R"({"format": "verbena-tuning", "version": 1, "ops": [)"
      << R"({"operation": "all_reduce", "algorithm": "bulk-two-shot", "gpu": "emulated GPU", "ranks": 2, )"
      << R"("threads": 64, "chunk_bytes": 0, "points": [[64, 2, 1], [1048576, 2, 2]]}]})";
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "5000"}});
  for (const auto& [capabilities, algorithm] :
       {std::pair("9,9", VERBENA_OPS_BULK_TWO_SHOT), std::pair("9,8", VERBENA_OPS_ONE_SHOT)}) {
    const base::ScopedEnvironment gpus({{"FAKE_GPU_CAPABILITIES", capabilities}});
    SCOPED_TRACE(capabilities);
    expect_run({0, 0}, [&](Rank& rank, uint32_t number) -> std::string {
      std::string said = create(rank, file);
      if (!said.empty()) return said;
      verbena_ops_choice chosen{};
      check(verbena_ops_choose(rank.ops(), VERBENA_OPS_ALL_REDUCE, kCount * sizeof(float), &chosen));
      if (chosen.algorithm != algorithm) return "chose algorithm " + std::to_string(chosen.algorithm);
      fill(rank.tensor(0), kCount, number);
      said = all_reduce(rank, rank.tensor(0), rank.tensor(1), kCount, nullptr);
      if (said.empty()) said = end(rank);
      return said.empty() ? compare(rank.tensor(1), kCount, 2) : said;
    });
  }
  std::remove(file.c_str());
}

// A group does what its calls do one by one, in chunks as each of them asks for.
TEST(OpsChoices, AGroupIsWhatItsCallsAreOneByOne) {
  const base::ScopedEnvironment environment({{"VERBENA_SYMM_TIMEOUT_MS", "5000"}});
  expect_run({0, 0, 0}, [](Rank& rank, uint32_t number) -> std::string {
    rank.create_for_all();
    const bool is_grouped = number == 1;
    const std::vector<uint32_t> chunks = {64, 1024, 64, 256};
    std::vector<float*> inputs, outputs;
    if (is_grouped) verbena_ops_group_begin(rank.ops());
    for (const uint32_t chunk_bytes : chunks) {
      inputs.push_back(allocate_privately(kCount));
      outputs.push_back(allocate_privately(kCount));
      fill(inputs.back(), kCount, number);
      const verbena_ops_choice choice{VERBENA_OPS_BULK_TWO_SHOT, 2, 64, chunk_bytes};
      const std::string said = all_reduce(rank, inputs.back(), outputs.back(), kCount, &choice);
      if (!said.empty()) return said;
    }
    if (is_grouped) check(verbena_ops_group_end(rank.ops(), nullptr));
    if (const std::string said = end(rank); !said.empty()) return said;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const std::string said = compare(outputs[i], kCount, 3);
      if (!said.empty()) return "call " + std::to_string(i) + ": " + said;
    }
    return "";
  });
}

}  // namespace
}  // namespace verbena
