// Functions for libraries that build on this one.
#include "base/log.h"
#include "base/parameters.h"
#include "device/api/objects.h"
#include "verbena/backends.h"
#include "verbena/ops.h"

using namespace verbena;

namespace {

verbena_ops_algorithm find_algorithm(base::OpsAlgorithm set) {
  switch (set) {
    case base::OpsAlgorithm::kAuto:
      break;
    case base::OpsAlgorithm::kOneShot:
      return VERBENA_OPS_ONE_SHOT;
    case base::OpsAlgorithm::kTwoShot:
      return VERBENA_OPS_TWO_SHOT;
    case base::OpsAlgorithm::kBulkOneShot:
      return VERBENA_OPS_BULK_ONE_SHOT;
    case base::OpsAlgorithm::kBulkTwoShot:
      return VERBENA_OPS_BULK_TWO_SHOT;
    case base::OpsAlgorithm::kLossless:
      return VERBENA_OPS_LOSSLESS;
  }
  return VERBENA_OPS_AUTO;
}

}  // namespace

extern "C" {

verbena_result verbena_fail(verbena_result result, const char* text) {
  return static_cast<verbena_result>(base::fail(static_cast<base::Status>(result), "%s", text).status);
}

verbena_result verbena_context_gather(verbena_context* context, const void* mine, void* all,
                                      size_t bytes_each) {
  return api::guard([&]() -> base::Outcome {
    const size_t ranks = context->context->count_ranks();
    return context->context->gather({static_cast<const std::byte*>(mine), bytes_each},
                                    {static_cast<std::byte*>(all), ranks * bytes_each});
  });
}

verbena_result verbena_get_ops_settings(verbena_ops_settings* settings) {
  return api::guard([&]() -> base::Outcome {
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const base::Parameters& parameters = base::parameters();
    const bool is_file = parameters.tuning_file != "none" && parameters.tuning_file != "auto";
    *settings = {is_file ? parameters.tuning_file.c_str() : "",
                 static_cast<uint32_t>(find_algorithm(parameters.ops_algorithm)),
                 parameters.ops_check ? 1U : 0U};
    return {};
  });
}

int verbena_uses_loads_and_stores(void) {
  // Errors in the settings are reported by the call that creates a context.
  return !api::load_settings() || base::parameters().symm_path != base::SymmPath::kRdma;
}

}  // extern "C"
