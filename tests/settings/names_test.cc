#include "settings/names.h"

#include <gtest/gtest.h>

#include "settings/edit_distance.h"

namespace verbena::settings {
namespace {

using Found = std::vector<std::pair<std::string, std::string>>;

Found find_all(std::vector<const char*> environment) {
  environment.push_back(nullptr);
  Found found;
  find_unknown_names(environment.data(), [&found](std::string_view name, const char* nearest) {
    found.emplace_back(name, nearest);
  });
  return found;
}

TEST(Names, OfEveryComponentAreKnownWithTheirAliases) {
  for (const char* name :
       {"VERBENA_HCA", "NCCL_IB_HCA", "SOFTVERBS_DEVICES", "LIBVERBENA_OPS_PATH", "USE_VERBENA_COLLECTIVES",
        "VERBENA_QUICK_REDUCE_QUANTIZATION", "AITER_QUICK_REDUCE_QUANTIZATION", "NCCL_NVLS_ENABLE"})
    EXPECT_TRUE(is_known(name)) << name;
  for (const char* name : {"", "VERBENA_", "VERBENA_HC", "NCCL_IB_DISABLE", "RANK"})
    EXPECT_FALSE(is_known(name)) << name;
}

TEST(Names, ThatNoComponentReadsAreFoundWithTheNearest) {
  EXPECT_EQ(
      find_all({"VERBENA_ENCRYPTIN=1", "SOFTVERBS_DEVICE=2", "LIBVERBENA_PAHT=/", "USE_VERBENA_COLLECTIVE=1",
                "VERBENA_QUICK_REDUCE_QUANTISATION=FP8", "SOFTVERBS_NETDEV"}),
      (Found{{"VERBENA_ENCRYPTIN", "VERBENA_ENCRYPTION"},
             {"SOFTVERBS_DEVICE", "SOFTVERBS_DEVICES"},
             {"LIBVERBENA_PAHT", "LIBVERBENA_PATH"},
             {"USE_VERBENA_COLLECTIVE", "USE_VERBENA_COLLECTIVES"},
             {"VERBENA_QUICK_REDUCE_QUANTISATION", "VERBENA_QUICK_REDUCE_QUANTIZATION"},
             {"SOFTVERBS_NETDEV", "SOFTVERBS_NETDEVS"}}));
}

TEST(Names, OfOthersAreLeftAlone) {
  EXPECT_EQ(find_all({"PATH=/VERBENA_X", "VERBENAX=1", "NCCL_IB_NO_SUCH_THING=1", "MY_VERBENA_SETTING=1",
                      "VERBENA_HCA=mlx5"}),
            Found());
  find_unknown_names(nullptr, [](std::string_view, const char*) { ADD_FAILURE(); });
}

TEST(EditDistance, CountsSingleLetters) {
  EXPECT_EQ(count_edits("", ""), 0u);
  EXPECT_EQ(count_edits("abc", "abc"), 0u);
  EXPECT_EQ(count_edits("", "abc"), 3u);
  EXPECT_EQ(count_edits("abc", ""), 3u);
  EXPECT_EQ(count_edits("kitten", "sitting"), 3u);
  EXPECT_EQ(count_edits("flaw", "lawn"), 2u);
}

}  // namespace
}  // namespace verbena::settings
