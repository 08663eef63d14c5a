// A Welcome: what passes the check is within every bound that its users rely on.
#include "support/message.h"

using namespace verbena;
using protocol::kMaxQueuePairs;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto offered = data.ConsumeIntegralInRange(1U, kMaxQueuePairs);
  const auto welcome = fuzz::take_message<protocol::Welcome>(data);
  if (protocol::check_welcome(welcome, fuzz::kNonce, offered) != protocol::HandshakeError::kNone) return 0;
  if (welcome.refusal == static_cast<uint32_t>(protocol::Refusal::kUnreachable))
    fuzz::require(welcome.rails >= 1 && welcome.rails <= kMaxQueuePairs);
  if (welcome.refusal != 0) return 0;
  fuzz::require(welcome.queue_pairs >= 1 && welcome.queue_pairs <= offered);
  fuzz::require(protocol::choose_primary(welcome.queue_pair[0].number, welcome.queue_pairs) <
                welcome.queue_pairs);
  bool is_taken[kMaxQueuePairs] = {};
  for (uint32_t q = 0; q < welcome.queue_pairs; ++q) {
    fuzz::require(welcome.rail_of[q] < welcome.rails && welcome.rails <= kMaxQueuePairs);
    fuzz::require(welcome.origin[q] < offered && !is_taken[welcome.origin[q]]);
    is_taken[welcome.origin[q]] = true;
    fuzz::require(welcome.window[q] != 0);
  }
  return 0;
}
