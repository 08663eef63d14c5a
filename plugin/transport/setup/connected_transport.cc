#include "transport/setup/connected_transport.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "protocol/datagram/greeting.h"
#include "transport/setup/connector.h"
#include "transport/setup/listener.h"

namespace verbena::transport {

using base::Outcome;
using base::Result;
using base::Status;

namespace {

protocol::Handle read_handle(const void* handle) {
  protocol::Handle contents;
  std::memcpy(&contents, handle, sizeof(contents));
  return contents;
}

class ConnectedListening final : public Listening {
 public:
  explicit ConnectedListening(std::unique_ptr<Listener> listener) : listener_(std::move(listener)) {}
  Result<std::unique_ptr<ReceivingEnd>> poll(const AcceptOptions& options, void** device_handle) override {
    auto end = listener_->poll(options, device_handle);
    if (end && *end != nullptr) (*end)->name_communicator(options.communicator_id);
    return as_end<ReceivingEnd>(std::move(end));
  }

 private:
  std::unique_ptr<Listener> listener_;
};

class ConnectedConnecting final : public Connecting {
 public:
  ConnectedConnecting(std::unique_ptr<Connector> connector, uint64_t communicator_id)
      : connector_(std::move(connector)), communicator_id_(communicator_id) {}
  uint64_t nonce() const override { return connector_->nonce(); }
  Result<std::unique_ptr<SendingEnd>> poll() override {
    auto end = connector_->poll();
    if (end && *end != nullptr) (*end)->name_communicator(communicator_id_);
    return as_end<SendingEnd>(std::move(end));
  }

 private:
  std::unique_ptr<Connector> connector_;
  const uint64_t communicator_id_;
};

class ConnectedTransport final : public Transport {
 public:
  uint32_t max_buffers() const override { return protocol::kMaxGroup; }
  Outcome check(const NicRegistry&) const override { return {}; }
  void introduce() const override {}
  void check_traffic_class(uint64_t, int) const override {}
  Result<std::unique_ptr<Listening>> listen(const Device& device, void* handle) const override {
    protocol::Handle contents;
    auto listener = Listener::open(*device.nic, &contents);
    if (!listener) return listener.error();
    std::memcpy(handle, &contents, sizeof(contents));
    return std::unique_ptr<Listening>(std::make_unique<ConnectedListening>(std::move(*listener)));
  }
  Result<uint64_t> check_handle(const void* handle) const override {
    if (protocol::datagram::is_datagram_handle(handle)) return fail_other_transport().error();
    const auto contents = read_handle(handle);
    if (const auto error = protocol::check_handle(contents); error != protocol::HandshakeError::kNone)
      return base::fail(Status::kInvalidArgument, "connect: the handle cannot be used: %s%s",
                        protocol::describe(error), describe_versions(error, contents.header).c_str());
    return contents.header.nonce;
  }
  Result<std::unique_ptr<Connecting>> connect(const Device& device, const void* handle,
                                              uint64_t communicator_id, int traffic_class) const override {
    auto connector = Connector::start(*device.nic, read_handle(handle), traffic_class);
    if (!connector) return connector.error();
    return std::unique_ptr<Connecting>(
        std::make_unique<ConnectedConnecting>(std::move(*connector), communicator_id));
  }
};

}  // namespace

const Transport& connected_transport() {
  static const ConnectedTransport transport;
  return transport;
}

}  // namespace verbena::transport
