// A stand-in for libnccl: its own IB transport is a table that the file does not export, as NCCL's.
#include <cstdlib>

#include "tools/sample_core.h"

namespace {

using namespace verbena;
using namespace verbena::tools::sample;

abi::Result get_properties(int, abi::ncclNetProperties_v11_t* properties) {
  static char name[] = "sample_ib";
  *properties = {};
  properties->name = name;
  properties->ptr_support = abi::kPtrHost;
  properties->speed_mbps = 1000;
  properties->max_recvs = 8;
  properties->net_device_type = abi::kDeviceHost;
  return abi::kSuccess;
}

}  // namespace

extern "C" {
[[gnu::visibility("hidden")]] extern const abi::ncclNet_v11_t ncclNetIb;
constinit const abi::ncclNet_v11_t ncclNetIb = make_table<abi::ncclNet_v11_t>(
    "IB",
    [](void**, uint64_t, abi::NetCommConfig*, abi::DebugLogger, abi::ProfilerCallback) {
      return abi::kSuccess;
    },
    get_properties);

[[gnu::visibility("default")]] abi::Result ncclGetVersion(int* version) {
  const char* const chosen = std::getenv("SAMPLE_NCCL_VERSION");
  *version = chosen != nullptr ? std::atoi(chosen) : 22809;
  return abi::kSuccess;
}
}
