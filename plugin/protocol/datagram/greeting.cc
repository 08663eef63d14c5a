#include "protocol/datagram/greeting.h"

namespace verbena::protocol::datagram {
namespace {

uint64_t sum_up(const DatagramHandle& handle) {
  DatagramHandle copy = handle;
  copy.checksum = 0;
  uint64_t sum = 0xCBF29CE484222325;
  uint8_t bytes[sizeof(copy)];
  std::memcpy(bytes, &copy, sizeof(copy));
  for (const uint8_t byte : bytes) sum = (sum ^ byte) * 0x100000001B3;
  return sum;
}

bool makes_sense(const EngineName& engine) {
  constexpr uint32_t kTopBit = 1U << 31;  // with this bit a device uses its own key
  return engine.id != 0 && engine.rails != 0 && engine.rails <= kMaxEngineRails && engine.data_lines != 0 &&
         engine.data_lines <= kMostDataLines && (engine.queue_key & kTopBit) == 0 && engine.reserved == 0;
}

}  // namespace

void seal_handle(DatagramHandle& handle) {
  handle.magic = kDatagramMagic;
  handle.version = kDatagramVersion;
  handle.length_bytes = sizeof(handle);
  handle.checksum = sum_up(handle);
}

HandshakeError check_handle(const DatagramHandle& handle) {
  if (handle.magic != kDatagramMagic) return HandshakeError::kForeign;
  if (handle.version != kDatagramVersion) return HandshakeError::kVersion;
  if (handle.length_bytes != sizeof(handle) || handle.checksum != sum_up(handle) ||
      !makes_sense(handle.engine))
    return HandshakeError::kMalformed;
  return HandshakeError::kNone;
}

const char* describe(GreetingRefusal refusal) {
  switch (refusal) {
    case GreetingRefusal::kNone:
      return "nothing";
    case GreetingRefusal::kNobodyListens:
      return "the peer's listener is closed";
    case GreetingRefusal::kKeyMissing:
      return "the peer has a job key but this process has none. Set VERBENA_JOB_KEY_FILE for every rank";
    case GreetingRefusal::kKeyUnknown:
      return "the peer has no job key but this process has one. Set VERBENA_JOB_KEY_FILE for every rank";
    case GreetingRefusal::kUnreachable:
      return "the peer's rails cannot reach the rails of this process. See the peer's log";
    case GreetingRefusal::kFailed:
      return "the peer has failed; see the peer's log";
  }
  return "an unknown reason";
}

std::optional<Greeting> read_greeting(std::span<const uint8_t> bytes) {
  Greeting greeting{};
  if (bytes.size() < Greeting::kFixedBytes + kGreetingMacBytes || bytes.size() > sizeof(greeting)) return {};
  std::memcpy(&greeting, bytes.data(), Greeting::kFixedBytes);
  if (greeting.version != kDatagramVersion || !makes_sense(greeting.engine)) return {};
  if (bytes.size() != greeting.covered_bytes() + kGreetingMacBytes) return {};
  if (greeting.channel == kNoChannel || greeting.slot == kStrangerSlot) return {};
  std::memcpy(greeting.rail.data(), bytes.data() + Greeting::kFixedBytes,
              greeting.engine.rails * sizeof(EngineRail));
  std::memcpy(greeting.mac.data(), bytes.data() + greeting.covered_bytes(), kGreetingMacBytes);
  return greeting;
}

}  // namespace verbena::protocol::datagram
