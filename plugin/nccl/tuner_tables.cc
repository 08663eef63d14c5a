// The tuner symbols that NCCL looks up: NCCL 2.21 uses v2, 2.22 and 2.23 use v3, up to 2.27 v4, up to 2.29
// v5, and 2.30 v6.
#include "nccl/tuner_entries.h"

namespace verbena::nccl {
namespace {

// The type of each member selects its overload of `tuner_entries`.
template <typename Table>
constexpr Table make_tuner_table() {
  Table table{};
  table.name = "Verbena";
  table.init = &tuner_entries::init;
  table.get_coll_info = &tuner_entries::get_coll_info;
  if constexpr (requires { table.destroy; }) table.destroy = &tuner_entries::finish;
  if constexpr (requires { table.finalize; }) table.finalize = &tuner_entries::finish;
  if constexpr (requires { table.get_chunk_size; }) table.get_chunk_size = nullptr;  // NCCL's own
  return table;
}

}  // namespace
}  // namespace verbena::nccl

extern "C" {
#define VERBENA_EXPORT_TUNER(version)                                                                       \
  __attribute__((                                                                                           \
      visibility("default"))) constinit verbena::abi::ncclTuner_v##version##_t ncclTunerPlugin_v##version = \
      verbena::nccl::make_tuner_table<verbena::abi::ncclTuner_v##version##_t>()
VERBENA_EXPORT_TUNER(2);
VERBENA_EXPORT_TUNER(3);
VERBENA_EXPORT_TUNER(4);
VERBENA_EXPORT_TUNER(5);
VERBENA_EXPORT_TUNER(6);
#undef VERBENA_EXPORT_TUNER
}
