// Messages out of a fuzzer's bytes. Random bytes seldom have the right magic: most get the right header, so
// that what lies behind it is reached.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>

#include "protocol/handshake.h"

namespace verbena::fuzz {

inline constexpr uint64_t kNonce = 0x1122334455667788;

template <typename Message>
Message take_message(FuzzedDataProvider& data) {
  Message message{};
  const bool is_ours = data.ConsumeIntegralInRange(0, 15) != 0;
  const auto bytes = data.ConsumeBytes<uint8_t>(sizeof(message));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(&message));
  if (is_ours) message.header = protocol::make_header(sizeof(message), kNonce);
  return message;
}

// A violated property must look like a crash to the fuzzer.
inline void require(bool is_so) {
  if (!is_so) __builtin_trap();
}

}  // namespace verbena::fuzz
