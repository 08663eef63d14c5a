// Posting and polling: every request is carried out and completed before its post returns.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "null_objects.h"

namespace verbena::bench::null {
namespace {

// Not memcpy, so that all that the device does is counted as its own.
void move_bytes(std::byte* to, const std::byte* from, uint32_t length_bytes) {
  while (length_bytes >= sizeof(uint64_t)) {
    *reinterpret_cast<volatile uint64_t*>(to) = *reinterpret_cast<const volatile uint64_t*>(from);
    to += sizeof(uint64_t);
    from += sizeof(uint64_t);
    length_bytes -= static_cast<uint32_t>(sizeof(uint64_t));
  }
  for (; length_bytes != 0; --length_bytes) {
    *reinterpret_cast<volatile std::byte*>(to++) = *reinterpret_cast<const volatile std::byte*>(from++);
  }
}

std::byte* to_pointer(uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

void complete_receive(Pair& receiver, ibv_wc_opcode opcode, const Receive& receive,
                      const ibv_send_wr& request, uint32_t length_bytes) {
  ibv_wc& entry = receiver.received->entries.push();
  entry.wr_id = receive.cookie;
  entry.status = IBV_WC_SUCCESS;
  entry.opcode = opcode;
  entry.byte_len = length_bytes;
  entry.imm_data = request.imm_data;
  entry.qp_num = receiver.qp_num;
  entry.wc_flags = IBV_WC_WITH_IMM;
}

void complete_send(Pair& sender, const ibv_send_wr& request) {
  ibv_wc& entry = sender.sent->entries.push();
  entry.wr_id = request.wr_id;
  entry.status = IBV_WC_SUCCESS;
  entry.opcode = IBV_WC_SEND;
  entry.qp_num = sender.qp_num;
  entry.wc_flags = 0;
}

void add_to_word(std::byte* word, std::byte* before, uint64_t addend) {
  uint64_t value = 0;
  std::memcpy(&value, word, sizeof(value));
  std::memcpy(before, &value, sizeof(value));
  value += addend;
  std::memcpy(word, &value, sizeof(value));
}

bool has_room(const Pair& sender, const ibv_send_wr& request) {
  const bool needs_receive =
      request.opcode == IBV_WR_SEND_WITH_IMM || request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const Pair& receiver = *sender.peer;
  if (needs_receive && (receiver.receives == nullptr || receiver.receives->entries.is_empty() ||
                        receiver.received->entries.is_full())) {
    return false;
  }
  return (request.send_flags & IBV_SEND_SIGNALED) == 0 || !sender.sent->entries.is_full();
}

void carry_out(Pair& sender, const ibv_send_wr& request) {
  Pair& receiver = *sender.peer;
  const uint32_t length_bytes = request.num_sge == 0 ? 0 : request.sg_list->length;
  std::byte* const local = request.num_sge == 0 ? nullptr : to_pointer(request.sg_list->addr);
  std::byte* const remote = to_pointer(request.wr.rdma.remote_addr);
  switch (request.opcode) {
    case IBV_WR_RDMA_WRITE:
      move_bytes(remote, local, length_bytes);
      break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      move_bytes(remote, local, length_bytes);
      complete_receive(receiver, IBV_WC_RECV_RDMA_WITH_IMM, receiver.receives->entries.pop(), request,
                       length_bytes);
      break;
    case IBV_WR_RDMA_READ:
      move_bytes(local, remote, length_bytes);
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      add_to_word(to_pointer(request.wr.atomic.remote_addr), local, request.wr.atomic.compare_add);
      break;
    default: {
      const Receive& receive = receiver.receives->entries.pop();
      move_bytes(receive.address, local, length_bytes);
      complete_receive(receiver, IBV_WC_RECV, receive, request, length_bytes);
    }
  }
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) complete_send(sender, request);
}

// To the queue pair that the request names, behind a header of the network that says nothing. Lost, as
// datagrams are, where there is none, or no receive for it. What a receive has no room for is cut off.
void carry_datagram(Pair& sender, const ibv_send_wr& request) {
  constexpr uint32_t kGrhBytes = 40;
  Pair* const receiver = find_datagram_pair(request.wr.ud.remote_qpn);
  if (receiver != nullptr && !receiver->receives->entries.is_empty() &&
      !receiver->received->entries.is_full()) {
    const Receive& receive = receiver->receives->entries.pop();
    uint32_t filled = kGrhBytes;
    const auto append = [&](std::byte* to, uint32_t room_bytes, const std::byte*& from,
                            uint32_t& left_bytes) {
      const uint32_t count = std::min(left_bytes, room_bytes);
      if (count == 0) return;
      move_bytes(to, from, count);
      from += count, left_bytes -= count, filled += count;
    };
    for (int i = 0; i < request.num_sge; ++i) {
      const std::byte* from = to_pointer(request.sg_list[i].addr);
      uint32_t left_bytes = request.sg_list[i].length;
      if (filled < receive.length_bytes)
        append(receive.address + filled, receive.length_bytes - filled, from, left_bytes);
      if (receive.rest == nullptr || filled < receive.length_bytes) continue;
      const uint32_t at = filled - receive.length_bytes;
      append(receive.rest + at, receive.rest_bytes - at, from, left_bytes);
    }
    complete_receive(*receiver, IBV_WC_RECV, receive, request, filled);
  }
  if ((request.send_flags & IBV_SEND_SIGNALED) != 0) complete_send(sender, request);
}

}  // namespace

int poll_queue(ibv_cq* queue, int count, ibv_wc* entries) {
  auto& ring = static_cast<CompletionQueue*>(queue)->entries;
  int taken = 0;
  while (taken < count && !ring.is_empty()) entries[taken++] = ring.pop();
  return taken;
}

int post_send(ibv_qp* pair, ibv_send_wr* first, ibv_send_wr** rejected) {
  auto& sender = *static_cast<Pair*>(pair);
  for (ibv_send_wr* request = first; request != nullptr; request = request->next) {
    if (sender.qp_type == IBV_QPT_UD) [[unlikely]] {
      carry_datagram(sender, *request);
      continue;
    }
    if (sender.peer == nullptr || !has_room(sender, *request)) {
      *rejected = request;
      return ENOMEM;
    }
    carry_out(sender, *request);
  }
  return 0;
}

int post_receive(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  auto& ring = static_cast<ReceiveQueue*>(queue)->entries;
  for (ibv_recv_wr* request = first; request != nullptr; request = request->next) {
    if (ring.is_full()) {
      *rejected = request;
      return ENOMEM;
    }
    const ibv_sge* const pieces = request->sg_list;
    Receive& receive = ring.push();
    receive = {request->wr_id, nullptr, 0, nullptr, 0};
    if (request->num_sge > 0)
      receive.address = to_pointer(pieces[0].addr), receive.length_bytes = pieces[0].length;
    if (request->num_sge > 1)
      receive.rest = to_pointer(pieces[1].addr), receive.rest_bytes = pieces[1].length;
  }
  return 0;
}

}  // namespace verbena::bench::null
