// Implements listen, connect, accept, close and memory registration.
#include <cstring>
#include <utility>

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

// Prepares a communicator before its first message.
void attach_profiler(Communicator& comm) {
  observe::Connection* const observer = comm.end().observer();
  if (comm.context->profiler == nullptr || observer == nullptr) return;
  comm.profiler = std::make_unique<NetProfiler>(comm.context->profiler, comm.nic->members);
  observer->serve(comm.profiler.get());
}

}  // namespace

Outcome listen(void* context, int device, void* handle, void** listen_comm) {
  auto* c = static_cast<Context*>(context);
  auto nic = find_nic(c, device, "listen");
  if (!nic) return nic.error();
  std::memset(handle, 0, abi::kHandleBytes);
  auto listening = Process::transport().listen({*nic, c->nics, offers_unpack()}, handle);
  if (!listening) return listening.error();
  auto comm = std::make_unique<ListenComm>(ListenComm{c->self, c->nics, std::move(*listening), *nic});
  *listen_comm = comm.release();
  return {};
}

namespace {

// Continues the connection attempt that belongs to `handle`, or begins it by start(). An unfinished attempt
// is kept for the next call. A different nonce means that NCCL gave up an attempt and reuses its handle's
// memory for a new one.
template <typename Start>
base::Result<std::unique_ptr<transport::SendingEnd>> poll_attempt(Context* c, void* handle, uint64_t nonce,
                                                                  const Start& start) {
  std::unique_ptr<transport::Connecting> attempt;
  {
    const std::lock_guard lock(c->mutex);
    if (auto found = c->connecting.extract(handle); !found.empty()) attempt = std::move(found.mapped());
  }
  if (attempt == nullptr || attempt->nonce() != nonce) {
    base::Result<std::unique_ptr<transport::Connecting>> started = start();
    if (!started) return started.error();
    attempt = std::move(*started);
  }
  auto end = attempt->poll();
  if (end && *end == nullptr) {
    const std::lock_guard lock(c->mutex);
    c->connecting[handle] = std::move(attempt);
  }
  return end;
}

}  // namespace

// NCCL calls this with the same `handle` until it returns a communicator. The handle's address identifies the
// attempt.
Outcome connect(void* context, int device, int traffic_class, void* handle, void** send_comm) {
  auto* c = static_cast<Context*>(context);
  auto nic = find_nic(c, device, "connect");
  if (!nic) return nic.error();
  const auto& used = Process::transport();
  const auto nonce = used.check_handle(handle);
  if (!nonce) return nonce.error();
  auto sender = poll_attempt(c, handle, *nonce, [&] {
    return used.connect({*nic, c->nics, offers_unpack()}, handle, c->communicator_id,
                        traffic_class >= 0 ? traffic_class : c->traffic_class);
  });
  if (!sender) return sender.error();
  if (*sender == nullptr) return {};
  auto comm = make_communicator(c->self, c->nics, *nic);
  comm->sender = std::move(*sender);
  attach_profiler(*comm);
  *send_comm = comm.release();
  return {};
}

Outcome accept(void* listen_comm, void** receive_comm, abi::NetDeviceHandle** device_handle) {
  auto& listening = *static_cast<ListenComm*>(listen_comm);
  abi::NetDeviceHandle* target = device_handle == nullptr ? nullptr : *device_handle;
  transport::AcceptOptions options;
  options.communicator_id = listening.context->communicator_id;
  options.traffic_class = listening.context->traffic_class;
  options.connections_ahead = listening.context->connections_ahead.load(std::memory_order_relaxed);
  options.unpacks = target != nullptr && target->type == abi::kDeviceUnpack && offers_unpack();
  void* address = nullptr;
  auto receiver = listening.listening->poll(options, &address);
  if (!receiver) return receiver.error();
  if (*receiver == nullptr) return {};
  if (options.unpacks) {
    target->handle = address;
    target->size = sizeof(UnpackDeviceHandle);
    target->needs_proxy_progress = 1;
  }
  auto comm = make_communicator(listening.context, listening.nics, listening.nic);
  comm->receiver = std::move(*receiver);
  attach_profiler(*comm);
  *receive_comm = comm.release();
  return {};
}

namespace {

void close(Communicator* comm) {
  const std::shared_ptr<Context> context = comm->context;
  const protocol::Statistics statistics = comm->end().close();
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
                      type != abi::kPtrHost && type != abi::kPtrCuda ? "unknown memory type"
                                                                     : "data is NULL, or the size is 0",
                      data, length_bytes, type);
  }
  return add_registration(*static_cast<Communicator*>(comm), data, length_bytes, type, 0, -1, mhandle);
}

Outcome register_dmabuf(void* comm, void* data, size_t length_bytes, int type, uint64_t offset_bytes, int fd,
                        void** mhandle) {
  if (fd < 0 || length_bytes == 0) {
    return base::fail(base::Status::kInvalidArgument,
                      "regMrDmaBuf: the file descriptor or the size is invalid (fd %d, size %zu bytes)", fd,
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
  if (gone.empty())
    return base::fail(base::Status::kInvalidArgument,
                      "deregMr: mhandle %p is not a memory registration of this communicator", mhandle);
  c.end().release(gone.key());
  return {};
}

}  // namespace verbena::nccl
