// Making both ends of connections, and the plain steps of NCCL's side: post, test, unpack, consume.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "transport/setup/connector.h"
#include "transport/setup/listener.h"
#include "transport/support/host.h"
#include "transport/support/processes.h"
#include "verbena/unpack_abi.h"

namespace verbena::transport {

inline constexpr int64_t kPatienceMs = 120'000;  // of a test: far more than anything here takes

// Polls until `done` or the deadline; gives the CPU away when there was nothing to do.
bool poll_until(const std::function<bool()>& done, int64_t patience_ms = kPatienceMs);

struct AcceptedEnd {
  std::unique_ptr<Receiver> receiver;
  const UnpackDeviceHandle* handle = nullptr;  // null without UNPACK
  uint64_t slots_used = 0;                     // what a kernel's head counts
};

struct ConnectedPair {
  std::unique_ptr<Sender> sender;
  AcceptedEnd receiving;
};

// Each throws if it is not done within the patience.
std::unique_ptr<Sender> connect(const Nic& nic, const protocol::Handle& handle);
AcceptedEnd accept(Listener& listener, bool unpacks);
// The same of a listener whose handle the other process gets.
AcceptedEnd accept(Channel& channel, const Nic& nic, bool unpacks);
// Both ends in this process, on this thread.
ConnectedPair connect_here(const Nic& sending, const Nic& receiving, bool unpacks);

// A connection of a device with itself, whose receiver unpacks.
struct OwnConnection {
  explicit OwnConnection(int rails = 1, const Settings& settings = {})
      : host(settings), nic(host.nic(rails)), connection(connect_here(nic, nic, true)) {}

  Host host;
  const Nic& nic;
  ConnectedPair connection;
};

}  // namespace verbena::transport
