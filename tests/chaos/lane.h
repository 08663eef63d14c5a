#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "chaos/traffic.h"
#include "common/error.h"
#include "common/nccl_host.h"
#include "verbena/unpack_abi.h"

namespace verbena::chaos {

// A place for each message of the window, each followed by guard bytes.
class Places {
 public:
  Places(const MessageList& list, unsigned window);
  std::span<std::byte> place(const MessageList& list, uint64_t message);
  std::span<std::byte> guard(const MessageList& list, uint64_t message);
  std::byte* data() { return storage_.data(); }
  size_t length_bytes() const { return window_ * stride_bytes_; }

 private:
  unsigned window_;
  size_t stride_bytes_;
  tools::PageMemory storage_;
};

// One connection's end. NCCL's proxy: a window of requests, of which the oldest is tested.
class Lane {
 public:
  Lane(tools::NetPlugin& plugin, void* comm, const Traffic& traffic, MessageList list);
  virtual ~Lane() = default;

  // True if something moved.
  virtual bool step() = 0;
  bool is_finished() const { return completed_ == messages_; }
  uint64_t completed() const { return completed_; }
  // As NCCL does, however it ended: the memory first, then the connection.
  void close();

 protected:
  virtual void close_comm() = 0;

  tools::NetPlugin& plugin_;
  void* comm_;
  MessageList list_;
  uint64_t messages_;
  unsigned window_;
  Places places_;
  void* mhandle_;
  uint64_t posted_ = 0;
  uint64_t completed_ = 0;
  std::array<void*, 8> requests_{};
};

class Outgoing final : public Lane {
 public:
  using Lane::Lane;
  bool step() override;

 private:
  void close_comm() override { plugin_.close_send(comm_); }
  uint64_t filled_ = 0;
};

struct Gap {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

class Incoming final : public Lane {
 public:
  // `unpack`: null where the plugin unpacks nothing on this connection.
  Incoming(tools::NetPlugin& plugin, void* comm, UnpackDeviceHandle* unpack, const Traffic& traffic,
           MessageList list);
  bool step() override;

  uint64_t received_bytes() const { return received_bytes_; }
  uint64_t staged() const { return staged_; }
  // Between two completions, where it took long.
  const std::vector<Gap>& gaps() const { return gaps_; }

 private:
  bool post();
  bool complete();
  void unpack(std::span<std::byte> message);
  void verify(std::span<std::byte> message);
  void note_completion();
  void close_comm() override { plugin_.close_receive(comm_); }

  UnpackDeviceHandle* unpack_;
  uint64_t first_head_;
  uint64_t received_bytes_ = 0;
  uint64_t staged_ = 0;
  int64_t last_ns_ = 0;
  std::vector<Gap> gaps_;
};

// Something arrived that was not sent.
class WrongData : public tools::ToolError {
 public:
  using ToolError::ToolError;
};

}  // namespace verbena::chaos
