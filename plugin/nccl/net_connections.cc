// Implements listen, connect, accept, close and memory registration.
#include <cstring>
#include <map>
#include <utility>

#include "base/log.h"
#include "base/parameters.h"
#include "nccl/communicators.h"
#include "nccl/net_core.h"
#include "nccl/unpack_offer.h"
#include "transport/datagram/engine.h"

namespace verbena::nccl {

namespace {

base::Result<const transport::Nic*> find_nic(Context* context, int device, const char* who) {
  if (context != nullptr && context->self == nullptr)
    return base::fail(base::Status::kInvalidUsage, "%s: called after finalize", who);
  return Process::get().find_nic(context == nullptr ? nullptr : context->nics, device, who);
}

std::unique_ptr<Communicator> make_communicator(const std::shared_ptr<Context>& context,
                                                const std::shared_ptr<transport::NicRegistry>& nics,
                                                const transport::Nic* nic) {
  auto comm = std::make_unique<Communicator>();
  comm->context = context;
  comm->nics = nics;
  comm->nic = nic;
  comm->family = context->family.load(std::memory_order_relaxed);
  context->enter();
  return comm;
}

bool uses_datagrams() {
  return base::parameters().transport == base::Transport::kDatagram;
}

// Compares the transport in the peer's handle with the setting of this process.
Outcome refuse_transport() {
  const char* const words[] = {"connected", "datagram"};
  const bool is_ours = uses_datagrams();
  return base::fail(base::Status::kInvalidUsage,
                    "connect: the transports differ (VERBENA_TRANSPORT is %s on this rank and %s on the "
                    "peer); set the same value for every rank",
                    words[is_ours ? 1 : 0], words[is_ours ? 0 : 1]);
}

// Prepares a communicator before its first message.
template <typename End>
void attach_profiler(Communicator& comm, const End& end) {
  if (comm.context->profiler == nullptr || end.observed() == nullptr) return;
  comm.profiler = std::make_unique<NetProfiler>(comm.context->profiler, comm.nic->members);
  end.observed()->serve(comm.profiler.get());
}

}  // namespace

Outcome listen(void* context, int device, void* handle, void** listen_comm) {
  auto* c = static_cast<Context*>(context);
  auto nic = find_nic(c, device, "listen");
  if (!nic) return nic.error();
  auto comm = std::make_unique<ListenComm>(ListenComm{c->self, c->nics, nullptr, nullptr, *nic});
  std::memset(handle, 0, abi::kHandleBytes);
  if (uses_datagrams()) {
    auto engine = transport::datagram::Engine::find(**nic, c->nics, offers_unpack());
    if (!engine) return engine.error();
    protocol::datagram::DatagramHandle contents;
    auto listener = transport::datagram::Listener::open(*engine, &contents);
    if (!listener) return listener.error();
    std::memcpy(handle, &contents, sizeof(contents));
    comm->datagram_listener = std::move(*listener);
  } else {
    protocol::Handle contents;
    auto listener = transport::Listener::open(**nic, &contents);
    if (!listener) return listener.error();
    std::memcpy(handle, &contents, sizeof(contents));
    comm->listener = std::move(*listener);
  }
  *listen_comm = comm.release();
  return {};
}

namespace {

// Continues the connection attempt that belongs to `handle`, or begins it by start(). An unfinished attempt
// is kept for the next call. A different nonce means that NCCL gave up an attempt and reuses its handle's
// memory for a new one.
template <typename Connector, typename Start>
auto poll_attempt(Context* c, std::map<void*, std::unique_ptr<Connector>>& attempts, void* handle,
                  uint64_t nonce, const Start& start) -> decltype(std::declval<Connector&>().poll()) {
  std::unique_ptr<Connector> connector;
  {
    const std::lock_guard lock(c->mutex);
    if (auto found = attempts.extract(handle); !found.empty()) connector = std::move(found.mapped());
  }
  if (connector == nullptr || connector->nonce() != nonce) {
    base::Result<std::unique_ptr<Connector>> started = start();
    if (!started) return started.error();
    connector = std::move(*started);
  }
  auto end = connector->poll();
  if (end && *end == nullptr) {
    const std::lock_guard lock(c->mutex);
    attempts[handle] = std::move(connector);
  }
  return end;
}

// Like connect() below, for datagrams.
Outcome connect_by_datagrams(Context* c, const transport::Nic& nic, void* handle, void** send_comm) {
  protocol::datagram::DatagramHandle contents;
  std::memcpy(&contents, handle, sizeof(contents));
  if (const auto error = protocol::datagram::check_handle(contents);
      error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kInvalidArgument, "connect: the handle is %s", protocol::describe(error));
  }
  using transport::datagram::Connector;
  auto end =
      poll_attempt(c, c->calling, handle, contents.nonce, [&]() -> base::Result<std::unique_ptr<Connector>> {
        auto engine = transport::datagram::Engine::find(nic, c->nics, offers_unpack());
        if (!engine) return engine.error();
        return Connector::start(std::move(*engine), contents);
      });
  if (!end) return end.error();
  if (*end == nullptr) return {};
  auto comm = make_communicator(c->self, c->nics, &nic);
  comm->datagram_sender = std::move(*end);
  attach_profiler(*comm, *comm->datagram_sender);
  *send_comm = comm.release();
  return {};
}

}  // namespace

// NCCL calls it with the same `handle` until it returns a communicator. The handle's address identifies the
// attempt.
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm) {
  auto* c = static_cast<Context*>(context);
  auto nic = find_nic(c, device, "connect");
  if (!nic) return nic.error();
  if (protocol::datagram::is_datagram_handle(handle) != uses_datagrams()) return refuse_transport();
  if (uses_datagrams()) return connect_by_datagrams(c, **nic, handle, send_comm);
  protocol::Handle contents;
  std::memcpy(&contents, handle, sizeof(contents));
  if (const auto error = protocol::check_handle(contents); error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kInvalidArgument, "connect: the handle is %s%s",
                      protocol::describe(error),
                      transport::describe_versions(error, contents.header).c_str());
  }

  auto sender = poll_attempt(c, c->connecting, handle, contents.header.nonce, [&] {
    return transport::Connector::start(**nic, contents,
                                       traffic_class >= 0 ? traffic_class : c->traffic_class);
  });
  if (!sender) return sender.error();
  if (*sender == nullptr) return {};
  auto comm = make_communicator(c->self, c->nics, *nic);
  comm->sender = std::move(*sender);
  comm->sender->name_communicator(c->communicator_id);
  attach_profiler(*comm, *comm->sender);
  *send_comm = comm.release();
  return {};
}

Outcome accept(void* listen_comm, void** receive_comm, abi::NetDeviceHandle** device_handle) {
  auto& listening = *static_cast<ListenComm*>(listen_comm);
  abi::NetDeviceHandle* target = device_handle == nullptr ? nullptr : *device_handle;
  transport::AcceptOptions options;
  options.traffic_class = listening.context->traffic_class;
  options.connections_ahead = listening.context->connections_ahead.load(std::memory_order_relaxed);
  options.unpacks = target != nullptr && target->type == abi::kDeviceUnpack && offers_unpack();
  void* address = nullptr;
  std::unique_ptr<transport::Receiver> receiver;
  std::unique_ptr<transport::datagram::ReceiveEnd> end;
  if (listening.datagram_listener != nullptr) {
    auto accepted = listening.datagram_listener->poll(options.unpacks, options.connections_ahead);
    if (!accepted) return accepted.error();
    if (*accepted == nullptr) return {};
    end = std::move(*accepted);
    address = end->device_handle();
  } else {
    auto accepted = listening.listener->poll(options, &address);
    if (!accepted) return accepted.error();
    if (*accepted == nullptr) return {};
    receiver = std::move(*accepted);
  }
  if (options.unpacks) {
    target->handle = address;
    target->size = sizeof(UnpackDeviceHandle);
    target->needs_proxy_progress = 1;
  }
  auto comm = make_communicator(listening.context, listening.nics, listening.nic);
  comm->datagram_receiver = std::move(end);
  comm->receiver = std::move(receiver);
  if (comm->receiver != nullptr) {
    comm->receiver->name_communicator(listening.context->communicator_id);
    attach_profiler(*comm, *comm->receiver);
  } else {
    attach_profiler(*comm, *comm->datagram_receiver);
  }
  *receive_comm = comm.release();
  return {};
}

namespace {

void close(Communicator* comm) {
  const std::shared_ptr<Context> context = comm->context;
  protocol::Statistics statistics;
  const auto close_end = [&](auto& end) {
    end.close();
    statistics = end.statistics();
  };
  if (comm->sender != nullptr) {
    close_end(*comm->sender);
  } else if (comm->receiver != nullptr) {
    close_end(*comm->receiver);
  } else if (comm->datagram_sender != nullptr) {
    statistics = comm->datagram_sender->statistics();
  } else {
    statistics = comm->datagram_receiver->statistics();
  }
  delete comm;
  context->leave(statistics);
}

}  // namespace

Outcome close_send(void* send_comm) {
  close(static_cast<Communicator*>(send_comm));
  return {};
}

Outcome close_receive(void* receive_comm) {
  close(static_cast<Communicator*>(receive_comm));
  return {};
}

Outcome close_listen(void* listen_comm) {
  delete static_cast<ListenComm*>(listen_comm);
  return {};
}

namespace {

Outcome add_registration(Communicator& comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes,
                         int fd, void** mhandle) {
  auto made =
      transport::register_on_rails(*comm.nic, data, length_bytes, type == abi::kPtrCuda, fd, offset_bytes);
  if (!made) return made.error();
  const std::lock_guard lock(comm.registration_mutex);
  (*made)->ordinal = comm.order.add(length_bytes);
  *mhandle = made->get();
  const transport::Registration* key = made->get();
  comm.registrations.emplace(key, std::move(*made));
  return {};
}

}  // namespace

Outcome register_memory(void* comm, void* data, size_t length_bytes, int type, void** mhandle) {
  if (data == nullptr || length_bytes == 0 || (type != abi::kPtrHost && type != abi::kPtrCuda)) {
    return base::fail(base::Status::kInvalidArgument, "regMr: %s (data %p, size %zu bytes, type %d)",
                      type != abi::kPtrHost && type != abi::kPtrCuda ? "unknown memory type" : "no memory",
                      data, length_bytes, type);
  }
  return add_registration(*static_cast<Communicator*>(comm), data, length_bytes, type, 0, -1, mhandle);
}

Outcome register_dmabuf(void* comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes, int fd,
                        void** mhandle) {
  if (fd < 0 || length_bytes == 0) {
    return base::fail(base::Status::kInvalidArgument,
                      "regMrDmaBuf: the descriptor or the size is invalid (fd %d, size %zu bytes)", fd,
                      length_bytes);
  }
  return add_registration(*static_cast<Communicator*>(comm), data, length_bytes, type, offset_bytes, fd,
                          mhandle);
}

Outcome deregister_memory(void* comm, void* mhandle) {
  auto& c = *static_cast<Communicator*>(comm);
  std::unique_lock lock(c.registration_mutex);
  const auto gone = c.registrations.extract(static_cast<transport::Registration*>(mhandle));
  lock.unlock();  // registering may take long
  if (!gone.empty() && c.datagram_sender != nullptr) c.datagram_sender->release(gone.key());
  if (!gone.empty() && c.datagram_receiver != nullptr) c.datagram_receiver->release(gone.key());
  if (!gone.empty()) return {};
  return base::fail(base::Status::kInvalidArgument,
                    "deregMr: mhandle %p is not a registration of this communicator", mhandle);
}

}  // namespace verbena::nccl
