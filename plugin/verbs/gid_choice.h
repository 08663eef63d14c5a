// Chooses an entry of a port's GID table. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace verbena::verbs {

inline constexpr size_t kGidBytes = 16;

enum class GidType : uint8_t { kUnknown, kInfiniBandOrRoceV1, kRoceV2 };

struct GidEntry {
  int index;
  uint8_t gid[kGidBytes];
  GidType type;
  // Whether an interface of this network namespace has the address. If containers share a device, its table
  // has the addresses of all of them.
  bool is_own = false;
};

enum class GidFamily : uint8_t { kAny, kIpv4, kIpv6 };

// A range of addresses, e.g. 10.1.0.0/16 or fd00:7::/32.
struct AddressRange {
  uint8_t prefix[kGidBytes] = {};  // IPv4 as IPv4-mapped IPv6
  int length_bits = 0;             // 0: all addresses

  bool contains(const uint8_t* gid) const;
};
// An empty text means all addresses. Returns false if the text is not of the form `address/length`.
bool parse_address_range(std::string_view text, AddressRange* range);

// The user's preferences. If a table has no entry of the family or the version, its best entry is used
// nevertheless. An entry outside the range is never used.
struct GidPreference {
  GidFamily family = GidFamily::kAny;
  int roce_version = 2;
  AddressRange range;
};

inline constexpr int kNoGid = -1;

bool is_empty_gid(const uint8_t* gid);
bool is_ipv4_gid(const uint8_t* gid);  // ::ffff:a.b.c.d
// Returns true for fe80::/10, and for 169.254/16 as an IPv4-mapped address. These addresses are not unique
// across interfaces.
bool is_link_local_gid(const uint8_t* gid);
// Returns "IPv4", "global IPv6", "unique local IPv6" or "link-local", the classes by which choose_gid sorts.
const char* describe_gid_kind(const uint8_t* gid);

bool has_roce_version(GidType type, int roce_version);  // an unknown type matches both versions

// Returns the best entry for RoCE, or null if there is none. Criteria, in this order: an address of this
// network namespace; the right version; the requested family; IPv4 before global IPv6, unique local IPv6 and
// link-local; the lowest index.
const GidEntry* choose_gid(std::span<const GidEntry> table, const GidPreference& preference);
// Returns the best entry of the other address family with the same version, for a peer without a GID of the
// first family. Returns null if there is none, or only link-local ones.
const GidEntry* choose_other_gid(std::span<const GidEntry> table, const GidPreference& preference,
                                 const GidEntry& first);

// Returns whether both GIDs are in one subnet: for IPv4, whether `ipv4_prefix_bits` leading bits are equal;
// for IPv6 and InfiniBand, whether the first 64 bits are equal.
bool is_same_subnet(const uint8_t* left, const uint8_t* right, int ipv4_prefix_bits);
// Returns a text such as 10.0.1.0/24.
std::string format_subnet(const uint8_t* gid, int ipv4_prefix_bits);

// Returns IPv6 text such as ::ffff:10.0.0.1.
std::string format_gid(const uint8_t* gid);

}  // namespace verbena::verbs
