// Contexts in host memory, a thread a rank.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/parameters.h"
#include "bootstrap/support/ranks.h"
#include "device/symm/context.h"

namespace verbena::symm {

inline ContextSettings make_settings(base::SymmPath path = base::SymmPath::kAuto) {
  return {.path = path, .heap_bytes = 16 << 20, .teams = 8, .timeout_ns = 20'000'000'000};
}

inline std::string name_path(const testing::TestParamInfo<base::SymmPath>& tested) {
  return tested.param == base::SymmPath::kRdma ? "rdma" : "lsa";
}

using JoinedBody = std::function<void(bootstrap::Bootstrap joined, uint32_t rank)>;
// `body` in a thread for each rank, which has joined the others; `prepare` in the thread before.
inline void run_ranks(uint32_t count_ranks, const JoinedBody& body, const bootstrap::RankBody& prepare = {}) {
  const auto id = bootstrap::take(bootstrap::make_unique_id(), "unique id");
  bootstrap::run_as_threads(count_ranks, [&](uint32_t rank) {
    if (prepare) prepare(rank);
    auto joined = bootstrap::Bootstrap::join(id, rank, count_ranks);
    ASSERT_TRUE(joined) << "rank " << rank;
    body(std::move(*joined), rank);
  });
}

// The same with the rank's context, which goes when all bodies have ended.
inline void run_contexts(uint32_t count_ranks, const ContextSettings& settings,
                         const std::function<void(Context&)>& body, const bootstrap::RankBody& prepare = {}) {
  run_ranks(
      count_ranks,
      [&](bootstrap::Bootstrap joined, uint32_t rank) {
        auto context = Context::create(std::move(joined), settings);
        ASSERT_TRUE(context) << "rank " << rank;
        body(**context);
        EXPECT_TRUE((*context)->leave()) << "rank " << rank;
      },
      prepare);
}

}  // namespace verbena::symm
