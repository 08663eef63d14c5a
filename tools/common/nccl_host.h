#pragma once
#include <array>
#include <functional>
#include <memory>
#include <span>

#include "common/cpu_unpack.h"
#include "common/net_plugin.h"

namespace verbena::tools {

// The buffers that NCCL registers with a connection, in its order: LL, LL128, Simple. A message is at most an
// eighth of its buffer, a slice.
inline constexpr std::array<size_t, 3> kNcclBufferBytes{524288, 4915200, 4194304};
inline constexpr size_t kNcclSlices = 8;

// Acts like NCCL towards a plugin. It has one connection in each direction, with itself or with a partner,
// makes the calls of NCCL's proxy thread, and unpacks like NCCL's kernel. Used by one thread. Every wait
// throws HangError after `timeout_s`.
class NcclHost {
 public:
  using Handle = std::array<uint8_t, abi::kHandleBytes>;
  // Sends our handle to the partner and returns the partner's.
  using SwapHandles = std::function<Handle(const Handle& own)>;

  NcclHost(NetPlugin& plugin, double timeout_s) : plugin_(plugin), timeout_s_(timeout_s) {}
  NcclHost(const NcclHost&) =
      delete;  // the plugin keeps the address of device_handle_ while accept is polled
  NcclHost& operator=(const NcclHost&) = delete;

  // Listens, swaps handles, polls connect and accept in turn. Without `swap` it connects to itself. Throws
  // ToolError for an unpack handle that NCCL could not use.
  void connect(int device, const SwapHandles& swap = nullptr);
  // Closes the connection. Deregister all memory first.
  void close();

  void* send_comm() const { return send_comm_; }
  void* receive_comm() const { return receive_comm_; }
  // The unpack slots for receives of the Simple protocol; null if this connection does not unpack.
  UnpackDeviceHandle* slots() const { return static_cast<UnpackDeviceHandle*>(device_handle_.handle); }

  // Both repeat the call until the plugin accepts the message. `receive` may be the receive of this or a
  // later message on the same host. It is tested in turn, so that its failure is detected.
  void* isend(const std::byte* data, size_t length_bytes, void* mhandle, void* receive = nullptr);
  void* irecv(std::byte* data, size_t length_bytes, void* mhandle);
  // Tests the request until it is done, and returns its length. Also tests `others` in turn, because a
  // request makes progress only when it is tested, and sets requests that are done to null.
  size_t wait(void* request, std::span<void*> others = {});

  // Does on the CPU what NCCL's kernel does: unpacks the next complete receive from its slot.
  UnpackedSlot unpack(std::span<std::byte> destination);
  // Throws ToolError if irecvConsumed has left descriptors in the slot of that receive: NCCL's kernel would
  // loop for ever after an abort.
  void check_slot_is_empty() const;

 private:
  NetPlugin& plugin_;
  double timeout_s_;
  void *send_comm_ = nullptr, *receive_comm_ = nullptr;
  abi::NetDeviceHandle device_handle_{};
  uint64_t first_head_ = 0, unpacked_ = 0;
};

// Device `index`, or with `rails` > 1 a new device that joins the first `rails` devices. Throws ToolError if
// there are fewer.
int choose_device(NetPlugin& plugin, int index, int rails);

// Zero-filled, page-aligned memory.
class PageMemory {
 public:
  static constexpr size_t kPageBytes = 4096;
  explicit PageMemory(size_t length_bytes);
  std::byte* data() const { return data_.get(); }
  size_t length_bytes() const { return length_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t length_bytes_;
};

}  // namespace verbena::tools
