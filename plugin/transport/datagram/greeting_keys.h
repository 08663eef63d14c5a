// The keys of an engine and a peer, from their secrets and the job's key if there is one.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/hmac.h"
#include "base/status.h"
#include "protocol/datagram/greeting.h"

namespace verbena::transport::datagram {

using GreetingMac = std::array<uint8_t, protocol::datagram::kGreetingMacBytes>;

// What an engine of this name has as its id, so that none can take another's.
base::Result<uint64_t> make_engine_id(const protocol::datagram::EngineName& name);
// Of a greeting to the engine with this secret; `packet`: the header and what the MAC covers. With a job key
// both ends need it.
base::Result<GreetingMac> make_greeting_mac(const protocol::datagram::EngineSecret& secret,
                                            protocol::datagram::PacketKind kind,
                                            std::span<const uint8_t> packet);
// Of the packets from one engine to another.
base::Result<protocol::datagram::TagKeys> make_tag_keys(const protocol::datagram::EngineName& from,
                                                        const protocol::datagram::EngineName& to);

}  // namespace verbena::transport::datagram
