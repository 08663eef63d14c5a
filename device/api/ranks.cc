// The calls of ranks.h.
#include "verbena/ranks.h"

#include <cstring>

#include "base/log.h"
#include "base/parameters.h"
#include "bootstrap/environment.h"
#include "bootstrap/host_domain.h"
#include "device/api/objects.h"

using namespace verbena;
using api::guard;
using base::Outcome;
using base::Status;

struct verbena_ranks {
  bootstrap::Bootstrap bootstrap;
  base::OwnProcess process = {};
};

namespace {

base::Result<bootstrap::LaunchPlace> find_place(const verbena_ranks_place& asked) {
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
                      "ranks: rank %u of %u at host '%s': ranks count from 0, and several need rank 0's host",
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

verbena_result verbena_ranks_join(const verbena_ranks_place* place, verbena_ranks** ranks) {
  return guard([&]() -> Outcome {
    if (place == nullptr || ranks == nullptr)
      return base::fail(Status::kInvalidArgument, "api: no place for the ranks");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto found = find_place(*place);
    if (!found) return found.error();
    auto joined = bootstrap::join_at(*found, {.timeout_ms = place->timeout_ms});
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

}  // extern "C"
