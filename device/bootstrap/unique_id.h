// The 128 bytes by which the ranks of a context find each other: one process makes them, the application
// carries them to all.
#pragma once

#include <cstdint>
#include <optional>

#include "base/socket_address.h"
#include "base/status.h"
#include "device/bootstrap/wire.h"

namespace verbena::bootstrap {

inline constexpr size_t kUniqueIdBytes = 128;

// Opaque to applications. May come from anywhere: parse() says whether it is one.
struct UniqueId {
  uint8_t bytes[kUniqueIdBytes] = {};

  bool operator==(const UniqueId&) const = default;
};
static_assert(sizeof(UniqueId) == kUniqueIdBytes);

// What it holds.
struct Meeting {
  base::SocketAddress address;  // of the rendezvous
  Nonce nonce{};                // who does not know it is of another job; crosses the network
  Nonce secret{};               // proven, never sent: the key of a job without one; zeros: there is none
};

UniqueId make_id(const Meeting& meeting);
// Logged: no id of ours, or another version's.
base::Result<Meeting> parse(const UniqueId& id);

// Opens a rendezvous (rendezvous.h) on the interface that VERBENA_SOCKET_IFNAME selects and lets it run until
// every rank came, VERBENA_BOOTSTRAP_TIMEOUT_MS is over, or the library is unloaded.
base::Result<UniqueId> make_unique_id();

}  // namespace verbena::bootstrap
