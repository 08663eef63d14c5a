#include "verbs/datagram_queues.h"

#include <endian.h>

#include <algorithm>
#include <cerrno>

#include "base/hot_path.h"
#include "base/log.h"
#include "verbs/device.h"
#include "verbs/library.h"
#include "verbs/mlx5.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Result;
using base::Status;

// A flag that only softverbs has: the datagram is longer than an MTU.
constexpr unsigned kSoftverbsSendLong = 1U << 30;
constexpr uint32_t kLongestMtuBytes = 4096;
constexpr size_t kChainEntries = 32;  // limits the stack of post()

base::Error fail_device(const Device& device, const char* what, int errno_value) {
  return base::fail_errno(Status::kSystem, errno_value, "device %s:%d: %s%s", device.name().c_str(),
                          device.port_number(), what, hint_at_memory(errno_value));
}

}  // namespace

// Some devices leave zeros or the bytes of an earlier datagram there. Such bytes are not a header, and mean
// no mark.
bool has_congestion_mark(const std::byte* network_header) {
  constexpr uint8_t kCongestionExperienced = 3, kIpv4WithoutOptions = 0x45, kUdp = 17, kIbTransport = 0x1b;
  const auto at = [&](size_t byte) { return std::to_integer<uint8_t>(network_header[byte]); };
  // The bytes in front of an IPv4 header are undefined, so the IPv4 header is checked first.
  constexpr size_t kIpv4 = 20;
  if (at(kIpv4) == kIpv4WithoutOptions && at(kIpv4 + 9) == kUdp) {
    if ((at(kIpv4 + 1) & 3) != kCongestionExperienced) return false;
    uint32_t sum = 0;
    for (size_t byte = kIpv4; byte < kGrhBytes; byte += 2) sum += at(byte) << 8 | at(byte + 1);
    return (sum & 0xffff) + (sum >> 16) == 0xffff;
  }
  const bool is_ipv6 = at(0) >> 4 == 6 && (at(6) == kUdp || at(6) == kIbTransport);
  return is_ipv6 && (at(1) >> 4 & 3) == kCongestionExperienced;
}

Result<DatagramPair> DatagramPair::create(Device& device, CompletionQueue& sends, CompletionQueue& receives,
                                          SharedReceiveQueue& receive_queue,
                                          const DatagramPairOptions& options) {
  if (options.send_depth > device.max_qp_entries())
    return base::fail(Status::kSystem,
                      "device %s: cannot create a queue pair for datagrams (send depth %u, limit %u entries)",
                      device.name().c_str(), options.send_depth, device.max_qp_entries());
  ibv_qp_init_attr attributes{};
  ibv_qp* pair = nullptr;
  // Some devices grant fewer inline bytes than requested. Other devices do not create the queue pair in this
  // case.
  for (uint32_t bytes = options.inline_bytes;; bytes /= 2) {
    attributes = {};
    attributes.send_cq = sends.get();
    attributes.recv_cq = receives.get();
    attributes.srq = receive_queue.get();
    attributes.cap.max_send_wr = options.send_depth;
    attributes.cap.max_send_sge = 2;
    attributes.cap.max_inline_data = bytes;
    attributes.qp_type = IBV_QPT_UD;
    pair = device.library().create_qp(device.domain(), &attributes);
    if (pair != nullptr || errno != EINVAL || bytes == 0) break;
  }
  if (pair == nullptr) return fail_device(device, "cannot create a queue pair for datagrams", errno);
  DatagramPair result;
  result.pair_ = Owned<ibv_qp>(pair, Destroyer{&device.library()});
  result.device_ = &device;
  result.number_ = pair->qp_num;
  result.send_depth_ = options.send_depth;
  result.inline_bytes_ = std::min(attributes.cap.max_inline_data, options.inline_bytes);
  result.mark_ = uint64_t{options.mark} << 32;
  result.key_ = options.key;
  if (const uint32_t ports = device.bonded_ports(); ports > 1)
    result.bonded_port_ = 1 + options.bond_turn % ports;
  if (Outcome outcome = result.start(); !outcome) return outcome.error();
  return result;
}

struct DatagramPair::Attributes {
  ibv_qp_state state;
  int mask;
  const char* name;
};

Outcome DatagramPair::enter(const Attributes& state) const {
  ibv_qp_attr attributes{};
  attributes.qp_state = state.state;
  attributes.pkey_index = static_cast<uint16_t>(device_->local_address().partition_key_index);
  attributes.port_num = static_cast<uint8_t>(device_->port_number());
  attributes.qkey = key_;
  const int error = device_->library().modify_qp(pair_.get(), &attributes, IBV_QP_STATE | state.mask);
  if (error == 0) return {};
  return base::fail_errno(Status::kSystem, error,
                          "device %s:%d: queue pair %u for datagrams cannot be moved to %s",
                          device_->name().c_str(), device_->port_number(), number_, state.name);
}

Outcome DatagramPair::start() const {
  for (const Attributes& state :
       {Attributes{IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, "INIT"},
        Attributes{IBV_QPS_RTR, 0, "RTR"}, Attributes{IBV_QPS_RTS, IBV_QP_SQ_PSN, "RTS"}})
    if (Outcome outcome = enter(state); !outcome) return outcome;
  if (bonded_port_ != 0) choose_bonded_port(*device_, pair_.get(), bonded_port_);
  return {};
}

bool DatagramPair::is_ready() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  return device_->library().query_qp(pair_.get(), &attributes, IBV_QP_STATE, &initial) == 0 &&
         attributes.qp_state == IBV_QPS_RTS;
}

Outcome DatagramPair::stop() {
  return enter({IBV_QPS_ERR, 0, "ERR"});
}

Outcome DatagramPair::restart(uint32_t posted) {
  if (Outcome outcome = enter({IBV_QPS_RESET, 0, "RESET"}); !outcome) return outcome;
  posted_ = retired_ = posted;
  return start();
}

VERBENA_HOT_PATH Outcome DatagramPair::post(std::span<const Datagram> datagrams) {
  ibv_send_wr chain[kChainEntries];
  ibv_sge segments[2 * kChainEntries];
  while (!datagrams.empty()) {
    const size_t count = std::min(datagrams.size(), kChainEntries);
    for (size_t i = 0; i < count; ++i) {
      const Datagram& datagram = datagrams[i];
      ibv_sge* const pieces = segments + 2 * i;
      pieces[0] = {reinterpret_cast<uintptr_t>(datagram.header), datagram.header_length, datagram.header_key};
      pieces[1] = {reinterpret_cast<uintptr_t>(datagram.data), datagram.data_length, datagram.data_key};
      const bool is_last = i + 1 == count;
      ibv_send_wr& entry = chain[i];
      entry.next = is_last ? nullptr : &chain[i + 1];
      entry.wr_id = mark_ | static_cast<uint32_t>(posted_ + i + 1);
      entry.sg_list = pieces;
      entry.num_sge = datagram.data_length != 0 ? 2 : 1;
      entry.opcode = IBV_WR_SEND_WITH_IMM;
      const bool is_long = datagram.header_length + datagram.data_length > kLongestMtuBytes;
      entry.send_flags = (is_last ? unsigned{IBV_SEND_SIGNALED} : 0U) | (is_long ? kSoftverbsSendLong : 0U) |
                         (datagram.send_inline ? unsigned{IBV_SEND_INLINE} : 0U);
      entry.imm_data = htobe32(datagram.imm);
      entry.wr.ud.ah = datagram.way;
      entry.wr.ud.remote_qpn = datagram.pair_number;
      entry.wr.ud.remote_qkey = datagram.key;
    }
    ibv_send_wr* rejected = nullptr;
    if (const int error = ibv_post_send(pair_.get(), chain, &rejected); error != 0) [[unlikely]] {
      return base::fail_errno(
          Status::kSystem, error, "device %s:%d: queue pair %u: cannot post %zu datagrams (%u in flight)",
          device_->name().c_str(), device_->port_number(), number_, count, posted_ - retired_);
    }
    posted_ += static_cast<uint32_t>(count);
    datagrams = datagrams.subspan(count);
  }
  return {};
}

VERBENA_HOT_PATH Outcome post_split(SharedReceiveQueue& queue, std::span<const SplitReceive> receives) {
  constexpr size_t kPieces = 3;
  ibv_recv_wr chain[kChainEntries];
  ibv_sge segments[kPieces * kChainEntries];
  while (!receives.empty()) {
    const size_t count = std::min(receives.size(), kChainEntries);
    for (size_t i = 0; i < count; ++i) {
      const SplitReceive& receive = receives[i];
      ibv_sge* const pieces = segments + kPieces * i;
      int used = 0;
      for (const ReceiveBuffer* piece : {&receive.line, &receive.page, &receive.rest})
        if (piece->length != 0)
          pieces[used++] = {reinterpret_cast<uintptr_t>(piece->address), piece->length, piece->local_key};
      chain[i] = {receive.line.cookie, i + 1 < count ? &chain[i + 1] : nullptr, pieces, used};
    }
    ibv_recv_wr* rejected = nullptr;
    if (const int error = ibv_post_srq_recv(queue.get(), chain, &rejected); error != 0) [[unlikely]]
      return base::fail_errno(Status::kSystem, error, "device %s: cannot post receives of datagrams",
                              name_device(queue.get()->context));
    receives = receives.subspan(count);
  }
  return {};
}

}  // namespace verbena::verbs
