// The functions behind all tuner tables, as one overload set, like net_entries.h for the network tables.
#pragma once

#include <memory>

#include "base/parameters.h"
#include "nccl/boundary.h"
#include "nccl/logger_adapter.h"
#include "nccl/tuner_abi.h"
#include "nccl/tuning.h"
#include "tuner/tuner.h"

namespace verbena::nccl::tuner_entries {

using abi::Result;

inline base::Outcome make_tuner(size_t ranks, size_t nodes, void** context) {
  auto made = std::make_unique<tuner::Tuner>(tuner::Shape{ranks, nodes}, describe_offer(), tuning());
  base::log_info("tuner: %s", made->describe().c_str());
  *context = made.release();
  return {};
}

inline Result init(size_t ranks, size_t nodes, abi::DebugLogger logger, void** context) noexcept {
  attach_logger(logger);
  return guard("tuner init", {{"context", context}}, [&] { return make_tuner(ranks, nodes, context); });
}

inline Result init(void** context, uint64_t, size_t ranks, size_t nodes, abi::DebugLogger logger,
                   abi::NvlDomainInfo*, abi::TunerConstants*) noexcept {
  return init(ranks, nodes, logger, context);
}

// The destroy function of v2 to v4, and the finalize function of v5 and later.
inline Result finish(void* context) noexcept {
  return guard("tuner finalize", {}, [&]() -> base::Outcome {
    delete static_cast<tuner::Tuner*>(context);
    return {};
  });
}

inline Result get_coll_info(void* context, int function, size_t bytes, int, float** costs, int algorithms,
                            int protocols, int, int* channels) noexcept {
  return guard("getCollInfo", {{"context", context}, {"collCostTable", costs}, {"nChannels", channels}},
               [&]() -> base::Outcome {
                 const tuner::CostTable table(reinterpret_cast<float*>(costs), algorithms, protocols);
                 if (static_cast<tuner::Tuner*>(context)->adjust(function, bytes, table, channels)) return {};
                 return base::fail(
                     base::Status::kInvalidUsage,
                     "tuner: NCCL_ALGO and NCCL_PROTO allow only algorithms that UNPACK does not support. "
                     "Change these variables, or set VERBENA_UNPACK=0 (collective %d)",
                     function);
               });
}

inline Result get_coll_info(void* context, int function, size_t bytes, int pipelined_ops, float** costs,
                            int algorithms, int protocols, int* channels) noexcept {
  return get_coll_info(context, function, bytes, pipelined_ops, costs, algorithms, protocols, 0, channels);
}

inline Result get_coll_info(void* context, int function, size_t bytes, int, int, int, int* algorithm,
                            int* protocol, int*) noexcept {
  return guard("getCollInfo", {{"context", context}, {"algorithm", algorithm}, {"protocol", protocol}},
               [&]() -> base::Outcome {
                 const base::Parameters& settings = base::parameters();
                 const auto choice = static_cast<tuner::Tuner*>(context)->choose_without_costs(
                     function, bytes, {settings.nccl_algorithm, settings.nccl_protocol});
                 if (!choice) return {};
                 *algorithm = number_of(choice->algorithm);
                 *protocol = number_of(choice->protocol);
                 return {};
               });
}

}  // namespace verbena::nccl::tuner_entries
