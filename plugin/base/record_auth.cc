#include "base/record_auth.h"

#include <algorithm>

namespace verbena::base {

Result<Mac> RecordAuth::compute(ConnectionEnd from, uint64_t number, Bytes record) const {
  const auto direction = static_cast<uint8_t>(from);
  return key_->compute({as_bytes(&direction, sizeof(direction)), as_bytes(&number, sizeof(number)), record});
}

Outcome RecordAuth::seal(Bytes record, std::span<uint8_t> mac) {
  if (!is_keyed()) return {};
  const auto computed = compute(end_, sent_++, record);
  if (!computed) return computed.error();
  std::copy(computed->begin(), computed->end(), mac.begin());
  return {};
}

bool RecordAuth::verify(Bytes record, Bytes mac) {
  if (!is_keyed()) return true;
  const auto from = end_ == ConnectionEnd::kSender ? ConnectionEnd::kReceiver : ConnectionEnd::kSender;
  const auto computed = compute(from, received_++, record);
  return computed && is_same_mac(*computed, mac);
}

}  // namespace verbena::base
