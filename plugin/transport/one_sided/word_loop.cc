#include "transport/one_sided/word_loop.h"

#include <algorithm>

#include "base/clock.h"
#include "base/parameters.h"
#include "transport/one_sided/lane.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

base::Result<std::unique_ptr<WordLoop>> WordLoop::create(std::span<verbs::Device* const> devices,
                                                         std::span<verbs::CompletionQueue> completions) {
  auto made = std::make_unique<WordLoop>();
  made->values_ = std::make_unique<std::array<uint64_t, kMaxWords>>();
  made->words_.reserve(kMaxWords);
  for (size_t r = 0; r < devices.size(); ++r) {
    auto region =
        verbs::MemoryRegion::register_memory(*devices[r], made->values_->data(), sizeof(*made->values_), {});
    if (!region && !devices[r]->has_failed()) return region.error();
    made->rails_.push_back(
        {devices[r], &completions[r], region ? std::move(*region) : verbs::MemoryRegion(), {}});
  }
  return made;
}

WordLoop::~WordLoop() {
  for (Rail& rail : rails_) rail.pair.stop();
}

uint32_t WordLoop::find_word(const LocalRegion& region, uint64_t offset) {
  // Several regions may contain the address.
  const uint64_t address = reinterpret_cast<uintptr_t>(region.address) + offset;
  const auto found = std::ranges::find(words_, address, &Word::address);
  if (found != words_.end()) return static_cast<uint32_t>(found - words_.begin());
  if (words_.size() == kMaxWords) return kMaxWords;
  Word& word = words_.emplace_back(Word{address, {}, 0, 0, nullptr});
  for (size_t r = 0; r < rails_.size(); ++r) word.keys[r] = region.registrations[r].remote_key();
  return static_cast<uint32_t>(words_.size() - 1);
}

bool WordLoop::connect(Rail& rail) const {
  const verbs::LocalAddress own = rail.device->refresh_address();
  if (own.port.link_layer == 0) return false;
  auto pair = verbs::QueuePair::create(
      *rail.device, *rail.completions,
      {.send_depth = kMaxWords,
       .operations = {.send_imm = false, .write_imm = false},
       .outstanding_reads = std::min(kMaxWords, rail.device->max_outstanding_reads()),
       .local = &own});
  if (!pair || !pair->connect(own.port, pair->address())) return false;
  rail.pair = std::move(*pair);
  return true;
}

void WordLoop::advance(uint32_t rail) {
  if (words_.empty() || phase_ == Phase::kDone) return;
  if (is_under_way_) look_for_silence(rail);
  if (is_under_way_ || !failure_.empty()) return;
  if (failed_since_ns_ != 0) {
    const int64_t now_ns = base::monotonic_ns();
    if (now_ns < retry_at_ns_) return;
    retry_at_ns_ = now_ns + base::parameters().rail_retry_ms * base::kNsPerMs;
    rails_[rail_].pair = {};
  }
  if (phase_ == Phase::kCollecting) phase_ = Phase::kReading;
  rail_ = rail;
  post();
}

// A device that has failed may never complete a request.
void WordLoop::look_for_silence(uint32_t rail) {
  const int64_t now_ns = base::monotonic_ns();
  const bool is_up = rails_[rail_].device->is_healthy();
  if (is_up || down_since_ns_ == 0) down_since_ns_ = is_up ? 0 : now_ns;
  const bool is_silent = now_ns - posted_at_ns_ >= find_device_patience_ns();
  const bool is_down = !is_up && now_ns - down_since_ns_ >= find_down_patience_ns();
  if (rail == rail_ && !is_silent && !is_down) return;
  rails_[rail_].pair = {};
  is_under_way_ = false;
  down_since_ns_ = 0;
  if (rail != rail_) return;
  fail(is_down ? "the port is down" : "the device reports no completions of the requests of this queue pair");
}

// Posts all words of the batch as one chain. Only the last request is signaled.
void WordLoop::post() {
  Rail& rail = rails_[rail_];
  if (rail.pair.number() == 0 && !connect(rail))
    return fail(
        "the plugin could not create the queue pair that connects the port to itself. An earlier line of the "
        "log says why");
  std::array<verbs::OneSidedRequest, kMaxWords> requests{};
  size_t count = 0;
  for (uint32_t i = 0; i < words_.size(); ++i) {
    const Word& word = words_[i];
    if (word.refusal != nullptr) continue;
    if (phase_ == Phase::kWriting) (*values_)[i] = word.before + word.sum;
    verbs::OneSidedRequest& request = requests[count++];
    request.opcode = phase_ == Phase::kWriting ? verbs::Opcode::kWrite : verbs::Opcode::kRead;
    request.cookie = LaneCookie{kLoopIndex, rail_, 0, i}.pack();
    request.local = &(*values_)[i];
    request.local_key = rail.region.local_key();
    request.length = sizeof(uint64_t);
    request.remote_key = word.keys[rail_];
    request.remote = word.address;
  }
  if (count == 0) {
    phase_ = Phase::kDone;
    return;
  }
  requests[count - 1].signaled = true;
  posted_at_ns_ = base::monotonic_ns();
  is_under_way_ = rail.pair.post(std::span(requests).first(count)).is_ok();
  if (!is_under_way_)
    fail("the device rejected a request on the queue pair that connects the port to itself; see dmesg");
}

void WordLoop::take_completion(uint32_t r, const verbs::Completion& completion) {
  Rail& rail = rails_[r];
  // Ignores completions of a replaced queue pair.
  if (!is_under_way_ || r != rail_ || completion.qp_number != rail.pair.number()) return;
  is_under_way_ = false;
  if (completion.error != 0) {
    const char* const what = verbs::describe_completion_error(completion.error);
    const uint32_t word = LaneCookie::parse(completion.cookie).position;
    if (!verbs::is_request_at_fault(completion.error) || word >= words_.size()) return fail(what);
    words_[word].refusal = what;
    rail.pair = {};
    return;  // the other words continue
  }
  rail.pair.retire();
  failed_since_ns_ = 0;
  if (phase_ == Phase::kWriting) {
    phase_ = Phase::kDone;
    return;
  }
  for (size_t i = 0; i < words_.size(); ++i) words_[i].before = (*values_)[i];
  phase_ = Phase::kWriting;
  post();
}

void WordLoop::fail(const char* what) {
  const int64_t now_ns = base::monotonic_ns();
  const auto& parameters = base::parameters();
  if (failed_since_ns_ == 0) failed_since_ns_ = retry_at_ns_ = now_ns;
  const bool is_over = now_ns - failed_since_ns_ >= parameters.failover_timeout_ms * base::kNsPerMs;
  if (!is_over && parameters.failover) return;
  const verbs::Device& device = *rails_[rail_].device;
  failure_ = "rail " + device.name() + ":" + std::to_string(device.port_number()) +
             ": cannot add to words in GPU memory: " + what;
}

}  // namespace verbena::transport
