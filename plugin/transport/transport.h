// How channels are made, over connected queue pairs (setup/connected_transport.h) or datagrams
// (datagram/datagram_transport.h). VERBENA_TRANSPORT selects one for the process. Channels are used through
// the interface in ends.h.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "transport/ends.h"

namespace verbena::transport {

struct Nic;
class NicRegistry;

struct AcceptOptions {
  uint64_t communicator_id = 0;
  int traffic_class = -1;
  bool unpacks = false;  // a kernel unpacks receives
  // Number of connections that the caller expects to use at a time; 0 if unknown.
  uint32_t connections_ahead = 0;
};

// Accepts the channel of one sending peer.
class Listening {
 public:
  virtual ~Listening() = default;
  // Returns NULL until the peer has connected.
  // @param device_handle  receives the address of the unpack queue's handle, or NULL
  virtual base::Result<std::unique_ptr<ReceivingEnd>> poll(const AcceptOptions& options,
                                                           void** device_handle) = 0;
};

// An attempt to connect to a listener.
class Connecting {
 public:
  virtual ~Connecting() = default;
  // Identifies the listener's handle.
  virtual uint64_t nonce() const = 0;
  // Returns NULL until the channel is established. An error ends the attempt.
  virtual base::Result<std::unique_ptr<SendingEnd>> poll() = 0;
};

class Transport {
 public:
  // A net device, and the registry that keeps it.
  struct Device {
    const Nic* nic;
    std::shared_ptr<NicRegistry> nics;
    bool offers_unpack;
  };

  // Returns how many buffers a receive without unpacking may have.
  virtual uint32_t max_buffers() const = 0;
  // Returns an error if a device does not support this transport.
  virtual base::Outcome check(const NicRegistry& nics) const = 0;
  // Logs, once per process, notes for users of this transport.
  virtual void introduce() const = 0;
  // Logs a warning if the transport ignores the traffic class of a communicator.
  virtual void check_traffic_class(uint64_t communicator_id, int traffic_class) const = 0;
  // Creates a listener.
  // @param handle  receives the handle by which the peer finds the listener, at most NCCL's 128 bytes
  virtual base::Result<std::unique_ptr<Listening>> listen(const Device& device, void* handle) const = 0;
  // Checks a listener's handle, and returns its nonce.
  virtual base::Result<uint64_t> check_handle(const void* handle) const = 0;
  // Begins to connect. `handle` has passed check_handle().
  virtual base::Result<std::unique_ptr<Connecting>> connect(const Device& device, const void* handle,
                                                            uint64_t communicator_id,
                                                            int traffic_class) const = 0;

 protected:
  ~Transport() = default;
  // Returns the error for a handle of a peer that uses the other transport.
  static base::Outcome fail_other_transport();
};

// Returns the end as the interface that NCCL's adapter uses.
template <typename Base, typename Made>
base::Result<std::unique_ptr<Base>> as_end(base::Result<std::unique_ptr<Made>> end) {
  if (!end) return end.error();
  return std::unique_ptr<Base>(std::move(*end));
}

}  // namespace verbena::transport
