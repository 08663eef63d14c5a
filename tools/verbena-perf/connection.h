#pragma once
#include "common/line_channel.h"
#include "common/net_plugin.h"
#include "verbena-perf/options.h"

namespace verbena::tools::perf {

// One connection each way between this process and its partner, set up as NCCL does: listen, swap the
// 128-byte handles, poll connect and accept in turn. Closed by close(), in NCCL's order.
struct Connection {
  int device = 0;
  void* send_comm = nullptr;
  void* receive_comm = nullptr;
  abi::NetDeviceHandle device_handle{};
  bool unpacks = false;  // the plugin filled the handle: its Simple receives take slots

  void close(NetPlugin& plugin);
};

// Fills `connection` in place: the plugin keeps the address of its handle while accept is being polled.
void establish(NetPlugin& plugin, LineChannel& partner, const Options& options, Connection& connection);

}  // namespace verbena::tools::perf
