// Endpoints of one process that all know each other, each with a region of host memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verbena/endpoint.h"

namespace verbena::transport {

inline constexpr uint32_t kRegion = 3;  // the id of each rank's region

// One rank: endpoint, memory, and what its completions have told so far.
class Rank {
 public:
  Rank(const EndpointOptions& options, size_t region_bytes);

  verbena::Endpoint& endpoint() { return *endpoint_; }
  std::span<std::byte> memory() { return {memory_, bytes_}; }
  std::byte* at(size_t offset) { return memory_ + offset; }
  std::atomic_ref<uint64_t> word(size_t offset) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at(offset)));
  }
  uint32_t rank() const { return options_.rank; }

  // Polls once into the records below, and those that this rank drives.
  void poll();
  // The caller's thread drives that rank, too, whenever it polls this one: agents add in poll().
  void drive(Rank& other) { driven_.push_back(&other); }
  // Rings and polls until then; false after the patience: far more than anything here takes.
  static constexpr int64_t kPatienceMs = 120'000;
  bool poll_until(const std::function<bool()>& done, int64_t patience_ms = kPatienceMs);
  // Until everything that was taken for this lane, or for all lanes of the peer, is complete.
  bool drain(uint32_t peer, uint32_t lane, int64_t patience_ms = kPatienceMs);
  bool drain(uint32_t peer);
  // Until the completion of this cookie is there; its value. Throws after the patience.
  uint64_t take_value(uint64_t cookie);
  // Until kTaken, polling while there is no room; throws if it is refused.
  void insist(const std::function<Posting()>& post);

  uint64_t count_done(uint32_t peer, uint32_t lane) const { return done_[peer * options_.lanes + lane]; }
  std::vector<EndpointCompletion>& told() { return told_; }  // all, in order
  uint32_t count_failures(uint32_t peer) const;

 private:
  void poll_alone();

  EndpointOptions options_;
  std::unique_ptr<std::byte[]> storage_;
  std::byte* memory_;  // page aligned, in storage_
  size_t bytes_;
  std::unique_ptr<verbena::Endpoint> endpoint_;
  std::vector<uint64_t> done_;
  std::vector<EndpointCompletion> told_;
  std::vector<Rank*> driven_;
};

// Chooses softverbs, unless VERBENA_IBVERBS_LIB is set, and reads the parameters; in every process first.
void choose_devices();

// `shape` but for rank and number of ranks; `filters`: the devices of each rank, if they are not the same.
std::vector<std::unique_ptr<Rank>> make_group(uint32_t count_ranks, EndpointOptions shape = {},
                                              size_t region_bytes = 4 << 20,
                                              const std::vector<std::string>& filters = {});

// One thread drives all ranks, whichever of them it polls.
void drive_together(std::vector<std::unique_ptr<Rank>>& ranks);

std::byte pattern(uint64_t seed, size_t i);
void fill(std::span<std::byte> bytes, uint64_t seed);
bool holds(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace verbena::transport
