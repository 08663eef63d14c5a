#include "bootstrap/environment.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>
#include <memory>
#include <vector>

#include "base/job_key.h"
#include "base/log.h"
#include "base/network_interface.h"
#include "base/parameters.h"
#include "bootstrap/rendezvous.h"

namespace verbena::bootstrap {
namespace {

// The launcher's store listens at MASTER_PORT, and users often give the next few ports to their next jobs.
// The rendezvous uses a port at this distance, which is unlikely to be in use.
constexpr uint32_t kPortDistance = 1717;
constexpr uint32_t kLowestPort = 1024, kPorts = 65536 - kLowestPort;

struct VariableSet {
  const char* launcher;
  const char* rank;
  const char* count;
  const char* local_rank;
  const char* local_count;  // ranks on this host; nullptr: not published
  const char* hosts;        // number of hosts; nullptr: not published
};
constexpr VariableSet kSets[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_STEP_NUM_NODES"},
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
  return base::fail(kUsage,
                    "bootstrap: environment: the value of %s is %s, but must be a number from 0 to %u", name,
                    text.c_str(), most);
}

bool is_set(const VariableReader& read, const char* name) {
  return !read(name).empty();
}

base::Result<LaunchPlace> read_set(const VariableReader& read, const VariableSet& set) {
  for (const auto& [name, other] : {std::pair(set.rank, set.count), {set.count, set.rank}}) {
    if (is_set(read, name)) continue;
    return base::fail(kUsage, "bootstrap: environment: %s is set but %s is not (launcher %s)", other, name,
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
    return base::fail(
        kUsage,
        "bootstrap: environment: the value of %s is %u, but must be less than the value of %s, which is %u",
        set.rank, *rank, set.count, *count);
  }
  place.is_one_host =
      (set.local_count != nullptr && parse_number(read(set.local_count), kMaxRanks) == *count) ||
      (set.hosts != nullptr && parse_number(read(set.hosts), kMaxRanks) == 1U);
  if (!is_set(read, set.local_rank)) return place;
  const auto local_rank = read_number(read, set.local_rank, *count - 1);
  if (!local_rank) return local_rank.error();
  place.local_rank = *local_rank;
  return place;
}

// torchrun below another launcher assigns new rank numbers. Otherwise, if two launchers report the same
// number of ranks, they refer to the same processes, and the ranks must agree.
base::Outcome check_others(const VariableReader& read, const VariableSet& used, const LaunchPlace& place) {
  if (is_set(read, "TORCHELASTIC_RUN_ID")) return {};
  for (const VariableSet& set : kSets) {
    if (set.rank == used.rank || place.count_ranks == 1) continue;
    if (parse_number(read(set.count), kMaxRanks) != place.count_ranks) continue;
    const auto rank = parse_number(read(set.rank), kMaxRanks);
    if (!rank || rank == place.rank) continue;
    return base::fail(
        kUsage,
        "bootstrap: environment: %s=%u and %s=%u give this process two different ranks in a job of %u ranks",
        used.rank, place.rank, set.rank, *rank, place.count_ranks);
  }
  return {};
}

base::Outcome read_host(const VariableReader& read, LaunchPlace& place) {
  place.host = read("MASTER_ADDR");
  if (place.host.empty() && place.launcher == std::string("Slurm")) {
    place.host = first_host_of(read("SLURM_JOB_NODELIST"));
    if (place.host.empty()) {
      return base::fail(kUsage,
                        "bootstrap: environment: the host of rank 0 is unknown, because neither MASTER_ADDR "
                        "nor SLURM_JOB_NODELIST is set");
    }
  }
  if (!place.host.empty()) return {};
  return base::fail(kUsage,
                    "bootstrap: environment: %s gives the rank, but MASTER_ADDR is not set. Set MASTER_ADDR "
                    "to the host of rank 0",
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
    return base::fail(kUsage,
                      "bootstrap: environment: MASTER_ADDR is set, but the port is unknown. Set MASTER_PORT "
                      "or VERBENA_BOOTSTRAP_PORT");
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
                    "bootstrap: environment: no launcher has set this process's rank (RANK, "
                    "OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID) and the number of ranks (WORLD_SIZE or "
                    "the launcher's own variable). Start the ranks with torchrun, mpirun or srun");
}

namespace {

// The nonce is not secret. It distinguishes jobs that accidentally use the same port. With a job key, the
// ranks prove that they belong to one job.
Nonce derive_nonce(const LaunchPlace& place) {
  const std::string text =
      place.job + "/" + std::to_string(place.port) + "/" + std::to_string(place.count_ranks);
  Nonce nonce;
  uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a
  for (size_t lane = 0; lane < nonce.size() / sizeof(hash); ++lane) {
    for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100'0000'01b3;
    std::memcpy(nonce.data() + lane * sizeof(hash), &hash, sizeof(hash));
  }
  return nonce;
}

// The only call here that may block, as long as the system's resolver is configured to try. A numeric address
// needs no resolver.
base::Result<std::vector<base::SocketAddress>> resolve(const LaunchPlace& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(place.host.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(rc == 0 ? list : nullptr, &freeaddrinfo);
  std::vector<base::SocketAddress> addresses;
  for (const addrinfo* entry = owner.get(); entry != nullptr; entry = entry->ai_next) {
    auto address = base::from_system(entry->ai_addr);
    if (!address) continue;
    address->port = place.port;
    addresses.push_back(*address);
  }
  if (!addresses.empty()) return addresses;
  return base::fail(base::Status::kInvalidUsage,
                    "bootstrap: environment: cannot resolve the host of rank 0, %s: %s", place.host.c_str(),
                    rc == 0 ? "no address found" : gai_strerror(rc));
}

// The wildcard address of the same family.
base::SocketAddress make_wildcard(const base::SocketAddress& address) {
  return {.family = address.family, .port = address.port};
}

bool is_of_this_host(const base::SocketAddress& address) {
  if (base::is_loopback(address)) return true;
  const auto own = base::list_interface_addresses();
  return own && std::any_of(own->begin(), own->end(), [&](const base::InterfaceAddress& one) {
           return one.address.family == address.family &&
                  std::memcmp(one.address.bytes, address.bytes, sizeof(address.bytes)) == 0;
         });
}

bool is_in_figures(const std::string& host) {
  uint8_t bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

struct Meetings {
  base::SocketAddress listens;  // rank 0
  base::SocketAddress calls;    // every rank
  bool is_loopback_only = false;
};

// Chooses the address where rank 0 listens if ranks may be on other hosts: the launcher's address, or all
// addresses if other hosts may reach rank 0 by another address. That is so if rank 0 resolves the name to a
// loopback address (Debian's 127.0.1.1, or `localhost` from an operator that gives other ranks another name),
// if the name has several addresses, or if the address is translated between the hosts.
base::SocketAddress choose_listening(const LaunchPlace& place,
                                     const std::vector<base::SocketAddress>& addresses) {
  const base::SocketAddress& first = addresses[0];
  const bool is_clear = !base::is_loopback(first) && (is_in_figures(place.host) || addresses.size() == 1);
  return is_clear && is_of_this_host(first) ? first : make_wildcard(first);
}

base::Result<Meetings> choose_meetings(const LaunchPlace& place,
                                       const std::vector<base::SocketAddress>& addresses) {
  const auto key = base::job_key();
  if (!key) return key.error();
  const base::SocketAddress& first = addresses[0];
  const base::SocketAddress loopback = base::make_loopback(first.family, place.port);
  const bool may_leave_host = *key != nullptr || base::parameters().insecure;
  if (place.is_one_host || (!may_leave_host && base::is_loopback(first)))
    return Meetings{loopback, loopback, true};
  if (!may_leave_host) {
    return base::fail(
        base::Status::kInvalidUsage,
        "bootstrap: environment: rank %u of %u: refusing to rendezvous at %s without a job key. Any process "
        "that can reach this port could join as a rank, access the ranks' memory, and run code in ranks that "
        "use Python. Do one of the following: set VERBENA_JOB_KEY_FILE, on every rank, to the path of a file "
        "with the same secret; set MASTER_ADDR=127.0.0.1 if all ranks are on this host; or set "
        "VERBENA_INSECURE=1 on a network that nobody else can reach",
        place.rank, place.count_ranks, base::describe(first).c_str());
  }
  const base::SocketAddress at = choose_listening(place, addresses);
  const bool listens_everywhere = place.rank == 0 && at == make_wildcard(at);
  return Meetings{at, listens_everywhere ? loopback : first, false};
}

// Once per process, because the remedy is always the same.
void warn_without_key(const base::SocketAddress& at) {
  static std::atomic<bool> is_said{false};
  const auto key = base::job_key();
  if (!key || *key != nullptr || is_said.exchange(true)) return;
  base::log_warn(
      "bootstrap: environment: rank 0 listens at %s without a job key. Any process that can reach this port "
      "can join as a rank, read and change the data that the ranks send to each other, and run code in ranks "
      "that exchange Python objects. To prevent this, set VERBENA_JOB_KEY_FILE, on every rank, to the path "
      "of a file with the same secret",
      base::describe(at).c_str());
}

}  // namespace

base::Result<Bootstrap> join_at(const LaunchPlace& place, const BootstrapOptions& options) {
  if (place.count_ranks == 1) {
    const auto copy = [](void*, const void* mine, void* all, size_t bytes_each) {
      std::memcpy(all, mine, bytes_each);
      return 0;
    };
    return Bootstrap::from_all_gather(copy, nullptr, 0, 1);
  }
  const auto addresses = resolve(place);
  if (!addresses) return addresses.error();
  const auto meetings = choose_meetings(place, *addresses);
  if (!meetings) return meetings.error();
  const Meeting meeting{meetings->calls, derive_nonce(place), {}};
  BootstrapOptions patient = options;
  patient.is_loopback_only = meetings->is_loopback_only;
  if (patient.timeout_ms <= 0) patient.timeout_ms = base::parameters().bootstrap_timeout_ms;
  patient.patience = Patience::kUntilDeadline;
  std::unique_ptr<Rendezvous>
      rendezvous;  // destroyed when all have joined, so that the next context can use the port
  if (place.rank == 0) {
    auto opened = Rendezvous::open({meetings->listens, meeting.nonce, {}}, patient.timeout_ms);
    if (!opened) {
      return base::fail(opened.error().status,
                        "bootstrap: environment: rank 0 cannot listen at port %u. Set VERBENA_BOOTSTRAP_PORT "
                        "to another port on every rank",
                        unsigned{place.port});
    }
    rendezvous = std::move(*opened);
    warn_without_key(meetings->listens);
  }
  return Bootstrap::join(meeting, place.rank, place.count_ranks, patient);
}

base::Result<Bootstrap> join_from_environment(const BootstrapOptions& options) {
  const auto place = read_launch_place(base::read_launcher_variable, base::parameters().bootstrap_port);
  if (!place) return place.error();
  return join_at(*place, options);
}

}  // namespace verbena::bootstrap
