// Converts between the types of NCCL's table versions and the net core's types, which are those of the newest
// version.
#pragma once

#include <algorithm>

#include "base/status.h"
#include "nccl/abi.h"

namespace verbena::nccl {

// A timeout is reported as a remote error: NCCL has a code for timeouts only since 2.30, and the cause is
// always that the peer, or the network to it, did not answer in time.
constexpr abi::Result convert_status(base::Status status) {
  switch (status) {
    case base::Status::kOk:
      return abi::kSuccess;
    case base::Status::kCuda:
      return abi::kUnhandledCudaError;
    case base::Status::kSystem:
      return abi::kSystemError;
    case base::Status::kInvalidArgument:
      return abi::kInvalidArgument;
    case base::Status::kInvalidUsage:
      return abi::kInvalidUsage;
    case base::Status::kRemote:
    case base::Status::kTimeout:
      return abi::kRemoteError;
    case base::Status::kInternal:
      break;
  }
  return abi::kInternalError;
}

// Truncates the text to the capacity of `to`. `to` is filled with zeros, so unused entries are zero.
template <typename To, typename From>
To convert_members(const From& from) {
  To to{};
  to.ndevs = std::clamp(from.ndevs, 0, To::kCapacity);
  std::copy_n(from.devs, std::min(to.ndevs, From::kCapacity), to.devs);
  return to;
}

// Writes every member that `To` has.
template <typename To>
void convert_properties(const abi::ncclNetProperties_v12_t& from, To& to) {
  to.name = from.name;
  to.pci_path = from.pci_path;
  to.guid = from.guid;
  to.ptr_support = from.ptr_support;
  to.speed_mbps = from.speed_mbps;
  to.port = from.port;
  to.latency_us = from.latency_us;
  to.max_comms = from.max_comms;
  to.max_recvs = from.max_recvs;
  to.net_device_type = from.net_device_type;
  to.net_device_version = from.net_device_version;
  if constexpr (requires { to.reg_is_global; }) to.reg_is_global = from.reg_is_global;
  if constexpr (requires { to.force_flush; }) to.force_flush = from.force_flush;
  if constexpr (requires { to.vprops; }) {
    to.vprops = convert_members<decltype(to.vprops)>(from.vprops);
    to.max_p2p_bytes = from.max_p2p_bytes;
    to.max_coll_bytes = from.max_coll_bytes;
  }
  if constexpr (requires { to.max_multi_request_size; })
    to.max_multi_request_size = from.max_multi_request_size;
  if constexpr (requires { to.rail_id; }) {
    to.rail_id = from.rail_id;
    to.plane_id = from.plane_id;
  }
}

}  // namespace verbena::nccl
