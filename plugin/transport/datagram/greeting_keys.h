// The keys of an engine and a peer. They are derived from the secrets of both and from the job's key, if
// there is one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/hmac.h"
#include "base/status.h"
#include "protocol/datagram/greeting.h"

namespace verbena::transport::datagram {

using GreetingMac = std::array<uint8_t, protocol::datagram::kGreetingMacBytes>;

// Computes the id of an engine from its name, so that no engine can use another engine's id.
base::Result<uint64_t> make_engine_id(const protocol::datagram::EngineName& name);
// Computes the MAC of a greeting to the engine with this secret. `packet` has the header and the data that
// the MAC covers. If one end has a job key, both need it.
base::Result<GreetingMac> make_greeting_mac(const protocol::datagram::EngineSecret& secret,
                                            protocol::datagram::PacketKind kind,
                                            std::span<const uint8_t> packet);
// Derives the keys for the tags of packets from one engine to another.
base::Result<protocol::datagram::TagKeys> make_tag_keys(const protocol::datagram::EngineName& from,
                                                        const protocol::datagram::EngineName& to);

}  // namespace verbena::transport::datagram
