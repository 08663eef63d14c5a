#include "device/bootstrap/host_domain.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/file_descriptor.h"
#include "base/log.h"
#include "base/parameters.h"

namespace verbena::bootstrap {
namespace {

constexpr size_t kMaxIdLetters = 32;
constexpr const char* kBootIdFile = "/proc/sys/kernel/random/boot_id";
constexpr const char* kNetworkNamespace = "/proc/self/ns/net";

// The kernel's boot id, new with each boot; the host's name if it cannot be read.
std::string read_boot_id() {
  char text[64] = {};
  const base::FileDescriptor file(open(kBootIdFile, O_RDONLY | O_CLOEXEC));
  if (file && read(file.get(), text, 36) == 36) return text;
  gethostname(text, sizeof(text) - 1);
  return text;
}

}  // namespace

base::Result<HostKey> identify_host(std::string_view configured_id) {
  if (configured_id.size() > kMaxIdLetters) {
    return base::fail(base::Status::kInvalidUsage, "bootstrap: VERBENA_HOSTID has %zu letters (at most %zu)",
                      configured_id.size(), kMaxIdLetters);
  }
  struct stat space {};
  if (stat(kNetworkNamespace, &space) != 0) {
    return base::fail_errno(base::Status::kSystem, errno, "bootstrap: cannot read the link %s",
                            kNetworkNamespace);
  }
  const std::string text =
      read_boot_id() + "/" + std::to_string(space.st_ino) + "/" + std::string(configured_id);
  HostKey key;
  std::copy_n(text.begin(), std::min(text.size(), key.text.size()), key.text.begin());
  return key;
}

base::Result<HostDomain> HostDomain::form(Bootstrap& bootstrap) {
  const auto key = identify_host(base::parameters().host_id);
  const base::Outcome found = key ? base::Outcome() : base::Outcome(key.error());
  if (auto agreed = bootstrap.all_agree(found, "VERBENA_HOSTID cannot be used"); !agreed)
    return agreed.error();
  return form(bootstrap, *key);
}

base::Result<HostDomain> HostDomain::form(Bootstrap& bootstrap, const HostKey& own) {
  const auto keys = bootstrap.gather(own);
  if (!keys) return keys.error();
  HostDomain domain;
  std::vector<HostKey> hosts;
  for (uint32_t rank = 0; rank < keys->size(); ++rank) {
    const auto known = std::find(hosts.begin(), hosts.end(), (*keys)[rank]);
    domain.host_of_.push_back(static_cast<uint32_t>(known - hosts.begin()));
    if (known == hosts.end()) hosts.push_back((*keys)[rank]);
    if (rank == bootstrap.rank()) domain.local_rank_ = static_cast<uint32_t>(domain.ranks_.size());
    if ((*keys)[rank] == own) domain.ranks_.push_back(rank);
  }
  domain.count_hosts_ = static_cast<uint32_t>(hosts.size());
  return domain;
}

}  // namespace verbena::bootstrap
