// A Hello, and what the receiving end makes of the addresses in it before it makes anything else.
#include "support/message.h"
#include "transport/link/link.h"
#include "transport/link/rail_pairing.h"

using namespace verbena;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t length_bytes) {
  FuzzedDataProvider data(bytes, length_bytes);
  const auto local_rails = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  const auto local_pairs = data.ConsumeIntegralInRange(1U, protocol::kMaxQueuePairs);
  const transport::PairingOptions options{
      data.PickValueInArray({transport::PairingRule::kByOrder, transport::PairingRule::kSameSubnet,
                             transport::PairingRule::kPreferSubnet}),
      data.ConsumeIntegralInRange(1, 32)};
  auto hello = fuzz::take_message<protocol::Hello>(data);
  if (protocol::check_hello(hello, fuzz::kNonce, local_rails, local_pairs) != protocol::HandshakeError::kNone)
    return 0;
  const auto theirs = transport::read_addresses(hello.rail, hello.rails);
  std::vector<verbs::PortAddress> ours(local_rails);
  for (auto& port : ours) {
    port = data.ConsumeBool() ? theirs[data.ConsumeIntegralInRange<size_t>(0, theirs.size() - 1)]
                              : verbs::PortAddress{};
  }
  const auto paths = transport::pair_rails(theirs, ours, hello.queue_pairs, options);
  fuzz::require(paths.size() <= hello.queue_pairs);
  for (size_t q = 0; q < paths.size(); ++q) {
    fuzz::require(paths[q].origin < hello.queue_pairs && paths[q].sender_rail < hello.rails &&
                  paths[q].receiver_rail < local_rails && (q == 0 || paths[q].origin > paths[q - 1].origin));
  }
  if (paths.empty()) fuzz::require(!transport::explain_no_path(ours, theirs, options).empty());
  return 0;
}
