#include "softverbs/wire/frame.h"

#include "softverbs/engine/objects.h"

namespace verbena::softverbs::wire {
namespace {

bool is_chunk_valid(const Header& header) {
  const bool is_inside = header.offset <= header.bytes && header.length <= header.bytes - header.offset;
  return is_inside && header.bytes <= kMaxMessageBytes && (header.length > 0 || header.bytes == 0);
}

bool is_request_valid(const Header& header) {
  if (has_payload(header.code)) return is_chunk_valid(header);
  if (is_atomic_code(header.code))
    return header.length == kAtomicBytes && header.bytes == kAtomicResult && header.offset == 0;
  return header.code == IBV_WR_RDMA_READ && header.length == 0 && header.bytes <= kMaxMessageBytes;
}

bool is_datagram_valid(const Header& header) {
  const bool is_known = header.code == IBV_WR_SEND || header.code == IBV_WR_SEND_WITH_IMM;
  return is_known && header.length == header.bytes && header.bytes <= kMaxDatagramBytes;
}

}  // namespace

bool is_valid(const Header& header, bool is_from_requester) {
  if (header.length > kMaxFrameBytes) return false;
  switch (header.kind) {
    case Kind::kRequest:
      return is_from_requester && is_request_valid(header);
    case Kind::kAbandon:
      return is_from_requester && header.length == 0;
    case Kind::kDatagram:
      return is_from_requester && is_datagram_valid(header);
    case Kind::kResponse:
      return !is_from_requester && is_chunk_valid(header);
    case Kind::kAcknowledge:
      return !is_from_requester && header.length == 0;
    case Kind::kRefusal:
      return !is_from_requester && header.length == 0 && header.code >= kReceiverNotReady &&
             header.code <= kOperationError;
    default:
      return false;
  }
}

}  // namespace verbena::softverbs::wire
