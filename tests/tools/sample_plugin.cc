// NCCL's tables of the sample plugin: the oldest, one in the middle, the newest.
#include "tools/sample_core.h"

namespace {

using namespace verbena;
using namespace verbena::tools::sample;

template <typename Members>
abi::Result make_virtual_device(int* device, Members* members) {
  return make_device(device, members->ndevs);
}

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

template <typename Size>
abi::Result register_memory(void* comm, void*, Size, int, void** mhandle) {
  return add_registration(comm, mhandle);
}

}  // namespace

extern "C" {
[[gnu::visibility("default")]] extern const abi::ncclNet_v7_t ncclNetPlugin_v7;
[[gnu::visibility("default")]] extern const abi::ncclNet_v9_t ncclNetPlugin_v9;
[[gnu::visibility("default")]] extern const abi::ncclNet_v12_t ncclNetPlugin_v12;

const abi::ncclNet_v7_t ncclNetPlugin_v7 = {
    "Sample",
    [](abi::DebugLogger) { return abi::kSuccess; },
    count_devices,
    get_properties<abi::ncclNetProperties_v7_t>,
    listen_on,
    connect_to,
    accept_from,
    register_memory<int>,
    register_dmabuf,
    deregister_memory,
    [](void* comm, void* data, int size, int, void*, void** request) {
      return start_send(comm, data, static_cast<size_t>(size), request);
    },
    [](void* comm, int, void** data, int* sizes, int*, void** mhandles, void** request) {
      return start_receive(comm, *data, static_cast<size_t>(*sizes), *mhandles, request);
    },
    flush,
    test_request,
    close_comm,
    close_comm,
    close_comm,
    nullptr,
    consume};

const abi::ncclNet_v9_t ncclNetPlugin_v9 = {
    "Sample",
    [](abi::DebugLogger) { return abi::kSuccess; },
    count_devices,
    get_properties<abi::ncclNetProperties_v9_t>,
    listen_on,
    connect_to,
    accept_from,
    register_memory<size_t>,
    register_dmabuf,
    deregister_memory,
    [](void* comm, void* data, size_t size, int, void*, void** request) {
      return start_send(comm, data, size, request);
    },
    [](void* comm, int, void** data, size_t* sizes, int*, void** mhandles, void** request) {
      return start_receive(comm, *data, *sizes, *mhandles, request);
    },
    flush,
    test_request,
    close_comm,
    close_comm,
    close_comm,
    nullptr,
    consume,
    make_virtual_device<abi::ncclNetVDeviceProps_v9_t>};

const abi::ncclNet_v12_t ncclNetPlugin_v12 = {
    "Sample",
    [](void**, uint64_t, abi::NetCommConfig*, abi::DebugLogger logger, abi::ProfilerCallback) {
      logger(abi::kLogInfo, abi::kSubsystemNet, __FILE__, __LINE__, "sample: init of table v%d", 12);
      return abi::kSuccess;
    },
    count_devices,
    get_properties<abi::ncclNetProperties_v12_t>,
    listen_in,
    connect_in,
    accept_from,
    register_memory<size_t>,
    register_dmabuf,
    deregister_memory,
    send_profiled,
    receive_profiled,
    flush,
    test_request,
    close_comm,
    close_comm,
    close_comm,
    nullptr,
    consume,
    make_virtual_device<abi::ncclNetVDeviceProps_v12_t>,
    [](void*) { return abi::kSuccess; },
    [](void*, abi::NetAttr*) { return abi::kSuccess; }};
}
