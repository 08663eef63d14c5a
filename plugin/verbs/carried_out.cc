// Determines how many packets of its peer a queue pair has executed, from the packet number that it expects
// next.
#include "base/clock.h"
#include "base/log.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {

namespace {

constexpr uint32_t kPsnMask = 0xffffff;
constexpr int64_t kPatienceMs = 1000;
constexpr uint32_t kRequests = 3;

}  // namespace

std::optional<uint32_t> QueuePair::read_carried_out() const {
  if (pair_ == nullptr || device_->library().query_qp == nullptr) return std::nullopt;
  ibv_qp_attr attributes{};
  ibv_qp_init_attr init{};
  if (device_->library().query_qp(pair_.get(), &attributes, IBV_QP_RQ_PSN, &init) != 0) return std::nullopt;
  return (attributes.rq_psn - remote_first_psn_) & kPsnMask;
}

// Posts a write of several packets, a write of a few bytes, and an add or a read, so that a different way of
// counting is detected. The number that the device reports afterwards, in the error state, decides.
bool tells_carried_out(Device& device) {
  const LocalAddress address = device.refresh_address();
  auto completions = CompletionQueue::create(device, 2 * kRequests);
  alignas(8) std::byte memory[2 * 4096] = {};
  auto region = MemoryRegion::register_memory(
      device, memory, sizeof(memory),
      {.remote_read = true, .remote_write = true, .remote_atomic = device.supports_atomics()});
  if (address.port.link_layer == 0 || !completions || !region) return false;
  auto pair = QueuePair::create(
      device, *completions,
      {.send_depth = 16,
       .operations = {.send_imm = false, .write_imm = false, .fetch_add = device.supports_atomics()},
       .local = &address});
  if (!pair || !pair->connect(address.port, pair->address())) return false;
  const auto make = [&](Opcode opcode, uint32_t bytes) {
    return OneSidedRequest{{.opcode = opcode,
                            .signaled = true,
                            .local = memory,
                            .local_key = region->local_key(),
                            .length = bytes,
                            .remote_key = region->remote_key(),
                            .remote = reinterpret_cast<uintptr_t>(memory + sizeof(memory) / 2)}};
  };
  const OneSidedRequest requests[kRequests] = {
      make(Opcode::kWrite, 4096), make(Opcode::kWrite, 8),
      make(device.supports_atomics() ? Opcode::kFetchAdd : Opcode::kRead, 8)};
  uint32_t expected = 0;
  for (const OneSidedRequest& request : requests) expected += pair->count_packets(request.length);
  if (!pair->post(requests)) return false;
  const auto deadline = base::Deadline::after_ms(kPatienceMs);
  for (uint32_t done = 0; done < kRequests;) {
    Completion batch[kRequests];
    const int count = completions->poll(batch);
    if (count < 0 || deadline.has_passed()) return false;
    for (int i = 0; i < count; ++i) {
      if (batch[i].error != 0) return false;
      pair->retire();
      ++done;
    }
  }
  pair->stop();
  const auto carried_out = pair->read_carried_out();
  const bool is_told = carried_out == expected;
  base::log_info("device %s:%d: the device %s which requests of a failed queue pair were executed",
                 device.name().c_str(), device.port_number(), is_told ? "reports" : "does not report");
  return is_told;
}

}  // namespace verbena::verbs
