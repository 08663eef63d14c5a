// Which entry of a port's GID table to use. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace verbena::verbs {

inline constexpr size_t kGidBytes = 16;

enum class GidType : uint8_t { kUnknown, kInfiniBandOrRoceV1, kRoceV2 };

struct GidEntry {
  int index;
  uint8_t gid[kGidBytes];
  GidType type;
};

// What the user asked for; a table without such an entry still gives its best one.
struct GidPreference {
  bool is_ipv6 = false;
  int roce_version = 2;
};

inline constexpr int kNoGid = -1;

bool is_empty_gid(const uint8_t* gid);
bool is_ipv4_gid(const uint8_t* gid);  // ::ffff:a.b.c.d
// fe80::/10, and 169.254/16 as an IPv4-mapped address: not unique across interfaces.
bool is_link_local_gid(const uint8_t* gid);

// The index of the best entry for RoCE: right version first, then not link-local, then the address family;
// the lowest index among equals. kNoGid if all are empty. An unknown type counts as the right one.
int choose_gid(std::span<const GidEntry> table, const GidPreference& preference);

// As IPv6 text, e.g. ::ffff:10.0.0.1.
std::string format_gid(const uint8_t* gid);

}  // namespace verbena::verbs
