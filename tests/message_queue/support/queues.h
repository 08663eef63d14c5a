// A queue's writer and readers in a test.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/parameters.h"
#include "bootstrap/support/ranks.h"
#include "device/message_queue/patience.h"
#include "device/message_queue/reader.h"
#include "device/message_queue/writer.h"
#include "tests/base/scoped_environment.h"

namespace verbena::message_queue {

using bootstrap::kPatienceMs;
using bootstrap::Processes;
using bootstrap::take;

inline std::unique_ptr<Writer> make_writer(uint32_t readers, uint32_t chunks, uint64_t chunk_bytes) {
  return take(Writer::create({.shape = {readers, chunks, chunk_bytes}, .bind = {}}), "writer");
}
inline std::unique_ptr<Reader> attach(const Handle& handle, uint32_t number) {
  auto reader = take(Reader::attach(handle, number, 0), "reader");
  if (!reader->wait_until_ready(kPatienceMs)) throw std::runtime_error("a reader is not ready");
  return reader;
}
// From now on this process counts as being on another host.
inline void pose_as_host(const std::string& name) {
  base::ScopedEnvironment environment;
  environment.set("VERBENA_HOSTID", name);
  ASSERT_TRUE(base::load_parameters());
}

// The number of a message says what is in it, and how long it is: bytes, some chunks, or a few times the
// ring.
inline std::vector<std::byte> make_message(uint64_t number, uint64_t chunk_bytes) {
  uint64_t state = number * 0x9e37'79b9'7f4a'7c15 + 1;
  const auto draw = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  };
  const uint64_t most = number % 97 == 96 ? 9 * chunk_bytes : number % 7 == 6 ? 3 * chunk_bytes : 100;
  std::vector<std::byte> message(1 + draw() % most);
  for (std::byte& byte : message) byte = static_cast<std::byte>(draw());
  return message;
}

inline base::Outcome send(Writer& writer, std::span<const std::byte> message,
                          int64_t timeout_ms = kPatienceMs) {
  return writer.enqueue(std::span(&message, 1), timeout_ms);
}
inline base::Outcome send_all(Writer& writer, uint64_t count, uint64_t chunk_bytes) {
  for (uint64_t number = 0; number < count; ++number) {
    if (auto sent = send(writer, make_message(number, chunk_bytes)); !sent) return sent;
  }
  return {};
}

// The number of the first that is missing or wrong; `count` if none is.
inline uint64_t read_all(Reader& reader, uint64_t count, uint64_t chunk_bytes) {
  for (uint64_t number = 0; number < count; ++number) {
    const auto message = reader.dequeue(kPatienceMs);
    const auto expected = make_message(number, chunk_bytes);
    if (!message || !std::ranges::equal(message->bytes, expected) || !reader.release(message->ticket))
      return number;
  }
  return count;
}

}  // namespace verbena::message_queue
