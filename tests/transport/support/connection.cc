#include "transport/support/connection.h"

#include <sched.h>
#include <unistd.h>

#include <stdexcept>

namespace verbena::transport {

// On a busy machine a thread that only yields runs after all others; one that slept runs sooner.
bool poll_until(const std::function<bool()>& done, int64_t patience_ms) {
  constexpr int kYields = 50;
  const auto deadline = base::Deadline::after_ms(patience_ms);
  for (int rounds = 0; !done(); ++rounds) {
    if (deadline.has_passed()) return done();
    if (rounds % (kYields + 1) < kYields) {
      sched_yield();
    } else {
      usleep(50);
    }
  }
  return true;
}

std::unique_ptr<Sender> connect(const Nic& nic, const protocol::Handle& handle) {
  auto connector = take(Connector::start(nic, handle, -1), "a connector");
  std::unique_ptr<Sender> sender;
  const bool ok = poll_until([&] { return (sender = take(connector->poll(), "a sender")) != nullptr; });
  if (!ok) throw std::runtime_error("connect: no answer");
  return sender;
}

AcceptedEnd accept(Listener& listener, bool unpacks) {
  AcceptedEnd end;
  void* handle = nullptr;
  AcceptOptions options;
  options.unpacks = unpacks;
  const bool ok = poll_until(
      [&] { return (end.receiver = take(listener.poll(options, &handle), "a receiver")) != nullptr; });
  if (!ok) throw std::runtime_error("accept: nobody came");
  end.handle = static_cast<const UnpackDeviceHandle*>(handle);
  return end;
}

AcceptedEnd accept(Channel& channel, const Nic& nic, bool unpacks) {
  protocol::Handle handle;
  const auto listener = take(Listener::open(nic, &handle), "a listener");
  channel.tell(handle);
  return accept(*listener, unpacks);
}

ConnectedPair connect_here(const Nic& sending, const Nic& receiving, bool unpacks) {
  protocol::Handle handle;
  auto listener = take(Listener::open(receiving, &handle), "a listener");
  auto connector = take(Connector::start(sending, handle, -1), "a connector");
  ConnectedPair connection;
  void* device_handle = nullptr;
  AcceptOptions options;
  options.unpacks = unpacks;
  const bool ok = poll_until([&] {
    if (connection.sender == nullptr) connection.sender = take(connector->poll(), "a sender");
    auto& receiver = connection.receiving.receiver;
    if (receiver == nullptr) receiver = take(listener->poll(options, &device_handle), "a receiver");
    return connection.sender != nullptr && receiver != nullptr;
  });
  if (!ok) throw std::runtime_error("the ends did not meet");
  connection.receiving.handle = static_cast<const UnpackDeviceHandle*>(device_handle);
  return connection;
}

}  // namespace verbena::transport
