// Which entry of a port's GID table to use. Pure.
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
  // Whether an interface of this network namespace has the address: a device that containers share has the
  // addresses of all of them in its table.
  bool is_own = false;
};

enum class GidFamily : uint8_t { kAny, kIpv4, kIpv6 };

// A block of addresses, e.g. 10.1.0.0/16 or fd00:7::/32.
struct AddressRange {
  uint8_t prefix[kGidBytes] = {};  // IPv4 as IPv4-mapped IPv6
  int length_bits = 0;             // 0: everything

  bool contains(const uint8_t* gid) const;
};
// An empty text means every address. False if it is not `address/length`.
bool parse_address_range(std::string_view text, AddressRange* range);

// What the user asked for. If a table has no entry of the family or the version, its best entry is taken all
// the same; an entry outside the range is never taken.
struct GidPreference {
  GidFamily family = GidFamily::kAny;
  int roce_version = 2;
  AddressRange range;
};

inline constexpr int kNoGid = -1;

bool is_empty_gid(const uint8_t* gid);
bool is_ipv4_gid(const uint8_t* gid);  // ::ffff:a.b.c.d
// fe80::/10, and 169.254/16 as an IPv4-mapped address: not unique across interfaces.
bool is_link_local_gid(const uint8_t* gid);
// "IPv4", "global IPv6", "unique local IPv6" or "link-local": the classes that choose_gid orders by.
const char* describe_gid_kind(const uint8_t* gid);

bool has_roce_version(GidType type, int roce_version);  // an unknown type counts as either

// The best entry for RoCE: an own address first, then the right version, then the family asked for, then
// IPv4, global IPv6, unique local IPv6, link-local; the lowest index among equals. Null if there is none.
const GidEntry* choose_gid(std::span<const GidEntry> table, const GidPreference& preference);
// The best entry of the other address family with the same version, for a peer without a GID of the first
// family. Null if there is none, or only link-local ones.
const GidEntry* choose_other_gid(std::span<const GidEntry> table, const GidPreference& preference,
                                 const GidEntry& first);

// Whether both are in one subnet: for IPv4 this many leading bits are equal, for IPv6 and InfiniBand the
// first 64.
bool is_same_subnet(const uint8_t* left, const uint8_t* right, int ipv4_prefix_bits);
// e.g. 10.0.1.0/24
std::string format_subnet(const uint8_t* gid, int ipv4_prefix_bits);

// As IPv6 text, e.g. ::ffff:10.0.0.1.
std::string format_gid(const uint8_t* gid);

}  // namespace verbena::verbs
