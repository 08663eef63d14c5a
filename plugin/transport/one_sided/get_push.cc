#include "transport/one_sided/get_push.h"

#include <algorithm>

#include "base/clock.h"
#include "base/parameters.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

base::Result<std::unique_ptr<GetPush>> GetPush::create(std::span<verbs::Device* const> devices,
                                                       std::span<verbs::CompletionQueue> completions,
                                                       std::vector<uint64_t> cookies) {
  auto made = std::make_unique<GetPush>();
  for (size_t r = 0; r < devices.size(); ++r) {
    Rail& rail = made->rails_.emplace_back();
    rail.device = devices[r];
    rail.completions = &completions[r];
    rail.cookie = cookies[r];
    rail.word = std::make_unique<uint64_t>(0);
    auto region = verbs::MemoryRegion::register_memory(*rail.device, rail.word.get(), sizeof(uint64_t), {});
    if (!region) return region.error();
    rail.region = std::move(*region);
  }
  return made;
}

GetPush::~GetPush() {
  for (Rail& rail : rails_) rail.pair.stop();
}

bool GetPush::connect(Rail& rail) {
  const verbs::LocalAddress own = rail.device->refresh_address();
  if (own.port.link_layer == 0) return false;
  auto pair = verbs::QueuePair::create(*rail.device, *rail.completions,
                                       {.send_depth = kSendDepth,
                                        .operations = {.send_imm = false, .write = false, .write_imm = false},
                                        .local = &own});
  if (!pair || !pair->connect(own.port, pair->address())) return false;
  rail.pair = std::move(*pair);
  return true;
}

void GetPush::ask(Rail& rail) {
  if (rail.pair.number() == 0 && !connect(rail))
    return fail(rail,
                "the plugin could not create the queue pair that connects the port to itself. An earlier "
                "line of the log says why",
                false);
  verbs::OneSidedRequest request;
  request.opcode = verbs::Opcode::kRead;
  request.signaled = true;
  request.cookie = rail.cookie;
  request.local = rail.word.get();
  request.local_key = rail.region.local_key();
  request.length = 1;
  request.remote_key = rail.asked->key;
  request.remote = reinterpret_cast<uintptr_t>(rail.asked->address);
  rail.is_under_way = rail.pair.post(std::span(&request, 1)).is_ok();
  rail.posted_at_ns = base::monotonic_ns();
  if (!rail.is_under_way) fail(rail, "the device rejected the read that flushes the data; see dmesg", false);
}

// A device that has failed may never report the READ.
void GetPush::look_for_silence(Rail& rail) {
  if (base::monotonic_ns() - rail.posted_at_ns < find_device_patience_ns()) return;
  rail.is_under_way = false;
  fail(rail, "the device reports no completions of the requests of this queue pair", false);
}

void GetPush::take_completion(uint32_t r, const verbs::Completion& completion) {
  Rail& rail = rails_[r];
  // A completion of a replaced queue pair.
  if (!rail.is_under_way || completion.qp_number != rail.pair.number()) return;
  rail.is_under_way = false;
  if (completion.error != 0) {
    return fail(rail, verbs::describe_completion_error(completion.error),
                verbs::is_request_at_fault(completion.error));
  }
  rail.pair.retire();
  rail.asked.reset();
  rail.failed_since_ns = 0;
  if (std::any_of(rails_.begin(), rails_.end(), [](const Rail& one) { return one.asked.has_value(); }))
    return;
  released_ += covered_;
  covered_ = 0;
}

// The failure of a queue pair that is connected to itself does not concern any peer. But while it fails, the
// data of no get can be trusted.
void GetPush::fail(Rail& rail, const char* what, bool is_final) {
  const int64_t now_ns = base::monotonic_ns();
  const auto& parameters = base::parameters();
  if (rail.failed_since_ns == 0) rail.failed_since_ns = rail.retry_at_ns = now_ns;
  const bool is_over = now_ns - rail.failed_since_ns >= parameters.failover_timeout_ms * base::kNsPerMs;
  if (is_final || is_over || !parameters.failover) {
    failure_ = "rail " + rail.device->name() + ":" + std::to_string(rail.device->port_number()) +
               ": cannot flush the data of a get to GPU memory: " + what;
  }
}

void GetPush::repair(Rail& rail) {
  const int64_t now_ns = base::monotonic_ns();
  if (now_ns < rail.retry_at_ns) return;
  rail.retry_at_ns = now_ns + base::parameters().rail_retry_ms * base::kNsPerMs;
  rail.pair = {};
  ask(rail);
}

// Posts one READ on each rail for all gets that are complete, whatever GPU memory of this endpoint they
// wrote.
bool GetPush::begin_batch() {
  while (released_ < held_.size() && !held_[released_].place) ++released_;
  for (size_t i = released_; i < held_.size(); ++i) {
    if (held_[i].place) rails_[held_[i].place->rail].asked = held_[i].place;
  }
  covered_ = held_.size() - released_;
  return covered_ != 0;
}

void GetPush::drop(uint32_t peer) {
  for (Held& held : held_) held.is_dropped |= held.completion.peer == peer;
}

uint32_t GetPush::release(std::span<EndpointCompletion> out) {
  if (covered_ == 0 && begin_batch()) {
    for (Rail& rail : rails_) {
      if (rail.asked && rail.failed_since_ns == 0) ask(rail);
    }
  }
  for (Rail& rail : rails_) {
    if (rail.is_under_way) look_for_silence(rail);
    if (rail.asked && !rail.is_under_way && failure_.empty()) [[unlikely]]
      repair(rail);
  }
  uint32_t filled = 0;
  for (; released_ > 0 && filled < out.size(); --released_) {
    if (!held_.front().is_dropped) out[filled++] = held_.front().completion;
    held_.pop_front();
  }
  return filled;
}

}  // namespace verbena::transport
