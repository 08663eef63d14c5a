// Implements verbena/moe.h for libverbena_ops.so.
#include "verbena/moe.h"

#include "device/ops/guard.h"
#include "device/ops/moe_exchange.h"

using namespace verbena;
using namespace verbena::ops;

struct verbena_moe {
  MoeExchange exchange;
};

extern "C" {

size_t verbena_moe_workspace_bytes(const verbena_moe_options* options, uint32_t ranks) {
  return verbena_moe_workspace_bytes_across(options, ranks, 1);
}

size_t verbena_moe_workspace_bytes_across(const verbena_moe_options* options, uint32_t ranks,
                                          uint32_t hosts) {
  try {
    return make_moe_shape(*options, ranks, 1, hosts).workspace_bytes();
  } catch (const std::exception&) {
    return 0;
  }
}

size_t verbena_moe_max_rows(const verbena_moe_options* options, uint32_t ranks, verbena_moe_grouping grouping,
                            uint32_t alignment) {
  try {
    return find_max_rows(make_moe_shape(*options, ranks, 1), grouping, alignment);
  } catch (const std::exception&) {
    return 0;
  }
}

verbena_result verbena_moe_create(verbena_context* context, const verbena_team* team,
                                  const verbena_moe_options* options, verbena_moe** moe) {
  return guard([&] {
    expect(context != nullptr && options != nullptr && moe != nullptr,
           "moe: the context, the options or the output pointer is NULL");
    *moe = new verbena_moe{MoeExchange(context, team, *options)};
  });
}
verbena_result verbena_moe_destroy(verbena_moe* moe) {
  return guard([&] { delete moe; });
}
verbena_result verbena_moe_reset(verbena_moe* moe) {
  return guard([&] { moe->exchange.reset(); });
}
verbena_result verbena_moe_get_error(verbena_moe* moe, char* text, size_t length) {
  return report_error(text, length, [&] { moe->exchange.check_error(); });
}
verbena_result verbena_moe_set_mask(verbena_moe* moe, uint64_t living) {
  return guard([&] { moe->exchange.set_mask(living); });
}
verbena_result verbena_moe_get_mask(const verbena_moe* moe, uint64_t* living) {
  return guard([&] {
    expect(living != nullptr, "moe: the output pointer is NULL");
    *living = moe->exchange.mask();
  });
}
verbena_result verbena_moe_get_layout(const verbena_moe* moe, verbena_moe_layout* layout) {
  return guard([&] {
    expect(layout != nullptr, "moe: layout is NULL");
    const device::MoeHandleLayout offsets = moe->exchange.layout();
    *layout = {offsets.bytes,   offsets.counts,     offsets.sources,       offsets.ids,
               offsets.weights, offsets.places,     offsets.expert_counts, offsets.expert_begins,
               offsets.own_ids, offsets.own_weights};
  });
}

verbena_result verbena_moe_dispatch(verbena_moe* moe, const verbena_moe_dispatch_arguments* arguments,
                                    verbena_stream stream) {
  return guard([&] {
    expect(arguments != nullptr, "moe: the arguments are NULL");
    moe->exchange.dispatch(*arguments, static_cast<CUstream>(stream));
  });
}
verbena_result verbena_moe_combine(verbena_moe* moe, const verbena_moe_combine_arguments* arguments,
                                   verbena_stream stream) {
  return guard([&] {
    expect(arguments != nullptr, "moe: the arguments are NULL");
    moe->exchange.combine(*arguments, static_cast<CUstream>(stream));
  });
}

}  // extern "C"
