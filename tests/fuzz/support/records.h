// Recovery records out of a fuzzer's bytes, over the control socket of a connection that stands.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <cstring>

#include "base/socket.h"
#include "protocol/peer_frame.h"
#include "protocol/recovery_record.h"

namespace verbena::fuzz {

inline protocol::RecoveryRecord take_record(FuzzedDataProvider& data, uint32_t queue_pairs) {
  protocol::RecoveryRecord record;
  const bool is_wild = data.ConsumeIntegralInRange(0, 31) == 0;
  if (is_wild) record.magic = data.ConsumeIntegral<uint32_t>();
  record.kind = static_cast<protocol::RecoveryKind>(is_wild ? data.ConsumeIntegral<uint8_t>()
                                                            : data.ConsumeIntegralInRange<uint8_t>(1, 6));
  record.queue_pair = is_wild ? data.ConsumeIntegral<uint8_t>()
                              : static_cast<uint8_t>(data.ConsumeIntegralInRange(0U, queue_pairs - 1));
  record.generation =
      is_wild ? data.ConsumeIntegral<uint32_t>() : static_cast<uint32_t>(data.ConsumeIntegralInRange(0, 3));
  record.returned = data.ConsumeBool() ? 0 : data.ConsumeIntegral<uint32_t>();
  record.held = data.ConsumeBool() ? 0 : data.ConsumeIntegral<uint32_t>();
  record.pair.number = data.ConsumeIntegral<uint32_t>();
  record.pair.first_psn = data.ConsumeIntegral<uint32_t>();
  return record;
}

// What a receiver says it has: mostly of messages that there are, mostly all or nothing of each.
inline protocol::ArrivedRecord take_arrived(FuzzedDataProvider& data, uint32_t near) {
  protocol::ArrivedRecord arrived;
  const bool is_near = data.ConsumeIntegralInRange(0, 15) != 0;
  arrived.consumed = is_near ? near + static_cast<uint32_t>(data.ConsumeIntegralInRange(-40, 3))
                             : data.ConsumeIntegral<uint32_t>();
  arrived.complete = data.ConsumeBool() ? 0 : data.ConsumeIntegral<uint32_t>();
  for (auto& chunks : arrived.chunks) chunks.fill(data.ConsumeBool() ? 0 : data.ConsumeIntegral<uint64_t>());
  return arrived;
}

// Of connection `id`. False: the other end takes no more.
template <typename Record>
bool tell(const base::Socket& socket, uint64_t id, const Record& record) {
  struct {
    protocol::FrameHeader header;
    uint8_t bytes[sizeof(Record)];
  } frame{{id, sizeof(Record), protocol::FrameKind::kBytes}, {}};
  std::memcpy(frame.bytes, &record, sizeof(record));
  const size_t length = sizeof(frame.header) + sizeof(record);
  return ::send(socket.fd(), &frame, length, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(length);
}

// Any frame, of any connection: mostly one that passes the check.
inline void tell_frame(FuzzedDataProvider& data, const base::Socket& socket, uint64_t id) {
  protocol::FrameHeader header{data.ConsumeBool() ? id : data.ConsumeIntegral<uint64_t>(), 0,
                               protocol::FrameKind{data.ConsumeIntegralInRange(0U, 3U)}};
  const auto bytes = data.ConsumeBytes<uint8_t>(data.ConsumeIntegralInRange<size_t>(0, 64));
  header.length_bytes =
      data.ConsumeBool() ? static_cast<uint32_t>(bytes.size()) : data.ConsumeIntegral<uint32_t>();
  static_cast<void>(::send(socket.fd(), &header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT));
  static_cast<void>(::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace verbena::fuzz
