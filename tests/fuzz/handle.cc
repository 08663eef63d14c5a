// The 128 bytes that NCCL carries from the listener to the connecting side, and what connect takes from them.
#include "base/socket_address.h"
#include "support/message.h"

#include <bit>

using namespace verbena;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const bool is_sealed = data.ConsumeBool();
  auto handle = fuzz::take_message<protocol::Handle>(data);
  if (is_sealed) protocol::seal_handle(handle, handle.header.nonce);
  if (protocol::check_handle(handle) != protocol::HandshakeError::kNone) return 0;
  const uint32_t pairs = protocol::count_queue_pairs(
      data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs),
      data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs), handle.rails, handle.queue_pairs_per_rail);
  fuzz::require(pairs >= 1 && pairs <= protocol::kMaxQueuePairs);
  const auto address = std::bit_cast<base::SocketAddress>(handle.address);
  fuzz::require(base::to_system(address).has_value());
  fuzz::require(!base::describe(address).empty());
  static_cast<void>(base::is_link_local(address));
  return 0;
}
