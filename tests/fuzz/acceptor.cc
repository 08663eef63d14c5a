// Every byte that a caller may send to a listener, in pieces: strangers, halves, and peers whose Hello makes
// the receiving end build queue pairs towards whatever it says.
#include "transport/setup/acceptor.h"
#include "support/devices.h"
#include "support/message.h"

#include <sys/socket.h>

using namespace verbena;
using transport::Acceptor;

namespace {

protocol::Hello take_hello(FuzzedDataProvider& data, const transport::Nic& nic) {
  auto hello = fuzz::take_message<protocol::Hello>(data);
  if (data.ConsumeBool()) return hello;
  // One that says where it is, so that paths are found.
  hello.rails = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  hello.queue_pairs = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  hello.is_keyed = data.ConsumeBool() && data.ConsumeBool() ? 1 : 0;
  hello.traffic_class = data.ConsumeIntegralInRange(-1, 255);
  hello.control_address = data.ConsumeIntegral<uint64_t>() & ~uint64_t{63};
  for (auto& rail : hello.rail) {
    const auto port = data.PickValueInArray({nic.rails.front(), nic.rails.back()})->address();
    if (data.ConsumeBool()) std::memcpy(rail.bytes, &port, sizeof(port));
  }
  for (auto& pair : hello.queue_pair) {
    pair.number = data.ConsumeIntegralInRange(0U, 0xFFFFFFU);
    pair.first_psn &= 0xFFFFFF;
  }
  return hello;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto& nic = fuzz::find_nic(data.ConsumeIntegralInRange(1, fuzz::kMaxRails));
  const transport::AcceptOptions options{.traffic_class = data.ConsumeIntegralInRange(-1, 255),
                                         .unpacks = data.ConsumeBool()};
  const auto hello = take_hello(data, nic);
  const auto ready = fuzz::take_message<protocol::Ready>(data);
  std::vector<uint8_t> stream;
  const auto append = [&stream](const auto& message) {
    const auto* start = reinterpret_cast<const uint8_t*>(&message);
    stream.insert(stream.end(), start, start + sizeof(message));
  };
  append(hello);
  append(ready);
  stream.resize(stream.size() -
                (data.ConsumeBool() ? 0 : data.ConsumeIntegralInRange<size_t>(0, stream.size())));

  auto sockets = fuzz::make_sockets();
  bool has_told_of_strangers = false;
  Acceptor acceptor(nic, fuzz::kNonce, std::move(sockets.product), &has_told_of_strangers);
  for (size_t sent = 0; sent < stream.size();) {
    const size_t piece =
        std::min(stream.size() - sent, data.ConsumeIntegralInRange<size_t>(1, sizeof(hello)));
    send(sockets.peer.fd(), stream.data() + sent, piece, MSG_NOSIGNAL | MSG_DONTWAIT);
    sent += piece;
    const auto verdict = acceptor.poll(options);
    if (!verdict || *verdict == Acceptor::Verdict::kStranger) return 0;
    if (*verdict == Acceptor::Verdict::kStanding) {
      fuzz::require(sent >= sizeof(hello) + sizeof(ready));
      fuzz::require(static_cast<bool>(acceptor.finish()));
      return 0;
    }
  }
  return 0;
}
