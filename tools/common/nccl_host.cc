#include "common/nccl_host.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "common/clock.h"
#include "common/error.h"

namespace verbena::tools {
namespace {

void check_device_handle(const abi::NetDeviceHandle& handle) {
  constexpr uintptr_t kAlignmentBytes = 16;
  if (handle.handle == nullptr) throw ToolError("accept returned an empty unpack handle");
  if (handle.needs_proxy_progress != 1)
    throw ToolError("accept returned needsProxyProgress 0, so NCCL would never post a receive");
  const auto& unpack = *static_cast<const UnpackDeviceHandle*>(handle.handle);
  if (reinterpret_cast<uintptr_t>(unpack.meta) % kAlignmentBytes != 0)
    throw ToolError("unpack meta is not 16-byte aligned");
  if (reinterpret_cast<uintptr_t>(unpack.bounce_buf) % kAlignmentBytes != 0)
    throw ToolError("bounce buffer is not 16-byte aligned");
}

}  // namespace

void NcclHost::connect(int device, const SwapHandles& swap) {
  Handle own{};
  void* const listen_comm = plugin_.listen(device, own.data());
  Handle remote = swap ? swap(own) : own;
  plugin_.set_attributes({});  // any operation, as NCCL sets them before it connects
  const bool unpacks = plugin_.read_properties(device).device_type == abi::kDeviceUnpack;
  device_handle_ = {abi::kDeviceUnpack, abi::kDeviceUnpackVersion, nullptr, 0, 0};
  abi::NetDeviceHandle* device_handle = unpacks ? &device_handle_ : nullptr;
  Spinner spinner(timeout_s_);
  while (send_comm_ == nullptr || receive_comm_ == nullptr) {
    if (send_comm_ == nullptr) send_comm_ = plugin_.connect(device, remote.data());
    if (receive_comm_ == nullptr) receive_comm_ = plugin_.accept(listen_comm, &device_handle);
    spinner.idle(send_comm_ == nullptr ? "connect: no connection was established in time"
                                       : "accept: no connection was established in time");
  }
  plugin_.close_listen(listen_comm);
  if (!unpacks) return;
  check_device_handle(device_handle_);
  first_head_ = slots()->head;
}

void NcclHost::close() {
  if (send_comm_ != nullptr) plugin_.close_send(send_comm_);
  if (receive_comm_ != nullptr) plugin_.close_receive(receive_comm_);
  send_comm_ = receive_comm_ = nullptr;
}

void* NcclHost::isend(const std::byte* data, size_t length_bytes, void* mhandle, void* receive) {
  Spinner spinner(timeout_s_);
  for (;;) {
    void* const request = plugin_.isend(send_comm_, const_cast<std::byte*>(data), length_bytes, mhandle);
    if (request != nullptr) return request;
    if (receive != nullptr) plugin_.test(receive);
    spinner.idle("isend accepted no message in time");
  }
}

void* NcclHost::irecv(std::byte* data, size_t length_bytes, void* mhandle) {
  Spinner spinner(timeout_s_);
  for (;;) {
    void* const request = plugin_.irecv(receive_comm_, data, length_bytes, mhandle, false);
    if (request != nullptr) return request;
    spinner.idle("irecv accepted no buffer in time");
  }
}

size_t NcclHost::wait(void* request, std::span<void*> others) {
  Spinner spinner(timeout_s_);
  for (;;) {
    if (const auto length = plugin_.test(request)) return *length;
    for (void*& other : others) {
      if (other != nullptr && plugin_.test(other)) other = nullptr;
    }
    spinner.idle("a message did not arrive in time");
  }
}

UnpackedSlot NcclHost::unpack(std::span<std::byte> destination) {
  return unpack_slot(*slots(), compute_slot(first_head_, unpacked_++), destination);
}

void NcclHost::check_slot_is_empty() const {
  const unsigned slot = compute_slot(first_head_, unpacked_ - 1);
  if (load_slot_count(*slots(), slot) != 0)
    throw ToolError("after irecvConsumed, there are still descriptors in slot " + std::to_string(slot));
}

int choose_device(NetPlugin& plugin, int index, int rails) {
  const int count = plugin.count_devices();
  const bool joins = rails > 1;
  if (joins ? rails > count : index >= count)
    throw ToolError((joins ? "--rails " + std::to_string(rails) : "--device " + std::to_string(index)) +
                    ": the plugin has " + std::to_string(count) + " devices");
  if (!joins) return index;
  std::vector<int> members(static_cast<size_t>(rails));
  std::iota(members.begin(), members.end(), 0);
  const int device = plugin.make_virtual_device(members);
  if (plugin.count_devices() != device + 1)
    throw ToolError("makeVDevice gave device " + std::to_string(device) + ", which devices() does not count");
  return device;
}

void PageMemory::Free::operator()(std::byte* memory) const {
  std::free(memory);
}

PageMemory::PageMemory(size_t length_bytes) : length_bytes_(length_bytes) {
  const size_t whole_bytes = (length_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, whole_bytes)));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_.get(), 0, whole_bytes);
}

}  // namespace verbena::tools
