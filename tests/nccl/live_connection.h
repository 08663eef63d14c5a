// One connection of the plugin to itself: both ends in this process and on this thread, polled in turn as
// NCCL polls.
#pragma once

#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "common/cpu_unpack.h"
#include "common/pattern.h"
#include "nccl/versions.h"

namespace verbena::nccl::testing {

// Polls until `done` or for ten seconds; what `done` said last.
template <typename Done>
bool poll_until(Done&& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    if (done()) return true;
  }
  return done();
}

// How accept is given its third argument.
enum class HandleShape { kFilled, kPointsToNull, kNull };
// What a receive poses as.
enum class Protocol { kSimple, kLl };

// Page-aligned memory that one end registered.
struct LiveBuffer {
  static constexpr size_t kPageBytes = 4096;
  explicit LiveBuffer(size_t length)
      : storage(length + kPageBytes),
        bytes(storage.data() + (kPageBytes - reinterpret_cast<uintptr_t>(storage.data()) % kPageBytes),
              length) {}
  std::vector<std::byte> storage;
  std::span<std::byte> bytes;
  void* mhandle = nullptr;
};

template <typename V>
class LiveConnection {
 public:
  LiveConnection(const Caller<V>& net, void* context) : net_(net), context_(context) {}
  LiveConnection(const LiveConnection&) = delete;
  LiveConnection& operator=(const LiveConnection&) = delete;
  ~LiveConnection() { close(); }

  // True once both ends stand, with NCCL's three registrations on each.
  bool establish(int device, HandleShape shape) {
    if (net_.listen(context_, device, handle_, &listen_comm) != abi::kSuccess || !meet(device, shape))
      return false;
    for (LiveBuffer* buffer : {&ll_, &ll128_, &received}) {
      if (!add_registration(recv_comm, *buffer)) return false;
    }
    for (LiveBuffer* buffer : {&send_ll_, &send_ll128_, &sent}) {
      if (!add_registration(send_comm, *buffer)) return false;
    }
    return true;
  }

  bool add_registration(void* comm, LiveBuffer& buffer) {
    return net_.reg_mr(comm, buffer.bytes.data(), buffer.bytes.size(), abi::kPtrHost, &buffer.mhandle) ==
               abi::kSuccess &&
           buffer.mhandle != nullptr;
  }

  // Keeps asking until the plugin takes the request.
  void* send(std::span<std::byte> bytes, void* mhandle) {
    void* request = nullptr;
    poll_until([&] {
      result = net_.isend(send_comm, bytes.data(), bytes.size(), 0, mhandle, &request);
      return result != abi::kSuccess || request != nullptr;
    });
    return request;
  }
  void* receive(std::span<std::byte> room, void* mhandle, Protocol protocol = Protocol::kSimple) {
    void *request = nullptr, *data = room.data();
    const size_t size = room.size();
    int tag = 0;
    poll_until([&] {
      // What NCCL leaves there: its hint, or the request of an earlier call.
      request =
          protocol == Protocol::kLl ? reinterpret_cast<void*>(abi::kOptionalRecvCompletion) : stale_request();
      result = net_.irecv(recv_comm, 1, &data, &size, &tag, &mhandle, &request);
      return result != abi::kSuccess || request != nullptr;
    });
    return request;
  }
  // The first bytes of `sent`, and into the first of `received`.
  void* send(size_t length) { return send(sent.bytes.first(length), sent.mhandle); }
  void* receive(size_t length) { return receive(received.bytes.first(length), received.mhandle); }
  // True once done; `sizes` is what test reported, if the caller asks for that.
  bool wait(void* request, int* sizes = nullptr) {
    int done = 0, unused[abi::kMaxTestSizes] = {};
    return poll_until([&] {
             done = 77;
             result = net_->test(request, &done, sizes != nullptr ? sizes : unused);
             return result != abi::kSuccess || done == 1;
           }) &&
           done == 1;
  }

  bool unpacks() const { return device_handle.handle != nullptr; }
  UnpackDeviceHandle& unpack() const { return *static_cast<UnpackDeviceHandle*>(device_handle.handle); }
  // Plays the kernel for one completed Simple receive. Null-safe: without a handle there is nothing to place.
  tools::UnpackedSlot place(std::span<std::byte> room) {
    if (!unpacks()) return {};
    return tools::unpack_slot(unpack(), tools::compute_slot(unpack().head, slots_taken_++), room);
  }
  bool all_slots_are_empty() const {
    for (unsigned slot = 0; unpacks() && slot < tools::kUnpackSlots; ++slot) {
      if (tools::load_slot_count(unpack(), slot) != 0) return false;
    }
    return true;
  }
  // Sends `length` bytes from one offset to another, checks everything and consumes. Null: right.
  const char* transfer(size_t length, size_t from, size_t to, Protocol protocol = Protocol::kSimple);

  bool close_send() { return close(send_comm, net_->close_send); }
  bool close_recv() { return close(recv_comm, net_->close_recv); }
  bool close_listen() { return close(listen_comm, net_->close_listen); }
  void deregister_receives() {
    for (LiveBuffer* buffer : {&ll_, &ll128_, &received}) drop_registration(recv_comm, *buffer);
  }
  void deregister() {
    deregister_receives();
    for (LiveBuffer* buffer : {&send_ll_, &send_ll128_, &sent}) drop_registration(send_comm, *buffer);
  }
  bool close() {
    deregister();
    const bool send = close_send(), recv = close_recv(), listen = close_listen();
    return send && recv && listen;
  }

  void *listen_comm = nullptr, *send_comm = nullptr, *recv_comm = nullptr;
  abi::NetDeviceHandle device_handle{abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
  abi::Result result = abi::kSuccess;  // of the last data call
  LiveBuffer sent{kBufferBytes}, received{kBufferBytes};
  static constexpr size_t kBufferBytes = 4 << 20;  // NCCL_BUFFSIZE
  tools::UnpackedSlot last_unpacked;

 private:
  void* stale_request() { return &device_handle; }

  bool meet(int device, HandleShape shape) {
    abi::NetDeviceHandle *to_handle = &device_handle, *to_null = nullptr;
    abi::NetDeviceHandle** const shapes[] = {&to_handle, &to_null, nullptr};
    abi::NetDeviceHandle* send_device_handle = nullptr;
    const bool met = poll_until([&] {
      if (send_comm == nullptr) {
        result = net_.connect(context_, device, abi::kUndefined, handle_, &send_comm, &send_device_handle);
      }
      if (result == abi::kSuccess && recv_comm == nullptr) {
        result = net_->accept(listen_comm, &recv_comm, shapes[static_cast<int>(shape)]);
      }
      return result != abi::kSuccess || (send_comm != nullptr && recv_comm != nullptr);
    });
    return met && result == abi::kSuccess && send_device_handle == nullptr && to_null == nullptr;
  }
  void drop_registration(void* comm, LiveBuffer& buffer) {
    void* mhandle = std::exchange(buffer.mhandle, nullptr);
    if (mhandle != nullptr && comm != nullptr) net_->dereg_mr(comm, mhandle);
  }
  bool close(void*& comm, abi::Result (*function)(void*)) {
    return comm == nullptr || function(std::exchange(comm, nullptr)) == abi::kSuccess;
  }

  const Caller<V>& net_;
  void* context_;
  char handle_[abi::kHandleBytes] = {};
  uint64_t slots_taken_ = 0, messages_ = 0;
  LiveBuffer ll_{524288}, ll128_{4915200}, send_ll_{524288}, send_ll128_{4915200};
};

template <typename V>
const char* LiveConnection<V>::transfer(size_t length, size_t from, size_t to, Protocol protocol) {
  LiveBuffer& source = protocol == Protocol::kLl ? send_ll_ : sent;
  LiveBuffer& target = protocol == Protocol::kLl ? ll_ : received;
  const std::span<std::byte> message = source.bytes.subspan(from, length),
                             room = target.bytes.subspan(to, length);
  const std::span<std::byte> guard = target.bytes.subspan(to + length, tools::kGuardLengthBytes);
  tools::fill_pattern(message, ++messages_);
  std::fill(room.begin(), room.end(), std::byte{0xcc});
  tools::fill_guard(guard);

  void* const receive_request = receive(room, target.mhandle, protocol);
  if (receive_request == nullptr) return "irecv";
  void* const send_request = send(message, source.mhandle);
  if (send_request == nullptr) return "isend";
  int sizes[abi::kMaxTestSizes] = {}, sent_size = -1;
  if (!wait(receive_request, sizes)) return "test of the receive";
  if (!wait(send_request, &sent_size)) return "test of the send";
  if (sizes[0] != static_cast<int>(length) || sizes[1] != 0) return "size of the receive";
  if (sent_size != static_cast<int>(length)) return "size of the send";
  last_unpacked = protocol == Protocol::kLl ? tools::UnpackedSlot{} : place(room);
  if (net_->irecv_consumed(recv_comm, 1, receive_request) != abi::kSuccess) return "irecvConsumed";
  if (!all_slots_are_empty()) return "a slot that is not empty after irecvConsumed";
  if (tools::check_pattern(room, messages_).wrong_bytes != 0) return "bytes";
  if (tools::count_wrong_guard_bytes(guard) != 0) return "bytes behind the message";
  return nullptr;
}

}  // namespace verbena::nccl::testing
