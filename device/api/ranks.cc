// Implements ranks.h.
#include "verbena/ranks.h"

#include <cstring>
#include <memory>
#include <vector>

#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/environment.h"
#include "bootstrap/host_domain.h"
#include "bootstrap/pair_links.h"
#include "device/api/objects.h"

using namespace verbena;
using api::guard;
using base::Outcome;
using base::Status;

struct verbena_ranks {
  bootstrap::Bootstrap bootstrap;
  base::OwnProcess process = {};
};

struct verbena_pairs {
  std::unique_ptr<bootstrap::PairLinks> links;
  uint32_t count_ranks;
  base::OwnProcess process = {};
};
static_assert(sizeof(verbena_pairs_address) == sizeof(bootstrap::PairAddress));

namespace {

base::Result<bootstrap::LaunchPlace> find_place(const verbena_ranks_options& asked) {
  bootstrap::LaunchPlace place;
  if (asked.host == nullptr) {
    auto found =
        bootstrap::read_launch_place(base::read_launcher_variable, base::parameters().bootstrap_port);
    if (!found) return found.error();
    place = std::move(*found);
  } else {
    place.host = asked.host;
    place.port = asked.port;
  }
  if (asked.count_ranks != 0) {
    place.count_ranks = asked.count_ranks;
    place.rank = asked.rank;
  }
  if (place.rank >= place.count_ranks || (place.host.empty() && place.count_ranks > 1)) {
    return base::fail(Status::kInvalidArgument,
                      "ranks: invalid options (rank %u of %u, host '%s'). The rank must be less than the "
                      "number of ranks, and the host of rank 0 must be set if there is more than one rank",
                      place.rank, place.count_ranks, place.host.c_str());
  }
  return place;
}

}  // namespace

extern "C" {

verbena_result verbena_identify_host(char* text, size_t length) {
  return guard([&]() -> Outcome {
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto host = bootstrap::identify_host(base::parameters().host_id);
    if (!host) return host.error();
    api::copy_text(std::string(host->text.data(), strnlen(host->text.data(), host->text.size())), text,
                   length);
    return {};
  });
}

verbena_result verbena_ranks_join(const verbena_ranks_options* options, verbena_ranks** ranks) {
  return guard([&]() -> Outcome {
    if (options == nullptr || ranks == nullptr)
      return base::fail(Status::kInvalidArgument, "api: options or ranks is NULL");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto found = find_place(*options);
    if (!found) return found.error();
    auto joined = bootstrap::join_at(*found, {.timeout_ms = options->timeout_ms});
    if (!joined) return joined.error();
    *ranks = new verbena_ranks{std::move(*joined)};
    return {};
  });
}

uint32_t verbena_ranks_rank(const verbena_ranks* ranks) {
  return ranks->bootstrap.rank();
}
uint32_t verbena_ranks_count(const verbena_ranks* ranks) {
  return ranks->bootstrap.count_ranks();
}

verbena_result verbena_ranks_all_gather(verbena_ranks* ranks, const void* mine, void* all,
                                        size_t bytes_each) {
  return guard(ranks->process, [&] {
    const std::span given(static_cast<const std::byte*>(mine), bytes_each);
    return ranks->bootstrap.all_gather(
        given, std::span(static_cast<std::byte*>(all), bytes_each * ranks->bootstrap.count_ranks()));
  });
}

verbena_result verbena_ranks_barrier(verbena_ranks* ranks) {
  return guard(ranks->process, [&] { return ranks->bootstrap.barrier(); });
}

void verbena_ranks_leave(verbena_ranks* ranks) {
  if (ranks != nullptr && ranks->process.is_here()) delete ranks;
}

verbena_result verbena_pairs_open(uint32_t rank, uint32_t count_ranks, const char* address,
                                  verbena_pairs** pairs) {
  return guard([&]() -> Outcome {
    if (pairs == nullptr) return base::fail(Status::kInvalidArgument, "api: pairs is NULL");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto at = api::read_address(address);
    if (!at) return at.error();
    auto opened = bootstrap::PairLinks::open(rank, count_ranks, *at);
    if (!opened) return opened.error();
    *pairs = new verbena_pairs{std::move(*opened), count_ranks};
    return {};
  });
}

verbena_result verbena_pairs_get_address(const verbena_pairs* pairs, verbena_pairs_address* address) {
  return guard(pairs->process, [&]() -> Outcome {
    std::memcpy(address->bytes, &pairs->links->address(), sizeof(address->bytes));
    return {};
  });
}

verbena_result verbena_pairs_connect(verbena_pairs* pairs, const verbena_pairs_address* all) {
  return guard(pairs->process, [&] {
    std::vector<bootstrap::PairAddress> known(pairs->count_ranks);
    std::memcpy(static_cast<void*>(known.data()), all, known.size() * sizeof(known[0]));
    return pairs->links->learn(known);
  });
}

verbena_result verbena_pairs_send(verbena_pairs* pairs, uint32_t to, uint64_t tag, const void* data,
                                  size_t length, int64_t timeout_ms) {
  return guard(pairs->process, [&] {
    return pairs->links->send(to, tag, {static_cast<const std::byte*>(data), length}, timeout_ms);
  });
}

verbena_result verbena_pairs_receive(verbena_pairs* pairs, uint32_t from, uint64_t tag, int64_t timeout_ms,
                                     verbena_pairs_message* message) {
  return guard(pairs->process, [&]() -> Outcome {
    auto received = pairs->links->receive(from, tag, timeout_ms);
    if (!received) return received.error();
    auto* const kept = new std::vector<std::byte>(std::move(*received));
    *message = {kept->data(), kept->size(), kept};
    return {};
  });
}

void verbena_pairs_release(verbena_pairs_message* message) {
  delete static_cast<std::vector<std::byte>*>(message->owner);
  *message = {};
}

void verbena_pairs_close(verbena_pairs* pairs) {
  if (pairs != nullptr && pairs->process.is_here()) delete pairs;
}

}  // extern "C"
