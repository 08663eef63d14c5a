// NCCL's tables of the sample plugin: the oldest, one in the middle, the newest.
#include "tools/sample_core.h"

namespace {

using namespace verbena;
using namespace verbena::tools::sample;

template <typename Properties>
abi::Result get_properties(int, Properties* properties) {
  static char name[] = "sample";
  *properties = {};
  properties->name = name;
  properties->ptr_support = abi::kPtrHost;
  properties->speed_mbps = 1000;
  properties->max_recvs = 1;
  properties->net_device_type = unpacks() ? abi::kDeviceUnpack : abi::kDeviceHost;
  properties->net_device_version = unpacks() ? abi::kDeviceUnpackVersion : 0;
  return abi::kSuccess;
}

}  // namespace

extern "C" {
[[gnu::visibility("default")]] extern const abi::ncclNet_v7_t ncclNetPlugin_v7;
[[gnu::visibility("default")]] extern const abi::ncclNet_v9_t ncclNetPlugin_v9;
[[gnu::visibility("default")]] extern const abi::ncclNet_v12_t ncclNetPlugin_v12;

constinit const abi::ncclNet_v7_t ncclNetPlugin_v7 = make_table<abi::ncclNet_v7_t>(
    "Sample", [](abi::DebugLogger) { return abi::kSuccess; }, get_properties);

constinit const abi::ncclNet_v9_t ncclNetPlugin_v9 = make_table<abi::ncclNet_v9_t>(
    "Sample", [](abi::DebugLogger) { return abi::kSuccess; }, get_properties);

constinit const abi::ncclNet_v12_t ncclNetPlugin_v12 = make_table<abi::ncclNet_v12_t>(
    "Sample",
    [](void**, uint64_t, abi::NetCommConfig*, abi::DebugLogger logger, abi::ProfilerCallback) {
      logger(abi::kLogInfo, abi::kSubsystemNet, __FILE__, __LINE__, "sample: init of table v%d", 12);
      return abi::kSuccess;
    },
    get_properties);
}
