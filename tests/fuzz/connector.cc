// Every byte that may answer a connector, which has made its queue pairs by then. Over loopback TCP, as it
// connects by itself.
#include "transport/setup/connector.h"
#include "support/devices.h"
#include "support/message.h"

#include <sys/socket.h>

#include <bit>

using namespace verbena;

namespace {

protocol::Welcome take_welcome(FuzzedDataProvider& data, const transport::Nic& nic) {
  auto welcome = fuzz::take_message<protocol::Welcome>(data);
  if (data.ConsumeBool()) return welcome;
  welcome.refusal = data.ConsumeBool() ? 0 : data.ConsumeIntegralInRange(0U, 8U);
  welcome.rails = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  welcome.queue_pairs = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  welcome.joined_pairs = data.ConsumeIntegralInRange(1U, (1U << welcome.queue_pairs) - 1);
  welcome.page_bytes = 4096U << data.ConsumeIntegralInRange(0, 4);
  const auto port = nic.rails.front()->address();
  for (uint32_t q = 0; q < protocol::kMaxQueuePairs; ++q) {
    if (data.ConsumeBool()) std::memcpy(welcome.rail[q].bytes, &port, sizeof(port));
    welcome.queue_pair[q].number = data.ConsumeIntegralInRange(1U, 0xFFFFFFU);
    welcome.queue_pair[q].first_psn &= 0xFFFFFF;
    welcome.origin[q] = static_cast<uint8_t>(q);
    welcome.rail_of[q] = static_cast<uint8_t>(data.ConsumeIntegralInRange(0U, welcome.rails - 1));
    welcome.window[q] = data.ConsumeIntegralInRange(1U, 65536U);
  }
  return welcome;
}

base::Listener& get_listener() {
  static auto* const listener = [] {
    auto opened = base::Listener::open_at(
        std::bit_cast<base::SocketAddress>(protocol::AddressRecord{4, 0, 0, {127, 0, 0, 1}}));
    fuzz::require(static_cast<bool>(opened));
    return new base::Listener(std::move(*opened));
  }();
  return *listener;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto& nic = fuzz::find_nic(data.ConsumeIntegralInRange(1, fuzz::kMaxRails));
  const auto welcome = take_welcome(data, nic);
  protocol::Handle handle{};
  handle.address = std::bit_cast<protocol::AddressRecord>(get_listener().address());
  handle.rails = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  handle.queue_pairs_per_rail = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  protocol::seal_handle(handle, fuzz::kNonce);
  auto connector = transport::Connector::start(nic, handle, data.ConsumeIntegralInRange(-1, 255));
  if (!connector) return 0;
  std::optional<base::Socket> peer;
  while (!peer) {
    auto accepted = get_listener().accept();
    fuzz::require(static_cast<bool>(accepted));
    peer = std::move(*accepted);
  }
  const linger at_once{1, 0};  // no port stays behind
  setsockopt(peer->fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  const size_t length =
      data.ConsumeBool() ? sizeof(welcome) : data.ConsumeIntegralInRange<size_t>(0, sizeof(welcome));
  bool is_over = false;
  for (size_t sent = 0; sent < length && !is_over;) {
    const size_t piece = std::min(length - sent, data.ConsumeIntegralInRange<size_t>(1, sizeof(welcome)));
    send(peer->fd(), reinterpret_cast<const uint8_t*>(&welcome) + sent, piece, MSG_NOSIGNAL);
    sent += piece;
    const auto sender = (*connector)->poll();
    is_over = !sender || *sender != nullptr;
  }
  shutdown(peer->fd(), SHUT_WR);
  while (!is_over) {  // the end of the stream ends it
    const auto sender = (*connector)->poll();
    is_over = !sender || *sender != nullptr;
  }
  return 0;
}
