// Which ranks share a host: those that see the same kernel and the same network namespace, so that they can
// pass each other file descriptors. VERBENA_HOSTID tells ranks of one host apart, as if they were on several.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "bootstrap/bootstrap.h"

namespace verbena::bootstrap {

// Plain text of a fixed length; equal on one host, different on two.
struct HostKey {
  std::array<char, 128> text{};

  bool operator==(const HostKey&) const = default;
};

// `configured_id` is what VERBENA_HOSTID says; longer than 32 letters counts as an error, as cutting it would
// join hosts.
base::Result<HostKey> identify_host(std::string_view configured_id);

class HostDomain {
 public:
  // Collective. Without a key: this host's, with VERBENA_HOSTID.
  static base::Result<HostDomain> form(Bootstrap& bootstrap);
  static base::Result<HostDomain> form(Bootstrap& bootstrap, const HostKey& own);

  // The ranks of our host, ourselves among them, ascending.
  const std::vector<uint32_t>& ranks() const { return ranks_; }
  uint32_t local_rank() const { return local_rank_; }
  // Of each rank its host's number, the host of rank 0 being 0, in the order of their first ranks.
  const std::vector<uint32_t>& host_of() const { return host_of_; }
  uint32_t count_hosts() const { return count_hosts_; }

 private:
  std::vector<uint32_t> ranks_, host_of_;
  uint32_t local_rank_ = 0, count_hosts_ = 0;
};

}  // namespace verbena::bootstrap
