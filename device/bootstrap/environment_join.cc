#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/log.h"
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
base::Result<base::SocketAddress> resolve(const LaunchPlace& place) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(place.host.c_str(), nullptr, &hints, &list);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(rc == 0 ? list : nullptr, &freeaddrinfo);
  for (const addrinfo* entry = owner.get(); entry != nullptr; entry = entry->ai_next) {
    if (auto address = base::from_system(entry->ai_addr)) {
      address->port = place.port;
      return *address;
    }
  }
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

}  // namespace

base::Result<Bootstrap> join_at(const LaunchPlace& place, const BootstrapOptions& options) {
  if (place.count_ranks == 1) {
    const auto copy = [](void*, const void* mine, void* all, size_t bytes_each) {
      std::memcpy(all, mine, bytes_each);
      return 0;
    };
    return Bootstrap::from_all_gather(copy, nullptr, 0, 1);
  }
  const auto address = resolve(place);
  if (!address) return address.error();
  Meeting meeting{*address, derive_nonce(place)};
  BootstrapOptions patient = options;
  if (patient.timeout_ms <= 0) patient.timeout_ms = base::parameters().bootstrap_timeout_ms;
  patient.patience = Patience::kUntilDeadline;
  std::unique_ptr<Rendezvous> rendezvous;  // gone when all have joined: the port is free for the next
  if (place.rank == 0) {
    auto opened = Rendezvous::open({make_wildcard(*address), meeting.nonce}, patient.timeout_ms);
    if (!opened) {
      return base::fail(
          opened.error().status,
          "bootstrap: environment: rank 0 cannot await the others at port %u: choose another one with "
          "VERBENA_BOOTSTRAP_PORT, the same for every rank",
          unsigned{place.port});
    }
    rendezvous = std::move(*opened);
    meeting.address = make_loopback(*address);
  }
  return Bootstrap::join(meeting, place.rank, place.count_ranks, patient);
}

base::Result<Bootstrap> join_from_environment(const BootstrapOptions& options) {
  const auto place = read_launch_place(base::read_launcher_variable, base::parameters().bootstrap_port);
  if (!place) return place.error();
  return join_at(*place, options);
}

}  // namespace verbena::bootstrap
