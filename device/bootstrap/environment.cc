#include "device/bootstrap/environment.h"

#include <charconv>
#include <vector>

#include "base/log.h"

namespace verbena::bootstrap {
namespace {

// MASTER_PORT is the launcher's own: its store listens there, and the few ports after it are what people give
// to their next job. Some distance away, in a step that nobody uses.
constexpr uint32_t kPortDistance = 1717;
constexpr uint32_t kLowestPort = 1024, kPorts = 65536 - kLowestPort;

struct VariableSet {
  const char* launcher;
  const char* rank;
  const char* count;
  const char* local_rank;
};
constexpr VariableSet kSets[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"},
};

std::optional<uint32_t> parse_number(const std::string& text, uint32_t most) {
  uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || value > most) return std::nullopt;
  return value;
}

constexpr base::Status kUsage = base::Status::kInvalidUsage;

base::Result<uint32_t> read_number(const VariableReader& read, const char* name, uint32_t most) {
  const std::string text = read(name);
  const auto number = parse_number(text, most);
  if (number) return *number;
  return base::fail(kUsage, "bootstrap: environment: %s is %s: no number from 0 to %u", name, text.c_str(),
                    most);
}

bool is_set(const VariableReader& read, const char* name) {
  return !read(name).empty();
}

base::Result<LaunchPlace> read_set(const VariableReader& read, const VariableSet& set) {
  for (const auto& [name, other] : {std::pair(set.rank, set.count), {set.count, set.rank}}) {
    if (is_set(read, name)) continue;
    return base::fail(kUsage, "bootstrap: environment: %s is set and %s is not (%s)", other, name,
                      set.launcher);
  }
  const auto rank = read_number(read, set.rank, kMaxRanks - 1);
  if (!rank) return rank.error();
  const auto count = read_number(read, set.count, kMaxRanks);
  if (!count) return count.error();
  LaunchPlace place;
  place.launcher = set.launcher;
  place.rank = *rank;
  place.count_ranks = *count;
  if (*rank >= *count) {
    return base::fail(kUsage, "bootstrap: environment: %s %u is not below %s %u", set.rank, *rank, set.count,
                      *count);
  }
  if (!is_set(read, set.local_rank)) return place;
  const auto local_rank = read_number(read, set.local_rank, *count - 1);
  if (!local_rank) return local_rank.error();
  place.local_rank = *local_rank;
  return place;
}

// torchrun below another launcher numbers its ranks anew; without it, two launchers that started as many
// processes started the same ones.
base::Outcome check_others(const VariableReader& read, const VariableSet& used, const LaunchPlace& place) {
  if (is_set(read, "TORCHELASTIC_RUN_ID")) return {};
  for (const VariableSet& set : kSets) {
    if (set.rank == used.rank || place.count_ranks == 1) continue;
    if (parse_number(read(set.count), kMaxRanks) != place.count_ranks) continue;
    const auto rank = parse_number(read(set.rank), kMaxRanks);
    if (!rank || rank == place.rank) continue;
    return base::fail(kUsage,
                      "bootstrap: environment: %s %u and %s %u contradict each other: both are of %u ranks",
                      used.rank, place.rank, set.rank, *rank, place.count_ranks);
  }
  return {};
}

base::Outcome read_host(const VariableReader& read, LaunchPlace& place) {
  place.host = read("MASTER_ADDR");
  if (place.host.empty() && place.launcher == std::string("Slurm")) {
    place.host = first_host_of(read("SLURM_JOB_NODELIST"));
    if (place.host.empty()) {
      return base::fail(
          kUsage, "bootstrap: environment: neither MASTER_ADDR nor SLURM_JOB_NODELIST says where rank 0 is");
    }
  }
  if (!place.host.empty()) return {};
  return base::fail(
      kUsage, "bootstrap: environment: %s gives the ranks, but MASTER_ADDR does not say where rank 0 is",
      place.launcher.c_str());
}

base::Outcome read_port(const VariableReader& read, int64_t configured_port, LaunchPlace& place) {
  if (configured_port > 0) {
    place.port = static_cast<uint16_t>(configured_port);
    return {};
  }
  const bool has_port = is_set(read, "MASTER_PORT");
  const char* source = has_port ? "MASTER_PORT" : "SLURM_JOB_ID";
  if (!has_port && (place.launcher != std::string("Slurm") || !is_set(read, source))) {
    return base::fail(
        kUsage,
        "bootstrap: environment: MASTER_ADDR is set and neither MASTER_PORT nor VERBENA_BOOTSTRAP_PORT is");
  }
  const auto base = read_number(read, source, has_port ? 65535 : ~uint32_t{0});
  if (!base) return base.error();
  const uint64_t shifted = (uint64_t{*base} + kPorts - kLowestPort + kPortDistance) % kPorts;
  place.port = static_cast<uint16_t>(kLowestPort + shifted);
  return {};
}

}  // namespace

std::string first_host_of(const std::string& slurm_list) {
  const size_t open = slurm_list.find_first_of("[,");
  if (open == std::string::npos || slurm_list[open] == ',') return slurm_list.substr(0, open);
  const size_t end = slurm_list.find_first_of("-,]", open);
  const size_t close = slurm_list.find(']', open);
  if (end == std::string::npos || close == std::string::npos) return "";
  const size_t comma = slurm_list.find(',', close);
  const size_t suffix_bytes = comma == std::string::npos ? comma : comma - close - 1;
  return slurm_list.substr(0, open) + slurm_list.substr(open + 1, end - open - 1) +
         slurm_list.substr(close + 1, suffix_bytes);
}

base::Result<LaunchPlace> read_launch_place(const VariableReader& read, int64_t configured_port) {
  for (const VariableSet& set : kSets) {
    if (!is_set(read, set.rank) && !is_set(read, set.count)) continue;
    auto place = read_set(read, set);
    if (!place) return place;
    if (auto checked = check_others(read, set, *place); !checked) return checked.error();
    if (place->count_ranks == 1) return place;
    if (auto found = read_host(read, *place); !found) return found.error();
    if (auto found = read_port(read, configured_port, *place); !found) return found.error();
    place->job = read("TORCHELASTIC_RUN_ID") + "/" + read("SLURM_JOB_ID") + "/" + read("MASTER_PORT");
    return place;
  }
  return base::fail(kUsage,
                    "bootstrap: environment: no launcher's variables: neither RANK and WORLD_SIZE, nor "
                    "OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID with its size");
}

}  // namespace verbena::bootstrap
