#include "tools/sample_core.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "verbena/unpack_abi.h"

namespace verbena::tools::sample {
namespace {

constexpr size_t kStagedBytes = 65536;
constexpr size_t kPieceBytes = 1000;
constexpr size_t kFaultyMessage = 10;
constexpr int kPhysicalDevices = 2;

bool has_fault(std::string_view name) {
  const char* const fault = std::getenv("SAMPLE_FAULT");
  return fault != nullptr && name == fault;
}

struct Request {
  std::byte* data = nullptr;
  uint64_t length = 0;  // a receive's is the posted one until its header is here
  uint64_t moved = 0;
  uint64_t header = 0;
  uint64_t header_moved = 0;
  bool sends = false;
  bool takes_slot = false;
  bool staged = false;
  unsigned slot = 0;
  struct Comm* comm = nullptr;
};

struct Comm {
  int descriptor = -1;
  std::deque<std::unique_ptr<Request>> requests;
  std::unique_ptr<NetUnpackMeta> meta;
  std::vector<std::byte> bounce;
  UnpackDeviceHandle handle{};
  uint64_t registrations = 0;
  uint64_t receives = 0;
  uint64_t slots_taken = 0;

  ~Comm() { close(descriptor); }
};

int virtual_devices = 0;

}  // namespace

bool unpacks() {
  const char* const setting = std::getenv("VERBENA_UNPACK");
  return setting == nullptr || std::string_view(setting) != "0";
}

abi::Result count_devices(int* count) {
  *count = kPhysicalDevices + virtual_devices;
  return abi::kSuccess;
}

abi::Result make_device(int* device, int member_count) {
  if (member_count > kPhysicalDevices) return abi::kInvalidUsage;
  *device = kPhysicalDevices + virtual_devices++;
  return abi::kSuccess;
}

abi::Result listen_on(int, void* handle, void** listen_comm) {
  static int listeners = 0;
  auto comm = std::make_unique<Comm>();
  comm->descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  auto& address = *static_cast<sockaddr_un*>(handle);
  address = {};
  address.sun_family = AF_UNIX;
  // sun_path[0] = 0: an abstract name. A sockaddr_un of this length fits the 128 bytes of a handle.
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "verbena-sample-%d-%d", getpid(),
                listeners++);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  if (bind(comm->descriptor, generic, sizeof address) != 0) return abi::kSystemError;
  if (::listen(comm->descriptor, 8) != 0) return abi::kSystemError;
  *listen_comm = comm.release();
  return abi::kSuccess;
}

abi::Result connect_to(int, void* handle, void** send_comm, abi::NetDeviceHandle**) {
  auto comm = std::make_unique<Comm>();
  comm->descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (::connect(comm->descriptor, static_cast<sockaddr*>(handle), sizeof(sockaddr_un)) != 0) {
    return abi::kRemoteError;
  }
  *send_comm = comm.release();
  return abi::kSuccess;
}

namespace {

void fill_handle(Comm& comm, abi::NetDeviceHandle& device_handle) {
  comm.meta = std::make_unique<NetUnpackMeta>();
  comm.bounce.resize(kUnpackQueueDepthSlots * kStagedBytes + kUnpackPageBytes);
  comm.handle = {comm.meta.get(), comm.bounce.data(), has_fault("head") ? 0 : kUnpackFreshHead};
  device_handle.handle = &comm.handle;
  device_handle.size = sizeof comm.handle;
  device_handle.needs_proxy_progress = has_fault("no_progress") ? 0 : 1;
}

}  // namespace

abi::Result accept_from(void* listen_comm, void** recv_comm, abi::NetDeviceHandle** device_handle) {
  const int descriptor =
      accept4(static_cast<Comm*>(listen_comm)->descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) return errno == EAGAIN ? abi::kSuccess : abi::kSystemError;
  auto* const comm = new Comm;
  comm->descriptor = descriptor;
  if (device_handle != nullptr && *device_handle != nullptr) fill_handle(*comm, **device_handle);
  *recv_comm = comm;
  return abi::kSuccess;
}

abi::Result add_registration(void* comm, void** mhandle) {
  *mhandle = reinterpret_cast<void*>(++static_cast<Comm*>(comm)->registrations);
  return has_fault("register") ? abi::kSystemError : abi::kSuccess;
}

abi::Result register_dmabuf(void*, void*, size_t, int, uint64_t, int, void**) {
  return abi::kInvalidUsage;
}
abi::Result deregister_memory(void*, void*) {
  return abi::kSuccess;
}

abi::Result start_send(void* send_comm, void* data, size_t length, void** request) {
  auto* const comm = static_cast<Comm*>(send_comm);
  auto owned = std::make_unique<Request>();
  *owned = {static_cast<std::byte*>(data), length, 0, length, 0, true};
  owned->comm = comm;
  *request = owned.get();
  comm->requests.push_back(std::move(owned));
  return abi::kSuccess;
}

abi::Result start_receive(void* recv_comm, void* data, size_t length, void* mhandle, void** request) {
  auto* const comm = static_cast<Comm*>(recv_comm);
  if (++comm->receives == kFaultyMessage) {
    if (has_fault("crash")) raise(SIGKILL);
    if (has_fault("error")) return abi::kRemoteError;
    if (has_fault("request")) return abi::kSuccess;
  }
  auto owned = std::make_unique<Request>();
  *owned = {static_cast<std::byte*>(data), length, 0, 0, 0, false};
  owned->comm = comm;
  // The third registration is the Simple buffer, later ones are the user's; the first two carry no slot.
  owned->takes_slot = comm->meta != nullptr && reinterpret_cast<uintptr_t>(mhandle) >= 3;
  owned->staged = reinterpret_cast<uintptr_t>(mhandle) == 3;
  if (owned->takes_slot) owned->slot = static_cast<unsigned>(comm->slots_taken++ % kUnpackQueueDepthSlots);
  *request = owned.get();
  comm->requests.push_back(std::move(owned));
  return abi::kSuccess;
}

namespace {

// True when all `length` bytes have moved.
bool move_bytes(Request& request, std::byte* data, uint64_t length, uint64_t& moved) {
  while (moved < length) {
    const ssize_t count =
        request.sends
            ? send(request.comm->descriptor, data + moved, length - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
            : recv(request.comm->descriptor, data + moved, length - moved, MSG_DONTWAIT);
    if (count <= 0) return false;
    moved += static_cast<uint64_t>(count);
  }
  return true;
}

void publish(Request& request) {
  Comm& comm = *request.comm;
  const auto base = static_cast<uint32_t>(request.slot * kStagedBytes);
  auto& pieces = comm.meta->mem[request.slot];
  uint64_t count = 0;
  for (uint64_t end = request.length; end > 0;) {
    const uint64_t begin = (end - 1) / kPieceBytes * kPieceBytes;
    pieces[count++] = {base + static_cast<uint32_t>(begin), static_cast<uint32_t>(end - begin), begin};
    end = begin;
  }
  if (comm.receives >= kFaultyMessage) {
    if (has_fault("offset")) pieces[0].dst_off = 1ULL << 40;
    if (has_fault("short")) --pieces[0].len;
    if (has_fault("early")) comm.meta->cnt[(request.slot + 5) % kUnpackQueueDepthSlots] = 1;
  }
  comm.meta->cnt[request.slot] = count;
}

bool progress_receive(Request& request) {
  Comm& comm = *request.comm;
  if (request.header_moved < sizeof request.header) {
    auto* const header = reinterpret_cast<std::byte*>(&request.header);
    if (!move_bytes(request, header, sizeof request.header, request.header_moved)) return false;
    request.length = request.header;
    request.staged = request.staged && comm.meta != nullptr && request.length <= kStagedBytes;
  }
  std::byte* const target = request.staged ? comm.bounce.data() + request.slot * kStagedBytes : request.data;
  if (!move_bytes(request, target, request.length, request.moved)) return false;
  if (has_fault("flip") && comm.receives >= kFaultyMessage && request.length > 0)
    target[request.length / 2] ^= std::byte{1};
  if (has_fault("overrun") && comm.receives >= kFaultyMessage) request.data[request.length] = std::byte{0};
  if (request.staged && request.length > 0) publish(request);
  return true;
}

bool progress_send(Request& request) {
  auto* const header = reinterpret_cast<std::byte*>(&request.header);
  return move_bytes(request, header, sizeof request.header, request.header_moved) &&
         move_bytes(request, request.data, request.length, request.moved);
}

}  // namespace

abi::Result test_request(void* opaque, int* done, int* sizes) {
  auto& request = *static_cast<Request*>(opaque);
  Comm& comm = *request.comm;
  if (has_fault("hang") && comm.receives >= kFaultyMessage) {
    *done = 0;
    return abi::kSuccess;
  }
  const auto found = std::find_if(comm.requests.begin(), comm.requests.end(),
                                  [&](const auto& owned) { return owned.get() == &request; });
  const bool complete = request.sends ? progress_send(request) : progress_receive(request);
  *done = complete ? 1 : 0;
  if (!complete) return abi::kSuccess;
  if (sizes != nullptr) *sizes = static_cast<int>(request.length);
  if (request.sends) comm.requests.erase(found);
  return abi::kSuccess;
}

abi::Result consume(void* recv_comm, int, void* request) {
  auto& comm = *static_cast<Comm*>(recv_comm);
  const auto& consumed = *static_cast<Request*>(request);
  if (consumed.takes_slot && !has_fault("stale")) comm.meta->cnt[consumed.slot] = 0;
  std::erase_if(comm.requests, [&](const auto& owned) { return owned.get() == &consumed; });
  return abi::kSuccess;
}

abi::Result flush(void*, int, void**, int*, void**, void** request) {
  *request = nullptr;
  return abi::kSuccess;
}

abi::Result close_comm(void* comm) {
  delete static_cast<Comm*>(comm);
  return abi::kSuccess;
}

}  // namespace verbena::tools::sample
