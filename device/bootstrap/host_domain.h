// Which ranks share a host: those with the same kernel and the same network namespace, so that they can pass
// each other file descriptors. Different values of VERBENA_HOSTID separate ranks of one host, as if they were
// on several hosts.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "device/bootstrap/bootstrap.h"

namespace verbena::bootstrap {

// Plain text of a fixed length; equal on one host, different on two.
struct HostKey {
  std::array<char, 128> text{};

  bool operator==(const HostKey&) const = default;
};

// `configured_id` is VERBENA_HOSTID. More than 32 letters are an error, because cutting them off could make
// two hosts equal.
base::Result<HostKey> identify_host(std::string_view configured_id);

class HostDomain {
 public:
  // Collective. The first form uses the key of this host, with VERBENA_HOSTID.
  static base::Result<HostDomain> form(Bootstrap& bootstrap);
  static base::Result<HostDomain> form(Bootstrap& bootstrap, const HostKey& own);

  // The ranks of our host, ourselves among them, ascending.
  const std::vector<uint32_t>& ranks() const { return ranks_; }
  uint32_t local_rank() const { return local_rank_; }
  // By rank: the number of its host. Hosts are numbered in the order of their first ranks, so rank 0's host
  // is 0.
  const std::vector<uint32_t>& host_of() const { return host_of_; }
  uint32_t count_hosts() const { return count_hosts_; }

 private:
  std::vector<uint32_t> ranks_, host_of_;
  uint32_t local_rank_ = 0, count_hosts_ = 0;
};

}  // namespace verbena::bootstrap
