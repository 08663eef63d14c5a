// Limits the number of unidentified clients of a process, and chooses the client to drop when there are too
// many. A peer is unidentified for about one round trip.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>

#include "softverbs/wire/address.h"

namespace verbena::softverbs::wire {

// Returns a part of the descriptors that this process may have.
inline size_t get_descriptor_share(uint64_t part, size_t least, size_t most) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return most;
  return std::clamp<size_t>(limit.rlim_cur / part, least, most);
}

// Chooses the entry to drop: the oldest one from the address with the most entries. A flood from one address
// then only drops entries of that address. `read` returns an entry's address and its start time.
template <typename Entries, typename Read>
auto find_most_crowded(Entries& entries, Read read) {
  std::map<std::array<uint8_t, 16>, size_t> crowds;
  const auto count = [&](const ibv_gid& from) -> size_t& {
    std::array<uint8_t, 16> key{};
    memcpy(key.data(), from.raw, key.size());
    return crowds[key];
  };
  for (auto& entry : entries) ++count(read(entry).first);
  return std::min_element(entries.begin(), entries.end(), [&](auto& a, auto& b) {
    const auto [from_a, since_a] = read(a);
    const auto [from_b, since_b] = read(b);
    const size_t crowd_a = count(from_a), crowd_b = count(from_b);
    return crowd_a != crowd_b ? crowd_a > crowd_b : since_a < since_b;
  });
}

}  // namespace verbena::softverbs::wire
