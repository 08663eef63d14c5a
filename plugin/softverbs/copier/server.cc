#include "softverbs/copier/server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace verbena::softverbs::copier {
namespace {

// Returns 0 when the application has ended. The descriptor is -1 if the command has none.
ssize_t receive(Command& command, int& descriptor) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec piece{&command, sizeof(command)};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(kSocket, &message, MSG_CMSG_CLOEXEC);
  descriptor = -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (got > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS)
    memcpy(&descriptor, CMSG_DATA(header), sizeof(descriptor));
  return got;
}

}  // namespace

bool Server::open(std::string& why) {
  struct stat status {};
  if (fstat(kSegment, &status) != 0) {
    why = "the library passed no shared-memory segment";
    return false;
  }
  auto area = std::make_unique<Area>();
  if (!map_host(kSegment, static_cast<uint64_t>(status.st_size), *area, why)) return false;
  close(kSegment);
  areas_.put(kOwnSegment, std::move(area));
  return true;
}

void Server::serve() {
  for (;;) {
    Command command{};
    int descriptor = -1;
    const ssize_t got = receive(command, descriptor);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(command)) return;
    const Reply reply = answer(command, descriptor);
    if (descriptor >= 0) close(descriptor);
    if (send(kSocket, &reply, sizeof(reply), MSG_NOSIGNAL) != sizeof(reply)) return;
  }
}

Reply Server::answer(const Command& command, int descriptor) {
  Reply reply{};
  std::string why;
  bool is_done = false;
  switch (command.request) {
    case Request::kOpenDevice:
      is_done = open_device(command, reply.value, why);
      break;
    case Request::kOpenLane:
      is_done = open_lane(command, why);
      break;
    case Request::kMapSegment:
      is_done = map_segment(command, descriptor, reply.value, why);
      break;
    case Request::kPin:
      is_done = pin(command, why);
      break;
    case Request::kMapIpc:
    case Request::kReserve:
      is_done = map_gpu(command, reply.value, why);
      break;
    case Request::kMapPart:
      is_done = map_next_part(command, descriptor, why);
      break;
    case Request::kRelease:
      is_done = release(command, why);
      break;
  }
  reply.error = is_done ? 0 : EIO;
  snprintf(reply.text, sizeof(reply.text), "%s", why.c_str());
  return reply;
}

template <typename T>
T* Server::find_shared(uint64_t offset) const {
  const Area& segment = *areas_.get(kOwnSegment);
  const bool is_inside =
      offset % alignof(T) == 0 && offset <= segment.bytes && sizeof(T) <= segment.bytes - offset;
  return is_inside ? reinterpret_cast<T*>(segment.base + offset) : nullptr;
}

// Makes the context of the engine current.
Engine* Server::enter(uint32_t device, std::string& why) {
  if (device >= engine_count_) {
    why = "the device does not exist";
    return nullptr;
  }
  driver_.cuCtxSetCurrent(engines_[device]->context());
  return engines_[device].get();
}

// Finds the GPU by its UUID, because the application may number the GPUs differently.
bool Server::open_device(const Command& command, uint32_t& device, std::string& why) {
  auto* const shared = find_shared<SharedEngine>(command.offset);
  int count = 0;
  driver_.cuDeviceGetCount(&count);
  for (int i = 0; i < count && shared != nullptr && engine_count_ < kDeviceCount; ++i) {
    CUdevice found = 0;
    CUuuid uuid{};
    if (driver_.cuDeviceGet(&found, i) != CUDA_SUCCESS ||
        driver_.cuDeviceGetUuid(&uuid, found) != CUDA_SUCCESS)
      continue;
    if (memcmp(&uuid, &command.uuid, sizeof(uuid)) != 0) continue;
    auto engine = Engine::open(driver_, areas_, engine_count_, found, *shared, spin_ns_, why);
    if (!engine) return false;
    device = engine_count_;
    engines_[engine_count_++] = std::move(engine);
    return true;
  }
  why = "the GPU that the application uses is not one of the copier process's " + std::to_string(count) +
        " GPUs; check CUDA_VISIBLE_DEVICES";
  return false;
}

bool Server::open_lane(const Command& command, std::string& why) {
  auto* const shared = find_shared<SharedLane>(command.offset);
  Engine* const engine = enter(command.device, why);
  if (engine == nullptr) return false;
  if (shared != nullptr) return engine->add_lane(*shared, why);
  why = "the lane lies outside the shared-memory segment";
  return false;
}

bool Server::map_segment(const Command& command, int descriptor, uint32_t& number, std::string& why) {
  auto area = std::make_unique<Area>();
  if (!map_host(descriptor, command.bytes, *area, why)) return false;
  number = areas_.add(std::move(area));
  if (number == 0) why = "too many registered areas";
  return number != 0;
}

bool Server::pin(const Command& command, std::string& why) {
  Area* const area = areas_.get(command.area);
  const bool is_inside = area != nullptr && area->is_host() && command.offset <= area->bytes &&
                         command.bytes <= area->bytes - command.offset;
  if (!is_inside) why = "the memory to pin lies outside its area";
  if (!is_inside || enter(0, why) == nullptr) return false;
  const uint64_t address = area->base + command.offset;
  const CUresult result =
      driver_.cuMemHostRegister_v2(reinterpret_cast<void*>(address), command.bytes,
                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) why = driver_.explain("cuMemHostRegister", result);
  if (result == CUDA_SUCCESS) area->pins.push_back(address);
  return result == CUDA_SUCCESS;
}

bool Server::map_gpu(const Command& command, uint32_t& number, std::string& why) {
  if (enter(command.device, why) == nullptr) return false;
  auto area = std::make_unique<Area>();
  area->device = command.device;
  area->home = command.uuid;
  const bool is_mapped = command.request == Request::kMapIpc
                             ? map_ipc(driver_, command.handle, command.bytes, *area, why)
                             : reserve(driver_, command.bytes, *area, why);
  if (!is_mapped) return false;
  number = areas_.add(std::move(area));
  if (number == 0) why = "too many registered areas";
  return number != 0;
}

bool Server::map_next_part(const Command& command, int descriptor, std::string& why) {
  Area* const area = areas_.get(command.area);
  if (area == nullptr || area->is_host() || area->is_ipc || descriptor < 0) {
    why = "the area of a part of the memory does not exist";
    return false;
  }
  Engine* const engine = enter(area->device, why);
  return engine != nullptr &&
         map_part(driver_, engine->device(), descriptor, command.offset, command.bytes, *area, why);
}

bool Server::release(const Command& command, std::string& why) {
  std::unique_ptr<Area> area = command.area == kOwnSegment ? nullptr : areas_.remove(command.area);
  if (area == nullptr) {
    why = "the area does not exist";
    return false;
  }
  for (uint32_t i = 0; i < engine_count_; ++i) {
    if (engines_[i]->quiesce()) continue;
    (void)area.release();  // memory that the GPU still uses stays mapped
    why = "copies did not finish in time";
    return false;
  }
  if (enter(area->is_host() ? 0 : area->device, why) == nullptr) return false;
  unmap(driver_, *area);
  return true;
}

}  // namespace verbena::softverbs::copier
