#include "support/loopback.h"

#include <stdlib.h>

#include <chrono>
#include <span>
#include <stdexcept>
#include <thread>

#include "base/parameters.h"

namespace verbena::verbs {
namespace {

constexpr uint32_t kDepthEntries = 64;

template <typename T>
T take(base::Result<T> result) {
  if (!result) throw std::runtime_error("a verbs object could not be made");
  return std::move(*result);
}

}  // namespace

std::vector<std::unique_ptr<Device>> open_devices() {
  setenv("SOFTVERBS_DEVICES", "2", 1);
  setenv("VERBENA_IBVERBS_LIB", "softverbs", 0);
  if (!base::load_parameters()) throw std::runtime_error("bad parameters");
  return take(discover_devices());
}

Endpoint::Endpoint(Device& device, size_t buffer_bytes)
    : device_(device),
      buffer_(buffer_bytes),
      region_(take(MemoryRegion::register_memory(device, buffer_.data(), buffer_bytes,
                                                 {.remote_read = true, .remote_write = true}))),
      completions_(take(CompletionQueue::create(device, 2 * kDepthEntries))),
      receives_(take(SharedReceiveQueue::create(device, kDepthEntries))),
      pair_(take(QueuePair::create(device, completions_,
                                   {.send_depth = kDepthEntries, .receive_queue = &receives_}))) {}

WorkRequest Endpoint::make_request(Opcode opcode, uint64_t remote_address, uint32_t remote_key) const {
  return {.opcode = opcode,
          .signaled = true,
          .local = buffer_.data(),
          .local_key = local_key(),
          .length = static_cast<uint32_t>(buffer_.size()),
          .remote_key = remote_key,
          .remote = remote_address};
}

base::Outcome Endpoint::post_receive(size_t offset_bytes, uint32_t length_bytes, uint64_t cookie) {
  const ReceiveBuffer buffer{buffer_.data() + offset_bytes, length_bytes, local_key(), cookie};
  return receives_.post(std::span(&buffer, 1));
}

Completion Endpoint::wait(int deadline_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(deadline_ms);
  Completion completion{};
  while (std::chrono::steady_clock::now() < deadline) {
    const int count = completions_.poll(std::span(&completion, 1));
    if (count == 1) return completion;
    if (count < 0) break;
    std::this_thread::yield();
  }
  completion.error = -1;
  return completion;
}

}  // namespace verbena::verbs
