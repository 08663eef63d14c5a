// What a target over real senders and receivers stands on: devices that do in the calling thread what they
// are told, and quiet logs. Made once in a process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/socket.h"
#include "transport/link/nic.h"
#include "transport/memory/registration.h"

namespace verbena::fuzz {

inline constexpr int kMaxRails = 4;

const transport::Nic& find_nic(int rails);

// Memory that a device may write and read at any request: as long as any message here.
inline constexpr size_t kScratchBytes = size_t{2} << 20;
std::span<uint8_t> find_scratch();
const transport::Registration* find_registration(int rails);

// Two ends of a connected socket.
struct SocketPair {
  base::Socket product, peer;
};
SocketPair make_sockets();

}  // namespace verbena::fuzz
