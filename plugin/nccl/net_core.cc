// Life cycle and devices. Connections: net_connections.cc. Messages: net_data.cc.
#include "nccl/net_core.h"

#include <algorithm>
#include <bit>
#include <span>

#include "base/cuda_driver.h"
#include "base/log.h"
#include "base/parameters.h"
#include "nccl/communicators.h"
#include "nccl/unpack_offer.h"

namespace verbena::nccl {

std::atomic<bool> is_profiling{false};

Outcome init(void** context, uint64_t communicator_id, int traffic_class, abi::DebugLogger,
             abi::ProfilerCallback profiler, int abi_version) {
  auto opened = Process::get().open_context(communicator_id, traffic_class, abi_version);
  if (!opened) return opened.error();
  (*opened)->profiler = base::parameters().profiler ? profiler : nullptr;
  if ((*opened)->profiler != nullptr) is_profiling.store(true, std::memory_order_relaxed);
  *context = *opened;
  return {};
}

Outcome finalize(void* context) {
  if (context != nullptr) static_cast<Context*>(context)->finalize();
  return {};
}

bool is_idle(void* context) {
  auto& c = *static_cast<Context*>(context);
  const std::lock_guard lock(c.mutex);
  return c.open_communicators == 0;
}

Outcome count_devices(int* count) {
  const auto nics = Process::get().nics();
  if (nics == nullptr) return base::fail(base::Status::kInvalidUsage, "devices: called before init");
  const std::lock_guard lock(Process::get().mutex());
  *count = nics->size();
  return {};
}

Outcome get_properties(int device, abi::ncclNetProperties_v12_t* properties) {
  const auto nics = Process::get().nics();
  const auto nic = Process::get().find_nic(nics, device, "getProperties");
  if (!nic) return nic.error();
  const transport::Nic& n = **nic;
  *properties = {};
  properties->name = const_cast<char*>(n.name.c_str());
  properties->pci_path = n.pci_path.empty() ? nullptr : const_cast<char*>(n.pci_path.c_str());
  properties->guid = n.guid;
  properties->ptr_support = abi::kPtrHost | (n.supports_gpu_pointers ? abi::kPtrCuda : 0) |
                            (n.supports_dmabuf ? abi::kPtrDmabuf : 0);
  // NCCL itself decides by the generation of the GPU, so this asks for flushes if a GPU may see writes out of
  // order.
  const bool is_unordered = !n.rails[0]->is_softverbs() && base::has_unordered_gpu();
  properties->force_flush = is_unordered || n.has_data_direct ? 1 : 0;
  properties->speed_mbps = static_cast<int>(n.speed_mbps);
  properties->port = n.port;
  properties->max_comms = 65536;
  const bool unpack = offers_unpack();
  // UNPACK has one device handle and one slot per receive.
  properties->max_recvs = unpack ? 1 : static_cast<int>(Process::transport().max_buffers());
  properties->net_device_type = unpack ? abi::kDeviceUnpack : abi::kDeviceHost;
  properties->net_device_version = unpack ? abi::kDeviceUnpackVersion : abi::kDeviceInvalidVersion;
  properties->vprops.ndevs = static_cast<int>(n.members.size());
  for (size_t i = 0; i < n.members.size(); ++i) properties->vprops.devs[i] = n.members[i];
  properties->max_p2p_bytes = static_cast<size_t>(abi::kMaxMessageBytes);
  properties->max_coll_bytes = static_cast<size_t>(abi::kMaxMessageBytes);
  properties->max_multi_request_size = 1;
  static_assert(verbs::PortPlace::kUnknown == abi::kUndefined);
  properties->rail_id = n.place.rail;
  properties->plane_id = n.place.plane;
  return {};
}

namespace {

// NCCL 2.28 joins all devices that are close together, but then fails for a joined device that is not on the
// PCI bus: "Could not find NET with id 0". If the plugin refuses, NCCL uses the devices separately.
bool may_merge(std::span<const int> members) {
  constexpr int64_t kNever = 0, kAlways = 1;
  const int64_t setting = base::parameters().merge_nics;
  if (setting == kNever || setting == kAlways) return setting == kAlways;
  const auto nics = Process::get().nics();
  if (nics == nullptr) return true;  // the error of a call before init is clearer
  const std::lock_guard lock(Process::get().mutex());
  return std::none_of(members.begin(), members.end(), [&](int member) {
    const transport::Nic* nic = nics->find(member);
    return nic != nullptr && nic->pci_path.empty();
  });
}

}  // namespace

Outcome make_virtual_device(int* device, const abi::ncclNetVDeviceProps_v12_t& members) {
  const std::span<const int> list(members.devs, static_cast<size_t>(members.ndevs));
  // NCCL 2.24 to 2.26 asks for a virtual device of each device alone as well, and does not start without.
  if (list.size() > 1 && !may_merge(list)) {
    base::log_info(
        "makeVDevice: the plugin does not join devices, because VERBENA_MERGE_NICS is %lld. If NCCL fails "
        "after this line, as NCCL 2.25 does, set NCCL_NET_MERGE_LEVEL=LOC",
        static_cast<long long>(base::parameters().merge_nics));
    return base::Error{base::Status::kInvalidUsage};
  }
  auto index = Process::get().add_virtual_nic(list);
  if (!index) return index.error();
  *device = *index;
  return {};
}

namespace {

// Returns the number of connections of the next kind that one rank may use at a time; 0 if NCCL does not
// tell.
uint32_t count_connections(const abi::CommAttr& attributes) {
  if (attributes.max_concurrent_peers <= 0) return 0;
  const int64_t flows = std::max(attributes.max_flows_per_peer, 1);
  return static_cast<uint32_t>(std::min<int64_t>(attributes.max_concurrent_peers * flows, UINT32_MAX));
}

}  // namespace

// Before connect and accept NCCL passes all operations that a connection may serve; before messages exactly
// one.
Outcome set_attributes(void* context, const abi::NetAttr& attributes) {
  if (context == nullptr) return {};
  auto& c = *static_cast<Context*>(context);
  if (std::popcount(attributes.op) == 1) {
    c.operation.store(attributes.op, std::memory_order_relaxed);
    c.algorithm.store(attributes.algo, std::memory_order_relaxed);
    c.protocol.store(attributes.proto, std::memory_order_relaxed);
  } else {
    c.connections_ahead.store(count_connections(attributes.recv), std::memory_order_relaxed);
    const bool is_collective = (attributes.op & kClassicCollectives) != 0;
    c.family.store(
        is_collective ? RegistrationOrder::Family::kCollective : RegistrationOrder::Family::kPointToPoint,
        std::memory_order_relaxed);
  }
  return {};
}

}  // namespace verbena::nccl
