#include "device/symm/remote.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/log.h"

namespace verbena::symm {
namespace {

using base::Outcome;
using base::Status;
using bootstrap::Bootstrap;

// The endpoint has already logged the cause.
base::Error pass_on(const std::string& cause) {
  return base::fail(Status::kSystem, "symm: %s", cause.c_str());
}

// Calls step(rank) for each rank until a call fails, and returns the error of this call. The ranks include
// this rank and the ranks whose memory is mapped, because if NICs update words, they update the words of all
// ranks (symm_word.cuh).
template <typename Step>
Outcome for_all(uint32_t count_ranks, const Step& step) {
  for (uint32_t rank = 0; rank < count_ranks; ++rank) {
    std::string cause;
    if (!step(rank, &cause)) return pass_on(cause);
  }
  return {};
}

base::Result<std::unique_ptr<Endpoint>> open_endpoint(const EndpointOptions& options) {
  std::string cause;
  auto endpoint = Endpoint::open(options, &cause);
  if (endpoint == nullptr) return pass_on(cause);
  return endpoint;
}

base::Result<uint64_t> draw_nonce(Bootstrap& bootstrap) {
  std::random_device device;
  const auto all = bootstrap.gather(uint64_t{device()} << 32 | device());
  if (!all) return all.error();
  return all->front();
}

// Returns one rank's part of a table whose parts have the same length.
std::span<const std::byte> part_of(const std::vector<std::byte>& table, size_t part_bytes, uint32_t rank) {
  return std::span(table).subspan(rank * part_bytes, part_bytes);
}

}  // namespace

base::Result<std::unique_ptr<Remote>> Remote::open(Bootstrap& bootstrap, int gpu, AbortWord& abort) {
  const auto nonce = draw_nonce(bootstrap);
  if (!nonce) return nonce.error();
  const PutQueueShape shape = PutQueueShape::from_parameters();
  auto queues = PutQueue::create(shape);
  auto endpoint = queues ? open_endpoint({.rank = bootstrap.rank(),
                                          .count_ranks = bootstrap.count_ranks(),
                                          .nonce = *nonce,
                                          .gpu = gpu,
                                          .lanes = shape.count,
                                          .max_regions = kMaxWindows})
                         : base::Result<std::unique_ptr<Endpoint>>(queues.error());
  const Outcome opened = endpoint ? Outcome() : Outcome(endpoint.error());
  if (auto agreed = bootstrap.all_agree(opened, base::last_failure()); !agreed) return agreed.error();
  std::unique_ptr<Remote> remote(new Remote(std::move(*endpoint), std::move(*queues)));
  const auto all = bootstrap.gather(uint32_t{remote->endpoint_->has_atomics()});
  if (!all) return all.error();
  if (std::ranges::min(*all) == 0) remote->endpoint_->add_by_agents();
  if (remote->endpoint_->swaps_words()) remote->queues_.offer_swaps();
  if (auto connected = remote->connect(bootstrap); !connected) return connected.error();
  const ProxyOptions options{.rank = bootstrap.rank(), .count_ranks = bootstrap.count_ranks()};
  remote->proxy_ = std::make_unique<Proxy>(*remote->endpoint_, remote->queues_, abort, options);
  const Outcome started = remote->proxy_->start();
  if (auto agreed = bootstrap.all_agree(started, base::last_failure()); !agreed) return agreed.error();
  return remote;
}

Outcome Remote::connect(Bootstrap& bootstrap) {
  const size_t part_bytes = endpoint_->address_bytes();
  std::vector<std::byte> mine(part_bytes * bootstrap.count_ranks()), theirs(mine.size());
  const Outcome told = for_all(bootstrap.count_ranks(), [&](uint32_t rank, std::string* cause) {
    const auto address = endpoint_->local_address(rank, cause);
    if (address.size() != part_bytes) return false;
    std::copy(address.begin(), address.end(), mine.begin() + static_cast<ptrdiff_t>(rank * part_bytes));
    return true;
  });
  if (auto agreed = bootstrap.all_agree(told, base::last_failure()); !agreed) return agreed;
  if (auto exchanged = bootstrap.exchange(mine, theirs); !exchanged) return exchanged;
  const Outcome connected = for_all(bootstrap.count_ranks(), [&](uint32_t rank, std::string* cause) {
    return endpoint_->connect(rank, part_of(theirs, part_bytes, rank), cause);
  });
  return bootstrap.all_agree(connected, base::last_failure());
}

Outcome Remote::add_own(const Window& window, const base::MappedPiece& memory) {
  EndpointMemory own{.address = memory.begin(), .bytes = memory.length_bytes()};
  base::FileDescriptor dmabuf;
  if (endpoint_->wants_dmabuf()) dmabuf = memory.export_dmabuf();
  own.dmabuf_fd = dmabuf ? dmabuf.get() : -1;
  std::string cause;
  if (!endpoint_->add_region(window.region, own, &cause)) return pass_on(cause);
  return {};
}

Outcome Remote::add_window(Bootstrap& bootstrap, const Window& window, const base::MappedPiece& memory) {
  Outcome state = add_own(window, memory);
  std::vector<std::byte> mine = endpoint_->region_address(window.region);
  mine.resize(endpoint_->region_address_bytes());
  std::vector<std::byte> all(mine.size() * bootstrap.count_ranks());
  if (auto agreed = bootstrap.all_agree(state, base::last_failure()); !agreed) {
    if (state.is_ok()) endpoint_->remove_region(window.region);
    return agreed;
  }
  if (auto gathered = bootstrap.all_gather(mine, all); !gathered) return gathered;
  state = for_all(bootstrap.count_ranks(), [&](uint32_t rank, std::string* cause) {
    return endpoint_->add_remote_region(rank, window.region, part_of(all, mine.size(), rank), cause);
  });
  if (state.is_ok()) state = proxy_->add_window(window.heap_offset, window.bytes, window.region);
  const bool is_in_table = state.is_ok();
  auto agreed = bootstrap.all_agree(state, base::last_failure());
  if (agreed) return agreed;
  if (is_in_table) proxy_->remove_window(window.heap_offset);
  endpoint_->remove_remote_regions(window.region);
  endpoint_->remove_region(window.region);
  return agreed;
}

void Remote::remove_window(const Window& window) {
  proxy_->remove_window(window.heap_offset);
  endpoint_->remove_remote_regions(window.region);
  endpoint_->remove_region(window.region);
}

}  // namespace verbena::symm
