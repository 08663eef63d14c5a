#include "nccl/rma_core.h"

#include <cstring>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "base/random.h"
#include "nccl/logger_adapter.h"
#include "nccl/net_core.h"
#include "nccl/rma_communicator.h"

namespace verbena::nccl {

static_assert(bootstrap::kUniqueIdBytes == abi::kHandleBytes);

Outcome init_rma(void** context, uint64_t communicator_id, abi::DebugLogger logger) {
  attach_logger(logger);
  auto opened = Process::get().open_context(communicator_id, abi::kUndefined, kNoMessages);
  if (!opened) return opened.error();
  *context = *opened;
  return {};
}

Outcome get_rma_device(int device, abi::ncclNetProperties_v12_t* properties) {
  if (const Outcome found = get_properties(device, properties); !found) return found;
  properties->force_flush = 0;
  properties->max_recvs = abi::kRmaMaxReceives;
  properties->net_device_type = abi::kDeviceGinProxy;
  properties->net_device_version = abi::kDeviceInvalidVersion;
  properties->vprops = {};
  properties->vprops.ndevs = 1;
  properties->vprops.devs[0] = device;
  properties->rail_id = properties->plane_id = abi::kUndefined;
  return {};
}

Outcome listen_rma(int device, void* handle, void** listen_comm) {
  const auto nics = Process::get().nics();
  const auto nic = Process::get().find_nic(nics, device, "listen");
  if (!nic) return nic.error();
  bootstrap::Meeting meeting;
  if (auto drawn = base::draw_random(meeting.nonce, "listen"); !drawn) return drawn.error();
  if (base::has_crypto()) {
    if (auto drawn = base::draw_random(meeting.secret, "listen"); !drawn) return drawn.error();
  }
  auto rendezvous = bootstrap::Rendezvous::open(meeting, base::parameters().connect_timeout_ms);
  if (!rendezvous) return rendezvous.error();
  std::memcpy(handle, (*rendezvous)->id().bytes, abi::kHandleBytes);
  *listen_comm = new RmaListener{nics, *nic, std::move(*rendezvous)};
  return {};
}

Outcome close_rma_listener(void* listen_comm) {
  delete static_cast<RmaListener*>(listen_comm);
  return {};
}

namespace {

// An identifier that is the same on all ranks of a group and differs between groups.
uint64_t name_group(std::span<const bootstrap::UniqueId> ids) {
  uint64_t sum = 0xcbf29ce484222325;
  for (const bootstrap::UniqueId& id : ids)
    for (const uint8_t byte : id.bytes) sum = (sum ^ byte) * 0x100000001b3;
  return sum;
}

}  // namespace

Outcome connect_rma(void* const* handles, int count_ranks, int rank, void* listen_comm, bool joins_all,
                    void** coll_comm) {
  auto& listener = *static_cast<RmaListener*>(listen_comm);
  if (count_ranks <= 0 || rank < 0 || rank >= count_ranks) {
    return base::fail(base::Status::kInvalidArgument, "connect: rank %d of %d does not exist", rank,
                      count_ranks);
  }
  std::vector<bootstrap::UniqueId> ids(static_cast<size_t>(count_ranks));
  base::Result<bootstrap::Meeting> meeting = bootstrap::Meeting();
  for (size_t peer = 0; peer < ids.size(); ++peer) {
    if (handles[peer] == nullptr)
      return base::fail(base::Status::kInvalidArgument, "connect: rank %zu has no handle", peer);
    std::memcpy(ids[peer].bytes, handles[peer], sizeof(ids[peer].bytes));
    const auto parsed = bootstrap::parse(ids[peer]);
    if (!parsed) {
      return base::fail(base::Status::kRemote,
                        "connect: the handle of rank %zu of %d was not created by this plugin. For NCCL's "
                        "device API, every rank needs the same release of the plugin (NCCL_RMA_PLUGIN, "
                        "NCCL_GIN_PLUGIN, NCCL_NET_PLUGIN)",
                        peer, count_ranks);
    }
    if (peer == 0) meeting = parsed;
  }
  auto joined =
      bootstrap::Bootstrap::join(*meeting, static_cast<uint32_t>(rank), static_cast<uint32_t>(count_ranks),
                                 {.timeout_ms = base::parameters().connect_timeout_ms});
  if (!joined) return joined.error();
  auto communicator =
      RmaCommunicator::open(std::move(*joined), listener.nics, *listener.nic, name_group(ids), joins_all);
  if (!communicator) return communicator.error();
  *coll_comm = static_cast<RmaContext*>(communicator->release());
  return {};
}

}  // namespace verbena::nccl
