#include "transport/datagram/datagram_transport.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "transport/datagram/engine.h"
#include "transport/datagram/meeting.h"
#include "transport/datagram/rail.h"

namespace verbena::transport::datagram {

using base::Outcome;
using base::Result;
using base::Status;
using protocol::datagram::DatagramHandle;

namespace {

DatagramHandle read_handle(const void* handle) {
  DatagramHandle contents;
  std::memcpy(&contents, handle, sizeof(contents));
  return contents;
}

class DatagramListening final : public Listening {
 public:
  explicit DatagramListening(std::unique_ptr<Listener> listener) : listener_(std::move(listener)) {}
  Result<std::unique_ptr<ReceivingEnd>> poll(const AcceptOptions& options, void** device_handle) override {
    auto end = listener_->poll(options.unpacks, options.connections_ahead);
    if (end && *end != nullptr) *device_handle = (*end)->device_handle();
    return as_end<ReceivingEnd>(std::move(end));
  }

 private:
  std::unique_ptr<Listener> listener_;
};

class DatagramConnecting final : public Connecting {
 public:
  explicit DatagramConnecting(std::unique_ptr<Connector> connector) : connector_(std::move(connector)) {}
  uint64_t nonce() const override { return connector_->nonce(); }
  Result<std::unique_ptr<SendingEnd>> poll() override { return as_end<SendingEnd>(connector_->poll()); }

 private:
  std::unique_ptr<Connector> connector_;
};

class DatagramTransport final : public Transport {
 public:
  uint32_t max_buffers() const override { return 1; }  // datagrams have no tags
  Outcome check(const NicRegistry& nics) const override {
    for (int i = 0; i < nics.size(); ++i)
      for (const verbs::Device* device : nics.find(i)->rails)
        if (auto outcome = Rail::check(*device); !outcome) return outcome;
    return {};
  }
  void introduce() const override {
    base::log_info(
        "init: the plugin sends messages as datagrams, because VERBENA_TRANSPORT is datagram. Each receive "
        "has one buffer (maxRecvs is 1)");
  }
  void check_traffic_class(uint64_t communicator_id, int traffic_class) const override {
    if (traffic_class < 0 || traffic_class == base::parameters().traffic_class) return;
    base::log_warn(
        "init: communicator 0x%llx: traffic class %d is ignored, because datagrams of all communicators use "
        "the traffic class of VERBENA_TC (%d)",
        static_cast<unsigned long long>(communicator_id), traffic_class,
        static_cast<int>(base::parameters().traffic_class));
  }
  Result<std::unique_ptr<Listening>> listen(const Device& device, void* handle) const override {
    auto engine = Engine::find(*device.nic, device.nics, device.offers_unpack);
    if (!engine) return engine.error();
    DatagramHandle contents;
    auto listener = Listener::open(*engine, &contents);
    if (!listener) return listener.error();
    std::memcpy(handle, &contents, sizeof(contents));
    return std::unique_ptr<Listening>(std::make_unique<DatagramListening>(std::move(*listener)));
  }
  Result<uint64_t> check_handle(const void* handle) const override {
    if (!protocol::datagram::is_datagram_handle(handle)) return fail_other_transport().error();
    const auto contents = read_handle(handle);
    if (const auto error = protocol::datagram::check_handle(contents);
        error != protocol::HandshakeError::kNone)
      return base::fail(Status::kInvalidArgument, "connect: the handle cannot be used: %s",
                        protocol::describe(error));
    return contents.nonce;
  }
  Result<std::unique_ptr<Connecting>> connect(const Device& device, const void* handle, uint64_t,
                                              int) const override {
    auto engine = Engine::find(*device.nic, device.nics, device.offers_unpack);
    if (!engine) return engine.error();
    auto connector = Connector::start(std::move(*engine), read_handle(handle));
    if (!connector) return connector.error();
    return std::unique_ptr<Connecting>(std::make_unique<DatagramConnecting>(std::move(*connector)));
  }
};

}  // namespace

const Transport& datagram_transport() {
  static const DatagramTransport transport;
  return transport;
}

}  // namespace verbena::transport::datagram
