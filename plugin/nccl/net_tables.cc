// The symbols that NCCL looks up. Every release uses the newest table that it knows, so one binary serves
// 2.19 to 2.30.
#include "nccl/abi_tables.h"
#include "nccl/net_entries.h"

namespace verbena::nccl {
namespace {

// NCCL_NET=verbena selects the plugin by this name, whatever the case of the letters.
constexpr const char* kPluginName = "Verbena";

// The type of each member selects its overload of `entries`.
template <int kVersion, typename Table>
constexpr Table make_table() {
  Table table{};
  table.name = kPluginName;
  table.init = &entries::init<kVersion>;
  table.devices = &entries::devices;
  table.get_properties = &entries::get_properties;
  table.listen = &entries::listen;
  table.connect = &entries::connect;
  table.accept = &entries::accept;
  table.reg_mr = &entries::reg_mr;
  table.reg_mr_dmabuf = &entries::reg_mr_dmabuf;
  table.dereg_mr = &entries::dereg_mr;
  table.isend = &entries::isend;
  table.irecv = &entries::irecv;
  table.iflush = &entries::iflush;
  table.test = &entries::test;
  table.close_send = &entries::close_send;
  table.close_recv = &entries::close_recv;
  table.close_listen = &entries::close_listen;
  table.get_device_mr = &entries::get_device_mr;
  table.irecv_consumed = &entries::irecv_consumed;
  if constexpr (requires { table.make_vdevice; }) table.make_vdevice = &entries::make_vdevice;
  if constexpr (requires { table.finalize; }) table.finalize = &entries::finalize;
  if constexpr (requires { table.set_net_attr; }) table.set_net_attr = &entries::set_net_attr;
  return table;
}

}  // namespace
}  // namespace verbena::nccl

extern "C" {
#define VERBENA_EXPORT_TABLE(version)                                                                   \
  __attribute__((                                                                                       \
      visibility("default"))) constinit verbena::abi::ncclNet_v##version##_t ncclNetPlugin_v##version = \
      verbena::nccl::make_table<version, verbena::abi::ncclNet_v##version##_t>()
VERBENA_EXPORT_TABLE(7);
VERBENA_EXPORT_TABLE(8);
VERBENA_EXPORT_TABLE(9);
VERBENA_EXPORT_TABLE(10);
VERBENA_EXPORT_TABLE(11);
VERBENA_EXPORT_TABLE(12);
#undef VERBENA_EXPORT_TABLE
}
