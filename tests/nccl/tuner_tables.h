// The tuner versions under test, and one way to call them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "nccl/tuner_abi.h"

namespace verbena::nccl::testing {

template <int kNumber, typename TableT>
struct TunerVersion {
  using Table = TableT;
  static constexpr int kVersion = kNumber;
  static std::string symbol() { return "ncclTunerPlugin_v" + std::to_string(kNumber); }
};

using AllTuners = ::testing::Types<TunerVersion<2, abi::ncclTuner_v2_t>, TunerVersion<3, abi::ncclTuner_v3_t>,
                                   TunerVersion<4, abi::ncclTuner_v4_t>, TunerVersion<5, abi::ncclTuner_v5_t>,
                                   TunerVersion<6, abi::ncclTuner_v6_t>>;

// NCCL's costs of one call, and what it takes from version 2 instead.
struct TunerCall {
  int function = 4;  // all-reduce
  size_t bytes = 1 << 20;
  float costs[7][3] = {};
  int algorithm = abi::kTunerUndefined;
  int protocol = abi::kTunerUndefined;
  int channels = 0;

  explicit TunerCall(float cost) {
    for (auto& row : costs) {
      for (float& entry : row) entry = cost;
    }
  }
  int count_ruled_out() const {
    int count = 0;
    for (const auto& row : costs) {
      for (const float entry : row) count += entry == -1.0f;
    }
    return count;
  }
};

template <typename V>
class TunerCaller {
 public:
  explicit TunerCaller(const typename V::Table& table) : table_(table) {}

  abi::Result init(size_t ranks, size_t nodes, abi::DebugLogger logger, void** context) const {
    if constexpr (V::kVersion >= 5) {
      abi::NvlDomainInfo domains{1, 1, 1};
      abi::TunerConstants constants{};
      return table_.init(context, 0xfeed, ranks, nodes, logger, &domains, &constants);
    } else {
      return table_.init(ranks, nodes, logger, context);
    }
  }
  abi::Result get_coll_info(void* context, TunerCall& call) const {
    auto* const costs = reinterpret_cast<float**>(&call.costs[0][0]);
    if constexpr (V::kVersion == 2) {
      return table_.get_coll_info(context, call.function, call.bytes, 0, 0, 1, &call.algorithm,
                                  &call.protocol, &call.channels);
    } else if constexpr (V::kVersion == 3) {
      return table_.get_coll_info(context, call.function, call.bytes, 1, costs, 7, 3, &call.channels);
    } else {
      return table_.get_coll_info(context, call.function, call.bytes, 1, costs, 7, 3, 0, &call.channels);
    }
  }
  abi::Result finish(void* context) const {
    if constexpr (V::kVersion >= 5) return table_.finalize(context);
    if constexpr (V::kVersion < 5) return table_.destroy(context);
  }

 private:
  const typename V::Table& table_;
};

}  // namespace verbena::nccl::testing
