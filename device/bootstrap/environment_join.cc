#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "base/job_key.h"
#include "base/log.h"
#include "base/network_interface.h"
#include "base/parameters.h"
#include "device/bootstrap/environment.h"
#include "device/bootstrap/rendezvous.h"

namespace verbena::bootstrap {
namespace {

// Not secret: it keeps jobs apart that come to one port by mistake. With a job key that is proven besides.
Nonce derive_nonce(const LaunchPlace& place) {
  const std::string text =
      place.job + "/" + std::to_string(place.port) + "/" + std::to_string(place.count_ranks);
  Nonce nonce;
  uint64_t hash = 0xcbf2'9ce4'8422'2325;  // FNV-1a, one lane after the other
  for (size_t lane = 0; lane < nonce.size() / sizeof(hash); ++lane) {
    for (const char letter : text) hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100'0000'01b3;
    std::memcpy(nonce.data() + lane * sizeof(hash), &hash, sizeof(hash));
  }
  return nonce;
}

// The one call here that may block for as long as the system's resolver is configured to try; an address in
// figures asks nobody.
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
  return base::fail(base::Status::kInvalidUsage, "bootstrap: environment: host %s of rank 0: %s",
                    place.host.c_str(), rc == 0 ? "has no address" : gai_strerror(rc));
}

// Of the family: all addresses of this host, and the one by which it reaches itself.
base::SocketAddress make_wildcard(const base::SocketAddress& address) {
  return {.family = address.family, .port = address.port};
}
base::SocketAddress make_loopback(const base::SocketAddress& address) {
  base::SocketAddress loopback = make_wildcard(address);
  if (address.family == base::IpFamily::kV4) {
    loopback.bytes[0] = 127;
    loopback.bytes[3] = 1;
  } else {
    loopback.bytes[15] = 1;
  }
  return loopback;
}

bool is_loopback(const base::SocketAddress& address) {
  const base::SocketAddress v6 = make_loopback({.family = base::IpFamily::kV6});
  if (address.family == base::IpFamily::kV4) return address.bytes[0] == 127;
  return std::memcmp(address.bytes, v6.bytes, sizeof(v6.bytes)) == 0;
}
bool is_of_this_host(const base::SocketAddress& address) {
  if (is_loopback(address)) return true;
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

// The address that the launcher gave, and no other, where the other ranks reach rank 0 by it. A name may mean
// something else to them: a host may give itself a loopback address (127.0.1.1), or have several. And an
// address may be translated on the way. Then all addresses, as nobody can say which one they come by.
base::SocketAddress choose_listening(const LaunchPlace& place,
                                     const std::vector<base::SocketAddress>& addresses) {
  const base::SocketAddress& first = addresses[0];
  const bool is_clear = is_in_figures(place.host) || place.host == "localhost" ||
                        (addresses.size() == 1 && !is_loopback(first));
  return is_clear && is_of_this_host(first) ? first : make_wildcard(first);
}

// Once a process: what the user can do about it does not change.
void warn_without_key(const base::SocketAddress& at) {
  static std::atomic<bool> is_said{false};
  const auto key = base::job_key();
  if (!key || *key != nullptr || is_said.exchange(true)) return;
  base::log_warn(
      "bootstrap: environment: rank 0 awaits the others at %s without a key: who reaches that port may join "
      "as "
      "a rank and read what the ranks tell each other; name a file with a secret, the same for every rank, "
      "with VERBENA_JOB_KEY_FILE",
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
  Meeting meeting{(*addresses)[0], derive_nonce(place), {}};
  BootstrapOptions patient = options;
  if (patient.timeout_ms <= 0) patient.timeout_ms = base::parameters().bootstrap_timeout_ms;
  patient.patience = Patience::kUntilDeadline;
  std::unique_ptr<Rendezvous> rendezvous;  // gone when all have joined: the port is free for the next
  if (place.rank == 0) {
    const base::SocketAddress at = choose_listening(place, *addresses);
    auto opened = Rendezvous::open({at, meeting.nonce, {}}, patient.timeout_ms);
    if (!opened) {
      return base::fail(
          opened.error().status,
          "bootstrap: environment: rank 0 cannot await the others at port %u: choose another one with "
          "VERBENA_BOOTSTRAP_PORT, the same for every rank",
          unsigned{place.port});
    }
    rendezvous = std::move(*opened);
    warn_without_key(at);
    meeting.address = at == make_wildcard(at) ? make_loopback(at) : at;
  }
  return Bootstrap::join(meeting, place.rank, place.count_ranks, patient);
}

base::Result<Bootstrap> join_from_environment(const BootstrapOptions& options) {
  const auto place = read_launch_place(base::read_launcher_variable, base::parameters().bootstrap_port);
  if (!place) return place.error();
  return join_at(*place, options);
}

}  // namespace verbena::bootstrap
