#include "verbs/gid_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace verbena::verbs {
namespace {

constexpr uint8_t kIpv4Prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

constexpr int kMappedBits = 96;      // bits of an IPv4-mapped address before the IPv4 address
constexpr int kIpv6SubnetBits = 64;  // also for InfiniBand

bool is_unique_local(const uint8_t* gid) {
  return (gid[0] & 0xfe) == 0xfc;
}

bool has_prefix(const uint8_t* gid, const uint8_t* prefix, int length_bits) {
  const int whole_bytes = length_bits / 8, rest_bits = length_bits % 8;
  if (std::memcmp(gid, prefix, static_cast<size_t>(whole_bytes)) != 0) return false;
  return rest_bits == 0 || ((gid[whole_bytes] ^ prefix[whole_bytes]) >> (8 - rest_bits)) == 0;
}

int count_subnet_bits(const uint8_t* gid, int ipv4_prefix_bits) {
  return is_ipv4_gid(gid) ? kMappedBits + ipv4_prefix_bits : kIpv6SubnetBits;
}

int rate_address(const uint8_t* gid) {
  if (is_link_local_gid(gid)) return 0;
  if (is_ipv4_gid(gid)) return 3;
  return is_unique_local(gid) ? 1 : 2;
}

bool is_of_family(const uint8_t* gid, GidFamily family) {
  return family == GidFamily::kAny || is_ipv4_gid(gid) == (family == GidFamily::kIpv4);
}

int rate_entry(const GidEntry& entry, const GidPreference& preference) {
  const bool is_wanted = is_of_family(entry.gid, preference.family) && !is_link_local_gid(entry.gid);
  return (entry.is_own ? 16 : 0) + (has_roce_version(entry.type, preference.roce_version) ? 8 : 0) +
         (is_wanted ? 4 : 0) + rate_address(entry.gid);
}

}  // namespace

bool is_empty_gid(const uint8_t* gid) {
  return std::all_of(gid, gid + kGidBytes, [](uint8_t byte) { return byte == 0; });
}

bool is_ipv4_gid(const uint8_t* gid) {
  return std::memcmp(gid, kIpv4Prefix, sizeof(kIpv4Prefix)) == 0;
}

bool is_link_local_gid(const uint8_t* gid) {
  if (is_ipv4_gid(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

const char* describe_gid_kind(const uint8_t* gid) {
  if (is_link_local_gid(gid)) return "link-local";
  if (is_ipv4_gid(gid)) return "IPv4";
  return is_unique_local(gid) ? "unique local IPv6" : "global IPv6";
}

bool AddressRange::contains(const uint8_t* gid) const {
  return has_prefix(gid, prefix, length_bits);
}

bool parse_address_range(std::string_view text, AddressRange* range) {
  *range = {};
  if (text.empty()) return true;
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return false;
  const std::string address(text.substr(0, slash));
  const std::string_view length = text.substr(slash + 1);
  AddressRange parsed;
  const bool is_ipv4 = inet_pton(AF_INET, address.c_str(), parsed.prefix + sizeof(kIpv4Prefix)) == 1;
  if (is_ipv4) std::memcpy(parsed.prefix, kIpv4Prefix, sizeof(kIpv4Prefix));
  if (!is_ipv4 && inet_pton(AF_INET6, address.c_str(), parsed.prefix) != 1) return false;
  const auto [end, error] = std::from_chars(length.data(), length.data() + length.size(), parsed.length_bits);
  const int max_bits = is_ipv4 ? 32 : 128;
  if (error != std::errc() || end != length.data() + length.size() || parsed.length_bits < 0 ||
      parsed.length_bits > max_bits)
    return false;
  if (is_ipv4) parsed.length_bits += kMappedBits;
  *range = parsed;
  return true;
}

bool has_roce_version(GidType type, int roce_version) {
  return type == GidType::kUnknown || (type == GidType::kRoceV2) == (roce_version == 2);
}

const GidEntry* choose_gid(std::span<const GidEntry> table, const GidPreference& preference) {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table) {
    if (is_empty_gid(entry.gid) || !preference.range.contains(entry.gid)) continue;
    if (best == nullptr || rate_entry(entry, preference) > rate_entry(*best, preference)) best = &entry;
  }
  return best;
}

const GidEntry* choose_other_gid(std::span<const GidEntry> table, const GidPreference& preference,
                                 const GidEntry& first) {
  const GidEntry* best = nullptr;
  for (const GidEntry& entry : table) {
    if (is_empty_gid(entry.gid) || is_link_local_gid(entry.gid) || entry.type != first.type ||
        is_ipv4_gid(entry.gid) == is_ipv4_gid(first.gid) || !preference.range.contains(entry.gid))
      continue;
    if (best == nullptr || rate_entry(entry, preference) > rate_entry(*best, preference)) best = &entry;
  }
  return best;
}

bool is_same_subnet(const uint8_t* left, const uint8_t* right, int ipv4_prefix_bits) {
  return is_ipv4_gid(left) == is_ipv4_gid(right) &&
         has_prefix(left, right, count_subnet_bits(right, ipv4_prefix_bits));
}

std::string format_subnet(const uint8_t* gid, int ipv4_prefix_bits) {
  uint8_t masked[kGidBytes];
  const int bits = count_subnet_bits(gid, ipv4_prefix_bits);
  for (int i = 0; i < static_cast<int>(kGidBytes); ++i) {
    const int kept_bits = std::clamp(bits - 8 * i, 0, 8);
    masked[i] = static_cast<uint8_t>(gid[i] & (0xff00 >> kept_bits));
  }
  if (!is_ipv4_gid(gid)) return format_gid(masked) + "/" + std::to_string(bits);
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, masked + sizeof(kIpv4Prefix), text, sizeof(text));
  return std::string(text) + "/" + std::to_string(ipv4_prefix_bits);
}

std::string format_gid(const uint8_t* gid) {
  char text[INET6_ADDRSTRLEN] = "";
  inet_ntop(AF_INET6, gid, text, sizeof(text));
  return text;
}

}  // namespace verbena::verbs
