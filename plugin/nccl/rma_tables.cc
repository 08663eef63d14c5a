// The symbols that NCCL looks up for its device API. A release takes the newest table it knows: GIN v11
// from 2.28.7 on, GIN v13 in 2.30.3 and 2.30.4, RMA v14 from 2.30.7, v15 from 2.31, v16 from 2.32 on.
#include "nccl/rma_abi.h"
#include "nccl/rma_entries.h"

namespace verbena::nccl {
namespace {

constexpr const char* kPluginName = "Verbena";

// The type of each member selects its overload of `rma_entries`. No member may be null, because NCCL checks
// none.
template <typename Table>
constexpr Table make_rma_table() {
  constexpr bool kHasContexts = requires(Table table) { table.iget; };
  Table table{};
  table.name = kPluginName;
  table.init = &rma_entries::init;
  table.devices = &rma_entries::devices;
  table.get_properties = &rma_entries::get_properties;
  table.listen = &rma_entries::listen;
  table.connect = &rma_entries::connect<!kHasContexts>;
  table.create_context = &rma_entries::create_context;
  table.reg_mr_sym = &rma_entries::reg_mr_sym;
  table.reg_mr_sym_dmabuf = &rma_entries::reg_mr_sym_dmabuf;
  table.dereg_mr_sym = &rma_entries::dereg_mr_sym;
  table.destroy_context = &rma_entries::destroy_context;
  table.close_coll = &rma_entries::close_coll;
  table.close_listen = &rma_entries::close_listen;
  table.iput = &rma_entries::iput;
  table.iput_signal = &rma_entries::iput_signal;
  table.test = &rma_entries::test;
  table.progress = &rma_entries::progress;
  table.query_last_error = &rma_entries::query_last_error;
  table.finalize = &rma_entries::finalize;
  if constexpr (kHasContexts) {
    table.iget = &rma_entries::iget;
    table.iflush = &rma_entries::iflush;
  }
  if constexpr (requires { table.get_rma_properties; })
    table.get_rma_properties = &rma_entries::get_rma_properties;
  return table;
}

}  // namespace
}  // namespace verbena::nccl

extern "C" {
#define VERBENA_EXPORT_TABLE(symbol, table)                                     \
  __attribute__((visibility("default"))) constinit verbena::abi::table symbol = \
      verbena::nccl::make_rma_table<verbena::abi::table>()
VERBENA_EXPORT_TABLE(ncclGinPlugin_v11, ncclGin_v11_t);
VERBENA_EXPORT_TABLE(ncclGinPlugin_v13, ncclGin_v13_t);
VERBENA_EXPORT_TABLE(ncclRmaPlugin_v14, ncclRma_v14_t);
VERBENA_EXPORT_TABLE(ncclRmaPlugin_v15, ncclRma_v15_t);
VERBENA_EXPORT_TABLE(ncclRmaPlugin_v16, ncclRma_v16_t);
#undef VERBENA_EXPORT_TABLE
}
