// Recovery records out of a fuzzer's bytes, over the control socket of a connection that stands.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include "base/socket.h"
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

// False: the other end takes no more.
template <typename Record>
bool tell(const base::Socket& socket, const Record& record) {
  return ::send(socket.fd(), &record, sizeof(record), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(record);
}

}  // namespace verbena::fuzz
