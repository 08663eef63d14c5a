#include "transport/one_sided/support/group.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "base/clock.h"
#include "base/parameters.h"

namespace verbena::transport {

namespace {

constexpr size_t kPageBytes = 4096;

// The processes of a test are a softverbs job of their own. Set before the first of them is forked.
[[maybe_unused]] const int kJob = setenv("SOFTVERBS_JOB", ("test-" + std::to_string(getpid())).c_str(), 1);

std::unique_ptr<verbena::Endpoint> open(const EndpointOptions& options) {
  std::string error;
  auto endpoint = verbena::Endpoint::open(options, &error);
  if (endpoint == nullptr) throw std::runtime_error(error);
  return endpoint;
}

}  // namespace

void choose_devices() {
  setenv("VERBENA_IBVERBS_LIB", "softverbs", 0);  // unless the environment names another
  if (!base::load_parameters()) throw std::runtime_error("a setting of the test is wrong");
}

Rank::Rank(const EndpointOptions& options, size_t region_bytes)
    : options_(options),
      storage_(std::make_unique<std::byte[]>(region_bytes + kPageBytes)),
      memory_(storage_.get() + (kPageBytes - reinterpret_cast<uintptr_t>(storage_.get()) % kPageBytes)),
      bytes_(region_bytes),
      endpoint_(open(options)),
      done_(size_t{options.count_ranks} * options.lanes) {
  std::string error;
  if (!endpoint_->add_region(kRegion, {.address = memory_, .bytes = bytes_}, &error))
    throw std::runtime_error(error);
}

void Rank::poll() {
  poll_alone();
  for (Rank* other : driven_) {
    other->endpoint().ring();
    other->poll_alone();
  }
}

void Rank::poll_alone() {
  EndpointCompletion batch[7];  // no number that anything inside is a multiple of
  const uint32_t count = endpoint_->poll(batch);
  for (const EndpointCompletion& one : std::span(batch).first(count)) {
    done_[one.peer * options_.lanes + one.lane] = one.count_done;
    told_.push_back(one);
  }
  if (count == 0) sched_yield();
}

bool Rank::poll_until(const std::function<bool()>& done, int64_t patience_ms) {
  const auto deadline = base::Deadline::after_ms(patience_ms);
  do {
    endpoint_->ring();
    poll();
    if (done()) return true;
  } while (!deadline.has_passed());
  return false;
}

bool Rank::drain(uint32_t peer, uint32_t lane, int64_t patience_ms) {
  const uint64_t aim = endpoint_->count_taken(peer, lane);
  return poll_until([&] { return count_done(peer, lane) == aim; }, patience_ms);
}

bool Rank::drain(uint32_t peer) {
  bool is_done = true;
  for (uint32_t lane = 0; lane < options_.lanes; ++lane) is_done &= drain(peer, lane);
  return is_done;
}

uint64_t Rank::take_value(uint64_t cookie) {
  const auto is_it = [&](const EndpointCompletion& one) { return one.cookie == cookie; };
  const bool is_there = poll_until([&] { return std::any_of(told_.begin(), told_.end(), is_it); });
  if (!is_there) throw std::runtime_error("no completion of cookie " + std::to_string(cookie));
  const auto found = std::find_if(told_.begin(), told_.end(), is_it);
  const uint64_t value = found->value;
  told_.erase(found);
  return value;
}

void Rank::insist(const std::function<Posting()>& post) {
  Posting posting = post();
  const bool is_over = posting != Posting::kFull || poll_until([&] {
                         posting = post();
                         return posting != Posting::kFull;
                       });
  if (!is_over) throw std::runtime_error("there is never room");
  if (posting == Posting::kRefused) throw std::runtime_error("refused: " + endpoint_->refusal());
}

uint32_t Rank::count_failures(uint32_t peer) const {
  return static_cast<uint32_t>(std::count_if(
      told_.begin(), told_.end(), [&](const auto& one) { return one.peer == peer && one.has_failed; }));
}

std::vector<std::unique_ptr<Rank>> make_group(uint32_t count_ranks, EndpointOptions shape,
                                              size_t region_bytes, const std::vector<std::string>& filters) {
  choose_devices();
  std::vector<std::unique_ptr<Rank>> ranks;
  shape.count_ranks = count_ranks;
  shape.nonce = 0x5eed;
  for (shape.rank = 0; shape.rank < count_ranks; ++shape.rank) {
    if (!filters.empty()) shape.device_filter = filters[shape.rank];
    ranks.push_back(std::make_unique<Rank>(shape, region_bytes));
  }
  const bool have_atomics =
      std::ranges::all_of(ranks, [](const auto& rank) { return rank->endpoint().has_atomics(); });
  for (const auto& rank : ranks)
    if (!have_atomics) rank->endpoint().add_by_agents();
  std::string error;
  for (uint32_t i = 0; i < count_ranks; ++i) {
    for (uint32_t j = 0; j < count_ranks; ++j) ranks[i]->endpoint().local_address(j, &error);
  }
  for (uint32_t i = 0; i < count_ranks; ++i) {
    for (uint32_t j = 0; j < count_ranks; ++j) {
      const bool is_joined =
          ranks[i]->endpoint().connect(j, ranks[j]->endpoint().local_address(i, &error), &error) &&
          ranks[i]->endpoint().add_remote_region(j, kRegion, ranks[j]->endpoint().region_address(kRegion),
                                                 &error);
      if (!is_joined) throw std::runtime_error(error);
    }
  }
  return ranks;
}

void drive_together(std::vector<std::unique_ptr<Rank>>& ranks) {
  for (const auto& rank : ranks)
    for (const auto& other : ranks)
      if (other != rank) rank->drive(*other);
}

std::byte pattern(uint64_t seed, size_t i) {
  return static_cast<std::byte>((seed * 0x9e3779b97f4a7c15 + i * 0x2545f4914f6cdd1d) >> 32);
}

void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = pattern(seed, i);
}

bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != pattern(seed, i)) return false;
  }
  return true;
}

}  // namespace verbena::transport
