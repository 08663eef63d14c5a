// listen, connect, accept, close, and registered memory.
#include <cstring>

#include "base/log.h"
#include "nccl/communicators.h"
#include "nccl/net_core.h"
#include "nccl/unpack_offer.h"

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

// Before its first message.
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
  protocol::Handle contents;
  auto listener = transport::Listener::open(**nic, &contents);
  if (!listener) return listener.error();
  std::memset(handle, 0, abi::kHandleBytes);
  std::memcpy(handle, &contents, sizeof(contents));
  *listen_comm = new ListenComm{c->self, c->nics, std::move(*listener)};
  return {};
}

// Polled with the same `handle` until it yields a communicator; that address is what tells attempts apart.
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm) {
  auto* c = static_cast<Context*>(context);
  auto nic = find_nic(c, device, "connect");
  if (!nic) return nic.error();
  protocol::Handle contents;
  std::memcpy(&contents, handle, sizeof(contents));
  if (const auto error = protocol::check_handle(contents); error != protocol::HandshakeError::kNone) {
    return base::fail(base::Status::kInvalidArgument, "connect: the handle is %s%s",
                      protocol::describe(error),
                      transport::describe_versions(error, contents.header).c_str());
  }

  std::unique_ptr<transport::Connector> connector;
  {
    const std::lock_guard lock(c->mutex);
    if (auto found = c->connecting.extract(handle); !found.empty()) connector = std::move(found.mapped());
  }
  // Another nonce: NCCL gave up an attempt and the memory of its handle serves a new one.
  if (connector == nullptr || connector->nonce() != contents.header.nonce) {
    auto started =
        transport::Connector::start(**nic, contents, traffic_class >= 0 ? traffic_class : c->traffic_class);
    if (!started) return started.error();
    connector = std::move(*started);
  }
  auto sender = connector->poll();
  if (!sender) return sender.error();
  if (*sender == nullptr) {
    const std::lock_guard lock(c->mutex);
    c->connecting[handle] = std::move(connector);
    return {};
  }
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
  auto receiver = listening.listener->poll(options, &address);
  if (!receiver) return receiver.error();
  if (*receiver == nullptr) return {};
  if (options.unpacks) {
    target->handle = address;
    target->size = sizeof(UnpackDeviceHandle);
    target->needs_proxy_progress = 1;
  }
  auto comm = make_communicator(listening.context, listening.nics, &listening.listener->nic());
  comm->receiver = std::move(*receiver);
  comm->receiver->name_communicator(listening.context->communicator_id);
  attach_profiler(*comm, *comm->receiver);
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
  } else {
    close_end(*comm->receiver);
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
    return base::fail(base::Status::kInvalidArgument, "regMrDmaBuf: no memory (fd %d, size %zu bytes)", fd,
                      length_bytes);
  }
  return add_registration(*static_cast<Communicator*>(comm), data, length_bytes, type, offset_bytes, fd,
                          mhandle);
}

Outcome deregister_memory(void* comm, void* mhandle) {
  auto& c = *static_cast<Communicator*>(comm);
  std::unique_lock lock(c.registration_mutex);
  const auto gone = c.registrations.extract(static_cast<transport::Registration*>(mhandle));
  lock.unlock();  // the device may take its time
  if (!gone.empty()) return {};
  return base::fail(base::Status::kInvalidArgument,
                    "deregMr: not a registration of this communicator (mhandle %p)", mhandle);
}

}  // namespace verbena::nccl
